"""From the values of a row to the targets of a model, and back to names."""

import importlib
import json
import math
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nlu.config.errors import DataError
from nlu.config.targets import trust
from nlu.data.collate import collate
from nlu.data.dataset import Files
from nlu.data.facts import describe
from nlu.data.folds import Fold
from nlu.data.targets import Classes, LabelSet, Number, Tags
from nlu.data.targets.span_tags import tags_of_spans
from nlu.data.targets.tags import SCHEMES, scheme_of, to_bio

LABEL_BREAKS = [None, {}, [["a"]], "", "  ", float("nan")]


def files(**settings):
    return Files(train="", **settings)


def closed(target, values):
    """Read labels, close the target, and say what each was stored as."""
    numbers = [target.read({"label": value})[0] for value in values]
    target.close()
    return target.names, [target.names[target.remap[number]] for number in numbers]


def read_tags(target, tags):
    return target.read({"tokens": ["x"] * len(tags), "tags": tags})


def test_labels_that_are_not_all_numbers_are_ordered_by_name():
    assert closed(Classes(files()), ["b", "10", "2", "a"]) == (["10", "2", "a", "b"], ["b", "10", "2", "a"])


def test_given_labels_keep_their_order_and_numbers():
    target = Classes(files(labels=["positive", "negative"]))
    assert closed(target, ["negative", "positive"]) == (["positive", "negative"], ["negative", "positive"])
    assert target.read({"label": "negative"}) == (1, None)


def test_labels_are_the_same_whether_text_or_number():
    target = Classes(files())
    assert [target.read({"label": value})[0] for value in (1, "1", " 1 ", 0)] == [0, 0, 0, 1]


def test_an_unknown_label_is_refused_once_the_training_set_is_read():
    target = Classes(files())
    closed(target, ["a", "c"])
    number, (role, rule) = target.read({"label": "b"})
    assert number is None and role == "label"
    assert rule.startswith("is not one of the labels ['a', 'c']") and "data.labels" in rule
    assert target.read({"label": "c"}) == (1, None)


@pytest.mark.parametrize("kind", [Classes, LabelSet, Tags])
def test_weights_that_were_trained_know_no_other_labels(kind):
    target = kind(files())
    for name in ("a", "c"):
        read_tags(target, [f"B-{name}"]) if kind is Tags else target.read({"label": name})
    target.close()
    again = kind.from_meta(json.loads(json.dumps(target.meta())))
    if kind is LabelSet:
        again.read_as(files())
    problem = (read_tags(again, ["B-b"]) if kind is Tags else again.read({"label": "b"}))[1]
    assert "['a', 'c'] that the run was trained for" in problem[1]


@pytest.mark.parametrize("value", LABEL_BREAKS)
def test_an_invalid_label_is_refused(value):
    number, (role, rule) = Classes(files()).read({"label": value})
    assert number is None and role == "label" and rule in ("is not a label", "is an empty label")


@pytest.mark.parametrize("half", ["\ud83d", "so \udc00 far", "c\0"])
def test_a_label_or_tag_that_no_file_can_hold_is_refused_and_adds_no_name(half):
    assert "holds " in Classes(files()).read({"label": half})[1][1]
    sets, tags = LabelSet(files()), Tags(files())
    assert sets.read({"label": ["new", half]})[1] == ("label", f"holds {half!r}, which is not a label")
    assert "has a type that holds " in read_tags(tags, ["B-new", f"B-{half}"])[1][1]
    sets.read({"label": ["old"]})
    read_tags(tags, ["B-old"])
    sets.close()
    tags.close()
    assert (sets.names, tags.names) == (["old"], ["O", "B-old", "I-old"])


@pytest.mark.parametrize("kind", [Classes, LabelSet, Tags])
def test_a_label_given_twice_is_refused(kind):
    with pytest.raises(DataError, match=r"data\.labels names a more than once"):
        kind(files(labels=["a", "b", "a"]))


def test_one_class_is_refused():
    with pytest.raises(DataError, match=r"the labels \['a'\], but at least 2 are needed; check data.fields.*max_rows"):
        closed(Classes(files()), ["a", "a"])
    assert closed(Classes(files()), ["a", "b"])[0] == ["a", "b"]


