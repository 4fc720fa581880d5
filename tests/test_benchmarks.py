"""What the benchmarks read, and what they do where it is not there."""

import importlib
import os
import random
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from nlu.config.schema import Trainer
from tests.training.in_process import composed

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


def test_what_a_device_runs_is_composed_with_tiny_sizes_on_a_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda, inputs, data = script("cuda"), script("inputs"), tmp_path / "data"
    monkeypatch.setattr(inputs, "SYNTHETIC_ROWS", {"train": 8, "dev": 4})
    for name, value in {**cuda.ON_CPU, **inputs.write_synthetic(data, random.Random(0))}.items():
        monkeypatch.setenv(name, value)
    small, whole = cuda.parts_of("cpu"), cuda.parts_of("cuda")
    assert list(small) == list(whole) == cuda.PARTS
    assert sum(seconds for seconds, _ in whole.values()) <= 60 * cuda.MINUTES["cuda"] <= 600
    for name, (_, words) in small.items():
        in_both = [[word for word in each if word.startswith("--")] for each in (words, whole[name][1])]
        assert in_both[0] == in_both[1]
        if name == "tests":
            assert all((FOLDER.parent / word).is_file() for word in words if word.startswith("tests/"))
        elif name == "kills":
            kill = script("kill")
            arguments = kill.options().parse_args(words[1:])
            _, _, _, *overrides = kill.command(data, arguments.kind, tmp_path / "run", arguments.override)
            overrides = [one for one in overrides if not one.startswith("hydra.")]
            assert composed(*overrides).trainer.device == "cpu"
        else:
            asked = script(words[0]).parser().parse_args(words[1:])
            (size,), run = asked.sizes, {"device": asked.device, "precision": asked.precision, "batch_size": 4}
            for compiled in (False, True):
                overrides = script("train").training_overrides(size, **run, compiled=compiled)
                assert composed(*overrides).model["hidden_size"] == 24


def test_a_part_that_takes_longer_than_its_share_is_ended(tmp_path: Path) -> None:
    words = ("-m", "timeit", "-n1", "-r1", "import time; time.sleep(600)")
    status, _ = script("cuda").run(words, 1.0, dict(os.environ), tmp_path / "rows.json")
    assert status is None
