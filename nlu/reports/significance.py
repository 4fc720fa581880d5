"""Whether a metric of two configurations differs by more than chance: a paired bootstrap over the examples.

Both sides scored the same examples. A resample draws as many of them with replacement, scores both sides on it, and
takes the difference. p is the share of resamples whose difference is at least as far from the observed one as that is
from zero (Efron and Tibshirani 1993, An Introduction to the Bootstrap, chapter 16; Berg-Kirkpatrick and others, EMNLP
2012), with the observed one counted too. Seeds of a configuration share the examples: each resample scores all of them
and takes the mean. The interval holds the middle 95 % of the differences.

A metric is computed from sums over examples, so that all resamples are scored by one product of matrices. Metrics that
cannot be computed from sums, such as areas under curves and rank correlations, are not tested. Of the
2 + 3C numbers of an example of C classes only two or three are not zero: they are kept as a sparse matrix.

Axes: N examples of a run, K examples of all runs, S sums, R resamples, C classes, M metrics.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from scipy.sparse import csr_array

from nlu.metrics.kinds import Kind, LabelSetKind, NumberKind, SpanKind, kind_of
from nlu.reports.flips import Key, key_of, matched
from nlu.reports.runs import RunRecord
from nlu.runs.predictions import Predictions, Record, predictions_of

RESAMPLES = 2000
AT_ONCE = 4_000_000
"""numbers of a chunk of resamples"""
LEVEL = 0.05
"""p below which one of two is called better"""
BY_QUERY = "by_query"
"""in the header of the predictions of retrieval: the value of each query, by metric"""
Sums: TypeAlias = np.ndarray | csr_array
"""what is summed of each example, (N, S)"""
Score = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""from the sums of resamples, (R, S), and those of all examples, (S,), to the metric, (R,)"""


@dataclass(frozen=True)
class Change:
    """How a metric changes from the first to the second, as the mean over pairs of runs."""

    difference: float
    low: float
    high: float
    """ends of the 95 % interval of the difference"""
    p_value: float

    @property
    def is_significant(self) -> bool:
        return self.p_value < LEVEL


def changes_of(pairs: Sequence[tuple[RunRecord, RunRecord]], set_name: str, seed: int = 0) -> dict[str, Change]:
    """Compare a set by each metric that is a function of sums over its examples, with RESAMPLES resamples.

    Raises OtherRows where a pair did not score the same examples.
    """
    places: dict[Key, int] = {}
    tables: list[PairedRuns] = []
    for first, second in pairs:
        sides = predictions_of(first.folder, set_name), predictions_of(second.folder, set_name)
        if any(BY_QUERY in side.header for side in sides):
            found = _of_queries(*sides)
        else:
            found = _of_rows(*sides, kind_of(sides[0], first.trusted_packages))
        if found is None:
            return {}
        keys, sums, scores = found
        tables.append(PairedRuns(np.array([places.setdefault(key, len(places)) for key in keys]), sums, scores))
    if not tables:
        return {}
    observed_M, drawn_MR = _differences(tables, len(places), seed)
    return {
        name: _change(float(observed), drawn_R)
        for name, observed, drawn_R in zip(tables[0].scores, observed_M, drawn_MR, strict=True)
        # A metric that some resamples lack, such as a loss of inf, would have an interval of the others only.
        if np.isfinite(observed) and np.isfinite(drawn_R).all()
    }


@dataclass(frozen=True)
class PairedRuns:
    """Both runs of a pair."""

    place_N: np.ndarray
    """which of the K examples each of their N is"""
    sums: tuple[Sums, Sums]
    scores: dict[str, Score]


Found = tuple[list[Key], tuple[Sums, Sums], dict[str, Score]]


def _of_rows(first: Predictions, second: Predictions, kind: Kind) -> Found | None:
    rows = list(matched(first, second))
    names = list(dict.fromkeys([*first.labels, *second.labels]))
    before, after = (_sums(kind, [pair[side] for pair in rows], names) for side in (0, 1))
    # Sides of different kinds do not share a metric.
    if before is None or after is None or before[1].keys() != after[1].keys():
        return None
    return [key_of(row) for row, _ in rows], (before[0], after[0]), before[1]


def _of_queries(first: Predictions, second: Predictions) -> Found | None:
    """Of retrieval the value of each query is kept, since its rank depends on all candidates."""
    before, after = (side.header.get(BY_QUERY) or {} for side in (first, second))
    names = [name for name in before if name in after]
    if not names or _queries(before) != _queries(after):
        return None
    ones = [1.0] * _queries(before)
    sums = tuple(np.array([*(side[name] for name in names), ones], np.float64).T for side in (before, after))
    keys: list[Key] = [(query, None, None) for query in range(len(ones))]
    return keys, (sums[0], sums[1]), {name: _mean_of(column) for column, name in enumerate(names)}


