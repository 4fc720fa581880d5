"""How runs end and begin: errors in a step, metrics that are no numbers, and states of runs with other settings."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import nlu
from nlu.methods.plain import Plain
from nlu.training import best
from nlu.training.resuming import load_weights
from nlu.training.step import Stepper
from tests.training.in_process import TINY, Killed, sets, train
from tests.training.runs import result
from tests.training.test_loop import state_of

EVERY_STEP = ("trainer.eval_interval=1st", "trainer.save_interval=100st")


def fails_at(call: int, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Let the pass with this number, from 1, raise an error."""
    calls, backward = [0], Plain.backward

    def failing(self: Plain, *of: Any) -> Any:
        calls[0] += 1
        if calls[0] == call:
            raise error
        return backward(self, *of)

    monkeypatch.setattr(Plain, "backward", failing)


@pytest.mark.parametrize("ahead", [0, 1])
def test_an_error_in_a_step_saves_the_step_before_which_continues_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    built = Stepper.__post_init__

    def of_device(self: Stepper) -> None:
        built(self)
        # The steps by which the device is behind the host.
        self.ahead = ahead

    options = (*TINY, *sets(tmp_path), "trainer.max_duration=6st", "trainer.eval_interval=0", "trainer.save_interval=0",
               "trainer.log_interval=6st", "resume=auto")  # fmt: skip
    with monkeypatch.context() as patched:
        patched.setattr(Stepper, "__post_init__", of_device)
        fails_at(4, patched, RuntimeError("the user's loss"))
        with pytest.raises(RuntimeError, match="the user's loss"):
            train(*options, f"hydra.run.dir={tmp_path}/broken")
    assert state_of(tmp_path / "broken")["step"] == 3
    for name in ("broken", "whole"):
        train(*options, f"hydra.run.dir={tmp_path}/{name}")
    for name in ("last/model", "last/optimizer", "best-1/model"):
        one, other = (tmp_path / run / f"checkpoints/{name}.safetensors" for run in ("broken", "whole"))
        assert one.read_bytes() == other.read_bytes(), name


