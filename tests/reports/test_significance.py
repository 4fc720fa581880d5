"""The paired bootstrap against another one: one resample after the other, with metrics written out."""

import json
from collections.abc import Callable, Sequence
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nlu.reports.compare import difference_as_json, difference_of, print_difference
from nlu.reports.many import differences_of, print_differences
from nlu.reports.runs import find_runs
from nlu.reports.significance import changes_of
from nlu.runs.predictions import Record
from tests.few import only
from tests.reports.folders import begin_run, end_run, keep_records

Rows = list[dict[str, Any]]
NAMES = ("a", "b", "c")


def keep(folder: Path, records: Rows, metrics_found: dict[str, float] | None = None, **changes: Any) -> Path:
    end_run(begin_run(folder, **changes), 0.5, **(metrics_found or {}))
    rows = [{"id": place, "file": 0, "row": place, **one} for place, one in enumerate(records)]
    kinds = {str: "ClassKind", float: "NumberKind", list: "LabelSetKind"}
    kind = "SpanKind" if "spans" in rows[0] else kinds[type(rows[0]["label"])]
    return keep_records(folder, rows, kind=kind, by_label=[{"label": name} for name in NAMES])


def pairs(*folders: tuple[Path, Path]) -> list[Any]:
    return [tuple(find_runs([folder])[0][0] for folder in both) for both in folders]


def one_by_one(
    score: Callable[[Sequence[Record]], float], first: Rows, second: Rows, resamples: int
) -> tuple[float, float, float, float]:
    """Difference, interval and p of a metric, by a loop over resamples."""
    rng = np.random.default_rng(99)
    observed = score(second) - score(first)
    drawn = []
    for _ in range(resamples):
        chosen = rng.integers(len(first), size=len(first))
        drawn.append(score([second[place] for place in chosen]) - score([first[place] for place in chosen]))
    low, high = np.quantile(drawn, [0.025, 0.975])
    p = float((np.abs(np.array(drawn) - observed) >= abs(observed)).mean())
    return float(observed), float(low), float(high), p


def classified(quality: float, seed: int, count: int = 150) -> Rows:
    labels, own = np.random.default_rng(0), np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        label = labels.choice(3, p=[0.6, 0.3, 0.1])
        found = label if own.random() < quality else own.choice(3)
        rows.append({"label": NAMES[label], "prediction": NAMES[found], "loss": float(own.exponential(1 / quality))})
    return rows


def tagged(quality: float, seed: int, count: int = 120) -> Rows:
    labels, own = np.random.default_rng(0), np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        gold = [[int(place), int(place), "PER"] for place in labels.choice(9, size=labels.integers(4), replace=False)]
        found = [span if own.random() < quality else [span[0], span[1], "LOC"] for span in gold if own.random() < 0.9]
        rows.append({"label": gold, "spans": found + [[20, 21, "LOC"]] * (own.random() < 0.2)})
    return rows


def numbered(noise: float, seed: int, count: int = 110) -> Rows:
    labels, own = np.random.default_rng(0), np.random.default_rng(seed)
    return [
        {"label": float(label), "prediction": float(label + noise * own.standard_normal())}
        for label in 1000 + 5 * labels.standard_normal(count)
    ]


def with_topics(quality: float, seed: int, count: int = 120) -> Rows:
    """Rows of any number of labels: each label is right with a probability."""
    rng = np.random.default_rng(seed)
    is_label_NC = np.random.default_rng(0).random((count, len(NAMES))) < 0.4
    is_found_NC = is_label_NC ^ (rng.random(is_label_NC.shape) > quality)
    both = zip(is_label_NC, is_found_NC, strict=True)
    return [
        {"label": list(compress(NAMES, label_C)), "prediction": list(compress(NAMES, found_C)), "loss": 0.5}
        for label_C, found_C in both
    ]


def indicators(rows: Sequence[Record]) -> tuple[np.ndarray, np.ndarray]:
    return tuple(np.array([[name in row[key] for name in NAMES] for row in rows]) for key in ("label", "prediction"))  # type: ignore[return-value]


def of_sets(score: str, rows: Sequence[Record], **options: Any) -> float:
    """A score of scikit-learn."""
    from sklearn import metrics

    return float(getattr(metrics, score)(*indicators(rows), **options))


def told(rows: Sequence[Record], key: str) -> list[Any]:
    return [row[key] for row in rows]


