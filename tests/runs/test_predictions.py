"""Predictions are streamed, in today's form and in that of runs which were kept from before."""

import json
import math
import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from nlu.config.errors import DataError
from nlu.runs import predictions
from nlu.runs.predictions import Predictions, kept_sets, predictions_of, write_predictions
from nlu.runs.takeover import keep_predictions_of

EARLIER = Path(__file__).with_name("earlier")
"""run folders that version 0.1 of November 2026 left, before predictions were lines"""
HEADER = {"step": 7, "by_label": [{"label": "bad", "f1": 0.5}, {"label": "good", "f1": 1.0}]}


def records(count: int) -> list[dict[str, object]]:
    return [
        {"id": number, "file": 0, "row": number + 1, "text": f"第{number}行", "label": "bad"} for number in range(count)
    ]


def test_what_is_written_is_a_header_and_a_line_for_each_record_and_is_read_back(tmp_path: Path) -> None:
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


def test_a_set_written_again_takes_the_place_of_both_forms_and_only_once_it_is_whole(tmp_path: Path) -> None:
    folder = tmp_path / "predictions"
    folder.mkdir()
    (folder / "dev.json").write_text(json.dumps({**HEADER, "rows": records(2)}))
    assert len(list(predictions_of(tmp_path, "dev"))) == 2

    def cut_short() -> Iterator[dict[str, object]]:
        yield from records(5)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_predictions(folder / "dev.jsonl", HEADER, cut_short())
    assert os.listdir(folder) == ["dev.json"]
    write_predictions(folder / "dev.jsonl", HEADER, records(4))
    assert os.listdir(folder) == ["dev.jsonl"] and len(list(predictions_of(tmp_path, "dev"))) == 4
    with pytest.raises(KeyboardInterrupt):
        write_predictions(folder / "dev.jsonl", HEADER, cut_short())
    assert os.listdir(folder) == ["dev.jsonl"] and len(list(predictions_of(tmp_path, "dev"))) == 4


@pytest.mark.parametrize("characters", [*range(1, 16), 1 << 16])
@pytest.mark.parametrize("indent", [None, 2])
def test_the_earlier_form_gives_the_same_wherever_reading_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, characters: int, indent: int | None
) -> None:
    monkeypatch.setattr(predictions, "CHUNK_CHARACTERS", characters)
    rows = [{"id": 120, "loss": 12.5e-1, "label": [[1, 22, 'X"}],']]}, {"id": 121, "loss": None, "label": []}]
    path = tmp_path / "dev.json"
    for content in ({**HEADER, "step": 1234, "rows": rows}, {"rows": []}):
        path.write_text(json.dumps(content, indent=indent))
        found = Predictions(path)
        assert list(found) == content["rows"]
        assert found.header == {key: value for key, value in content.items() if key != "rows"}


@pytest.mark.parametrize("name", ["dev.jsonl", "dev.json"])
def test_a_record_is_in_memory_only_while_it_is_looked_at(tmp_path: Path, name: str) -> None:
    def peak(count: int) -> int:
        path = tmp_path / str(count) / name
        if name == "dev.jsonl":
            write_predictions(path, HEADER, ({"id": number, "label": "", "text": "x" * 100} for number in range(count)))
        else:
            path.parent.mkdir()
            path.write_text(
                json.dumps({**HEADER, "rows": [{"id": i, "label": "", "text": "x" * 100} for i in range(count)]})
            )
        tracemalloc.start()
        assert sum(1 for _ in Predictions(path)) == count
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    assert peak(40_000) < 1.5 * peak(4_000)


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        ("dev.jsonl", "", ":1"),
        ("dev.jsonl", '{"step": 1}\n{"id": 0, "label": 1}\n{"id": 1', ":3"),
        ("dev.jsonl", '{"step": 1}\n{"id": 0, "label": 1}\n[1]\n{"id": 1}\n', ":3"),
        ("dev.jsonl", '{"step": 1}\n\n', ":2"),
        ("dev.json", '{"step": 1, "rows": [{"id": 0, "label": 1}, {"id": 1', "behind record 1"),
        ("dev.json", '{"step": 1, "rows": [{"id": 0, "label": 1}]', "behind record 1"),
        ("dev.json", '{"step": 1, "rows": [{"id": 0, "label": 1} {"id": 1}]}', "behind record 1"),
        ("dev.json", '{"step": 1, "rows": [{"id": 0}]}', "behind record 0"),
        ("dev.jsonl", '{"step": 1}\n{"label": 0}\n', ":2"),
        ("dev.json", '{"step": 1, "rows": [3]}', "behind record 0"),
        ("dev.json", '{"step": 1}', "behind record 0"),
        ("dev.json", '["rows"]', "behind record 0"),
    ],
)
def test_a_damaged_file_is_refused_with_the_place(tmp_path: Path, name: str, text: str, place: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=f"{name}.*{place}.* holds no predictions"):
        found = Predictions(tmp_path / name)
        assert list(found) is None or found.header is None


def test_a_set_that_was_not_kept_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="predictions/dev.jsonl does not exist"):
        predictions_of(tmp_path, "dev")


def test_run_folders_of_earlier_versions_are_read() -> None:
    assert kept_sets(EARLIER / "folds" / "fold-0") == ["dev", "test"] and kept_sets(EARLIER) == []
    for fold in (0, 1):
        for name in ("dev", "test"):
            found = predictions_of(EARLIER / "folds" / f"fold-{fold}", name)
            whole = json.loads(found.path.read_text(encoding="utf-8"))
            assert list(found) == whole["rows"] and found.labels == ["bad", "good"] and found.header["step"] == 6
    tagged = predictions_of(EARLIER / "tags", "dev")
    assert [record["label"] for record in tagged][:2] == [[[1, 2, "地"]], [[0, 1, "人"]]]
    joined = predictions_of(EARLIER / "folds", "out-of-fold")
    assert [record["id"] for record in joined] == list(range(12)) and joined.header["folds"] == 2


def test_of_a_state_that_is_taken_over_only_the_predictions_of_its_best_evaluation_stay(tmp_path: Path) -> None:
    for name, step in (("dev", 3), ("easy", 5), ("old", 5), ("test", 5)):
        write_predictions(tmp_path / "predictions" / f"{name}.jsonl", {"step": step}, records(2))
    keep_predictions_of(tmp_path, ["dev", "easy", "old"], 5)
    assert kept_sets(tmp_path) == ["easy", "old"]
    keep_predictions_of(tmp_path, ["dev", "easy"], 5)
    assert kept_sets(tmp_path) == ["easy"]
    keep_predictions_of(tmp_path, ["easy"], None)
    assert kept_sets(tmp_path) == []
