"""Scores of tagged rows, with those units that max_len cut off."""

import json
import math
from itertools import pairwise, product
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from nlu.data.collate import collate
from nlu.losses.cross_entropy import CrossEntropy
from nlu.models.heads.crf import CrfHead
from nlu.tasks.tag import Tag, spans_of
from tests.tasks.conftest import scored

CONLL = {"fields": {"tokens": 0, "tags": 1}}


def sentence(tags):
    return "".join(f"w {tag}\n" for tag in tags.split()) + "\n"


def logits_of(store, tags, *, sure=20.0):
    """Logits that are sure of the given tags, for the units of each example that fitted."""
    part = store.sets["dev"]
    counts_N = part.stored.words(part.rows_N)[1]
    numbers = [
        store.labels.index(tag) for row, count in zip(tags, counts_N, strict=True) for tag in row.split()[:count]
    ]
    return (np.eye(len(store.labels))[numbers] * sure).astype(np.float32)


def tagged(store, logits, decode="legal"):
    return scored(Tag(CrossEntropy(), store.target, decode=decode), store, logits)


def scores_of(store, tags, **settings):
    return tagged(store, logits_of(store, tags, **settings))


def test_wrong_tags_score_as_by_hand(store_of):
    rows, guesses = ["B-X I-X O", "O B-Y"], ["B-X O O", "O B-Y"]
    scores, records = scores_of(store_of("a.conll", "".join(map(sentence, rows)), Tag, **CONLL), guesses)
    assert scores.metrics["span_f1"] == scores.metrics["span_precision"] == scores.metrics["span_recall"] == 0.5
    assert scores.metrics["tag_accuracy"] == 4 / 5
    assert scores.metrics["loss"] == pytest.approx(20 / 5, abs=1e-6)
    assert [(row["label"], row["examples"], row["correct"], row["f1"]) for row in scores.by_label] == [
        ("X", 1, 0, 0.0), ("Y", 1, 1, 1.0),
    ]  # fmt: skip


def test_spans_that_max_len_cut_off_are_missed_not_forgotten(store_of):
    rows = ["B-X O O O O B-X I-X O B-X", "B-X"]
    store = store_of("a.conll", "".join(map(sentence, rows)), Tag, max_len=8, **CONLL)
    assert store.sets["dev"].stored.words(np.array([0, 1]))[1].tolist() == [6, 1]
    scores, records = scores_of(store, rows)
    metrics = scores.metrics
    assert metrics["span_recall"] == 2 / 4 and metrics["span_precision"] == 2 / 3
    assert metrics["tag_accuracy"] == (6 + 1 + 1) / 10
    assert metrics["loss"] == pytest.approx(0.0, abs=1e-6)
    assert records[0]["label"] == [(0, 0, "X"), (5, 6, "X"), (8, 8, "X")]
    assert scores.by_label[0]["examples"] == 4
    # The loss is a mean over the seven units that were seen, each as sure as the others: of three tags.
    unsure, _ = scores_of(store, rows, sure=2.0)
    assert unsure.metrics["loss"] == pytest.approx(math.log(1 + 2 * math.exp(-2)), rel=1e-6)


def test_legal_decoding_corrects_the_output_of_greedy_decoding(store_of):
    store = store_of("a.conll", sentence("B-X I-X") + sentence("B-Y I-Y"), Tag, **CONLL)
    logits = logits_of(store, ["B-X I-X", "O I-Y"], sure=2.0)
    logits[2, store.labels.index("B-Y")] = 1.9
    (legal, corrected), (greedy, left) = (tagged(store, logits, decode) for decode in ("legal", "greedy"))
    assert corrected[1]["spans"] == [(0, 1, "Y")]
    assert left[1]["spans"] == [(1, 1, "Y")]
    assert legal.metrics["loss"] == greedy.metrics["loss"]


def test_spans_of_a_text_are_found_and_scored_by_their_characters(store_of):
    rows = [
        {"text": "Ann Lee left Rome", "spans": {"person": {"Ann Lee": [[0, 6]]}, "place": {"Rome": [[13, 16]]}}},
        {"text": "in iPhone4 it is", "spans": {"place": {"iPhone": [[3, 8]]}}},
        {"text": "Rome Rome Rome Rome Rome Rome Rome Bonn", "spans": {"place": {"Bonn": [[35, 38]]}}},
    ]
    store = store_of("t.jsonl", "\n".join(map(json.dumps, rows)), Tag, max_len=8)
    scores, records = scores_of(store, ["B-person I-person O B-place", "O B-place O O", "O O O O O O"])
    assert [row["spans"] for row in records] == [[(0, 6, "person"), (13, 16, "place")], [(3, 9, "place")], []]
    labels = [[(0, 6, "person"), (13, 16, "place")], [(3, 8, "place")], [(35, 38, "place")]]
    assert [sorted(row["label"]) for row in records] == labels
    # A part of a word is not found exactly, and what was cut off is missed.
    assert scores.metrics["span_precision"] == 2 / 3 and scores.metrics["span_recall"] == 2 / 4
    assert scores.metrics["tag_accuracy"] == (4 + 4 + 7) / (4 + 4 + 8)


def test_the_tags_of_a_head_that_decodes_are_its_own_and_not_the_best_of_each_unit(store_of):
    store = store_of("a.conll", sentence("B-X I-X O") * 2, Tag, **CONLL)
    names, head = store.labels, CrfHead(4, store.target, None)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in (head.transitions_CC, head.start_C, head.end_C):
            parameter.normal_(std=2.0)
    part = store.sets["dev"]
    batch = collate(part, np.arange(1))
    logits_UC = torch.randn(int(batch.unit_counts_B.sum()), len(names))
    task = Tag(CrossEntropy(), store.target)
    (record,) = task.predictions(batch, SimpleNamespace(head=head), {"logits": logits_UC})

    def score(tags):
        legal = tags[0] != "I-X" and all(two != "I-X" or one in ("B-X", "I-X") for one, two in pairwise(tags))
        numbers = [names.index(tag) for tag in tags]
        steps = sum(head.transitions_CC[one, two] for one, two in pairwise(numbers))
        units = sum(logits_UC[place, number] for place, number in enumerate(numbers))
        ends = head.start_C[numbers[0]] + head.end_C[numbers[-1]]
        return float(steps + units + ends) if legal else -math.inf

    with torch.no_grad():
        best = max(product(names, repeat=3), key=score)
    assert list(best) != [names[number] for number in logits_UC.argmax(1).tolist()], "transitions decide"
    assert record["spans"] == spans_of(list(best))
