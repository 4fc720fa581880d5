"""Runs taken together: means and deviations, and the predictions of folds joined or refused."""

import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest

from nlu.config.errors import UserError
from nlu.config.schema import num_repeats
from nlu.metrics.repeats import join_folds, scorer_named, scores_of, summarise
from nlu.metrics.spans import SpanScorer, spans_of
from nlu.runs.predictions import write_predictions


def result(value: float, fold: int | None = 0, **changes: Any) -> dict[str, Any]:
    return {
        "metrics": {"dev": {"accuracy": value, "auc": None if value > 0.8 else 0.5}},
        "best": {"set": "dev", "metric": "accuracy", "value": value, "step": 10},
        "seed": 1, "folds": 2, "fold": fold, "pruned": False, "examples": 80, "steps": 10, "train_s": 1.5, **changes,
    }  # fmt: skip


def test_means_and_sample_deviations_leave_out_no_run() -> None:
    found = summarise({"fold-0": result(0.5), "fold-1": result(0.9, 1)})
    assert found["best"]["value"] == pytest.approx(0.7) and found["best"]["sd"] == pytest.approx(0.4 / math.sqrt(2))
    assert found["metrics"]["dev"] == {"accuracy": pytest.approx(0.7), "auc": None}, "a mean over some would mislead"
    assert (found["examples"], found["steps"], found["train_s"]) == (160, 20, 3.0)
    assert [(part["name"], part["fold"], part["value"]) for part in found["parts"]] == [
        ("fold-0", 0, 0.5), ("fold-1", 1, 0.9),
    ]  # fmt: skip


def test_spans_that_were_read_back_give_the_scores_of_the_spans() -> None:
    pairs = [(["B-X", "I-X", "O"], ["B-X", "I-X", "B-Y"]), (["O", "O", "B-Y"], ["O", "B-Y", "O"])]
    units = {"units": 3, "units_right": 1, "units_scored": 3, "loss": 0.0}
    # JSON makes a list of a span.
    rows = json.loads(
        json.dumps([{"spans": spans_of(found), "label": spans_of(gold), **units} for found, gold in pairs])
    )
    found = scores_of(rows, SpanScorer([]))
    # One of two spans is right where three are wanted.
    assert found["span_precision"] == pytest.approx(1 / 2) and found["span_recall"] == pytest.approx(1 / 3)
    assert found["span_f1"] == pytest.approx(2 / 5)


def test_joined_label_sets_are_scored_as_each_fold_decided_unless_at_a_threshold() -> None:
    # The first fold has decided at 0.7, the second one at 0.05.
    rows = [
        {"label": ["a"], "probabilities": {"a": 0.8}, "prediction": ["a"], "loss": 0.1},
        {"label": [], "probabilities": {"a": 0.6}, "prediction": [], "loss": 0.1},
        {"label": [], "probabilities": {"a": 0.1}, "prediction": ["a"], "loss": 0.1},
        {"label": ["a"], "probabilities": {"a": 0.01}, "prediction": [], "loss": 0.1},
    ]
    for threshold, right in ((None, [1, 1, 0, 0]), (0.005, [1, 0, 0, 1])):
        config = {"task": {"_target_": "nlu.tasks.multilabel.Multilabel", "threshold": threshold}}
        metrics = scores_of(rows, scorer_named("nlu.metrics.label_sets.LabelSetScorer", ["a"], config))
        assert metrics["exact_match"] == statistics.fmean(right)
        assert metrics.get("threshold") == threshold
    # One of two predicted, and one of two wanted; the areas are those of the probabilities.
    found = scores_of(rows, scorer_named("nlu.metrics.label_sets.LabelSetScorer", ["a"], {}))
    assert found["precision_micro"] == found["recall_micro"] == found["f1_micro"] == found["f1_macro"] == 0.5
    assert found["average_precision"] == pytest.approx((1 + 2 / 4) / 2)


