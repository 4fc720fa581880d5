"""The same command gives the same bytes.

Kills are in test_kills.py, scores for any batch size and number of processes in test_kinds_scored.py and
test_kinds_in_processes.py.
"""

from pathlib import Path

from tests.training.in_process import train
from tests.training.runs import QUICK, TINY, files, run, weights


def test_the_same_command_gives_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    data = files(tmp_path)
    for command, name, seed in ((run, "a", 1), (run, "b", 1), (train, "c", 2)):
        command(*TINY, *QUICK, *data, f"seed={seed}", f"hydra.run.dir={tmp_path}/{name}")
    assert weights(tmp_path / "a") == weights(tmp_path / "b")
    assert (tmp_path / "a" / "valid.tsv").read_bytes() == (tmp_path / "b" / "valid.tsv").read_bytes()
    assert weights(tmp_path / "a") != weights(tmp_path / "c")
