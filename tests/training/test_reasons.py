"""Why a run ended: the last record of log.txt, and what nlu.report says of it, for each kind of end."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from nlu.commands.report import main as report
from nlu.reports.runs import find_runs
from nlu.runs.logs import end_of
from tests.training.in_process import TINY, sets, train
from tests.training.runs import REPOSITORY, SAME_THREADS, run

OPTIONS = (*TINY, "trainer.max_duration=6st", "trainer.eval_interval=2st", "trainer.save_interval=2st", "resume=auto")
SECRET = "https://user:hunter2@host/a"  # noqa: S105


class End(NamedTuple):
    state: str
    reason: str
    how: Callable[[tuple[str, ...], Path, pytest.MonkeyPatch], None]


def too_high_a_rate(options: tuple[str, ...], run: Path, patched: pytest.MonkeyPatch) -> None:
    train(*options, "optimizer.lr=1e30", "trainer.clip_norm=0", status=2)


def an_error_of_a_class_of_the_user(options: tuple[str, ...], run: Path, patched: pytest.MonkeyPatch) -> None:
    raised_in_step(patched, RuntimeError(f"cannot read {SECRET}"))
    with pytest.raises(RuntimeError, match="cannot read"):
        train(*options)


def a_checkpoint_that_is_refused(options: tuple[str, ...], run: Path, patched: pytest.MonkeyPatch) -> None:
    train(*options, "trainer.stop_after=2st")
    (run / "checkpoints/last/model.safetensors").write_bytes(b"damaged")
    train(*options, status=2)


def a_signal(options: tuple[str, ...], run: Path, patched: pytest.MonkeyPatch) -> None:
    raised_in_step(patched, lambda: signal.raise_signal(signal.SIGTERM))
    train(*options, status=75)


def the_end_of_a_stage(options: tuple[str, ...], run: Path, patched: pytest.MonkeyPatch) -> None:
    train(*options, "trainer.stop_after=2st")


def raised_in_step(patched: pytest.MonkeyPatch, what: Exception | Callable[[], object], call: int = 4) -> None:
    """Raise an error in backward passes from `call` on, or call something in that one."""
    from nlu.methods.plain import Plain

    calls, backward = [0], Plain.backward

    def failing(self: Plain, *of: object) -> object:
        calls[0] += 1
        if calls[0] >= call and isinstance(what, Exception):
            raise what
        if calls[0] == call and not isinstance(what, Exception):
            what()
        return backward(self, *of)  # type: ignore[arg-type]

    patched.setattr(Plain, "backward", failing)


CONTINUES = r"the command with hydra.run.dir=\S+ resume=auto continues"
ENDS = [
    End("failed", r"the (loss|gradient norm) is (nan|inf) at step \d.*lower optimizer.lr", too_high_a_rate),
    End("failed", r"RuntimeError: cannot read https://\*\*\*@host/a", an_error_of_a_class_of_the_user),
    End("failed", r".*checkpoints/last cannot be continued from", a_checkpoint_that_is_refused),
    End("stopped", rf"stopped by SIGTERM; {CONTINUES}", a_signal),
    End("stopped", rf"unfinished; {CONTINUES}, without trainer.stop_after", the_end_of_a_stage),
]  # fmt: skip


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.how.__name__)
def test_the_reason_of_an_end_is_the_last_record_and_in_the_report(
    end: End, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    with monkeypatch.context() as patched:
        end.how((*OPTIONS, *sets(tmp_path), f"hydra.run.dir={run}"), run, patched)
    assert_ended(run, run, end.state, end.reason)
    capsys.readouterr()
    report([str(run)])
    shown = "".join(capsys.readouterr().out.split())
    found = end_of(run)
    assert found is not None and f"{end.state}:{run}:{''.join(found.reason.split())}" in shown
    assert re.match(end.reason, found.reason, re.DOTALL)


def assert_ended(run: Path, log_of: Path, state: str, reason: str) -> None:
    """Assert the state and reason of a run, and that the log in a folder ends with the reason, written once."""
    text = (log_of / "log.txt").read_text()
    found = end_of(log_of)
    assert found is not None and re.match(reason, found.reason, re.DOTALL), text
    assert text.count(found.reason) == 1, text
    assert "hunter2" not in text
    (record,), unread = find_runs([run])
    assert (record.state, record.reason, unread) == (state, found.reason, [])


def test_a_run_that_continues_after_its_end_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = (*OPTIONS, *sets(tmp_path), f"hydra.run.dir={tmp_path}/run")
    with monkeypatch.context() as patched:
        a_signal(options, tmp_path / "run", patched)
    train(*options)
    (record,), _ = find_runs([tmp_path / "run"])
    assert (record.state, record.reason) == ("complete", None) and end_of(tmp_path / "run") is None


def test_a_fold_that_ends_early_says_why_in_its_log_and_the_whole_run_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = (*OPTIONS, *sets(tmp_path), "folds.count=2", "data.dev=null", f"hydra.run.dir={tmp_path}/run")
    with monkeypatch.context() as patched:
        raised_in_step(patched, RuntimeError("odd"), call=9)
        with pytest.raises(RuntimeError, match="odd"):
            train(*options)
    assert_ended(tmp_path / "run/fold-1", tmp_path / "run/fold-1", "failed", "RuntimeError: odd")
    whole = end_of(tmp_path / "run")
    assert whole is not None and whole.reason.startswith("RuntimeError: odd")
    runs, unread = find_runs([tmp_path])
    assert [run.state for run in runs] == ["complete", "failed"] and unread == []


@pytest.mark.thorough
def test_a_rank_that_is_killed_is_the_reason_of_its_run(tmp_path: Path) -> None:
    run, rank = tmp_path / "run", 1
    options = (*OPTIONS, *sets(tmp_path), "trainer.max_duration=100000st", "trainer.devices=2", f"hydra.run.dir={run}")
    started = [sys.executable, "-m", "nlu.train", *options]
    with subprocess.Popen(started, cwd=REPOSITORY, env=SAME_THREADS, stderr=subprocess.DEVNULL) as process:
        until(lambda: (run / "checkpoints/last/COMPLETE").exists())
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        workers = [one for one in children if b"spawn_main" in Path(f"/proc/{one}/cmdline").read_bytes()]
        os.kill(int(workers[rank]), signal.SIGKILL)
        assert process.wait(60) not in (0, 75)
    assert_ended(
        run, run, "failed", rf"rank {rank} \(process {workers[rank]}\) was ended by SIGKILL, as when the machine"
    )


def until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_a_job_of_a_grid_that_fails_before_it_begins_is_in_the_report(tmp_path: Path) -> None:
    (tmp_path / "bad.tsv").write_text("no label\n")
    data = [f"{one},{tmp_path}/bad.tsv" if one.startswith("data.train=") else one for one in sets(tmp_path)]
    grid = ("--multirun", "hydra/launcher=local", f"hydra.sweep.dir={tmp_path}/grid", *data)
    run(*grid, *TINY, "trainer.max_duration=2st", status=2)
    runs, (sentence,) = find_runs([tmp_path / "grid"])
    assert [run.folder.name for run in runs] == ["0"]
    assert sentence.startswith(f"{tmp_path}/grid/1 failed before it began: ") and "bad.tsv:1" in sentence
    # Once the data are right, the same command begins that job.
    (tmp_path / "bad.tsv").write_text((tmp_path / "train.tsv").read_text())
    run(*grid, *TINY, "trainer.max_duration=2st", "resume=auto")
    assert [run.state for run in find_runs([tmp_path / "grid"])[0]] == ["complete"] * 2
