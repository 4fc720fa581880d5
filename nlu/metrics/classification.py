"""Scores of a classifier. Axes: N examples, C classes."""

import numpy as np


def log_probabilities(logits_NC: np.ndarray) -> np.ndarray:
    """Return log softmax over the last axis, in float64."""
    shifted = logits_NC.astype(np.float64)
    shifted -= shifted.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def classification_scores(logits_NC: np.ndarray, labels_N: np.ndarray) -> dict[str, float]:
    """Return the scores of `scores_of_predictions` for logits."""
    log_probs_NC = log_probabilities(logits_NC)
    loss_N = -log_probs_NC[np.arange(len(labels_N)), labels_N]
    margin_N = log_probs_NC[:, 1] - log_probs_NC[:, 0] if logits_NC.shape[1] == 2 else None
    return scores_of_predictions(labels_N, log_probs_NC.argmax(1), loss_N, margin_N)


def scores_of_predictions(
    labels_N: np.ndarray, predictions_N: np.ndarray, loss_N: np.ndarray, positive_N: np.ndarray | None
) -> dict[str, float]:
    """Return the scores of any classifier and, with two classes, those that count the second one as positive.

    `loss_N` is each example's negative log likelihood, `positive_N`, given exactly with two classes, anything that
    grows with the probability of the second one. Averages run over the classes that occur as label or prediction.
    Scores that need both classes among the labels (auc, average_precision) are NaN where one is absent.
    """
    from sklearn import metrics

    common = {"y_true": labels_N, "y_pred": predictions_N}
    scores = {
        "accuracy": float(np.mean(predictions_N == labels_N)),
        "f1_macro": metrics.f1_score(**common, average="macro", zero_division=0),
        "f1_weighted": metrics.f1_score(**common, average="weighted", zero_division=0),
        "precision_macro": metrics.precision_score(**common, average="macro", zero_division=0),
        "recall_macro": metrics.recall_score(**common, average="macro", zero_division=0),
        "mcc": metrics.matthews_corrcoef(**common) if len(np.union1d(labels_N, predictions_N)) > 1 else 0.0,
        "loss": float(loss_N.mean()),
    }
    if positive_N is not None:
        precision, recall, f1, _ = metrics.precision_recall_fscore_support(
            **common, average="binary", pos_label=1, zero_division=0
        )
        scores |= {"f1": f1, "precision": precision, "recall": recall}
        both = len(np.unique(labels_N)) == 2
        scores["auc"] = metrics.roc_auc_score(labels_N, positive_N) if both else float("nan")
        scores["average_precision"] = metrics.average_precision_score(labels_N, positive_N) if both else float("nan")
    return {name: float(value) for name, value in scores.items()}


def scores_by_class(logits_NC: np.ndarray, labels_N: np.ndarray, names: list[str]) -> list[dict[str, object]]:
    """Return precision, recall, F1, the number of examples and of correct ones for every class that may occur."""
    from sklearn import metrics

    predictions_N = logits_NC.argmax(1)
    numbers = list(range(len(names)))
    precision, recall, f1, support = metrics.precision_recall_fscore_support(
        labels_N, predictions_N, labels=numbers, average=None, zero_division=0
    )
    return [
        {
            "label": name, "examples": int(support[i]), "correct": int(((labels_N == i) & (predictions_N == i)).sum()),
            "precision": float(precision[i]), "recall": float(recall[i]), "f1": float(f1[i]),
        }
        for i, name in enumerate(names)
    ]  # fmt: skip
