"""Tables and files of a run folder, read back as another process would find them."""

import json
import math
import signal
import subprocess
import sys

import numpy as np
import pytest

from nlu.config.errors import DataError
from nlu.runs.records import TRAIN_COLUMNS, Table, read_rows
from nlu.storage.files import write_json


def fill(path, steps):
    table = Table(path, ("step", "loss"))
    for step in steps:
        table.append(step=step, loss=step / 7)
    return table


def test_a_row_is_read_back_with_the_same_numbers_and_empty_cells(tmp_path):
    table = Table(tmp_path / "train.tsv", TRAIN_COLUMNS)
    table.append(step=10, loss=0.1 + 0.2, gnorm=math.nan, clipped=True, lr=np.float32(0.1), epoch=None)
    (row,) = read_rows(tmp_path / "train.tsv")
    assert (row["step"], row["loss"], row["clipped"], row["lr"]) == (10, 0.1 + 0.2, 1, float(np.float32(0.1)))
    assert row["epoch"] is None and row["examples"] is None and math.isnan(row["gnorm"])
    assert isinstance(row["step"], int)


def test_a_row_after_a_cut_line_starts_a_new_line(tmp_path):
    path = tmp_path / "train.tsv"
    fill(path, [1])
    with open(path, "ab") as file:
        file.write("2\t0.2ä".encode()[:-1])
    assert [row["step"] for row in read_rows(path)] == [1]
    fill(path, [3])
    assert [row["step"] for row in read_rows(path)] == [1, 3]


def test_resuming_keeps_only_complete_rows_up_to_the_step(tmp_path):
    path = tmp_path / "train.tsv"
    table = fill(path, [10, 20, 30])
    with open(path, "a") as file:
        file.write("15\n20")
    table.truncate_after(20)
    table.append(step=21, loss=1.0)
    assert [row["step"] for row in read_rows(path)] == [10, 20, 21]


def test_a_kill_cuts_at_most_the_last_line(tmp_path):
    path = tmp_path / "train.tsv"
    code = (
        "import sys; from nlu.runs.records import Table\n"
        "table = Table(sys.argv[1], ('step', 'loss')); step = 0\n"
        "while True:\n    step += 1; table.append(step=step, loss=step / 7)\n    print(step, flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
    while int(process.stdout.readline()) < 50:
        pass
    process.send_signal(signal.SIGKILL)
    process.wait()
    steps = [row["step"] for row in read_rows(path)]
    assert steps == list(range(1, len(steps) + 1)) and len(steps) >= 50


def test_a_damaged_row_is_named_with_its_line(tmp_path):
    (tmp_path / "train.tsv").write_text("step\tloss\n1\t2\n3\n4\t5\n")
    with pytest.raises(DataError, match=r"train.tsv:3 has 1 cells"):
        read_rows(tmp_path / "train.tsv")


def test_json_holds_plain_values_and_null_for_numbers_it_lacks(tmp_path):
    write_json(
        tmp_path / "result.json", {"f1": np.float64(0.5), "steps": np.int64(3), "loss": math.inf, "at": tmp_path}
    )
    read = json.loads((tmp_path / "result.json").read_text())
    assert read == {"f1": 0.5, "steps": 3, "loss": None, "at": str(tmp_path)}