def span_f1(rows: Sequence[Record]) -> float:
    right = sum(span in row["label"] for row in rows for span in row["spans"])
    both = sum(len(row["spans"]) + len(row["label"]) for row in rows)
    return 2 * right / both


def macro_f1(rows: Sequence[Record]) -> float:
    pairs = [(row["label"], row["prediction"]) for row in rows]
    found = []
    for name in NAMES:
        right = sum(label == prediction == name for label, prediction in pairs)
        found.append(2 * right / sum((label == name) + (prediction == name) for label, prediction in pairs))
    return sum(found) / len(found)


def matthews(rows: Sequence[Record]) -> float:
    """The correlation of K classes by its definition: covariances of indicators (Gorodkin 2004, equation 2)."""
    label_NC, found_NC = (np.array([[row[key] == name for name in NAMES] for row in rows], float)
                          for key in ("label", "prediction"))  # fmt: skip
    label_NC, found_NC = label_NC - label_NC.mean(0), found_NC - found_NC.mean(0)
    return float((label_NC * found_NC).sum() / np.sqrt((label_NC**2).sum() * (found_NC**2).sum()))


def numbers(rows: Sequence[Record]) -> tuple[np.ndarray, np.ndarray]:
    return np.array(told(rows, "label")), np.array(told(rows, "prediction"))


def r2(rows: Sequence[Record]) -> float:
    labels, predictions = numbers(rows)
    return float(1 - ((labels - predictions) ** 2).sum() / ((labels - labels.mean()) ** 2).sum())


METRICS: dict[str, tuple[Callable[[float, int], Rows], tuple[float, float], Callable[[Sequence[Record]], float]]] = {
    "accuracy": (classified, (0.6, 0.75), lambda rows: sum(r["label"] == r["prediction"] for r in rows) / len(rows)),
    "f1_macro": (classified, (0.6, 0.75), macro_f1),
    "mcc": (classified, (0.6, 0.75), matthews),
    "loss": (classified, (0.6, 0.75), lambda rows: sum(told(rows, "loss")) / len(rows)),
    "span_f1": (tagged, (0.7, 0.8), span_f1),
    "precision_micro": (with_topics, (0.7, 0.8), lambda rows: of_sets("precision_score", rows, average="micro")),
    "recall_micro": (with_topics, (0.7, 0.8), lambda rows: of_sets("recall_score", rows, average="micro")),
    "f1_micro": (with_topics, (0.7, 0.8), lambda rows: of_sets("f1_score", rows, average="micro")),
    "f1_samples": (with_topics, (0.7, 0.8),
                   lambda rows: of_sets("f1_score", rows, average="samples", zero_division=1)),
    "exact_match": (with_topics, (0.7, 0.8), lambda rows: of_sets("accuracy_score", rows)),
    "pearson": (numbered, (6.0, 4.0), lambda rows: float(np.corrcoef(*numbers(rows))[0, 1])),
    "r2": (numbered, (6.0, 4.0), r2),
    "mae": (numbered, (6.0, 4.0), lambda rows: float(np.abs(np.subtract(*numbers(rows))).mean())),
    "rmse": (numbered, (6.0, 4.0), lambda rows: float(np.sqrt((np.subtract(*numbers(rows)) ** 2).mean()))),
}  # fmt: skip


@pytest.mark.parametrize("name", only(("accuracy", "f1_macro", "mcc", "pearson"), METRICS))
def test_difference_interval_and_p_are_those_of_resamples_one_by_one(name: str, tmp_path: Path) -> None:
    make, qualities, score = METRICS[name]
    first, second = (make(quality, seed) for seed, quality in enumerate(qualities, start=1))
    found = changes_of(pairs((keep(tmp_path / "a", first), keep(tmp_path / "b", second))), "dev")[name]
    resamples = 800
    difference, low, high, p = one_by_one(score, first, second, resamples)
    assert found.difference == pytest.approx(difference)
    width = high - low
    assert found.low == pytest.approx(low, abs=0.2 * width) and found.high == pytest.approx(high, abs=0.2 * width)
    assert found.p_value == pytest.approx(p, abs=5 * np.sqrt((p * (1 - p) + 1e-3) / resamples))


