"""Classify a text, or match two: one label for each example."""

import numpy as np

from nlu.data.examples import Examples
from nlu.metrics.classification import classification_scores, log_probabilities, scores_by_class
from nlu.tasks.outputs import Outputs, Scores, identities


class Classify:
    """Give a text one of several classes."""

    target = "nlu.data.targets.Classes"
    layouts = ("single",)
    metrics = ("accuracy", "f1_macro", "f1_weighted", "precision_macro", "recall_macro", "mcc", "loss")
    binary_metrics = ("f1", "precision", "recall", "auc", "average_precision")
    """only with two classes"""
    default_metric = "accuracy"
    lower_is_better = ("loss",)

    def __init__(self) -> None:
        """No options."""

    def scores(self, outputs: Outputs, part: Examples, labels: list[str]) -> Scores:
        """Return the scores of a set and the prediction for each of its examples."""
        gold_N = part.target.identities(part.stored, part.rows_N)
        log_probs_NC = log_probabilities(outputs.logits_RC)
        best_N = log_probs_NC.argmax(1)
        probability_N = np.exp(log_probs_NC.max(1))
        loss_N = -log_probs_NC[np.arange(len(gold_N)), gold_N]
        predictions = [
            {
                **identity,
                "label": labels[gold],
                "prediction": labels[best],
                "probability": float(p),
                "loss": float(loss),
            }
            for identity, gold, best, p, loss in zip(
                identities(part), gold_N, best_N, probability_N, loss_N, strict=True
            )
        ]
        metrics = classification_scores(outputs.logits_RC, gold_N)
        return Scores(metrics, scores_by_class(outputs.logits_RC, gold_N, labels), predictions)


class Match(Classify):
    """Say how two texts relate."""

    layouts = ("pair",)