def test_numbers_taken_for_classes_are_refused_with_the_task_that_learns_numbers():
    numbers = [f"{number / 7:.3f}" for number in range(40)] * 2
    with pytest.raises(DataError, match=r"40 different labels in 80 rows, of which 40 are numbers.*task=regress"):
        closed(Classes(files()), numbers)
    assert len(closed(Classes(files(labels=numbers[:40])), numbers)[0]) == 40
    halves = [str(number / 2) for number in range(11)]
    assert closed(Classes(files()), halves)[1] == halves


def test_texts_taken_for_labels_are_refused_with_the_remedy():
    texts = [f"this is review {number} of many" for number in range(30)]
    with pytest.raises(DataError, match="seems to hold texts; swap the columns in data.fields"):
        closed(Classes(files()), texts)
    assert len(closed(Classes(files(labels=texts)), texts)[0]) == 30


@pytest.mark.parametrize(("fractions", "are_numbers"), [(20, False), (21, True)])
def test_more_than_twenty_labels_with_points_are_numbers(fractions, are_numbers):
    values = [f"{number}.5" for number in range(fractions)] + [str(number) for number in range(9)] * 9
    if are_numbers:
        with pytest.raises(
            DataError, match="30 different labels in 102 rows, of which 21 are numbers such as 0.5, 1.5"
        ):
            closed(Classes(files()), values)
    else:
        assert len(closed(Classes(files()), values)[0]) == 29


def test_texts_taken_for_labels_are_refused_before_all_of_them_are_in_memory():
    target = Classes(files())
    with pytest.raises(DataError, match="10,000 different labels in 10,000 rows"):
        for number in range(20_000):
            target.read({"label": f"this is review {number} of many"})


def test_a_target_comes_back_from_json():
    made = [Classes(files()), LabelSet(files()), Tags(files()), Number(files())]
    for target in made[:2]:
        closed_rows = ["b", "a", "b"] if type(target) is Classes else [["b"], ["a", "b"]]
        for value in closed_rows:
            target.read({"label": value})
        target.close()
    read_tags(made[2], ["S-PER", "B-LOC", "E-LOC"])
    made[2].close()
    made[3].mean, made[3].sd = 2.5, 0.1
    for target in made:
        again = type(target).from_meta(json.loads(json.dumps(target.meta())))
        assert (again.names, again.num_outputs, again.remap) == (target.names, target.num_outputs, target.remap)
        assert again.about() == target.about()


@pytest.mark.parametrize(
    ("value", "labels"),
    [("a|b", ["a", "b"]), (" b | a |", ["a", "b"]), (["b", "a", "b"], ["a", "b"]), ("", []), ([], []), ("|", []),
     ([1, "a"], ["1", "a"])],
)  # fmt: skip
def test_a_set_of_labels_is_a_list_or_a_cell_with_separators(value, labels):
    target = LabelSet(files(labels=["a", "b", "1"]))
    numbers, problem = target.read({"label": value})
    assert problem is None and sorted(target.names[number] for number in numbers) == labels


@pytest.mark.parametrize("value", [None, 3, {"a": 1}, ["a", None], ["a", ["b"]], "a|z"])
def test_an_invalid_set_of_labels_is_refused(value):
    number, (role, rule) = LabelSet(files(labels=["a", "b"])).read({"label": value})
    assert number is None and role == "label" and rule


def test_another_separator_may_be_set():
    target = LabelSet(files(label_separator=" "))
    target.read({"label": "a|x b"})
    target.close()
    assert target.names == ["a|x", "b"]


@pytest.mark.parametrize(("value", "number"), [("3", 3.0), (" -1.5e2 ", -150.0), (7, 7.0), (0.25, 0.25), ("+.5", 0.5)])
def test_a_number_is_read_as_written(value, number):
    assert Number(files()).read({"label": value}) == (number, None)


NO_NUMBERS = ["nan", "inf", "-Infinity", float("nan"), math.inf, None, "", "x", "1_0", True, [1]]


