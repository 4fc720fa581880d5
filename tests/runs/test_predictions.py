"""Predictions are written and read as streams."""

import json
import math
import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from nlu.config.errors import DataError
from nlu.runs.predictions import Predictions, predictions_of, write_predictions

HEADER = {"step": 7, "by_label": [{"label": "bad", "f1": 0.5}, {"label": "good", "f1": 1.0}]}


def records(count: int) -> list[dict[str, object]]:
    return [
        {"id": number, "file": 0, "row": number + 1, "text": f"第{number}行", "label": "bad"} for number in range(count)
    ]


def test_predictions_are_a_header_and_a_line_per_record_and_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "predictions" / "dev.jsonl"
    write_predictions(path, HEADER, iter(records(3)))
    lines = path.read_text(encoding="utf-8").split("\n")
    assert [json.loads(line) for line in lines[:-1]] == [HEADER, *records(3)] and lines[-1] == ""
    found = predictions_of(tmp_path, "dev")
    assert (found.header, found.labels) == (HEADER, ["bad", "good"])
    assert list(found) == list(found) == records(3)


def test_texts_and_numbers_of_any_kind_come_back(tmp_path: Path) -> None:
    record = {
        "id": np.int64(3), "label": "bad",
        "text": 'a "b"\n\r\u2028\u0085 \ud800 🙂\t\\', "probability": np.float32(0.25),
        "loss": math.inf, "probabilities": {"bad": math.nan, "good": 1e-300}, "spans": [(0, np.int32(1), "X")],
    }  # fmt: skip
    plain = {**record, "id": 3, "text": 'a "b"\n\r\u2028\u0085 🙂\t\\', "probability": 0.25, "spans": [[0, 1, "X"]]}
    write_predictions(tmp_path / "dev.jsonl", {}, [record, {**record, "text": plain["text"]}])
    first, second = Predictions(tmp_path / "dev.jsonl")
    assert first["text"] == record["text"]
    assert second == {**plain, "loss": None, "probabilities": {"bad": None, "good": 1e-300}}


def test_a_set_written_again_is_replaced_only_once_it_is_whole(tmp_path: Path) -> None:
    folder = tmp_path / "predictions"

    def cut_short() -> Iterator[dict[str, object]]:
        yield from records(5)
        raise KeyboardInterrupt

    for count in (2, 4):
        write_predictions(folder / "dev.jsonl", HEADER, records(count))
        with pytest.raises(KeyboardInterrupt):
            write_predictions(folder / "dev.jsonl", HEADER, cut_short())
        assert os.listdir(folder) == ["dev.jsonl"] and len(list(predictions_of(tmp_path, "dev"))) == count


def test_a_record_is_in_memory_only_while_it_is_looked_at(tmp_path: Path) -> None:
    def peak(count: int) -> int:
        path = tmp_path / str(count) / "dev.jsonl"
        write_predictions(path, HEADER, ({"id": number, "label": "", "text": "x" * 100} for number in range(count)))
        peaks = []
        # Threads that earlier tests of this process began may need memory too, but not each time.
        for _ in range(2):
            tracemalloc.start()
            assert sum(1 for _ in Predictions(path)) == count
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        return min(peaks)

    assert peak(10_000) < 1.5 * peak(1_000)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", ":1"),
        ('{"step": 1}\n{"id": 0, "label": 1}\n{"id": 1', ":3"),
        ('{"step": 1}\n{"id": 0, "label": 1}\n[1]\n{"id": 1}\n', ":3"),
        ('{"step": 1}\n\n', ":2"),
        ('{"step": 1}\n{"label": 0}\n', ":2"),
    ],
)
def test_a_damaged_file_is_refused_with_the_place(tmp_path: Path, text: str, place: str) -> None:
    (tmp_path / "dev.jsonl").write_text(text)
    with pytest.raises(DataError, match=f"dev.jsonl{place} holds no predictions"):
        found = Predictions(tmp_path / "dev.jsonl")
        assert list(found) is None or found.header is None
