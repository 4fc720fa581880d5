"""The closing table, as it stands on the console."""

import os
import subprocess
import sys

import pytest

from nlu.display.results import print_result

NAMES = ("accuracy", "f1", "precision", "recall", "auc", "mcc", "loss", "top3", "ece", "brier")


@pytest.fixture
def result():
    return {
        "metrics": {
            "dev[a]": {name: index / 10 for index, name in enumerate(NAMES)},
            "test": {"accuracy": 0.25, "mcc": None},
        },
        "best": {
            "set": "dev[a]", "metric": "mcc", "value": 0.5, "step": 1200, "examples": 38400, "epoch": 2.4,
            "checkpoint": "checkpoints/best-1",
        },
        "steps": 1500, "examples": 48000, "examples_per_s": 912.3, "real_tokens_per_s": 31234.2,
        "train_s": 100.0, "wall_s": 3700.2,
    }  # fmt: skip


def cells(line: str) -> list[str]:
    return line.replace("┃", "│").replace("│", " ").split()


def test_the_major_metric_comes_first_and_at_most_six_are_shown(result, capsys, tmp_path):
    print_result(result, tmp_path, [])
    lines = capsys.readouterr().out.splitlines()
    assert cells(lines[1]) == ["set", "mcc", "accuracy", "f1", "precision", "recall", "auc"]
    assert cells(lines[3]) == ["dev[a]", "0.5000", "0.0000", "0.1000", "0.2000", "0.3000", "0.4000"]
    assert cells(lines[4]) == ["test", "-", "0.2500", "-", "-", "-", "-"]
    assert any("4 in result.json" in line for line in lines)


def test_the_end_of_a_run_names_its_disk_and_the_command_that_frees_it(result, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("run 1/checkpoints/last", "run 1/fold-0/checkpoints/best-1"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "model.safetensors").write_bytes(b"m" * 1_250_000)
    print_result(result, tmp_path / "run 1", [])
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "checkpoints: 2.5 MB; python -m nlu.report clean 'run 1' shows what can be freed"


@pytest.mark.parametrize("printed", ["print_result(result, Path('run'), [])", "print_parts(parts, Path('run'))"])
def test_a_closed_pipe_is_ignored_and_the_program_continues(result, printed):
    best = {"set": "dev", "metric": "f1", "value": 0.5, "sd": None}
    parts = {"metrics": {"dev": {"f1": 0.5}}, "sd": {"dev": {"f1": None}}, "best": best, "parts": [], "out_of_fold": {}}
    reading, writing = os.pipe()
    os.close(reading)
    body = (
        "import sys; from pathlib import Path; from nlu.display.results import print_parts, print_result\n"
        f"result, parts = {result!r}, {parts!r}\n{printed}\nprint('done', file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", body], stdout=writing, stderr=subprocess.PIPE, timeout=60)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"done\n")
