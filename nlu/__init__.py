"""nlu: compose, train, evaluate and record experiments on BERT-family models."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from nlu.inference.loaded import Loaded

__version__ = "0.1.0"


def load(run: "str | Path", *, checkpoint: str = "best", device: str = "auto", batch_size: int = 64) -> "Loaded":
    """Load a trained run, to predict, score and encode in Python.

    `run` is a run, RUN/best-2, RUN/last, a checkpoint's folder, or a search, of which its best trial is taken;
    `checkpoint` is best, last, best-2 or the path of one; `device` auto, cpu or cuda. No prediction depends on
    `batch_size`. Raises nlu.config.errors.UserError where there is no such run, and what derives from it where a
    checkpoint is damaged.

        run = nlu.load("outputs/mine")
        run.predict(["a text", "another"])      # of pairs: [("a", "b")]
        run.evaluate([{"text": "a text", "label": "good"}])
        run.encode(["a text"])                  # (1, D)
    """
    from nlu.inference.loaded import Loaded

    return Loaded.of(run, checkpoint=checkpoint, device=device, batch_size=batch_size)