def _queries(by_query: Mapping[str, Sequence[float]]) -> int:
    return len(next(iter(by_query.values())))


def _differences(tables: Sequence[PairedRuns], examples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean difference over pairs of runs: of all examples, (M,), and of each resample, (M, R)."""

    def differences(counts_RK: np.ndarray) -> np.ndarray:
        found = np.zeros((len(tables[0].scores), len(counts_RK)))
        for table in tables:
            # All seeds get the same draw of examples, since their predictions of one example are not independent.
            counts_RN = counts_RK[:, table.place_N]
            for sign, sums_NS in zip((-1, 1), table.sums, strict=True):
                # How often each example was drawn, times what it contributes: all resamples of a chunk in one product.
                sums_RS, all_S = counts_RN @ sums_NS, sums_NS.sum(0)
                found += sign * np.stack([score(sums_RS, all_S) for score in table.scores.values()])
        return found / len(tables)

    rng = np.random.default_rng(seed)
    # The counts of a resample take as many numbers as there are examples.
    chunk = max(1, AT_ONCE // examples)
    drawn = []
    for first in range(0, RESAMPLES, chunk):
        count = min(chunk, RESAMPLES - first)
        # Each resample has its own range of numbers, so one bincount counts all of a chunk.
        chosen_RK = rng.integers(examples, size=(count, examples)) + examples * np.arange(count)[:, None]
        counts = np.bincount(chosen_RK.ravel(), minlength=count * examples)
        drawn.append(differences(counts.reshape(count, examples).astype(float)))
    return differences(np.ones((1, examples)))[:, 0], np.concatenate(drawn, axis=1)


def _change(observed: float, drawn_R: np.ndarray) -> Change:
    # Rounding must not make a resample equal to the observed one a smaller one.
    as_far = np.abs(drawn_R - observed) >= abs(observed) - 1e-12
    low, high = np.quantile(drawn_R, [0.025, 0.975])
    # p is never 0: 2000 resamples cannot show that it is.
    return Change(observed, float(low), float(high), float((1 + as_far.sum()) / (1 + len(drawn_R))))


def _sums(kind: Kind, records: Sequence[Record], names: Sequence[str]) -> tuple[Sums, dict[str, Score]] | None:
    """Return what is summed over examples, (N, S), and the metrics computed from it; None for other kinds."""
    if not records:
        return None
    if kind.is_one_label:
        return _of_classes(records, names)
    if isinstance(kind, SpanKind):
        return _of_spans(records)
    if isinstance(kind, LabelSetKind):
        return _of_label_sets(records)
    return _of_numbers(records) if isinstance(kind, NumberKind) else None


def _of_classes(records: Sequence[Record], names: Sequence[str]) -> tuple[csr_array, dict[str, Score]]:
    names = list(dict.fromkeys([*names, *(str(one[key]) for one in records for key in ("label", "prediction"))]))
    number = {name: place for place, name in enumerate(names)}
    label_N, prediction_N = (np.array([number[one[key]] for one in records]) for key in ("label", "prediction"))
    count = len(names)
    ones_N, right_N = np.ones(len(records)), label_N == prediction_N
    values_NV = np.stack([ones_N, _losses(records)[:, 0], right_N, ones_N, ones_N], axis=1)
    columns_NV = np.stack(
        [0 * label_N, 0 * label_N + 1, 2 + label_N, 2 + count + label_N, 2 + 2 * count + prediction_N], axis=1
    )
    # The arrays of a CSR matrix: each row has the same number of values, zeros of right_N included.
    starts = np.arange(len(records) + 1) * values_NV.shape[1]
    sums_NS = csr_array((values_NV.ravel(), columns_NV.ravel(), starts), shape=(len(records), 2 + 3 * count))

    def by_class(sums_RS: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        right, wanted, predicted = np.split(sums_RS[..., 2:], 3, axis=-1)
        return right, wanted, predicted

    def macro(sums_RS: np.ndarray, all_S: np.ndarray) -> np.ndarray:
        # A class that a resample lacks keeps the F1 that it has in all examples.
        f1_RC, f1_C = (_f1(*by_class(sums)) for sums in (sums_RS, all_S))
        return np.where(np.isnan(f1_RC), f1_C, f1_RC)[:, ~np.isnan(f1_C)].mean(1)

    def mcc(sums_RS: np.ndarray, _: np.ndarray) -> np.ndarray:
        # That of nlu.metrics.classes.matthews.
        right_RC, wanted_RC, predicted_RC = by_class(sums_RS)
        total_R = sums_RS[:, 0]
        both_R = right_RC.sum(1) * total_R - (wanted_RC * predicted_RC).sum(1)
        each_R = (total_R**2 - (wanted_RC**2).sum(1)) * (total_R**2 - (predicted_RC**2).sum(1))
        return np.where(each_R > 0, both_R / np.sqrt(np.where(each_R > 0, each_R, 1)), 0.0)

    scores: dict[str, Score] = {
        "accuracy": lambda sums_RS, _: sums_RS[:, 2 : 2 + count].sum(1) / sums_RS[:, 0],
        "f1_macro": macro,
        "mcc": mcc,
        "loss": _mean_of_sum,
    }
    if count == 2:
        scores["f1"] = lambda sums_RS, _: np.nan_to_num(_f1(*by_class(sums_RS))[:, 1])
    return sums_NS, scores


def _f1(right: np.ndarray, wanted: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    both = wanted + predicted
    return np.where(both > 0, 2 * right / np.where(both > 0, both, 1), np.nan)


def _mean_of_sum(sums_RS: np.ndarray, _all_S: np.ndarray) -> np.ndarray:
    return sums_RS[:, 1] / sums_RS[:, 0]


def _losses(records: Sequence[Record]) -> np.ndarray:
    return np.array([[np.nan if one.get("loss") is None else one["loss"]] for one in records], float)


def _of_spans(records: Sequence[Record]) -> tuple[np.ndarray, dict[str, Score]]:
    table_NS = np.array([_span_counts(record) for record in records], float)
    return table_NS, {
        "span_f1": lambda sums_RS, _: _ratio(2 * sums_RS[:, 0], sums_RS[:, 1] + sums_RS[:, 2]),
        "span_precision": lambda sums_RS, _: _ratio(sums_RS[:, 0], sums_RS[:, 1]),
        "span_recall": lambda sums_RS, _: _ratio(sums_RS[:, 0], sums_RS[:, 2]),
    }


def _span_counts(record: Record) -> tuple[int, int, int]:
    found, gold = ({tuple(span) for span in record[key]} for key in ("spans", "label"))
    return len(found & gold), len(found), len(gold)


def _of_label_sets(records: Sequence[Record]) -> tuple[np.ndarray, dict[str, Score]]:
    sets = [(set(one["prediction"]), set(one["label"])) for one in records]
    table_NS = np.array(
        [(len(found & gold), len(found), len(gold), found == gold, 1, _sample_f1(found, gold)) for found, gold in sets],
        float,
    )
    return table_NS, {
        "f1_micro": lambda sums_RS, _: _ratio(2 * sums_RS[:, 0], sums_RS[:, 1] + sums_RS[:, 2]),
        "f1_samples": lambda sums_RS, _: sums_RS[:, 5] / sums_RS[:, 4],
        "precision_micro": lambda sums_RS, _: _ratio(sums_RS[:, 0], sums_RS[:, 1]),
        "recall_micro": lambda sums_RS, _: _ratio(sums_RS[:, 0], sums_RS[:, 2]),
        "exact_match": lambda sums_RS, _: sums_RS[:, 3] / sums_RS[:, 4],
    }


def _sample_f1(found: set[str], gold: set[str]) -> float:
    return 2 * len(found & gold) / (len(found) + len(gold)) if found or gold else 1.0


def _ratio(part_R: np.ndarray, whole_R: np.ndarray) -> np.ndarray:
    return np.where(whole_R > 0, part_R / np.where(whole_R > 0, whole_R, 1), 0.0)


def _of_numbers(records: Sequence[Record]) -> tuple[np.ndarray, dict[str, Score]]:
    x_N, y_N = (np.array([one[key] for one in records], float) for key in ("label", "prediction"))
    # The labels' mean and deviation change none of these and keep the sums of squares small.
    middle, scale = x_N.mean(), x_N.std() or 1.0
    x_N, y_N = (x_N - middle) / scale, (y_N - middle) / scale
    error_N = y_N - x_N
    columns = (np.ones(len(x_N)), x_N, y_N, x_N**2, y_N**2, x_N * y_N, np.abs(error_N), error_N**2)

    def pearson(sums_RS: np.ndarray, _: np.ndarray) -> np.ndarray:
        n, x, y, xx, yy, xy, *_rest = sums_RS.T
        with np.errstate(divide="ignore", invalid="ignore"):
            return (n * xy - x * y) / np.sqrt((n * xx - x**2) * (n * yy - y**2))

    def r2(sums_RS: np.ndarray, _: np.ndarray) -> np.ndarray:
        n, x, _y, xx, *_rest = sums_RS.T
        with np.errstate(divide="ignore", invalid="ignore"):
            return 1 - sums_RS[:, 7] / (xx - x**2 / n)

    return np.stack(columns, axis=1), {
        "pearson": pearson,
        "r2": r2,
        "mae": lambda sums_RS, _: scale * sums_RS[:, 6] / sums_RS[:, 0],
        "rmse": lambda sums_RS, _: scale * np.sqrt(sums_RS[:, 7] / sums_RS[:, 0]),
    }


def _mean_of(column: int) -> Score:
    """Every query weighs the same; the last column counts them."""
    return lambda sums_RS, _: sums_RS[:, column] / sums_RS[:, -1]
