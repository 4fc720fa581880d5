"""Scores of tagged rows, with those units that max_len cut off."""

import json
import math

import numpy as np
import pytest
import torch

from nlu.data.collate import collate
from nlu.losses.cross_entropy import CrossEntropy
from nlu.tasks.tag import Tag
from tests.tasks.conftest import Headless, scored

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


def test_right_tags_score_one(store_of):
    rows = ["B-X I-X O", "O", "B-Y O B-X"]
    scores, records = scores_of(store_of("a.conll", "".join(map(sentence, rows)), Tag, **CONLL), rows)
    assert {name: scores.metrics[name] for name in ("span_f1", "span_precision", "span_recall", "tag_accuracy")} == {
        "span_f1": 1.0, "span_precision": 1.0, "span_recall": 1.0, "tag_accuracy": 1.0,
    }  # fmt: skip
    assert scores.metrics["loss"] == pytest.approx(0.0, abs=1e-6)
    assert [row["spans"] for row in records] == [[(0, 1, "X")], [], [(0, 0, "Y"), (2, 2, "X")]]


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


def test_all_spans_of_rows_that_are_cut_to_nothing_count_as_missed(store_of):
    rows = ["B-X O", "B-X"]
    text = "".join(map(sentence, rows))
    store = store_of("a.conll", text, Tag, **CONLL)
    part = store.sets["dev"]
    batch = collate(part, np.arange(2))
    batch.unit_counts_B, batch.targets = np.zeros(2, np.int64), {"labels": torch.zeros(0, dtype=torch.int64)}
    task = Tag(CrossEntropy(), store.target)
    scorer = task.scorer({})
    for record in task.records(part, batch, Headless(), {"logits": torch.zeros(0, len(store.labels))}):
        scorer.add(record)
    metrics = scorer.result().metrics
    assert metrics["span_recall"] == metrics["span_f1"] == 0.0
    assert metrics["tag_accuracy"] == 1 / 3 and math.isnan(metrics["loss"])


def test_legal_decoding_corrects_the_output_of_greedy_decoding(store_of):
    store = store_of("a.conll", sentence("B-X I-X") + sentence("B-Y I-Y"), Tag, **CONLL)
    logits = logits_of(store, ["B-X I-X", "O I-Y"], sure=2.0)
    logits[2, store.labels.index("B-Y")] = 1.9
    (legal, corrected), (greedy, left) = (tagged(store, logits, decode) for decode in ("legal", "greedy"))
    assert corrected[1]["spans"] == [(0, 1, "Y")]
    assert left[1]["spans"] == [(1, 1, "Y")]
    assert legal.metrics["loss"] == greedy.metrics["loss"]


def test_the_scores_are_those_that_the_task_declares(store_of):
    rows = ["B-X I-X O"]
    scores, records = scores_of(store_of("a.conll", sentence(rows[0]), Tag, **CONLL), rows)
    assert set(scores.metrics) == set(Tag.metrics) and Tag.default_metric in Tag.metrics


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
