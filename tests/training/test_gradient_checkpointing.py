"""model.gradient_checkpointing computes layers again in the backward pass: the same bytes with less memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from nlu.config.errors import UserError
from nlu.models.encoders.bert_layers import Layer
from nlu.models.layers import dropout
from tests.training.in_process import composed, start, train
from tests.training.kinds import KINDS, Kind, classes, few_first, transformers_model
from tests.training.test_memory import DROPOUT, bytes_of

ON = "model.gradient_checkpointing=true"
STEPS = ("trainer.max_duration=3st", "trainer.accumulation=2", "trainer.batch_size=4", "trainer.eval_interval=3st")


@contextmanager
def calls_of(kind: type[torch.nn.Module]) -> Iterator[list[bool]]:
    """Yield whether each call of a layer was in training."""
    calls: list[bool] = []
    forward = kind.forward

    def counted(layer: torch.nn.Module, *inputs: Any) -> Tensor:
        calls.append(layer.training)
        return forward(layer, *inputs)

    with mock.patch.object(kind, "forward", counted):
        yield calls


@pytest.mark.parametrize(
    "kind",
    few_first(
        {name: kind for name, kind in KINDS.items() if kind.model[0] == "model=bert_tiny"},
        "tag with a CRF", "freelb in bf16",
    ),
)  # fmt: skip
def test_a_run_has_the_same_bytes_and_computes_each_layer_twice(kind: Kind, tmp_path: Path) -> None:
    overrides = (*kind.overrides(tmp_path), *STEPS, "model.layers=2", *DROPOUT)
    counts = {}
    for run, more in (("plain", ()), ("again", (ON,))):
        with calls_of(Layer) as calls:
            train(*overrides, *more, f"hydra.run.dir={tmp_path}/{run}")
        counts[run] = calls
    assert bytes_of(tmp_path / "again") == bytes_of(tmp_path / "plain")
    trained = {run: sum(calls) for run, calls in counts.items()}
    assert trained["again"] == 2 * trained["plain"] > 0
    # Nothing is computed again where there is no backward pass.
    assert len(counts["again"]) - trained["again"] == len(counts["plain"]) - trained["plain"]


@pytest.mark.parametrize("options", [(), pytest.param(("method=freelb", "precision=bf16"), marks=pytest.mark.thorough)])
def test_a_model_of_transformers_has_the_same_bytes_too(options: tuple[str, ...], tmp_path: Path) -> None:
    kind = Kind(options, classes, transformers_model(tmp_path / "weights"))
    again = dropout.contexts
    made: list[object] = []
    for run, more in (("plain", ()), ("again", (ON,))):
        with mock.patch("nlu.models.encoders.huggingface.contexts", lambda *of: made.append(of) or again(*of)):
            train(*kind.overrides(tmp_path), *STEPS, *more, f"hydra.run.dir={tmp_path}/{run}")
        assert bool(made) == (run == "again")
    assert bytes_of(tmp_path / "again") == bytes_of(tmp_path / "plain")


def test_an_architecture_that_cannot_do_it_is_refused(tmp_path: Path) -> None:
    overrides = Kind((), classes, transformers_model(tmp_path / "weights")).overrides(tmp_path)
    from transformers import BertModel

    refused = mock.Mock(side_effect=ValueError("BertModel is not compatible with gradient checkpointing"))
    enable = next(name for name in ("activation_checkpointing_enable", "gradient_checkpointing_enable")
                  if hasattr(BertModel, name))  # fmt: skip
    with mock.patch.object(BertModel, enable, refused), pytest.raises(UserError, match="the layers of bert again"):
        start(composed(*overrides, ON), tmp_path / "run")
