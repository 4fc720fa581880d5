"""What a run folder says about its run, in any state."""

import fcntl
import json
import os
import subprocess
import sys

import pytest

from nlu.commands.report import main
from nlu.config.schema import Trainer
from nlu.reports.runs import find_runs, metric_of, read_run, saved_config
from nlu.runs.records import TRAIN_COLUMNS, VALID_COLUMNS, Table
from tests.reports.folders import begin_run, checkpoints, end_run, evaluate

FAILURE = (
    "2026-01-01T00:00:00+0000 INFO train\n2026-01-01T00:00:01+0000 ERROR Traceback (most recent call last):\n"
    '  File "x.py", line 1, in f\nValueError: boom\n'
)


def test_a_run_with_a_result_is_complete_or_pruned(tmp_path):
    complete = read_run(end_run(begin_run(tmp_path / "a"), 0.5))
    pruned = read_run(end_run(begin_run(tmp_path / "b"), 0.5, pruned=True))
    assert (complete.state, pruned.state) == ("complete", "pruned")
    assert complete.value("dev", "accuracy") == 0.5 and complete.best_step == 10 and complete.examples == 160


def test_the_examples_of_an_unfinished_run_are_those_of_its_last_row_in_either_table(tmp_path):
    folder = evaluate(begin_run(tmp_path / "a"), 0.5, 0.7)
    Table(folder / "train.tsv", TRAIN_COLUMNS).append(step=25, epoch=2.5, examples=200, loss=0.1, examples_per_s=50.0)
    assert read_run(folder).examples == 200
    Table(folder / "valid.tsv", VALID_COLUMNS).append(
        step=30, epoch=3.0, examples=240, set="dev", metric="accuracy", value=0.6
    )
    assert read_run(folder).examples == 240 and read_run(folder).best_step == 20


def test_a_run_whose_log_ends_with_a_traceback_failed_with_its_last_line(tmp_path):
    folder = begin_run(tmp_path / "a")
    (folder / "log.txt").write_text(FAILURE)
    run = read_run(folder)
    assert (run.state, run.reason) == ("failed", "ValueError: boom")
    with open(folder / "log.txt", "a") as log:
        log.write("2026-01-01T00:01:00+0000 INFO continued\n")
    assert read_run(folder).state == "unfinished"


def test_a_run_that_a_process_holds_is_running_and_reading_changes_nothing(tmp_path):
    folder = begin_run(tmp_path / "a")
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = sorted(os.listdir(folder))
        assert read_run(folder).state == "running"
        assert sorted(os.listdir(folder)) == before
    assert read_run(folder).state == "unfinished"


def test_runs_are_found_at_any_depth_once_and_in_numeric_order(tmp_path):
    for name in ("sweep/10", "sweep/9", "single", "deep/er/run"):
        end_run(begin_run(tmp_path / name), 0.5)
    checkpoints(tmp_path / "single")
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "config.yaml").write_text("a: 1\n")
    runs, unread = find_runs([tmp_path, tmp_path / "single"])
    assert [str(run.folder.relative_to(tmp_path)) for run in runs] == ["deep/er/run", "single", "sweep/9", "sweep/10"]
    assert unread == []


def test_a_job_that_failed_before_it_began_is_reported_with_its_error(tmp_path):
    (tmp_path / "3").mkdir()
    (tmp_path / "3" / "log.txt").write_text("2026-01-01T00:00:00+0000 ERROR data.train is 'x', which does not exist\n")
    runs, unread = find_runs([tmp_path])
    assert runs == [] and unread == [f"{tmp_path}/3 failed before it began: data.train is 'x', which does not exist"]


def unreadable(path):
    """A file that can be found and opened, but not read: its first page is in no memory of the reader."""
    path.unlink(missing_ok=True)
    path.symlink_to("/proc/self/mem")


