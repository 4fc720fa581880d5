"""python -m nlu.predict of a run with several folds: the means of the predictions of the folds."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import nlu
from tests.inference.runs import predict, unlabelled
from tests.training.in_process import composed, start
from tests.training.kinds import LOSSES, SPANS, TASKS, Kind, few_first, read, write

KINDS = {**TASKS, "bce": LOSSES["bce"]}
FOLDS = ("folds.count=2", "trainer.max_duration=3st", "trainer.eval_interval=2st", "model.initializer_range=1.5")


def folds_of(kind: Kind, folder: Path) -> Path:
    start(composed(*kind.overrides(folder, train_rows=20), *FOLDS), folder / "run")
    return folder / "run"


def each_fold(run: Path, rows: list[Any], **options: bool) -> list[list[dict[str, Any]]]:
    """What the folds predict by themselves, (folds, rows)."""
    return [nlu.load(run / f"fold-{fold}", device="cpu").predict(rows, **options) for fold in (0, 1)]


def together(run: Path, folder: Path, rows: list[Any], *overrides: str) -> list[dict[str, Any]]:
    write(folder / "new.jsonl", rows)
    predict(f"run={run}", f"input={folder}/new.jsonl", f"output={folder}/out.jsonl", *overrides)
    return read(folder / "out.jsonl")


@pytest.mark.parametrize("name", few_first(["classify", "match", "siamese", "bce"], "classify", "bce"))
def test_probabilities_are_averaged_and_decide(name: str, tmp_path: Path) -> None:
    run, rows = folds_of(KINDS[name], tmp_path), unlabelled(KINDS[name], 9)
    found = together(run, tmp_path, rows, "scores=true")
    labels = nlu.load(run / "fold-0", device="cpu").labels
    by_fold = [
        [[one[f"probability_{label}"] for label in labels] for one in fold]
        for fold in each_fold(run, rows, scores=True)
    ]
    assert by_fold[0] != by_fold[1]
    mean_NC = np.mean(by_fold, axis=0)
    # Of two classes the second is predicted at 0.5 of either rule.
    assert [one["prediction"] for one in found] == [labels[int(mean[1] >= 0.5)] for mean in mean_NC]
    assert [[one[f"probability_{label}"] for label in labels] for one in found] == pytest.approx(mean_NC)
    assert [one["probability"] for one in found] == [one[f"probability_{one['prediction']}"] for one in found]


@pytest.mark.parametrize("name", few_first(["regress", "retrieve"], "regress"))
def test_numbers_and_similarities_are_averaged(name: str, tmp_path: Path) -> None:
    run, rows = folds_of(KINDS[name], tmp_path), unlabelled(KINDS[name], 9)
    means = np.mean([[one["prediction"] for one in fold] for fold in each_fold(run, rows)], axis=0)
    assert [one["prediction"] for one in together(run, tmp_path, rows)] == pytest.approx(means)


@pytest.mark.parametrize(("kind", "step"), [(TASKS["tag"], 1), (SPANS, 2)], ids=["tokens", "a text"])
def test_the_best_legal_sequence_by_mean_probabilities_of_tags_is_found(kind: Kind, step: int, tmp_path: Path) -> None:
    run = folds_of(kind, tmp_path)
    for fold in (0, 1):
        # After three steps both predict O only.
        weights = load_file(path := run / f"fold-{fold}/checkpoints/best-1/model.safetensors")
        weights["head.linear.weight"][:] = np.random.default_rng(fold).normal(size=weights["head.linear.weight"].shape)
        save_file(weights, path, {"format": "pt"})
    # Each letter of a text is a word with a blank behind it, and spans are given in characters.
    rows = [{name: units[: 4 * step] for name, units in row.items() if name != "spans"} for row in unlabelled(kind, 9)]
    names = nlu.load(run / "fold-0", device="cpu").labels
    found = together(run, tmp_path, rows)
    assert any(span["last"] > span["first"] for one in found for span in one["prediction"]), "the test wants spans"
    for row, one, *folds in zip(rows, found, *each_fold(run, rows, logits=True), strict=True):
        (units,) = row.values()
        logits = np.array([fold["logits"] for fold in folds])
        mean_UC = np.mean(np.exp(logits) / np.exp(logits).sum(-1, keepdims=True), axis=0)
        legal = [
            tags for tags in product(range(len(names)), repeat=len(units[::step]))
            if all(names[tag][0] != "I" or (place and names[tags[place - 1]][2:] == names[tag][2:])
                   for place, tag in enumerate(tags))
        ]  # fmt: skip
        best = max(legal, key=lambda tags: np.log(mean_UC[range(len(tags)), tags]).sum())
        tags = ["O"] * len(best)
        for span in one["prediction"]:
            own = units[span["first"] : span["last"] + 1]
            assert span["text"] == (own if isinstance(own, str) else " ".join(own))
            first, last = span["first"] // step, span["last"] // step
            tags[first : last + 1] = [f"B-{span['type']}"] + [f"I-{span['type']}"] * (last - first)
            assert (span["first"], span["last"]) == (first * step, last * step)
        assert tags == [names[tag] for tag in best]


def test_predictions_without_a_mean_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = folds_of(TASKS["tag with a CRF"], tmp_path)
    write(tmp_path / "new.jsonl", unlabelled(TASKS["tag"], 3))
    asked = (f"run={run}", f"input={tmp_path}/new.jsonl", f"output={tmp_path}/out.jsonl")
    for more, words in (
        ("logits=true", "a mean of several runs has none"),
        ("scores=false", "predictions cannot be averaged; name one"),
    ):
        predict(*asked, more, status=2)
        assert words in " ".join(capsys.readouterr().err.split())
    (run / "result.json").unlink()
    predict(*asked, status=2)
    assert "some of its runs have not ended; wait for them" in " ".join(capsys.readouterr().err.split())
