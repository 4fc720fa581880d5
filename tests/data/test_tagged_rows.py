"""What tags mean: spans, spans without types, classes of units, numbers with names; units that fit spans."""

import json

import numpy as np
import pytest

from nlu.config.errors import DataError
from nlu.data.facts import describe, lines
from nlu.data.layouts import LAYOUTS
from nlu.data.targets.span_tags import tags_of_spans


def opened(write, open_files, rows, **settings):
    path = write("t.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    return open_files("units", train=path, dev=path, fields=None, **settings)


def tagged(store, name="train"):
    part = store.sets[name]
    flat, counts = part.target.tags(part.stored, part.rows_N)
    names = [part.target.names[number] for number in flat]
    return [names[end - count : end] for end, count in zip(np.cumsum(counts), counts, strict=True)]


def of_tags(*rows):
    return [{"tokens": ["w"] * len(row.split()), "tags": row.split()} for row in rows]


@pytest.mark.parametrize(
    ("written", "bio"),
    [
        ("B I O I", "B-_ I-_ O B-_"),
        ("B_PER I_PER O", "B-PER I-PER O"),
        ("S B M E O", "B-_ B-_ I-_ I-_ O"),
        ("O I I", "O B-_ I-_"),
    ],
)
def test_spans_may_lack_types_and_have_another_separator(write, open_files, written, bio):
    assert tagged(opened(write, open_files, of_tags(written, "O"))) == [bio.split(), ["O"]]


def test_tags_of_no_scheme_are_classes_of_units(write, open_files):
    store = opened(write, open_files, of_tags("O I", "B X", "NN-PL ,"))
    assert store.labels == [",", "B", "I", "NN-PL", "O", "X"]
    assert tagged(store) == [["O", "I"], ["B", "X"], ["NN-PL", ","]]
    assert any("classes of tokens, scored by accuracy and f1_macro" in line for line in lines(describe(store)))


def test_one_tag_with_a_type_makes_the_others_mistakes(write, open_files):
    with pytest.raises(DataError, match=r"t\.jsonl:2: field tags: .*is a tag of no known scheme .*: 'PER'"):
        opened(write, open_files, of_tags("O B-PER", "PER O"))


@pytest.mark.parametrize("number", [int, str])
@pytest.mark.parametrize(
    ("labels", "names", "tags"),
    [
        (["O", "B-Y", "I-Y", "B-X", "I-X"], ["O", "B-Y", "I-Y", "B-X", "I-X"], ["B-Y", "I-Y", "O"]),
        (["NOUN", "VERB", "DET"], ["NOUN", "VERB", "DET"], ["VERB", "DET", "NOUN"]),
    ],
)
def test_numbers_of_tags_have_the_names_in_data_labels(write, open_files, labels, names, tags, number):
    rows = [{"tokens": ["a", "b", "c"], "tags": list(map(number, [1, 2, 0]))}]
    store = opened(write, open_files, rows, labels=labels)
    assert store.labels == names and tagged(store) == [tags]
    with pytest.raises(DataError, match=r"is a number in place of the name of a tag \(set data\.labels to the names"):
        opened(write, open_files, rows)


def test_numbers_of_labels_have_the_names_in_data_labels(write, open_files):
    path = write("c.tsv", "a\t1\nb\t0\nc\tneg\n")
    part = open_files(train=path, dev=path, fields={"text": 0, "label": 1}, labels=["neg", "pos"]).sets["train"]
    assert part.target.numbers(part.stored, part.rows_N).tolist() == [1, 0, 0]
    with pytest.raises(DataError, match=r"c\.tsv:1: .*is not one of the labels \['pos'\]|at least 2 are needed"):
        open_files(train=path, dev=path, fields={"text": 0, "label": 1}, labels=["pos"])


TEXT = "Ann Lee left 🙂 Rome"
SPANS = ["B-person", *["I-person"] * 6, *["O"] * 8, "B-place", *["I-place"] * 3]


@pytest.mark.parametrize(
    "spans",
    [
        {"person": {"Ann Lee": [[0, 6]]}, "place": {"Rome": [[15, 18]]}},
        [[0, 7, "person"], [15, 19, "place"]],
        [["person", 0, 7], ("place", 15, 19)],
        [{"start": 0, "end": 7, "label": "person", "token_start": 0}, {"start": 15, "end": 19, "label": "place"}],
        [
            {"start_offset": 0, "end_offset": 7, "label": "person", "id": 3},
            {"start_offset": 15, "end_offset": 19, "label": "place"},
        ],
        [
            {"start": 0, "end": 7, "labels": ["person"], "text": "Ann Lee"},
            {"start": 15, "end": 19, "labels": ["place"]},
        ],
        [
            {"value": {"start": 0, "end": 7, "labels": ["person"]}},
            {"value": {"start": 15, "end": 19, "labels": ["place"]}},
            {"value": {"choices": ["yes"]}},
        ],
        [
            {
                "result": [
                    {"value": {"start": 0, "end": 7, "labels": ["person"]}},
                    {"value": {"start": 15, "end": 19, "labels": ["place"]}},
                ]
            }
        ],
        {"entities": [[0, 7, "person"], [15, 19, "place"], [0, 7, "person"]]},
        {"start": [0, 15], "end": [7, 19], "label": ["person", "place"]},
        [
            {"entity_group": "person", "start": 0, "end": 7, "word": "ann lee"},
            {"entity": "place", "start": 15, "end": 19},
        ],
        [
            {"offset": 0, "length": 7, "category": "person"},
            {"offset": 15, "length": 4, "category": "place", "text": "Rome"},
        ],
        [
            {"start_idx": 0, "end_idx": 6, "type": "person", "entity": "Ann Lee"},
            {"start": 15, "end": 18, "type": "place", "text": "Rome"},
        ],
        [[0, 7, "person"], {"start": 16, "end": 20, "label": "place", "text": "Rome"}],
    ],
)
def test_spans_are_read_as_tools_write_them(spans):
    assert tags_of_spans(TEXT, spans) == (SPANS, None)


@pytest.mark.parametrize(
    ("spans", "rule"),
    [
        ([[0, 8, "person"], [4, 7, "x"]], "has x at [4, 7) over another span, 'Lee'; BIO cannot hold both"),
        ([[3, 3, "x"]], "has x at [3, 3), an empty span: an end is the place behind the last character"),
        ([[18, 20, "x"]], "has x at [18, 20), which is not within the 19 characters of the text"),
        ([{"start": 0, "end": 7, "label": "x", "text": "Bob"}], "where the text reads 'Ann Lee' and not 'Bob'"),
        ([{"start": 0, "end": 7, "labels": ["x", "y"]}], "written otherwise than"),
        ([{"start": 0.0, "end": 7, "label": "x"}], "written otherwise than"),
        ([[0, 7]], "written otherwise than"),
        ("x", "is not a list of spans, such as"),
    ],
)
def test_spans_that_are_no_places_of_the_text_are_refused_with_the_rule(spans, rule):
    tags, broken = tags_of_spans(TEXT, spans)
    assert tags is None and rule in broken


@pytest.mark.parametrize(
    "row",
    [
        {"text": "a b", "label": [[0, 1, "x"]]},
        ["a b", {"entities": [[0, 1, "x"]]}],
        {
            "id": 1,
            "data": {"text": "a b"},
            "annotations": [{"result": [{"value": {"start": 0, "end": 1, "labels": ["x"]}}]}],
        },
        {"text": "a b", "entities": [{"start": 0, "end": 1, "label": "x"}], "label": "y"},
        {"text": "a b", "tokens": [{"text": "a", "start": 0}], "spans": [{"start": 0, "end": 1, "label": "x"}]},
    ],
)
def test_the_column_of_spans_is_found_by_its_name(write, open_files, row):
    store = opened(write, open_files, [row] * 2)
    assert store.meta["fields"].keys() == {"text", "spans"} and tagged(store) == [["B-x", "O", "O"]] * 2


KOREAN = [("서울에서 만나요", 0, 2), ("나는 서울이 좋다", 3, 5), ("서울은 크다", 0, 2)]
JAPANESE = [("東京タワーへ", 2, 5), ("すしを食べる", 0, 2), ("今日はすしだ", 3, 5)]
THAI = [("ไปกรุงเทพวันนี้", 2, 9), ("อยู่ที่กรุงเทพ", 7, 14)]
GERMAN = [("Donaudampfschiff", 0, 5), ("die Donaubrücke", 4, 9), ("Donaukreis", 0, 5)]


def spelled(texts):
    return [{"text": text, "spans": [[start, end, "x"]]} for text, start, end in texts]


@pytest.mark.parametrize(
    ("texts", "layout"),
    [
        (KOREAN, "units/letters"),
        (JAPANESE, "units/letters"),
        (THAI, "units/letters"),
        (GERMAN, "units/characters"),
        ([("in iPhone4 it", 3, 9), ("我在北京", 2, 4), ("Ann Lee", 0, 7)], "units"),
    ],
)
def test_units_are_as_fine_as_the_spans_of_the_training_rows_need(write, open_files, texts, layout):
    store = opened(write, open_files, spelled(texts))
    part = store.sets["train"]
    assert part.layout is LAYOUTS[layout] and part.layout.key == layout
    facts = describe(store)["sets"]["train"]
    assert facts["inexpressible"] == (layout == "units")
    assert any("begin or end within a unit" in line for line in lines(describe(store))) == (layout == "units")
    # The units of a span are those whose tags are not O, and their text is that of the span.
    ends, counts = part.stored.lists("places", part.rows_N)
    tags, _ = part.target.unit_tags(part.stored, part.rows_N)
    rows = np.split(ends.reshape(-1, 2), np.cumsum(counts // 2)[:-1])
    for (text, start, end), places, own in zip(texts, rows, np.split(tags, np.cumsum(counts // 2)[:-1]), strict=True):
        inside = places[own > 0]
        assert layout == "units" or text[inside[0, 0] : inside[-1, 1] + 1] == text[start:end]


def test_words_remain_units_where_few_spans_are_cut(write, open_files):
    rows = spelled([("Ann left", 0, 3)] * 97 + GERMAN)
    assert (
        opened(write, open_files, [row | {"text": f"{row['text']} {n}"} for n, row in enumerate(rows)]).layout.key
        == "units"
    )
