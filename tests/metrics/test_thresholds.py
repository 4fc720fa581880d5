"""Thresholds by class that a set chooses, against a search of all cuts, and the scores at them against scikit-learn."""

import numpy as np
import pytest
from sklearn.metrics import f1_score, fbeta_score, precision_score, recall_score

from nlu.metrics.label_sets import LabelSetScorer
from nlu.metrics.thresholds import UNREACHED, Aim, ThresholdScorer, of_classes

NAMES = ["oos", "book", "play"]


def rows(seed, count=60):
    """Labels and probabilities of a classifier that is right more often than not; with ties."""
    rng = np.random.default_rng(seed)
    label_N = rng.integers(0, 3, count)
    logits_NC = rng.normal(size=(count, 3)) + 1.5 * np.eye(3)[label_N] * (rng.random((count, 1)) < 0.8)
    share_NC = np.exp(logits_NC)
    return label_N, np.round(share_NC / share_NC.sum(1, keepdims=True), 2)


def decided(best_N, probability_N, at_least_C):
    return np.where(probability_N >= np.array(at_least_C)[best_N], best_N, 0)


def scored(scorer, label_N, share_NC):
    for label, share_C in zip(label_N, share_NC, strict=True):
        best = int(share_C.argmax())
        record = {"label": NAMES[label], "prediction": NAMES[best], "probability": float(share_C[best]), "loss": 1.0}
        scorer.add(record)
    return scorer


@pytest.mark.parametrize("beta", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_cut_has_a_higher_f_beta_of_a_class_than_the_chosen_one(seed, beta):
    label_N, share_NC = rows(seed)
    best_N, probability_N = share_NC.argmax(1), share_NC.max(1)
    scores = scored(ThresholdScorer(NAMES, aim=Aim(beta=beta)), label_N, share_NC).result()
    chosen = of_classes(scores.metrics, NAMES)
    predicted_N = decided(best_N, probability_N, chosen)
    assert chosen[0] == 0.0
    for number in (1, 2):
        found = fbeta_score(label_N, predicted_N, beta=beta, labels=[number], average="macro", zero_division=0)
        others = []
        for cut in [0.0, *np.unique(probability_N), 1.1]:
            at_least = list(chosen)
            at_least[number] = cut
            other_N = decided(best_N, probability_N, at_least)
            others.append(fbeta_score(label_N, other_N, beta=beta, labels=[number], average="macro", zero_division=0))
        assert found == pytest.approx(max(others))
    assert scores.metrics["f1_macro"] == pytest.approx(f1_score(label_N, predicted_N, average="macro"))
    assert scores.metrics["accuracy"] == np.mean(label_N == predicted_N)


def test_a_precision_is_reached_with_the_highest_recall_or_a_class_is_left_out():
    label_N, share_NC = rows(4, 200)
    best_N, probability_N = share_NC.argmax(1), share_NC.max(1)
    chosen = of_classes(
        scored(ThresholdScorer(NAMES, aim=Aim(precision=0.9)), label_N, share_NC).result().metrics, NAMES
    )
    predicted_N = decided(best_N, probability_N, chosen)
    for number in (1, 2):
        assert precision_score(label_N, predicted_N, labels=[number], average="macro") >= 0.9
        recall = recall_score(label_N, predicted_N, labels=[number], average="macro")
        for cut in np.unique(probability_N[probability_N < chosen[number]]):
            at_least = list(chosen)
            at_least[number] = cut
            other_N = decided(best_N, probability_N, at_least)
            is_precise = precision_score(label_N, other_N, labels=[number], average="macro") >= 0.9
            assert not is_precise or recall_score(label_N, other_N, labels=[number], average="macro") == recall
    wrong_first = Aim(precision=0.9).threshold(np.array([0.9, 0.8, 0.7]), np.array([False, True, True]), 2)
    assert wrong_first == UNREACHED > 1


def test_ranks_and_given_thresholds_do_not_change_what_is_decided():
    label_N, share_NC = rows(5)
    whole = scored(ThresholdScorer(NAMES, aim=Aim()), label_N, share_NC).result()
    first = scored(ThresholdScorer(NAMES, aim=Aim()), label_N[40:], share_NC[40:])
    first.merge(scored(ThresholdScorer(NAMES, aim=Aim()), label_N[:40], share_NC[:40]))
    assert first.result().metrics == whole.metrics
    given = scored(ThresholdScorer(NAMES, aim=Aim(), given=[0.0, 0.6, 0.55]), label_N, share_NC).result()
    assert of_classes(given.metrics, NAMES) == [0.0, 0.6, 0.55]
    predicted_N = decided(share_NC.argmax(1), share_NC.max(1), [0.0, 0.6, 0.55])
    assert given.metrics["accuracy"] == np.mean(label_N == predicted_N)


def test_each_label_of_a_set_has_the_threshold_of_its_own_best_f1():
    rng = np.random.default_rng(6)
    names = ["a", "b", "never"]
    label_NC = rng.random((80, 3)) < [0.3, 0.1, 0.0]
    share_NC = np.round(np.clip(0.5 * label_NC + rng.random((80, 3)) * [0.7, 0.4, 0.9], 0, 1), 2).astype(np.float32)
    scorer = LabelSetScorer(names, "auto", aim=Aim())
    for label_C, share_C in zip(label_NC, share_NC, strict=True):
        label = [name for name, applies in zip(names, label_C, strict=True) if applies]
        scorer.add({"label": label, "probabilities": dict(zip(names, share_C.tolist(), strict=True)), "loss": 0.0})
    metrics = scorer.result().metrics
    chosen = of_classes(metrics, names)
    assert chosen[2] == 0.5 and "threshold" not in metrics
    for number in (0, 1):
        own = [f1_score(label_NC[:, number], share_NC[:, number] >= cut) for cut in np.unique(share_NC[:, number])]
        at_own = f1_score(label_NC[:, number], share_NC[:, number] >= np.float32(chosen[number]))
        assert at_own == pytest.approx(max(own))
    predicted_NC = share_NC >= np.array(chosen, np.float32)
    assert metrics["f1_micro"] == pytest.approx(f1_score(label_NC, predicted_NC, average="micro"))
