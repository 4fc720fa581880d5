"""Users get messages and exit code 2, bugs keep their traceback, and starting costs no heavy import."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig

import nlu
from nlu.config.entry import app
from nlu.config.entry.app import prepare, run_app
from nlu.config.errors import UserError
from nlu.storage.pointer import MirrorUnavailable

SCHEMA = "shop.schema.Job"
VALID = ["task=classify", "name=fine"]
HEAVY = ("torch", "transformers", "numpy", "sklearn", "rich")


def task(config: DictConfig) -> Any:
    """Behave as the configuration's name says."""
    failures = {
        "one": UserError("one problem"),
        "two": UserError("first", "second", "first"),
        "rows": UserError("row 1", "row 2", remedy="correct these rows"),
        "row": UserError("row 1", remedy="correct this row"),
        "space": UserError("a there, b here", summary="another space", remedy="write the same"),
        "bug": RuntimeError("a bug"),
        "value": ValueError("a bug --too"),
        "full": OSError(errno.ENOSPC, "No space left on device", "runs/weights.bin"),
        "sealed": OSError(errno.EROFS, "Read-only file system", "runs/weights.bin"),
        "unreadable": OSError(errno.EIO, "I/O error"),
        "interrupt": KeyboardInterrupt(),
        "away": MirrorUnavailable("the store does not answer"),
    }
    name = prepare(config, SCHEMA)["name"]
    print("ran", name)
    if name in failures:
        raise failures[name]
    return int(name) if name.isdecimal() else 0.5 if name == "metric" else None


@pytest.fixture
def run(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Return a function that runs the command line and gives exit code, output and errors."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[Any, str, str]:
        monkeypatch.setattr(sys, "argv", ["job", *arguments])
        with pytest.raises(SystemExit) as caught:
            run_app(task, "job", SCHEMA, tree / "conf")
        output = capsys.readouterr()
        return caught.value.code, output.out, output.err

    return run


def start(tree: Path, tmp_path: Path, body: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program with `body` as its task in a separate process."""
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\nfrom pathlib import Path\nfrom nlu.config.entry.app import prepare, run_app\n\n"
        f"def task(config):\n    {body}\n\n"
        f"run_app(task, 'job', {SCHEMA!r}, Path({str(tree / 'conf')!r}))\n"
    )
    path = os.pathsep.join([str(tree), str(Path(nlu.__file__).parents[1])])
    command = [sys.executable, str(program), *arguments]
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)


def test_composing_and_validating_imports_nothing_heavy(tree: Path, tmp_path: Path):
    body = f"prepare(config, {SCHEMA!r}); print([name for name in {HEAVY} if name in sys.modules])"
    done = start(tree, tmp_path, body, *VALID)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


def test_a_bug_keeps_its_traceback_and_exits_with_1(tree: Path, tmp_path: Path):
    done = start(tree, tmp_path, "raise RuntimeError('a bug')", *VALID)
    assert done.returncode == 1
    assert "Traceback" in done.stderr and "RuntimeError: a bug" in done.stderr


def test_an_integer_that_the_task_returns_is_the_exit_code(run):
    assert run("task=tag", "name='3'")[0] == 3
    assert run(*VALID)[0] == 0
    assert run("task=tag", "name=metric")[0] == 0


def test_a_users_error_is_printed_without_a_traceback(run):
    assert run("task=tag", "name=one")[::2] == (2, "nlu: error: one problem\n")
    assert run("task=tag", "name=two")[2] == "nlu: error: 2 problems\n  - first\n  - second\n"


def test_an_invalid_value_is_refused_before_the_task_does_anything(run):
    code, out, err = run(*VALID, "trainer.batch_size=0", "model.hidden_size=x")
    assert (code, out) == (2, "")
    assert "trainer.batch_size is 0 but" in err and 'model.hidden_size is "x" but' in err


def test_a_temporary_failure_exits_with_75_so_that_a_queue_retries(run):
    assert run("task=tag", "name=away")[::2] == (75, "nlu: error: the store does not answer\n")
    code, _, told = run("--multirun", "task=tag", "name=one,away,fine")
    assert code == 75 and "job 0 (name=one): one problem" in told and "job 1 (name=away): the store does not" in told


def test_an_interrupt_exits_with_130(run):
    assert run("task=tag", "name=interrupt")[::2] == (130, "nlu: interrupted\n")


@pytest.mark.parametrize(("number", "status", "said"), [
    (signal.SIGTERM, 75, "stopped by SIGTERM"), (signal.SIGINT, 130, "interrupted"),
])  # fmt: skip
def test_a_signal_that_hydra_turns_into_another_error_stops_the_command(run, monkeypatch, number, status, said):
    def compose(*given: object, **named: object) -> None:
        try:
            signal.raise_signal(number)
        finally:
            raise UnboundLocalError("f")

    monkeypatch.setattr(app, "compose", compose)
    code, _, err = run(*VALID)
    assert (code, err) == (status, f"nlu: {said}; nothing had started; the same command starts it\n")


@pytest.mark.parametrize(("name", "remedy"), [
    ("full", "no space left on device"),
    ("sealed", "read-only file system"),
])  # fmt: skip
def test_a_full_disk_and_a_read_only_one_name_the_file_and_the_remedy(run, name, remedy):
    code, _, err = run("task=tag", f"name={name}")
    assert code == 2
    assert err.startswith(f"nlu: error: runs/weights.bin cannot be used: {remedy}; ")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--no-such-flag"], "nlu: error: unrecognized arguments: --no-such-flag; keys are written key=value"),
        (["--cfg"], "nlu: error: argument --cfg/-c: expected one argument"),
        ([*VALID, "--config-dir", "no-such-dir"], "'no-such-dir', which is not found"),
        ([*VALID, "--config-name", "jbo"], "unknown configuration jbo; nearest: job"),
        ([*VALID, "hydra.run.dir=${nope}"], "hydra.run.dir: interpolation key 'nope' not found"),
        ([*VALID, "--cfg", "job", "--resolve", "seed=${nope}"], "seed is ${nope} but interpolation key 'nope'"),
    ],
)
def test_a_command_line_that_hydra_refuses_exits_with_2(run, arguments: list[str], expected: str):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert expected in err
    assert "Traceback" not in err


def test_a_file_that_is_not_valid_yaml_is_named_with_its_line(run, tmp_path: Path):
    (tmp_path / "mine/task").mkdir(parents=True)
    (tmp_path / "mine/task/special.yaml").write_text("a: 1\nb: [1\n")
    code, _, err = run("--config-dir", "mine", "task=special", "name=fine")
    assert code == 2
    assert "mine/task/special.yaml:3, column 1: not valid YAML: " in err