@pytest.mark.parametrize("value", [*NO_NUMBERS, pytest.param(10**400, id="too large")])
def test_values_other_than_finite_numbers_are_refused(value):
    number, (role, rule) = Number(files()).read({"label": value})
    assert number is None and role == "label" and "number" in rule


def test_tags_are_o_then_b_and_i_of_each_type_by_name():
    tags = ["B-PER", "I-PER", "O", "B-LOC", "B-first-name", "I-first-name"]
    target = Tags(files())
    numbers, problem = read_tags(target, tags)
    target.close()
    assert problem is None
    assert target.names == ["O", "B-LOC", "I-LOC", "B-PER", "I-PER", "B-first-name", "I-first-name"]
    assert [target.names[target.remap[number]] for number in numbers] == tags
    assert [target.names[number] for number in read_tags(target, tags)[0]] == tags


@pytest.mark.parametrize("tag", ["B-", "X-PER", "PER", "o", "O-PER", "PER-B"])
def test_a_tag_of_an_unknown_scheme_is_refused_with_the_known_schemes(tag):
    numbers, (role, rule) = read_tags(Tags(files()), ["O", tag])
    assert numbers is None and role == "tags"
    assert rule.startswith("is a tag of no known scheme (known are O and") and rule.endswith(f": {tag!r}")
    assert "BIOES (B I E S)" in rule and "BMES (B M E S)" in rule


def test_letters_of_several_schemes_are_refused_at_the_row_that_mixes_them():
    target = Tags(files())
    assert read_tags(target, ["B-X", "M-X", "E-X"])[1] is None
    assert "E, I, M in all rows so far, which no single scheme has" in read_tags(target, ["B-X", "I-X"])[1][1].replace(
        "B, E", "E"
    )
    assert read_tags(target, ["S-X"])[1] is None


@pytest.mark.parametrize(
    ("scheme", "written", "bio"),
    [("BIO", "B-X I-X O B-Y", "B-X I-X O B-Y"), ("BIO", "I-X I-X O I-Y B-Y", "B-X I-X O B-Y B-Y"),
     ("BIO", "B-X I-Y I-Y", "B-X B-Y I-Y"), ("IO", "I-X I-X O I-Y I-X", "B-X I-X O B-Y B-X"),
     ("BIO with S", "S-X B-X I-X S-Y", "B-X B-X I-X B-Y"), ("BIO with S", "S-X I-X I-X B-Y", "B-X B-X I-X B-Y"),
     ("BILOU", "U-X L-X I-Y L-Y", "B-X B-X B-Y I-Y"),
     ("BIOES", "B-X I-X E-X S-X O B-Y E-Y", "B-X I-X I-X B-X O B-Y I-Y"),
     ("BIOES", "B-X E-X I-X E-X S-X", "B-X I-X B-X I-X B-X"),
     ("BMES", "B-X M-X M-X E-X S-Y O", "B-X I-X I-X I-X B-Y O"), ("BILOU", "B-X I-X L-X U-Y O", "B-X I-X I-X B-Y O")],
)  # fmt: skip
def test_every_scheme_becomes_legal_bio_of_the_same_spans_and_is_named(scheme, written, bio):
    target = Tags(files())
    numbers, problem = read_tags(target, written.split())
    target.close()
    assert problem is None
    assert [target.names[target.remap[number]] for number in numbers] == bio.split()
    assert target.about()["scheme"] == scheme


SPANS = st.lists(st.tuples(st.integers(1, 3), st.sampled_from("XY"), st.integers(1, 2)), max_size=5)


@given(SPANS, st.sampled_from(["BIO", "BIOES", "BMES", "BILOU"]))
def test_spans_written_in_any_scheme_are_the_same_tags(spans, scheme):
    inside, end, single = {"BIO": "IIB", "BIOES": "IES", "BMES": "MES", "BILOU": "ILU"}[scheme]
    written, bio = [], []
    for length, name, gap in spans:
        letters = single if length == 1 else "B" + inside * (length - 2) + end
        written += [*((letter, name) for letter in letters), *[("O", "")] * (gap - 1)]
        bio += [("B", name), *[("I", name)] * (length - 1), *[("O", "")] * (gap - 1)]
    assert to_bio(written) == (bio, 0)


