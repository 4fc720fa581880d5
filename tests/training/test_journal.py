"""What a run tells beside its two tables: what its model recorded, and everything to its tracker."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from nlu.methods.plain import Plain
from nlu.runs.records import read_rows
from tests.training.in_process import MODEL, NO_DROPOUT, PLAIN, killed_in_backward, sets, train

MINE = '''
"""A model that records, and trackers."""

import json
from pathlib import Path

from nlu.models.encoders.bert import Bert
from nlu.runs import summary


class Watched(Bert):
    def encode(self, x_TD, batch, **wanted):
        summary.scalar("tokens", len(batch.tokens_T))
        summary.scalar("size", x_TD.mean())
        return super().encode(x_TD, batch, **wanted)


class Told:
    def __init__(self):
        pass

    def write(self, *said):
        with open(self.path, "a") as file:
            file.write(json.dumps(said) + "\\n")

    def start(self, beginning):
        self.path = beginning.folder.parent / "told.jsonl"
        self.write("start", beginning.step, beginning.name, beginning.config["optimizer.lr"])
        for point in beginning.past():
            self.write("past", point.step, sorted(point.values))

    def log(self, point):
        self.write("log", point.step, sorted(point.values))

    def flush(self):
        self.write("flush")

    def end(self, outcome, results):
        self.write("end", outcome, dict(results))


class Absent(Told):
    packages = {"no_such_package": "no-such-package"}
    extra = "no-such"
'''
ENDLESS = ("trainer.max_duration=9st", "trainer.eval_interval=5st", "trainer.save_interval=3st")
EVERY_FOUR = ("trainer.log_interval=4st", "trainer.accumulation=2", "trainer.batch_size=4")


@pytest.fixture(scope="module", autouse=True)
def package(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("package")
    (folder / "watched.py").write_text(MINE)
    (folder / "my/tracker").mkdir(parents=True)
    for name in ("Told", "Absent"):
        (folder / f"my/tracker/{name.lower()}.yaml").write_text(f"_target_: watched.{name}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder


def run_of(folder: Path, name: str, *overrides: str, status: int = 0) -> Path:
    """Train the recording model, for 9 steps of 8 examples unless told otherwise."""
    common = (*MODEL, *NO_DROPOUT, *PLAIN[:2], *ENDLESS, *EVERY_FOUR, *sets(folder), "trusted_packages=[watched]")
    watched = () if "model=bert_tiny" in overrides else ("model._target_=watched.Watched",)
    train(*common, *watched, *overrides, f"hydra.run.dir={folder / name}", status=status)
    return folder / name


def weights_of(run_dir: Path) -> bytes:
    return (run_dir / "checkpoints/last/model.safetensors").read_bytes()


def test_each_call_of_a_step_counts_alike_and_no_weight_changes(tmp_path: Path) -> None:
    run_dir, other = run_of(tmp_path, "run"), run_of(tmp_path, "other", "model=bert_tiny")
    rows = [row for row in read_rows(run_dir / "scalars.tsv") if row["name"] == "tokens"]
    # 27 rows make 3 steps of 8 and one of 3 in an epoch; scored rows are none of them.
    assert [(row["step"], row["calls"]) for row in rows] == [(4, 7), (8, 7), (9, 2)]
    of_epoch = sum(len(line.split("\t")[0].split()) + 2 for line in (tmp_path / "train.tsv").read_text().splitlines())
    assert [row["value"] for row in rows[:2]] == [pytest.approx(of_epoch / 7)] * 2
    assert weights_of(run_dir) == weights_of(other)
    assert not (other / "scalars.tsv").exists()


def test_a_killed_run_continues_to_the_same_records(tmp_path: Path) -> None:
    whole = run_of(tmp_path, "whole")
    with killed_in_backward(9):
        run_of(tmp_path, "killed")
    killed = run_of(tmp_path, "killed", "resume=auto")
    for name in ("scalars.tsv", "valid.tsv"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes()
    assert weights_of(killed) == weights_of(whole)


def told(run_dir: Path) -> list[list]:
    return [yaml.safe_load(line) for line in (run_dir / "told.jsonl").read_text().splitlines()]


def test_a_tracker_gets_each_step_once_and_the_outcome(tmp_path: Path, package: Path) -> None:
    run_dir = run_of(tmp_path, "run", f"--config-dir={package}/my", "tracker=told", "optimizer.lr=1e-3")
    said = told(run_dir)
    assert said[0] == ["start", 0, "run", 0.001]
    logged = {step: values for _, step, values in (one for one in said if one[0] == "log")}
    assert list(logged) == [4, 5, 8, 9]
    assert {"train/loss", "train/lr", "summary/tokens", "summary/size"} <= set(logged[4])
    assert "dev/accuracy" in logged[5] and "train/loss" not in logged[5]
    assert {"train/loss", "dev/accuracy"} <= set(logged[9])
    kinds = [one[0] for one in said if one[0] in ("log", "flush")]
    # Steps 3, 6 and 9 save a state, and step 5 with its best score; what was logged before is handed over first.
    assert kinds == ["flush", "log", "log", "flush", "flush", "log", "log", "flush"]
    assert said[-1][:2] == ["end", "finished"] and "best/dev/accuracy" in said[-1][2]


def test_a_tracker_whose_package_is_missing_is_named_with_what_installs_it(
    tmp_path: Path, package: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run_dir = run_of(tmp_path, "run", f"--config-dir={package}/my", "tracker=absent", status=2)
    said = capfd.readouterr().err
    assert "which needs no_such_package, and that is not installed here" in said
    assert "pip install 'nlu[no-such]', or pip install no-such-package" in said
    assert not run_dir.exists()


def test_what_the_passes_of_a_step_that_fails_recorded_is_recorded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, backward = [0], Plain.backward

    def failing(self: Plain, *of: Any) -> Any:
        found = backward(self, *of)
        calls[0] += 1
        # In the second micro-batch of step 3, after both have recorded.
        assert calls[0] != 6, "the user's loss"
        return found

    steps = ("trainer.max_duration=5st", "resume=auto")
    with monkeypatch.context() as patched:
        patched.setattr(Plain, "backward", failing)
        with pytest.raises(AssertionError, match="the user's loss"):
            run_of(tmp_path, "broken", *steps)
    broken, whole = (run_of(tmp_path, name, *steps) for name in ("broken", "whole"))
    assert (broken / "scalars.tsv").read_bytes() == (whole / "scalars.tsv").read_bytes()
