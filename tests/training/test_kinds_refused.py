"""Parts that do not fit one another, or the rows, are refused with value, rule and remedy; nothing is written."""

from pathlib import Path

import pytest

from tests.training.in_process import train
from tests.training.kinds import KINDS, Kind, Row, read, write

COMPOSED = {
    "a loss of numbers for classes": (
        "classify", ("loss=mse",), ("loss is mse", "reads number", "task=classify gives classes", "leave out loss=",
         "one that fits: bce, circle, cross_entropy, focal, ghm_c, taylor"),
    ),
    "a loss beside a CRF": (
        "tag with a CRF", ("loss=focal",),
        ("loss is focal, but head=crf takes the place of the loss", "set head=auto"),
    ),
    "a layer on sides of which a loss reads the cosine": (
        "siamese with InfoNCE", ("head=sides",), ("head.features is concat", "set head.features=cosine, or head=auto"),
    ),
    "cosines for a loss that reads logits": (
        "siamese", ("head=sides", "head.features=cosine"), ("head.features is cosine", "set head.features=concat"),
    ),
    "a key of another method": (
        "rdrop", ("method.epsilon=1",), ("method.epsilon: unknown key; it is a key of method=fgm",),
    ),
    "a metric of another task": (
        "regress", ("trainer.major_metric=accuracy",), ("trainer.major_metric is accuracy", "spearman"),
    ),
}  # fmt: skip


def refuse(kind: Kind, folder: Path, capsys: pytest.CaptureFixture[str], *options: str, said: tuple[str, ...]) -> str:
    """Run what must be refused, with everything in the message that is given, and nothing left behind."""
    overrides = [*kind.overrides(folder / "data"), *options]
    return refuse_rows(overrides, folder, capsys, said=said)


def refuse_rows(overrides: list[str], folder: Path, capsys: pytest.CaptureFixture[str], said: tuple[str, ...]) -> str:
    train(*overrides, f"hydra.run.dir={folder}/run", status=2)
    message = capsys.readouterr().err
    assert "Traceback" not in message and "nlu: error:" in message
    assert not [part for part in said if part not in message], message
    assert not (folder / "run").exists()
    return message


@pytest.mark.parametrize("case", COMPOSED.values(), ids=COMPOSED)
def test_incompatible_parts_are_refused_before_rows_are_read(
    case: tuple[str, tuple[str, ...], tuple[str, ...]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, options, said = case
    message = refuse(KINDS[name], tmp_path, capsys, *options, said=said)
    assert "data store" not in message


ROWS: dict[str, tuple[str, str, int, Row, tuple[str, ...], tuple[str, ...]]] = {
    "three classes for circle loss": (
        "circle", "train", 3, {"label": "fair"}, (), ("loss=circle needs two classes", "3 (bad, fair, good)"),
    ),
    "three classes for a binary metric": (
        "classify", "train", 3, {"label": "fair"}, ("trainer.major_metric=auc",),
        ("trainer.major_metric is auc, which needs two classes", "3 (bad, fair, good"),
    ),
    "a label of the dev set that training has not": (
        "multilabel", "dev", 0, {"label": ["has_z"]}, (), ("dev.jsonl:1", '["has_z"]', "not one of the labels"),
    ),
    "a text for a number": (
        "regress", "train", 6, {"label": "good"}, (), ("train.jsonl:7", "field label", "'good' is not a number"),
    ),
    "a tag of no scheme": ("tag", "train", 1, {"tokens": ["a"], "tags": ["Q-X"]}, (), ("train.jsonl:2", "'Q-X'")),
    "a weight for a label that there is not": (
        "multilabel", "train", 0, {}, ("loss.positive_weights={has_q: 2}",), ("positive_weights", "has_q"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ROWS.values(), ids=ROWS)
def test_rows_that_do_not_fit_are_refused_with_their_place(
    case: tuple[str, str, int, Row, tuple[str, ...], tuple[str, ...]], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    name, part, place, changed, options, said = case
    overrides = [*KINDS[name].overrides(tmp_path / "data"), *options]
    file = tmp_path / "data" / f"{part}.jsonl"
    rows = read(file)
    rows[place] |= changed
    write(file, rows)
    refuse_rows(overrides, tmp_path, capsys, said)


def test_numbers_that_are_all_the_same_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    overrides = KINDS["regress"].overrides(tmp_path / "data")
    file = tmp_path / "data" / "train.jsonl"
    write(file, [row | {"label": 2.5} for row in read(file)])
    refuse_rows([*overrides], tmp_path, capsys, ("13 training rows have the number 2.5", "check data.fields"))
