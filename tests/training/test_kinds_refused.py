"""Parts that do not fit one another, or the rows, are refused with value, rule and remedy; nothing is written."""

from pathlib import Path

import pytest

from tests.training.in_process import train
from tests.training.kinds import KINDS, Kind, Row, few_first, read, write

COMPOSED = {
    "a loss of numbers for classes": (
        "classify", ("loss=mse",), ("loss is mse", "reads number", "task=classify gives classes", "leave out loss=",
         "one that fits: bce, circle, cross_entropy, focal, ghm_c, taylor"),
    ),
    "a loss of classes for numbers": ("regress", ("loss=focal",), ("loss is focal", "task=regress gives number")),
    "a loss of classes for label sets": (
        "multilabel", ("loss=cross_entropy",), ("loss is cross_entropy", "task=multilabel gives label_set"),
    ),
    "a loss of label sets for classes": ("classify", ("loss=bce_multilabel",), ("reads label_set", "gives classes")),
    "a loss of cosines for logits": (
        "classify", ("loss=contrastive",), ("reads cosine", "task=classify gives logits"),
    ),
    "a loss of logits for retrieval": (
        "retrieve", ("loss=cross_entropy",), ("reads logits", "task=retrieve gives similarities or cosine"),
    ),
    "circle loss for tags": ("tag", ("loss=circle",), ("loss is circle", "task=tag gives tags")),
    "a CRF for classes": (
        "classify", ("head=crf",), ("head is crf, but task=classify takes linear, mlp, transformers; set head=auto",),
    ),
    "sides for one text": ("classify", ("head=sides",), ("head is sides", "set head=auto")),
    "a loss beside a CRF": (
        "tag with a CRF", ("loss=focal",),
        ("loss is focal, but head=crf takes the place of the loss", "set head=auto"),
    ),
    "weights of classes beside a CRF": (
        "tag with a CRF", ("loss.class_weights=inverse_frequency",),
        ("loss.class_weights is inverse_frequency, but head=crf takes the place", "leave out loss.class_weights"),
    ),
    "a decoder beside a CRF": ("tag with a CRF", ("task.decode=greedy",), ("task.decode is greedy, but head=crf",)),
    "a linear head for sides": ("siamese", ("head=linear",), ("head is linear", "takes sides")),
    "a layer on sides of which a loss reads the cosine": (
        "siamese with InfoNCE", ("head=sides",), ("head.features is concat", "set head.features=cosine, or head=auto"),
    ),
    "cosines for a loss that reads logits": (
        "siamese", ("head=sides", "head.features=cosine"), ("head.features is cosine", "set head.features=concat"),
    ),
    "a key that a method has not": (
        "freelb", ("method.stepps=4",), ("method.stepps: unknown key; nearest: method.steps",),
    ),
    "a key of another method": (
        "rdrop", ("method.epsilon=1",), ("method.epsilon: unknown key; it is a key of method=fgm",),
    ),
    "a key of a method that has none": (
        "classify", ("method.max_norm=1",), ("method.max_norm: unknown key; it is a key of method=freelb",),
    ),
    "a value that a method cannot take": ("freelb", ("method.norm=l1",), ("method.norm is", "one of l2, linf")),
    "a method that there is not": ("classify", ("method=fgmm",), ("fgm",)),
    "a metric of another task": (
        "regress", ("trainer.major_metric=accuracy",), ("trainer.major_metric is accuracy", "spearman"),
    ),
    "a threshold above one": ("multilabel", ("task.threshold=1.5",), ("task.threshold is 1.5",)),
    "a field that a task needs": (
        "classify", ("task=retrieve",), ("data.fields is", "task=retrieve needs text_a, text_b"),
    ),
}  # fmt: skip
ALIKE = ("a loss of classes for label sets", "a key of another method", "a key of a method that has none")


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


@pytest.mark.parametrize("case", few_first(COMPOSED, *(name for name in COMPOSED if name not in ALIKE)))
def test_incompatible_parts_are_refused_before_rows_are_read(
    case: tuple[str, tuple[str, ...], tuple[str, ...]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, options, said = case
    message = refuse(KINDS[name], tmp_path, capsys, *options, said=said)
    assert "data store" not in message


ROWS: dict[str, tuple[str, str, int, Row, tuple[str, ...], tuple[str, ...]]] = {
    "three classes for a loss of two": (
        "siamese with contrastive loss", "train", 3, {"label": "2"}, (),
        ("two", "3 (0, 1, 2", "set loss=cross_entropy"),
    ),
    "three classes for circle loss": (
        "circle", "train", 3, {"label": "fair"}, (), ("loss=circle needs two classes", "3 (bad, fair, good)"),
    ),
    "three classes for a binary metric": (
        "classify", "train", 3, {"label": "fair"}, ("trainer.major_metric=auc",),
        ("trainer.major_metric is auc, which needs two classes", "3 (bad, fair, good"),
    ),
    "a label that is not in the map": (
        "multilabel", "train", 4, {"label": ["has_a", "has_x"]}, ("data.labels=[has_a,has_b,has_c]",),
        ("train.jsonl:5", "field label", "'has_x'", "not one of the labels"),
    ),
    "a label of the dev set that training has not": (
        "multilabel", "dev", 0, {"label": ["has_z"]}, (), ("dev.jsonl:1", '["has_z"]', "not one of the labels"),
    ),
    "no set of labels": (
        "multilabel", "train", 2, {"label": 3}, (), ("train.jsonl:3", "neither a list of labels nor a text"),
    ),
    "a text for a number": (
        "regress", "train", 6, {"label": "good"}, (), ("train.jsonl:7", "field label", "'good' is not a number"),
    ),
    "an infinite number": ("regress", "dev", 1, {"label": "inf"}, (), ("dev.jsonl:2", "is not a finite number")),
    "something else than relevant or not": (
        "retrieve", "train", 2, {"label": "perhaps"}, (), ("train.jsonl:3", "'perhaps' is not one of 0, false, no"),
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