def test_the_scheme_with_the_fewest_letters_is_named():
    assert [scheme_of(letters) for letters in ("", "I", "BI", "BIS", "S", "BE", "MB", "BL")] == [
        "BIO", "IO", "BIO", "BIO with S", "BIO with S", "BIOES", "BMES", "BILOU"
    ]  # fmt: skip
    assert scheme_of("IM") is None and all(scheme_of(letters) for letters in SCHEMES.values())


def test_spans_begun_without_a_b_are_counted():
    target = Tags(files())
    read_tags(target, ["I-X", "I-X", "O", "B-X", "I-Y"])
    assert target.about() == {"scheme": "BIO", "begun_without_B": 2}


def test_spans_of_characters_become_bio_tags():
    spans = {"name": {"叶老桂": [[2, 4]]}, "company": {"浙商": [[0, 1]], "中": [[6, 6]]}}
    tags, rule = tags_of_spans("浙商叶老桂在中", spans)
    assert rule is None
    assert tags == ["B-company", "I-company", "B-name", "I-name", "I-name", "O", "B-company"]
    assert tags_of_spans("abc", {"x": {"ab": [[0, 2]]}}) == (["B-x", "I-x", "O"], None), "the surface decides"
    assert tags_of_spans(" ab ", {"x": {"ab": [[1, 2]]}}) == (["O", "B-x", "I-x", "O"], None), "a tag for each blank"


def test_the_targets_of_a_batch_are_those_of_its_rows(write, open_files):
    path = write("t.jsonl", "".join(json.dumps({"text": f"t{i}", "label": row}) + "\n" for i, row in enumerate(
        [["b", "a"], [], ["c"], ["a"]]
    )))  # fmt: skip
    fields = {"text": "text", "label": "label"}
    part = open_files(target="nlu.data.targets.LabelSet", train=path, dev=path, fields=fields).sets["train"]
    batch = collate(part, np.array([3, 0, 1, 2]))
    assert batch.examples_B.tolist() == [3, 0, 1, 2]
    labels_BC = batch.targets["labels"]
    assert labels_BC.tolist() == [[1, 0, 0], [1, 1, 0], [0, 0, 0], [0, 0, 1]]
    assert part.target.facts(part.stored, part.rows_N) == {"labels": {"a": 2, "b": 1, "c": 1}, "without": 1}


def test_numbers_come_on_the_scale_of_the_rows_that_are_trained_on(write, open_files):
    values = [1.0, 4.0, 7.5, -2.0, 100.0]
    train = write("train.tsv", "".join(f"t{i}\t{value}\n" for i, value in enumerate(values[:4])))
    dev = write("dev.tsv", "".join(f"t{i}\t{value}\n" for i, value in enumerate(values)))
    store = open_files(target="nlu.data.targets.Number", train=train, dev=dev)
    target, part = store.target, store.sets["dev"]
    mean = sum(values[:4]) / 4
    sd = math.sqrt(sum((value - mean) ** 2 for value in values[:4]) / 4)
    assert (target.mean, target.sd) == (pytest.approx(mean), pytest.approx(sd))
    batch = collate(part, np.arange(5))
    scaled_B = batch.targets["numbers"]
    assert batch.examples_B.tolist() == list(range(5))
    assert scaled_B.tolist() == pytest.approx([(value - mean) / sd for value in values], rel=1e-6)
    assert target.unscaled(scaled_B.double().numpy()) == pytest.approx(values, rel=1e-6)


def test_numbers_that_are_all_the_same_are_refused(write, open_files):
    path = write("t.tsv", "a\t3\nb\t3\n")
    with pytest.raises(DataError, match="all 2 training rows have the number 3"):
        open_files(target="nlu.data.targets.Number", train=path, dev=path)


