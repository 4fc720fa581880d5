"""`inspect`: norms of gradients, weights and updates by module, compared with numbers of saved states."""

from pathlib import Path

import numpy as np
import pytest

from nlu.runs.records import read_rows
from nlu.tracking.tracker import past_points
from tests.training.in_process import (
    TINY,
    column,
    composed,
    killed_in_backward,
    sets,
    start,
    tensors,
    train,
)
from tests.training.kinds import KINDS

EVERY_ROW = ("trainer.batch_size=27", "trainer.clip_norm=0", "optimizer.betas=[0.5,0.999]", "trainer.ema_decay=0")


def table(run_dir: Path, step: int = 1) -> dict[str, dict[str, float]]:
    """Return the norms of a step by module."""
    rows = [row for row in read_rows(run_dir / "inspect.tsv") if row["step"] == step]
    return {row["name"]: {key: row[key] for key in ("gradient", "weights", "update")} for row in rows}


def by_module(values: dict[str, np.ndarray]) -> dict[str, float]:
    """Return the Euclidean norm of the values of each module's parameters."""
    squares: dict[str, float] = {}
    for name, value in values.items():
        module = name.rpartition(".")[0]
        squares[module] = squares.get(module, 0.0) + float((value**2).sum())
    return {name: value**0.5 for name, value in squares.items()}


def test_norms_are_those_of_the_saved_state(tmp_path: Path) -> None:
    common = (*TINY, *sets(tmp_path), *EVERY_ROW, "inspect=true")
    for steps in (1, 2):
        train(*common, f"trainer.max_duration={steps}st", f"hydra.run.dir={tmp_path / str(steps)}")
    # The first moment after a step is half of its gradient.
    state = tensors(tmp_path / "1", "last/optimizer")
    moments = {name.partition(":")[2]: 2 * value for name, value in state.items() if name.startswith("exp_avg:")}
    first, second = table(tmp_path / "1"), table(tmp_path / "2", 2)
    gradients = by_module(moments)
    assert {name: first[name]["gradient"] for name in gradients} == pytest.approx(gradients, rel=1e-5)
    before, after = (tensors(tmp_path / name, "last/model") for name in ("1", "2"))
    weights, changes = (
        by_module({name: value[name] for name in moments})
        for value in (before, {name: after[name] - before[name] for name in moments})
    )
    assert {name: second[name]["weights"] for name in weights} == pytest.approx(weights, rel=1e-5)
    # The weights are saved in single precision, a change of them has fewer digits.
    assert {name: second[name]["update"] for name in weights} == pytest.approx(changes, rel=1e-3)
    total = sum(values["gradient"] ** 2 for values in second.values()) ** 0.5
    assert total == pytest.approx(column(tmp_path / "2", "gnorm")[1], rel=1e-5)


@pytest.mark.parametrize("name", ["LoRA", "fgm"])
def test_a_run_that_is_inspected_has_the_same_bytes(name: str, tmp_path: Path) -> None:
    common = (
        *KINDS[name].overrides(tmp_path),
        "trainer.accumulation=2",
        "trainer.batch_size=4",
        "trainer.max_duration=2st",
    )
    start(composed(*common), tmp_path / "plain")
    start(composed(*common, "inspect=true"), tmp_path / "run")
    for path in ("checkpoints/last/model.safetensors", "checkpoints/last/optimizer.safetensors", "valid.tsv"):
        assert (tmp_path / "run" / path).read_bytes() == (tmp_path / "plain" / path).read_bytes(), path
    total = sum(values["gradient"] ** 2 for values in table(tmp_path / "run", 2).values()) ** 0.5
    assert total == pytest.approx(column(tmp_path / "run", "gnorm")[1], rel=1e-5)


def test_a_killed_run_writes_the_rows_of_an_uninterrupted_one(tmp_path: Path) -> None:
    common = (*TINY, *sets(tmp_path), "inspect=true", "trainer.log_interval=2st", "trainer.max_duration=6st",
              "trainer.save_interval=3st", "trainer.eval_interval=0")  # fmt: skip
    train(*common, f"hydra.run.dir={tmp_path / 'whole'}")
    with killed_in_backward(5):
        train(*common, f"hydra.run.dir={tmp_path / 'killed'}")
    train(*common, "resume=auto", f"hydra.run.dir={tmp_path / 'killed'}")
    assert {row["step"] for row in read_rows(tmp_path / "whole/inspect.tsv")} == {2, 4, 6}
    assert (tmp_path / "killed/inspect.tsv").read_bytes() == (tmp_path / "whole/inspect.tsv").read_bytes()
    # A tracker that a continued run has got receives them too.
    points = {point.step: point.values for point in past_points(tmp_path / "whole", 4)}
    row = table(tmp_path / "whole", 4)["head.linear"]
    assert {name: points[4][f"inspect/{name}/head.linear"] for name in row} == row
