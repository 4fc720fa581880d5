"""What the benchmarks read, and what they do where it is not there."""

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from nlu.config.schema import Trainer

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripts import one another by bare names, which must not outlive a test."""
    monkeypatch.syspath_prepend(FOLDER)
    for path in FOLDER.glob("*.py"):
        monkeypatch.setitem(sys.modules, path.stem, None)
        del sys.modules[path.stem]
    for name in ("NLU_BENCH_DATA", "NLU_BENCH_VOCAB"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def script(name: str) -> ModuleType:
    return importlib.import_module(name)


def test_data_and_vocabulary_of_the_data_folder_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NLU_DATA", str(tmp_path))
    for name in ("AFQMC/train.json", "AFQMC/dev.json", "bert_base_chinese_vocab/vocab.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("[UNK]\n")
    inputs = script("inputs")
    inputs.announce()
    assert capsys.readouterr().out == "" and os.environ["NLU_BENCH_DATA"] == "afqmc"
    assert inputs.data_overrides() == ("data=afqmc", "task=match")
    assert inputs.training_files("afqmc") == ((tmp_path / "AFQMC" / "train.json", None),)
    assert inputs.vocab_path() == (tmp_path / "bert_base_chinese_vocab" / "vocab.txt").resolve()


def test_the_measured_side_is_the_command_with_its_own_environment_and_defaults(tmp_path: Path) -> None:
    program = (
        "import os; from afqmc import as_command\n"
        "def work(composed):\n"
        "    print(os.environ['MKL_CBWR'], os.environ['OMP_NUM_THREADS'], composed.trainer.ema_decay)\n"
        "    return 0\n"
        "as_command(work, ['trainer.batch_size=4'], 1)\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
    environment = {**environment, "PYTHONPATH": str(FOLDER), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=FOLDER.parent, env=environment, capture_output=True, text=True, check=True
    )
    decay = Trainer().ema_decay
    assert done.stdout.split() == ["AUTO,STRICT", "1", str(decay)] and decay > 0
    assert list(tmp_path.iterdir()) == [], "the scratch folder is deleted when the process ends"
