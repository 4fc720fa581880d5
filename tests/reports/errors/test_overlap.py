"""Rows that stand among the training texts."""

import json

import pytest

from nlu.reports.errors.analysis import Options, analyse
from nlu.reports.errors.subject import source_of
from tests.reports.folders import begin_run, end_run, keep_records

FIELDS = {"data__fields": {"text": 0, "label": 1}}
LONG = "the quick brown fox jumps over the lazy dog"


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


def found_in(run, **options):
    return analyse(source_of(run), Options(by=("overlap",), **options))


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NLU_DATA", str(tmp_path))
    return tmp_path


def test_the_same_text_and_a_near_one_are_distinguished_and_located(here):
    (here / "train.tsv").write_text(f"something else\tx\n{LONG}s\ty\nGood, Day\tx\n")
    run = kept_run(here / "run", [(0, "good day!"), (1, LONG), (2, "neither"), (3, "NEITHER")], data__dev="dev.tsv")
    found = found_in(run)
    title, slices = found.tables["overlap"]
    assert [(one.rows, one.wrong) for one in slices] == [(1, 0), (0, 0), (1, 1), (2, 2), (2, 2)]
    assert found.overlap.place_of(0).endswith("train.tsv:3") and found.overlap.is_exact_N.tolist()[0]
    assert found.overlap.place_of(1).endswith("train.tsv:2") and found.overlap.place_of(2) is None
    # The kept text has 33 trigrams, "the" twice; the other has one more.
    assert found.overlap.similarity_N[1] == pytest.approx(32 / 33)
    assert found.overlap.label_of == {0: "x", 1: "y"}
    assert found_in(run, near=0.99).tables["overlap"][1][2].rows == 0


def test_the_same_text_with_another_label_in_train_is_reported(here):
    (here / "train.tsv").write_text("first\tx\nFirst\ty\nsecond\tx\nthird\ty\n")
    found = found_in(kept_run(here / "run", [(0, "first"), (1, "second"), (2, "third")], data__dev="dev.tsv"))
    assert found.overlap.is_contrary_N.tolist() == [True, False, True]
    (contrary,) = (one for one in found.tables["overlap"][1] if "another label" in one.name)
    assert (contrary.rows, contrary.wrong) == (2, 1)


def test_rows_held_out_of_the_training_files_do_not_count_as_training_texts(here):
    (here / "train.tsv").write_text("first\tx\nsecond\tx\nSecond!\tx\n")
    found = found_in(kept_run(here / "run", [(0, "first"), (1, "second")], data__dev=None))
    # A text that differs only in a mark is another text, which may be on the other side of the split.
    assert found.overlap.place_of(0) is None and found.overlap.place_of(1).endswith("train.tsv:3")


def test_rows_that_other_folds_hold_out_count_as_training_texts(here):
    (here / "train.tsv").write_text("first\tx\nsecond\tx\nFirst\tx\nSecond\tx\n")
    for fold, texts in enumerate(([(0, "first"), (1, "second"), (3, "Second")], [(2, "First")])):
        run = kept_run(here / "run" / f"fold-{fold}", texts, folds__count=2, fold=fold)
        facts = {"layout": "single", "labels": ["x", "y"], "sets": {"train": {"examples": 2}, "dev": {"examples": 2}}}
        (run / "data.json").write_text(json.dumps(facts))
    found = found_in(here / "run")
    assert found.source.name == "out-of-fold"
    places = [found.overlap.place_of(number) for number in range(4)]
    assert [place and place.rpartition(":")[2] for place in places] == ["3", None, "1", None]
    assert found.overlap.is_repeated_N.tolist() == [True] * 4


def test_files_that_are_gone_or_have_changed_are_reported(here):
    run = kept_run(here / "run", [(0, "first"), (1, "second")], data__dev=None)
    found = found_in(run)
    assert "overlap with training texts: they cannot be read (data.train is 'train.tsv'" in found.remarks[0]
    assert [one.name for one in found.tables["overlap"][1]] == ["occurs several times in dev"]
    (here / "train.tsv").write_text("first\tx\nanother\tx\n")
    assert "1 of 2 held-out texts is no longer in them" in " ".join(found_in(run).remarks)