def test_a_target_of_a_users_own_that_was_changed_makes_another_store(write, open_files, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    trust({"trusted_packages": ["scaled_target"]})
    path = write("t.tsv", "text\tlabel\na\t1\nb\t3\n")
    found = []
    for factor in ("1", "100"):
        (tmp_path / "scaled_target.py").write_text(
            "from nlu.data.targets import Number\n"
            "class Scaled(Number):\n"
            "    def read(self, values):\n"
            f"        return {factor} * float(values['label']), None\n"
        )
        monkeypatch.delitem(sys.modules, "scaled_target", raising=False)
        importlib.invalidate_caches()
        part = open_files(target="scaled_target.Scaled", train=path, dev=path, fields=None)
        found.append(part.target.values(part.sets["dev"].stored, np.arange(2)).tolist())
    assert found == [[1, 3], [100, 300]]


def test_equal_sets_of_labels_are_duplicates_in_any_order(write, open_files):
    rows = [("b", ["z"]), ("t", ["z", "a"]), ("t", ["a", "z"]), ("t", ["a"]), ("t", []), ("t", [])]
    path = write("t.jsonl", "".join(json.dumps({"text": text, "label": labels}) + "\n" for text, labels in rows))
    store = open_files(
        target="nlu.data.targets.LabelSet", train=path, dev=path, fields={"text": "text", "label": "label"},
        drop_duplicates=True,
    )  # fmt: skip
    assert store.sets["train"].rows_N.tolist() == [0, 1, 3, 4]
    facts = describe(store)["sets"]["train"]
    assert (facts["duplicates"], facts["conflicts"]) == (2, 1)


def test_equal_numbers_are_duplicates_however_they_are_written(write, open_files):
    path = write("t.tsv", "a\t1\na\t1.0\na\t0\na\t-0\nb\t2\n")
    store = open_files(target="nlu.data.targets.Number", train=path, dev=path, drop_duplicates=True)
    assert store.sets["train"].rows_N.tolist() == [0, 2, 4]


def test_numbers_are_spread_over_folds_by_size(write, open_files):
    path = write("t.tsv", "".join(f"t{i}\t{i}\n" for i in range(100)))
    for number in range(5):
        part = open_files(target="nlu.data.targets.Number", train=path, fold=Fold(number, 5, 1)).sets["dev"]
        values_N = part.target.values(part.stored, part.rows_N)
        assert np.bincount(values_N.astype(int) // 10).tolist() == [2] * 10


def test_the_scale_is_that_of_the_rows_a_fold_trains_on(write, open_files):
    path = write("t.tsv", "".join(f"t{i}\t{i * i}\n" for i in range(20)))
    scales = set()
    for number in range(2):
        store = open_files(target="nlu.data.targets.Number", train=path, fold=Fold(number, 2, 1))
        values = [row * row for row in store.sets["train"].rows_N.tolist()]
        assert store.target.mean == pytest.approx(sum(values) / len(values))
        scales.add(store.target.mean)
    assert len(scales) == 2


SOFT = """
import pyarrow as pa
from nlu.data.targets import Target

class Soft(Target):
    kind, roles = "soft", ("label",)

    def read(self, values):
        return values["label"], None

    def column(self):
        return pa.list_(pa.{kind}())
"""


def test_shares_of_labels_are_stored_as_they_are_or_refused_at_their_row(write, open_files, monkeypatch, tmp_path):
    path = write("t.jsonl", '{"text": "a", "label": [0, 1]}\n{"text": "b", "label": [0.25, 0.75]}\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    for kind in ("float64", "int32"):
        write(f"soft_{kind}.py", SOFT.format(kind=kind))
        importlib.invalidate_caches()

    def opened(kind):
        trust({"trusted_packages": [f"soft_{kind}"]})
        return open_files(target=f"soft_{kind}.Soft", train=path, dev=path, fields=None)

    stored = opened("float64").sets["train"].stored
    assert stored.lists("target", np.array([1, 0]))[0].tolist() == [0.25, 0.75, 0, 1]
    with pytest.raises(DataError, match=r"t\.jsonl:2: Soft reads 0\.25 as the target, but .* of type int32"):
        opened("int32")