def test_joined_similarities_are_scored_as_each_fold_has_decided() -> None:
    decided = [(0.9, "1", "1"), (0.8, "0", "0"), (0.3, "1", "1"), (0.2, "1", "0"), (0.1, "0", "0")]
    rows = [{"similarity": similarity, "label": label, "prediction": found} for similarity, label, found in decided]
    metrics = scores_of(rows, scorer_named("nlu.metrics.classes.SimilarityScorer", ["0", "1"], {}))
    assert metrics["accuracy"] == pytest.approx(4 / 5) and metrics["recall"] == pytest.approx(2 / 3)
    assert metrics["precision"] == 1 and "threshold" not in metrics
    # Of six pairs of a matching and another row, four are in order.
    assert metrics["auc"] == pytest.approx(4 / 6)


def write_fold(folder: Path, fold: int | None, ids: list[int], train_examples: int, **changes: Any) -> Path:
    rows = [
        {"id": i, "label": "ab"[i % 2], "prediction": "a", "probability": 0.75, "loss": 0.1 * i, "margin": -1.0}
        for i in ids
    ]
    header = {
        "step": 10, "kind": "nlu.metrics.kinds.ClassKind", "scorer": "nlu.metrics.classes.ClassScorer",
        "by_label": [{"label": "a"}, {"label": "b"}],
    }  # fmt: skip
    facts = {"labels": ["a", "b"], "sets": {"train": {"examples": train_examples}, "dev": {"examples": len(ids)}}}
    write_predictions(folder / "predictions" / "dev.jsonl", header, rows)
    for name, value in (("result.json", result(0.5, fold, **changes)), ("data.json", facts)):
        (folder / name).write_text(json.dumps(value))
    return folder


def test_folds_are_joined_in_row_order_for_any_order_of_their_folders(tmp_path: Path) -> None:
    folders = [write_fold(tmp_path / "a", 1, [0, 3], 3), write_fold(tmp_path / "b", 0, [1, 2, 4], 2)]
    joined = join_folds(folders)
    again = join_folds(folders[::-1])
    assert (joined.header, list(joined.records())) == (again.header, list(again.records()))
    assert [(record["id"], record["fold"]) for record in joined.records()] == [(0, 1), (1, 0), (2, 0), (3, 1), (4, 0)]
    assert (joined.folds, joined.seed) == (2, 1)
    assert joined.metrics["accuracy"] == 0.6 and joined.metrics["loss"] == pytest.approx(0.2)


def test_folds_that_are_not_all_of_one_split_are_refused(tmp_path: Path) -> None:
    whole = [write_fold(tmp_path / "0", 0, [0, 1], 1), write_fold(tmp_path / "1", 1, [2], 2)]
    other = write_fold(tmp_path / "seed", 1, [2], 2, seed=2)
    plain = write_fold(tmp_path / "plain", None, [0], 1, folds=None)
    for folders in (whole[:1], [*whole, whole[1]], [whole[0], other], [plain, plain]):
        with pytest.raises(UserError, match="these are not all folds of one split, each once"):
            join_folds(folders)
    changed = write_fold(tmp_path / "changed", 1, [1], 2)
    with pytest.raises(UserError, match="hold out 3 rows, but there are 3 training examples, each held out once"):
        join_folds([whole[0], changed])
    (whole[1] / "result.json").unlink()
    with pytest.raises(UserError, match="result.json does not exist, so this fold is not finished"):
        join_folds(whole)


@pytest.mark.parametrize(
    ("count", "fold", "seeds", "parts"), [(None, None, 1, 1), (5, None, 1, 5), (5, 2, 3, 3), (5, None, 3, 15)]
)
def test_a_trial_is_as_many_runs_as_folds_times_seeds(
    count: int | None, fold: int | None, seeds: int, parts: int
) -> None:
    assert num_repeats({"folds": {"count": count}, "fold": fold, "seeds": seeds}) == parts