def test_an_error_in_an_evaluation_repeats_it_when_the_run_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = (*TINY, *sets(tmp_path), "trainer.max_duration=4st", "trainer.eval_interval=2st", "resume=auto")
    with monkeypatch.context() as patched:
        patched.setattr(best, "log_evaluation", lambda *of: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(*options, f"hydra.run.dir={tmp_path}/broken")
    for name in ("broken", "whole"):
        train(*options, f"hydra.run.dir={tmp_path}/{name}")
    for name in ("valid.tsv", "checkpoints/best-1/model.safetensors", "checkpoints/last/model.safetensors"):
        assert (tmp_path / "broken" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def test_an_error_while_weights_change_saves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half_an_update(*of: Any) -> None:
        raise RuntimeError("the user's optimizer")

    monkeypatch.setattr("nlu.training.step.update", half_an_update)
    with pytest.raises(RuntimeError, match="the user's optimizer"):
        train(*TINY, *sets(tmp_path), "trainer.max_duration=3st", f"hydra.run.dir={tmp_path}/run")
    assert not (tmp_path / "run/checkpoints/last").exists()


def test_a_metric_that_is_never_a_number_is_said_at_once_and_leaves_the_last_weights(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only positive rows, as if nobody had looked at them before: nothing to compare the positives with.
    monkeypatch.setattr("nlu.training.build.undefined", lambda metric, part: None)
    data = sets(tmp_path)
    dev = next(Path(one.partition("=")[2]) for one in data if one.startswith("data.dev="))
    rows = [line for line in dev.read_text().splitlines() if "good" in line]
    assert 2 <= len(rows) < len(dev.read_text().splitlines())
    dev.write_text("".join(f"{line}\n" for line in rows))
    run = tmp_path / "run"
    train(*TINY, *data, *EVERY_STEP, "trainer.max_duration=3st", "trainer.major_metric=auc", f"hydra.run.dir={run}")
    said = capfd.readouterr().err
    assert said.count("auc of dev is not a number at step 1") == 1 and "was never a number" in said
    found = result(run)["best"]
    assert (found["value"], found["step"], found["checkpoint"]) == (None, 3, "checkpoints/best-1")
    assert nlu.load(run).predict(["w1 w2"]), "the last weights can be used"
    unsaved = ("trainer.major_metric=auc", "trainer.save=false", f"hydra.run.dir={tmp_path}/unsaved")
    train(*TINY, *data, "trainer.max_duration=3st", *unsaved)
    assert result(tmp_path / "unsaved")["best"]["value"] is None


def test_a_run_that_takes_over_one_with_other_metrics_keeps_none_of_its_scores(tmp_path: Path) -> None:
    other = ("method=rdrop", "trainer.major_metric=f1_macro")
    data = sets(tmp_path)
    # The window of train.tsv is open at step 3, with the terms of the first run.
    train(
        *TINY, *data, *EVERY_STEP, "trainer.max_duration=3st", "trainer.log_interval=2st", f"hydra.run.dir={tmp_path}/a"
    )
    b = tmp_path / "b"
    train(*TINY, *data, *EVERY_STEP, *other, "trainer.max_duration=5st", f"resume={tmp_path}/a", f"hydra.run.dir={b}")
    train(*TINY, *data, *EVERY_STEP, *other, "trainer.max_duration=5st", "resume=auto", f"hydra.run.dir={b}")
    found, kept = result(b)["best"], json.loads((b / "checkpoints/best-1/score.json").read_text())
    assert found["metric"] == "f1_macro"
    assert kept["value"] == found["value"] == result(b)["metrics"]["dev"][found["metric"]]
    assert math.isfinite(found["value"])


def test_the_same_command_takes_a_run_over_again_after_a_kill_behind_its_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*of: Any) -> None:
        raise Killed

    data = sets(tmp_path)
    train(*TINY, *data, "trainer.max_duration=2st", f"hydra.run.dir={tmp_path}/a")
    command = (*TINY, *data, "trainer.max_duration=4st", f"resume={tmp_path}/a")
    with monkeypatch.context() as patched:
        patched.setattr("nlu.training.single.mark_whole", die)
        with pytest.raises(Killed):
            train(*command, f"hydra.run.dir={tmp_path}/killed")
    for name in ("killed", "whole"):
        train(*command, f"hydra.run.dir={tmp_path}/{name}")
    for name in ("checkpoints/last/model.safetensors", "predictions/dev.jsonl", "valid.tsv"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def test_a_run_that_is_taken_over_at_its_end_reports_scores_by_its_own_settings(tmp_path: Path) -> None:
    from sklearn.metrics import f1_score

    data = sets(tmp_path)
    train(*TINY, *data, "trainer.max_duration=4st", f"hydra.run.dir={tmp_path}/a")
    b = tmp_path / "b"
    train(*TINY, *data, "trainer.major_metric=f1_macro", "trainer.max_duration=3st", f"resume={tmp_path}/a",
          f"hydra.run.dir={b}")  # fmt: skip
    found = result(b)
    rows = [json.loads(line) for line in (b / "predictions/dev.jsonl").read_text().splitlines()[1:]]
    value = f1_score([row["label"] for row in rows], [row["prediction"] for row in rows], average="macro")
    assert found["best"]["metric"] == "f1_macro" and found["best"]["value"] == pytest.approx(value, rel=1e-9)
    assert found["steps"] == found["best"]["step"] == 4 and found["last"] == {"dev": found["metrics"]["dev"]}


def test_a_run_continues_with_other_frozen_weights(tmp_path: Path) -> None:
    data = sets(tmp_path)
    frozen = 'optimizer.freeze=["backbone.embeddings.*"]'
    for first, second in (((frozen,), ()), ((), (frozen,))):
        name = "thawed" if first else "frozen"
        train(*TINY, *data, *first, "trainer.max_duration=2st", f"hydra.run.dir={tmp_path}/{name}-a")
        train(*TINY, *data, *second, "trainer.max_duration=4st", f"resume={tmp_path}/{name}-a",
              f"hydra.run.dir={tmp_path}/{name}-b")  # fmt: skip
        assert result(tmp_path / f"{name}-b")["steps"] == 4


def test_weights_of_another_shape_or_name_are_refused_and_nothing_is_changed() -> None:
    module = torch.nn.Linear(3, 1)
    before = module.weight.detach().clone()
    for weights in ({"weight": torch.ones(1), "bias": torch.ones(1)}, {"weight": torch.ones(1, 3)}):
        with pytest.raises(ValueError, match="shape|only one"):
            load_weights(module, weights)
        assert torch.equal(module.weight, before)
    load_weights(module, {"weight": torch.ones(1, 3), "bias": torch.zeros(1)})
    assert module(torch.ones(1, 3)).item() == 3
