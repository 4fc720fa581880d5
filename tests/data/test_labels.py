"""From what a file says to numbers, and the order of those numbers."""

import pytest

from nlu.config.errors import DataError
from nlu.data.labels import ClassLabels, TagLabels, require_labels, tags_of_spans


def closed(labels, values):
    numbers = [labels.read(value)[0] for value in values]
    names, remap = labels.close()
    return names, [names[remap[number]] for number in numbers]


def test_numeric_labels_are_ordered_by_value():
    values = ["10", "2", "-1", "2"]
    assert closed(ClassLabels(None), values) == (["-1", "2", "10"], values)


def test_labels_that_are_not_all_numbers_are_ordered_by_name():
    assert closed(ClassLabels(None), ["b", "10", "2", "a"]) == (["10", "2", "a", "b"], ["b", "10", "2", "a"])


def test_given_labels_keep_their_order_and_numbers():
    labels = ClassLabels(["positive", "negative"])
    assert closed(labels, ["negative", "positive"]) == (["positive", "negative"], ["negative", "positive"])
    assert labels.read("negative") == (1, None)


def test_labels_are_the_same_whether_text_or_number():
    labels = ClassLabels(None)
    assert [labels.read(value)[0] for value in (1, "1", " 1 ", 0)] == [0, 0, 0, 1]


def test_an_unknown_label_is_refused_once_the_training_set_is_read():
    labels = ClassLabels(None)
    labels.read("a")
    labels.close()
    number, rule = labels.read("b")
    assert number is None and rule.startswith("is not in the label map ['a']") and "data.labels" in rule
    assert labels.read("a") == (0, None)


@pytest.mark.parametrize(("kind", "first", "other"), [(ClassLabels, "a", "b"), (TagLabels, ["B-a"], ["B-b"])])
def test_labels_of_a_training_set_that_was_cut_name_what_cut_it(kind, first, other):
    labels, given = kind(None, 200), kind(["a"], 200)
    labels.read(first)
    for known in (labels, given):
        known.close()
    assert "data.max_rows=200 keeps; set data.max_rows higher, or data.labels to all labels" in labels.read(other)[1]
    assert "max_rows" not in given.read(other)[1]


@pytest.mark.parametrize("value", [None, {}, ["a"], "", "  ", float("nan")])
def test_what_is_no_label_is_refused(value):
    number, rule = ClassLabels(None).read(value)
    assert number is None and rule in ("is not a label", "is an empty label")


def test_a_label_given_twice_is_refused():
    with pytest.raises(DataError, match=r"data\.labels names a more than once"):
        ClassLabels(["a", "b", "a"])
    with pytest.raises(DataError, match="LOC"):
        TagLabels(["LOC", "LOC"])


def test_tags_are_o_then_b_and_i_of_each_type_by_name():
    tags = ["B-PER", "I-PER", "O", "B-LOC", "I-first-name"]
    labels = TagLabels(None)
    numbers, rule = labels.read(tags)
    names, remap = labels.close()
    assert rule is None
    assert names == ["O", "B-LOC", "I-LOC", "B-PER", "I-PER", "B-first-name", "I-first-name"]
    assert [names[remap[number]] for number in numbers] == tags
    assert [names[number] for number in labels.read(tags)[0]] == tags


def test_given_types_keep_their_order():
    labels = TagLabels(["PER", "LOC"])
    assert labels.read(["B-LOC"]) == ([3], None)
    assert labels.close()[0] == ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
    assert "has a type not in the label map ['PER', 'LOC']" in labels.read(["O", "B-ORG"])[1]


@pytest.mark.parametrize("tag", ["B", "B-", "S-PER", "PER", "o", None])
def test_what_is_no_bio_tag_is_refused_by_name(tag):
    numbers, rule = TagLabels(None).read(["O", tag])
    assert numbers is None and rule == f"is not a BIO tag (O, B-type or I-type): {tag!r}"


def test_a_refused_row_adds_no_type():
    labels = TagLabels(None)
    labels.read(["B-NOWHERE", "junk"])
    assert labels.close()[0] == ["O"]


def test_spans_of_characters_become_bio_tags():
    spans = {"name": {"叶老桂": [[2, 4]]}, "company": {"浙商": [[0, 1]], "中": [[6, 6]]}}
    tags, rule = tags_of_spans("浙商叶老桂在中", spans)
    assert rule is None
    assert tags == ["B-company", "I-company", "B-name", "I-name", "I-name", "O", "B-company"]


@pytest.mark.parametrize(
    ("spans", "rule"),
    [({"x": {"abc": [[2, 4]]}}, "the text reads otherwise"),
     ({"x": {"bc": [[-2, -1]]}}, "the text reads otherwise"),
     ({"x": {"ab": [[1, 2]]}}, "the text reads otherwise"),
     ({"x": {"": [[1, 0]]}}, "the text reads otherwise"),
     ({"x": {"ab": [[0, 1]]}, "y": {"bc": [[1, 2]]}}, "over another span"),
     ({"x": {"ab": [[0, 1], [0, 1]]}}, "over another span"),
     ([[0, 1, "x"]], 'is not an object of span types, such as {"person": {"Ann Lee": [[0, 6]]}}'),
     (None, "is not an object of span types"),
     ({"x": [[0, 1]]}, "written otherwise"), ({"x": {"ab": [0, 1]}}, "written otherwise"),
     ({"x": {"ab": [["0", "1"]]}}, "written otherwise")],
)  # fmt: skip
def test_spans_that_do_not_fit_the_text_or_each_other_are_refused(spans, rule):
    tags, broken = tags_of_spans("abc", spans)
    assert tags is None and rule in broken


def test_a_training_set_of_one_class_is_refused():
    require_labels(["a", "b"], 2)
    with pytest.raises(DataError, match=r"the labels \['a'\], but at least 2"):
        require_labels(["a"], 2)