@pytest.mark.parametrize("name", ["config.yaml", "result.json", "overrides", "log.txt", "train.tsv", "valid.tsv"])
@pytest.mark.parametrize("damage", ["unreadable", b"\xff\xfe 'x", b"[1, 2]\n"])
def test_any_damaged_file_of_one_run_does_not_affect_the_others(tmp_path, name, damage):
    end_run(begin_run(tmp_path / "a"), 0.5)
    folder = evaluate(begin_run(tmp_path / "b"), 0.5)
    if damage == "unreadable":
        unreadable(folder / name)
    else:
        (folder / name).write_bytes(damage)
    runs, unread = find_runs([tmp_path])
    assert runs[0].folder.name == "a"
    if len(runs) == 1:
        assert len(unread) == 1 and f"b/{name}" in unread[0]
    else:
        assert name in ("overrides", "log.txt", "train.tsv", "valid.tsv") and damage != "unreadable" and unread == []


@pytest.mark.parametrize("result", [{"best": 3}, {"metrics": {"dev": 0.5}}, {"metrics": {"dev": {"accuracy": "high"}}}])
def test_an_invalid_result_is_reported(tmp_path, result):
    folder = begin_run(tmp_path / "a")
    (folder / "result.json").write_text(json.dumps(result))
    runs, (sentence,) = find_runs([tmp_path])
    assert runs == [] and "a/result.json is not what a run writes" in sentence


def test_reading_runs_does_not_import_torch(tmp_path):
    end_run(begin_run(tmp_path / "a"), 0.5)
    code = (
        "import sys\nfrom pathlib import Path\nfrom nlu.reports.runs import find_runs\n"
        "from nlu.reports.show_table import *\n"
        f"find_runs([Path({str(tmp_path)!r})])\nassert not {{'torch', 'hydra', 'sklearn', 'optuna'}} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_keys_of_preprocessing_that_earlier_versions_wrote_are_left_out(tmp_path):
    data = {"sets": {"one": {"_target_": "nlu.data.dataset.Files", "train": "a.tsv", "parts": None, "stream": False}}}
    mixture = begin_run(tmp_path / "mixture", data={"_target_": "nlu.data.mixture.Mixture", **data})
    one = saved_config(mixture)["data"]["sets"]["one"]
    assert one["train"] == "a.tsv" and not {"parts", "stream"} & one.keys()
    assert "stream" not in saved_config(begin_run(tmp_path / "files", data__stream=False))["data"]
    corpus = {"_target_": "nlu.data.corpus.Corpus", "train": "a.txt", "stream": True}
    assert saved_config(begin_run(tmp_path / "corpus", data=corpus))["data"]["stream"]


def test_a_configuration_with_what_training_no_longer_has_is_read(tmp_path):
    earlier = begin_run(
        tmp_path / "a", trainer__kernels="compiled", trainer__devices="auto", replay=None, watch=[],
        inspect=["gradients"],
        parallel={"_target_": "nlu.training.shared.Shared"},
        precision={"_target_": "nlu.training.fp16.Fp16", "min_scale": 0.5, "master_weights": False},
    )  # fmt: skip
    config = saved_config(earlier)
    assert not {"replay", "watch", "parallel"} & config.keys() and config["inspect"] is True
    assert Trainer(**config["trainer"]).devices == 1
    assert config["precision"]["min_scale"] == 0.5 and "master_weights" not in config["precision"]


def test_an_error_of_a_task_that_nobody_trusts_here_is_better_if_lower(tmp_path):
    config = {"task._target_": "antigravity.Regress", "trainer.major_metric": "mae"}
    assert metric_of(config) == ("mae", True) and metric_of({**config, "trainer.major_metric": "r2"}) == ("r2", False)
    assert "antigravity" not in sys.modules


def test_equal_reasons_are_one_line_with_all_their_folders(tmp_path, capsys):
    stopped = "2026-01-01T00:00:02+0000 STOPPED paused by the search; the search continues it\n"
    for name, log in (("0", FAILURE), ("1", stopped), ("2", FAILURE), ("3", stopped)):
        (begin_run(tmp_path / name, optimizer__lr=int(name) + 1) / "log.txt").write_text(log)
    assert main([str(tmp_path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"failed: {tmp_path}/{{0,2}}: ValueError: boom" in shown
    assert f"stopped: {tmp_path}/{{1,3}}: paused by the search; the search continues it" in shown
