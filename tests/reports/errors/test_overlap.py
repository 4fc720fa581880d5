"""Rows that stand among the training texts."""

import json

import pytest

from nlu.reports.errors.analysis import analyse
from nlu.reports.errors.overlap import normalised
from nlu.reports.errors.subject import source_of
from tests.reports.folders import begin_run, end_run, keep_records

FIELDS = {"data__fields": {"text": 0, "label": 1}}


def kept_run(folder, texts, *, name="dev", **changes):
    """A run that predicted these texts of a set, each wrongly but the first; they are (id, text)."""
    run = end_run(begin_run(folder, **FIELDS, **changes), 0.5)
    (run / "data.json").write_text(
        json.dumps(
            {"layout": "single", "labels": ["x", "y"],
             "sets": {"train": {"examples": 3}, "dev": {"examples": len(texts)}}}
        )
    )  # fmt: skip
    records = [
        {"id": id_, "file": 0, "row": id_ + 1, "text": text, "label": "x", "prediction": "xy"[place > 0],
         "probability": 0.9, "probabilities": {"x": 0.1, "y": 0.9}, "loss": 1.0, "margin": 2.2}
        for place, (id_, text) in enumerate(texts)
    ]  # fmt: skip
    return keep_records(run, records, name, by_label=[{"label": "x"}, {"label": "y"}])


def found_in(run):
    return analyse(source_of(run))


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NLU_DATA", str(tmp_path))
    return tmp_path


def test_texts_are_compared_only_by_letters_and_digits():
    assert normalised("Hello,  World!") == normalised("ｈｅｌｌｏ world") == "helloworld"
    assert normalised("很好，很 强大。") == "很好很强大" and normalised("!!!") == "!!!"


def test_the_same_text_in_train_is_located_with_its_label(here):
    (here / "train.tsv").write_text("something else\tx\nfirst\tx\nGood, Day\tx\nFirst\ty\n")
    run = kept_run(here / "run", [(0, "good day!"), (1, "neither"), (2, "first"), (3, "NEITHER")], data__dev="dev.tsv")
    found = found_in(run)
    title, slices = found.tables["overlap"]
    assert [(one.name, one.rows, one.wrong) for one in slices] == [
        ("the same text in train", 2, 1), ("the same text in train, with another label", 1, 1), ("neither", 2, 2)
    ]  # fmt: skip
    places = {number: place.rpartition("/")[2] for number, place in found.overlap.places.items()}
    assert places == {0: "train.tsv:3", 2: "train.tsv:2"} and found.overlap.labels == {0: "x", 2: "x"}
    assert found.overlap.contrary == {2}


def test_rows_held_out_of_the_training_files_do_not_count_as_training_texts(here):
    (here / "train.tsv").write_text("first\tx\nsecond\tx\nSecond!\tx\n")
    found = found_in(kept_run(here / "run", [(0, "first"), (1, "second")], data__dev=None))
    # A text that differs only in a mark is another text, which may be on the other side of the split.
    assert list(found.overlap.places) == [1] and found.overlap.places[1].endswith("train.tsv:3")


def test_rows_that_other_folds_hold_out_count_as_training_texts(here):
    (here / "train.tsv").write_text("first\tx\nsecond\tx\nFirst\tx\nSecond\tx\n")
    for fold, texts in enumerate(([(0, "first"), (1, "second"), (3, "Second")], [(2, "First")])):
        run = kept_run(here / "run" / f"fold-{fold}", texts, folds__count=2, fold=fold)
        facts = {"layout": "single", "labels": ["x", "y"], "sets": {"train": {"examples": 2}, "dev": {"examples": 2}}}
        (run / "data.json").write_text(json.dumps(facts))
    found = found_in(here / "run")
    assert found.source.name == "out-of-fold"
    assert {number: place.rpartition(":")[2] for number, place in found.overlap.places.items()} == {0: "3", 2: "1"}


def test_files_that_are_gone_or_have_changed_are_reported(here):
    run = kept_run(here / "run", [(0, "first"), (1, "second")], data__dev=None)
    found = found_in(run)
    assert any("overlap with training texts: they cannot be read (data.train is 'train.tsv'" in one for one in
               found.remarks) and "overlap" not in found.tables  # fmt: skip
    (here / "train.tsv").write_text("first\tx\nanother\tx\n")
    assert "1 of 2 held-out texts is no longer in them" in " ".join(found_in(run).remarks)
