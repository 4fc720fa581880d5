"""A metric that no model could make a number is refused before the first step, by the rows that decide it."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from nlu.data.dataset import Files
from nlu.data.examples import Examples
from nlu.data.prepare import prepare
from nlu.data.store_plan import plan_of
from nlu.data.tokenizing import WordPiece
from nlu.metrics.classes import ClassScorer
from nlu.metrics.label_sets import LabelSetScorer
from nlu.metrics.numbers import NumberScorer
from nlu.metrics.ranking import METRICS
from nlu.tasks.task import undefined
from tests.training.in_process import TINY, train

CLASSES, NUMBERS, SETS, RELEVANCE, SOFT = (
    f"nlu.data.targets.{name}" for name in ("Classes", "Number", "LabelSet", "Relevance", "SoftClasses")
)


def dev_of(
    folder: Path, target: str, train: list[dict[str, Any]], dev: list[dict[str, Any]], **settings: Any
) -> Examples:
    """The dev set of these rows, whose fields are called like their roles."""
    paths = {}
    for name, rows in (("train", train), ("dev", dev)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        paths[name] = str(folder / f"{name}.jsonl")
    files = Files(**paths, fields={role: role for role in train[0]}, **settings)
    layouts = ("sides",) if "text_a" in train[0] else ("single",)
    plan = plan_of(files, WordPiece(min_count=1), target, layouts, pretrained=None, vocab=None)
    return prepare(plan).sets["dev"]


def scored(scorer: Any, records: list[dict[str, Any]]) -> dict[str, float]:
    for record in records:
        scorer.add({"loss": 0.1, **record})
    return scorer.result().metrics


@pytest.mark.parametrize(
    ("target", "of_train", "of_dev", "said"),
    [
        (CLASSES, ["a", "b"], ["a"] * 3, "dev has rows of a only (3)"), (CLASSES, ["a", "b"], ["a", "b"], None),
        (NUMBERS, [1, 2], [2] * 20, "all 20 rows of dev have the number 2"), (NUMBERS, [1, 2], [2, 3], None),
        (NUMBERS, [1, 2], [2.5], "the only row of dev has the number 2.5"),
        (SETS, [["a"], ["b"]], [[], []], "none of 2 rows of dev has a label"),
        (SETS, [["a"], ["b"]], [[], ["b"]], None),
    ],
)  # fmt: skip
def test_what_rows_make_no_number_is_what_the_scorers_return_as_nan(
    target: str, of_train: list[Any], of_dev: list[Any], said: str | None, tmp_path: Path
) -> None:
    rows = [[{"text": f"t {n}", "label": one} for n, one in enumerate(labels)] for labels in (of_train, of_dev)]
    dev = dev_of(tmp_path, target, *rows)
    if target == NUMBERS:
        records = [{"label": float(one), "prediction": float(n)} for n, one in enumerate(of_dev)]
        metrics = scored(NumberScorer([]), records)
    elif target == SETS:
        records = [{"label": one, "probabilities": {"a": 0.3, "b": 0.6}} for one in of_dev]
        metrics = scored(LabelSetScorer(["a", "b"]), records)
    else:
        records = [{"label": one, "prediction": "a", "margin": n / 9} for n, one in enumerate(of_dev)]
        metrics = scored(ClassScorer(["a", "b"]), records)
    found = {name: why for name in metrics if (why := undefined(name, dev)) is not None}
    # One prediction has no correlation, and then neither have several rows of one number.
    assert found.keys() == {name for name, value in metrics.items() if math.isnan(value)}
    assert bool(found) == (said is not None)
    assert all(why.startswith(str(said)) for why in found.values())


def test_rankings_without_an_answer_and_soft_rows_without_a_label_are_no_numbers(tmp_path: Path) -> None:
    rows = [{"text_a": f"query {n}", "text_b": f"answer {n}", "label": 0} for n in range(4)]
    dev = dev_of(tmp_path, RELEVANCE, rows, rows)
    for name in METRICS:
        assert str(undefined(name, dev)).startswith("none of 4 rows of dev is relevant")
    soft = [{"text": f"t {n}", "logits": [0, n], "label": None} for n in range(4)]
    dev = dev_of(tmp_path, SOFT, soft, soft, labels=["a", "b"])
    assert str(undefined("accuracy", dev)).startswith("none of 4 rows of dev has a label")
    assert undefined("agreement", dev) is None and undefined("loss", dev) is None


@pytest.mark.parametrize(
    ("options", "dev", "said"),
    [
        (("trainer.major_metric=auc",), ["a"] * 5,
         "trainer.major_metric is auc, but dev has rows of a only (5), so it is never a number (dev.csv:2, dev.csv:3, "
         "dev.csv:4, ...); set data.dev or trainer.major_metric"),
        (("task=regress",), [2] * 5,
         "trainer.major_metric is null, which stands for spearman, but all 5 rows of dev have the number 2, "
         "so it is never a number (dev.csv:2"),
        (("trainer.major_metric=average_precision", "folds.count=10"), None,
         "trainer.major_metric is average_precision, but fold 0 has rows of a only (3), so"),
    ],
)  # fmt: skip
def test_a_run_ends_before_its_first_step_and_leaves_no_folder(
    options: tuple[str, ...], dev: list[object] | None, said: str, tmp_path: Path, monkeypatch: Any, capfd: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    labels = [n % 7 for n in range(30)] if "task=regress" in options else ["b"] * 3 + ["a"] * 27
    for name, own in (("train", labels), ("dev", dev)):
        Path(f"{name}.csv").write_text("text,label\n" + "".join(f"w{n} w,{one}\n" for n, one in enumerate(own or [])))
    sets = ("data=files", "data.train=train.csv", *(("data.dev=dev.csv",) if dev else ()))
    train(*TINY, *sets, *options, "trainer.max_duration=4st", "hydra.run.dir=run", status=2)
    assert said in capfd.readouterr().err and not Path("run").exists()
