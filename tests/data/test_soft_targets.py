"""Soft targets: a number for each class in a row, as logits or probabilities, with or without a label."""

import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nlu.config.errors import DataError
from nlu.data.collate import collate
from nlu.data.dataset import Files
from nlu.data.prepare import prepare
from nlu.data.store_plan import plan_of
from nlu.data.targets import SoftClasses
from nlu.data.tokenizing import WordPiece
from nlu.tasks.soft import Soft

NAMES = ["no", "yes"]
FIELDS = {"text": "text", "logits": "logits", "label": "label"}
PROBABILITIES = {"text": "text", "probabilities": "probabilities"}


@pytest.fixture
def target():
    return SoftClasses(Files(train="", labels=NAMES))


def opened(path, dev=None, fields=FIELDS, **settings):
    files = Files(train=str(path), dev=str(dev or path), fields=fields, labels=NAMES, **settings)
    return prepare(plan_of(files, WordPiece(min_count=1), Soft.target, Soft.layouts, pretrained=None, vocab=None))


def written(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def targets_of(store, name):
    """Return the logits, labels and presence of soft targets of a set, in the order of its rows."""
    part = store.sets[name]
    batch = collate(part, np.arange(len(part)))
    order = np.argsort(batch.examples_B)
    return tuple(batch.targets[key].numpy()[order].tolist() for key in ("labels", "classes", "is_soft"))


def test_lists_of_jsonl_parquet_and_csv_are_the_same_targets(tmp_path):
    rows = [{"text": "a", "logits": [1.5, -2e-3], "label": "yes"}, {"text": "b", "logits": [0, 7], "label": None}]
    files = [written(tmp_path / "a.jsonl", rows), tmp_path / "a.parquet", tmp_path / "a.csv"]
    pq.write_table(pa.Table.from_pylist(rows), files[1])
    files[2].write_text('text,logits,label\na,"[1.5, -2e-3]",yes\nb,"[0, 7]",\n')
    for path in files:
        logits, labels, is_soft = targets_of(opened(path), "train")
        assert logits == [[1.5, float(np.float32(-2e-3))], [0, 7]] and labels == [1, -1] and is_soft == [True, True]


def test_probabilities_are_stored_as_logarithms_and_may_be_rounded(tmp_path):
    rows = [{"text": "a", "probabilities": [0.25, 0.745]}, {"text": "b", "probabilities": [0, 1]}]
    logits, _, _ = targets_of(opened(written(tmp_path / "a.jsonl", rows), fields=PROBABILITIES), "train")
    assert np.exp(logits[0]) == pytest.approx([0.25 / 0.995, 0.745 / 0.995]) and logits[1] == [-math.inf, 0]


def test_an_evaluation_row_may_have_only_a_label_and_a_training_row_may_not(tmp_path):
    train = written(tmp_path / "train.jsonl", [{"text": "a", "logits": [1, 2]}, {"text": "b", "logits": [3, 4]}])
    dev = written(tmp_path / "dev.jsonl", [{"text": "c", "label": "yes"}, {"text": "d", "logits": [5, 6]}])
    assert targets_of(opened(train, dev), "dev") == ([[-math.inf, 0], [5, 6]], [1, -1], [False, True])
    with pytest.raises(
        DataError, match=r"dev\.jsonl:1: field logits: null is not a list of numbers, such as \[0\.2, 0"
    ):
        opened(dev)
    nothing = written(tmp_path / "nothing.jsonl", [{"text": "c"}])
    with pytest.raises(DataError, match=r"nothing\.jsonl:1: field logits: null is missing, as is a label"):
        opened(train, nothing)


@pytest.mark.parametrize(
    ("role", "value", "rule"),
    [
        ("logits", "0.1 0.2", "is not a list of numbers, such as [0.2, 0.8]"),
        ("logits", 3, "is not a list of numbers, such as [0.2, 0.8]"),
        ("logits", "__import__('os')", "is not a list of numbers, such as [0.2, 0.8]"),
        ("logits", [1, 2, 3], "has 3 numbers for the 2 classes of data.labels"),
        ("logits", [], "has 0 numbers for the 2 classes of data.labels"),
        ("logits", [1, True], "holds true, which is not a number"),
        ("logits", ["1", 2], 'holds "1", which is not a number'),
        ("logits", "[NaN, 1]", "holds nan, which is not a finite number of float32"),
        ("logits", [1, 1e39], "holds 1e+39, which is not a finite number of float32"),
        ("logits", [1, 10**400], "holds a number that float32 cannot hold"),
        ("probabilities", [-0.1, 1.1], "holds -0.1, a negative probability; map logits to data.fields.logits"),
        ("probabilities", [0.5, 0.6], "adds up to 1.1 instead of 1; map logits to data.fields.logits"),
    ],
)
def test_a_value_without_a_number_for_each_class_is_refused(target, role, value, rule):
    assert target.read({role: value}) == (None, (role, rule))


def test_an_unknown_label_and_two_soft_targets_are_refused(target):
    _, (field, rule) = target.read({"logits": [1, 2], "label": "maybe"})
    assert (
        field == "label"
        and rule == "is not one of the labels ['no', 'yes']; if it should be one, set data.labels to all labels"
    )
    _, (field, rule) = target.read({"logits": [1, 2], "probabilities": [0.5, 0.5]})
    assert (field, rule) == ("probabilities", "stands beside logits; leave one of the two out of data.fields")


def test_labels_must_be_given_because_the_numbers_are_in_their_order():
    with pytest.raises(
        DataError, match="^data.labels is null, but logits and probabilities are in the order of the label"
    ):
        SoftClasses(Files(train=""))


def test_equal_rows_with_other_logits_are_not_duplicates_and_classes_are_counted(tmp_path):
    rows = [{"text": "a", "logits": one} for one in ([1, 2], [1, 2], [1, 3], [4, 3])]
    store = opened(written(tmp_path / "a.jsonl", rows), drop_duplicates=True)
    part = store.sets["train"]
    assert len(part) == 3 and store.target.facts(part.stored, part.rows_N) == {"labels": {"no": 1, "yes": 2}}