def test_equal_predictions_differ_by_nothing_and_the_same_call_says_the_same(tmp_path: Path) -> None:
    same = pairs((keep(tmp_path / "a", classified(0.7, 1)), keep(tmp_path / "b", classified(0.7, 1))))
    found = changes_of(same, "dev")
    assert all((one.difference, one.low, one.high, one.p_value) == (0, 0, 0, 1) for one in found.values())
    other = pairs((tmp_path / "a", keep(tmp_path / "c", classified(0.8, 2))))
    assert changes_of(other, "dev") == changes_of(other, "dev") != changes_of(other, "dev", seed=1)


def test_seeds_of_an_example_are_drawn_together(tmp_path: Path) -> None:
    """Five seeds with the same predictions tell no more than one: with rows of seeds apart p would be far smaller."""
    first, second = classified(0.6, 1), classified(0.7, 2)
    folders = [
        (keep(tmp_path / f"a{seed}", first, seed=seed), keep(tmp_path / f"b{seed}", second, seed=seed))
        for seed in range(5)
    ]
    one, five = changes_of(pairs(folders[0]), "dev"), changes_of(pairs(*folders), "dev")
    assert five["accuracy"].p_value == one["accuracy"].p_value
    assert five["accuracy"].difference == pytest.approx(one["accuracy"].difference)


def test_numbers_of_folds_with_other_means_are_compared_in_their_own_unit(tmp_path: Path) -> None:
    folds = []
    for fold, (scale, shift) in enumerate(((1.0, 0.0), (10.0, 500.0))):
        both = [[{key: scale * value + shift for key, value in row.items()} for row in numbered(noise, seed)]
                for seed, noise in ((1, 6.0), (2, 4.0))]  # fmt: skip
        folds.append((keep(tmp_path / f"a{fold}", both[0], fold=fold), keep(tmp_path / f"b{fold}", both[1], fold=fold),
                      both))  # fmt: skip
    found = changes_of(pairs(*((a, b) for a, b, _ in folds)), "dev")["mae"]
    errors = [[np.mean([abs(row["label"] - row["prediction"]) for row in rows]) for rows in both] for *_, both in folds]
    assert found.difference == pytest.approx(np.mean([after - before for before, after in errors]))


def test_queries_of_retrieval_are_drawn_by_their_kept_values(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    before, after = rng.random(60), rng.random(60)
    after += 0.15
    for name, values in (("a", before), ("b", after)):
        folder = end_run(begin_run(tmp_path / name), 0.5)
        rows = [{"id": 0, "file": 0, "row": 0, "label": True, "similarity": 0.5}]
        keep_records(folder, rows, kind="SimilarityKind", by_query={"mrr": values.tolist()})
    (found,) = changes_of(pairs((tmp_path / "a", tmp_path / "b")), "dev").values()
    change = after - before
    drawn = np.array([change[rng.integers(60, size=60)].mean() for _ in range(4000)])
    assert found.difference == pytest.approx(change.mean())
    assert [found.low, found.high] == pytest.approx(np.quantile(drawn, [0.025, 0.975]).tolist(), abs=0.02)
    assert found.p_value == pytest.approx((abs(drawn - change.mean()) >= abs(change.mean())).mean(), abs=0.02)


def test_only_a_change_beyond_chance_is_called_better_in_every_comparison(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """C is better than A and B; between A and B chance may have decided."""
    for name, rows in (("a", numbered(6.0, 1)), ("b", numbered(5.9, 3)), ("c", numbered(2.0, 2))):
        keep(tmp_path / name, rows, {"mae": float(np.mean([abs(r["label"] - r["prediction"]) for r in rows]))},
             optimizer__lr=ord(name), task___target_="nlu.tasks.regress.Regress")  # fmt: skip
    print_difference(difference_of(tmp_path / "a", tmp_path / "c"))
    (line,) = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("dev/mae")]
    assert line[-1] == "B" and float(line[-2]) < 0.01, "a lower error is better"
    found = difference_of(tmp_path / "a", tmp_path / "b")
    print_difference(found)
    (line,) = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("dev/mae")]
    assert float(line[-1]) > 0.05, "the column of the better one is empty"
    assert json.loads(difference_as_json(found))["changes"]["dev/mae"]["p_value"] == found.changes["dev/mae"].p_value
    many = differences_of([tmp_path / name for name in "abc"])
    assert [(one.first, one.second, one.better) for one in many.changes["dev/mae"]] == [
        ("A", "B", ""), ("A", "C", "C"), ("B", "C", "C"),
    ]  # fmt: skip
    print_differences(many)
