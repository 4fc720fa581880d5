"""A student of the predictions of trained runs, against the formulas and against the predictions themselves."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import expit, rel_entr, softmax

from nlu.inference.loaded import Loaded
from nlu.models.heads.crf import CrfHead
from nlu.runs.records import read_rows
from tests.inference.runs import evaluate, predict
from tests.training.in_process import MODEL, NO_DROPOUT, STANDING_STILL, tensors, train
from tests.training.kinds import (
    TEXTCNN,
    Kind,
    Row,
    classes,
    few_first,
    labels,
    number,
    pair_of_classes,
    read,
    tags,
    write,
)
from tests.training.mixtures import CLASSES, TAGS, mixture

ROWS = 13
LEARNING = ("trainer.max_duration=6st", "trainer.eval_interval=0", "optimizer.lr=1e-2", *NO_DROPOUT)
ONE_STEP = (f"trainer.batch_size={ROWS}", "trainer.max_duration=1st", "trainer.eval_interval=0", *STANDING_STILL)
KINDS = {
    "classes": Kind(("data.labels=[good, bad]",), classes),
    "pairs": Kind(("task=match",), pair_of_classes),
    "label sets": Kind(("task=multilabel",), labels),
    "numbers": Kind(("task=regress",), number),
    "tags": Kind(("task=tag",), tags),
    "tags with a CRF": Kind(("task=tag", "head=crf"), tags),
}
OF_CLASSES = Kind(("data.labels=[bad, good]",), classes, TEXTCNN)
STUDENTS = {
    "classes": OF_CLASSES,
    "pairs": Kind(("task=siamese",), pair_of_classes, TEXTCNN),
    "label sets": Kind(("task=multilabel",), labels, TEXTCNN),
    "numbers": Kind(("task=regress",), number, TEXTCNN),
    "tags": Kind(("task=tag",), tags, TEXTCNN),
    "tags with a CRF": Kind(("task=tag", "head=crf", "head.transitions_lr=1e-30"), tags),
}


@pytest.fixture(scope="module")
def teacher_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that trains a teacher of a kind, or returns the one that it trained before."""
    known: dict[tuple[str, int], Path] = {}

    def teacher(name: str, seed: int = 1) -> Path:
        if (name, seed) not in known:
            folder = tmp_path_factory.mktemp("teacher")
            train(*KINDS[name].overrides(folder), *LEARNING, f"seed={seed}", f"hydra.run.dir={folder}/run")
            known[name, seed] = folder / "run"
        return known[name, seed]

    return teacher


def student(kind: Kind, folder: Path, teacher: object, *overrides: str, name: str = "run") -> Path:
    """Train a student of a teacher on the rows of a kind, and return its folder."""
    given = f"method.teacher={teacher}"
    train(*kind.overrides(folder), "method=distil", given, *overrides, f"hydra.run.dir={folder}/{name}")
    return folder / name


def logits_of(run: Path, rows: list[Row], names: list[str]) -> list[np.ndarray]:
    """Return the logits that a run predicts for rows, in the order of some labels."""
    loaded = Loaded.of(run, checkpoint="last", device="cpu")
    order = [loaded.labels.index(name) for name in names] if names else [0]
    return [np.array(one["logits"])[..., order].astype(np.float64) for one in loaded.predict(rows, logits=True)]


def marginals(run: Path, logits_UC: np.ndarray, names: list[str], temperature: float) -> np.ndarray:
    """Return the probability of each tag at each unit: the derivative of the logarithm of the sum over all paths."""
    loaded = Loaded.of(run, checkpoint="last", device="cpu")
    head, own = loaded.trained.model.head, loaded.labels
    assert isinstance(head, CrfHead)
    for score in (head.transitions_CC, head.start_C, head.end_C):
        score.data /= temperature
    to_own, back = [names.index(name) for name in own], [own.index(name) for name in names]
    leaf = torch.tensor(logits_UC[:, to_own] / temperature, dtype=torch.float32, requires_grad=True)
    outside = torch.zeros(len(leaf), dtype=torch.int64)
    head.negative_log_likelihood(leaf, outside, np.array([len(leaf)])).sum().backward()
    assert leaf.grad is not None
    found = leaf.grad.double().numpy()
    # The likelihood is of O at every unit, whose score it has subtracted.
    found[:, 0] += 1
    return found[:, back]


def divergence(kind: str, taught: np.ndarray, own: np.ndarray, temperature: float) -> float:
    """Return the divergence of a row, by the formulas."""
    if kind == "numbers":
        return float(((taught - own) ** 2).sum())
    if kind == "label sets":
        p, q = expit(taught / temperature), expit(own / temperature)
        return float((rel_entr(p, q) + rel_entr(1 - p, 1 - q)).mean())
    return float(rel_entr(softmax(taught / temperature, -1), softmax(own / temperature, -1)).sum())


@pytest.mark.parametrize("kind", few_first(list(KINDS), "classes", "tags with a CRF"))
def test_the_loss_is_that_of_the_formula_from_the_predictions_of_both(
    kind: str, teacher_of: Callable[..., Path], tmp_path: Path
) -> None:
    teacher, temperature, alpha = teacher_of(kind), 3.0, 0.25
    given = (f"method.temperature={temperature}", f"method.alpha={alpha}", *ONE_STEP)
    without_dropout = NO_DROPOUT if STUDENTS[kind].model is MODEL else ("model.dropout=0", "model.head_dropout=0")
    own = student(STUDENTS[kind], tmp_path, teacher, *given, *without_dropout)
    rows = read(tmp_path / "train.jsonl")
    names = Loaded.of(own, checkpoint="last", device="cpu").labels
    taught, found = logits_of(teacher, rows, names), logits_of(own, rows, names)
    if kind == "numbers":
        scales = [Loaded.of(run, device="cpu").trained.target.meta() for run in (teacher, own)]
        # The student learns in its own unit.
        taught = [(one * scales[0]["sd"] + scales[0]["mean"] - scales[1]["mean"]) / scales[1]["sd"] for one in taught]
    if kind == "tags with a CRF":
        pairs = [
            (marginals(teacher, a, names, temperature), marginals(own, b, names, temperature))
            for a, b in zip(taught, found, strict=True)
        ]
        # Rounding leaves -1e-8 where a tag is forbidden.
        each = [float(rel_entr(p.clip(0), q.clip(1e-30)).sum()) for p, q in pairs]
    else:
        each = [divergence(kind, a, b, temperature) for a, b in zip(taught, found, strict=True)]
    units = sum(map(len, found)) if kind.startswith("tags") else len(rows)
    (row,) = read_rows(own / "train.tsv")
    assert row["loss_distil"] == pytest.approx(sum(each) / units, rel=1e-4) and sum(each) > 1e-4
    squared = 1 if kind == "numbers" else temperature**2
    expected = (1 - alpha) * float(row["loss_labels"]) + alpha * squared * float(row["loss_distil"])  # type: ignore[arg-type]
    assert row["loss"] == pytest.approx(expected, rel=1e-6)


def test_the_probabilities_of_several_teachers_are_averaged(teacher_of: Callable[..., Path], tmp_path: Path) -> None:
    teachers = [teacher_of("classes"), teacher_of("classes", seed=2)]
    given = f"[{teachers[0]},{teachers[1]}]"
    own = student(OF_CLASSES, tmp_path, given, *ONE_STEP, "model.dropout=0", "model.head_dropout=0")
    rows, names = read(tmp_path / "train.jsonl"), ["bad", "good"]
    each = [softmax(np.array(logits_of(run, rows, names)) / 2, 1) for run in teachers]
    assert np.abs(each[0] - each[1]).max() > 1e-3
    found = softmax(np.array(logits_of(own, rows, names)) / 2, 1)
    (row,) = read_rows(own / "train.tsv")
    assert row["loss_distil"] == pytest.approx(rel_entr((each[0] + each[1]) / 2, found).sum() / len(rows), rel=1e-4)


def test_the_head_of_one_task_of_a_run_teaches_a_student(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    members = {"mood": CLASSES, "names": TAGS}
    train(*mixture(tmp_path / "both", members, *LEARNING), f"hydra.run.dir={tmp_path}/both/run")
    teacher = tmp_path / "both" / "run"
    own = student(OF_CLASSES, tmp_path, f"'{teacher}#mood'", *ONE_STEP, "model.dropout=0", "model.head_dropout=0")
    rows, names = read(tmp_path / "train.jsonl"), ["bad", "good"]
    of_head = Loaded.of(teacher, head_name="mood", device="cpu")
    order = [of_head.labels.index(name) for name in names]
    taught = np.array([one["logits"] for one in of_head.predict(rows, logits=True)])[:, order]
    found = np.array(logits_of(own, rows, names))
    (row,) = read_rows(own / "train.tsv")
    expected = rel_entr(softmax(taught / 2, 1), softmax(found / 2, 1)).sum() / len(rows)
    assert row["loss_distil"] == pytest.approx(expected, rel=1e-4)
    for reference, said in (
        (teacher, "write method.teacher=RUN#TASK, with one of mood, names"),
        (f"'{teacher}#face'", "the task that method.teacher names is face, but"),
        (f"'{own}#mood'", "has one head only; leave out # and what follows"),
    ):
        capsys.readouterr()
        given = ("method=distil", f"method.teacher={reference}", f"hydra.run.dir={tmp_path}/no")
        train(*OF_CLASSES.overrides(tmp_path), *given, status=2)
        assert said in capsys.readouterr().err.replace("\n", " ")


def test_logits_of_a_file_give_the_bytes_of_those_computed_here(
    teacher_of: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    teacher = teacher_of("tags")
    kind, steps = STUDENTS["tags"], ("trainer.max_duration=3st",)
    here = student(kind, tmp_path, teacher, *steps)
    predict(f"run={teacher}", f"input={tmp_path}/train.jsonl", f"output={tmp_path}/taught.jsonl", "logits=true")
    rows = read(tmp_path / "taught.jsonl")
    # In another order, beside a row that is not trained on.
    extra = {"tokens": ["h"], "tags": ["O"], "logits": [[0.0] * 5]}
    write(tmp_path / "taught.jsonl", [extra, *rows[::-1]])
    file = f"method.logits={tmp_path}/taught.jsonl"
    there = student(kind, tmp_path, teacher, *steps, file, name="from-file")
    for name in ("last", "best-1"):
        both = [(run / f"checkpoints/{name}/model.safetensors").read_bytes() for run in (here, there)]
        assert both[0] == both[1]
    taught = json.dumps(rows[0]["logits"]).replace(json.dumps(rows[0]["logits"][0][0]), "NaN")
    write(tmp_path / "taught.jsonl", [{**rows[0], "logits": json.loads(taught)}, *rows[1:]])
    refused = ("method=distil", f"method.teacher={teacher}", file, f"hydra.run.dir={tmp_path}/refused")
    capsys.readouterr()
    train(*kind.overrides(tmp_path), *refused, status=2)
    said = capsys.readouterr().err
    assert "taught.jsonl:1: field logits: [[NaN" in said and "has a number that is not finite in float32" in said
    write(tmp_path / "taught.jsonl", rows[1:])
    train(
        *kind.overrides(tmp_path), "method=distil", f"method.teacher={teacher}", file,
        f"hydra.run.dir={tmp_path}/refused", status=2,
    )  # fmt: skip


def test_no_checkpoint_has_the_teacher_and_the_student_does_without_it(
    teacher_of: Callable[..., Path], tmp_path: Path
) -> None:
    teacher = tmp_path / "teacher"
    shutil.copytree(teacher_of("classes"), teacher)
    own = student(OF_CLASSES, tmp_path, teacher, "trainer.max_duration=2st")
    assert tensors(own, "last/method").keys() == {"digest"}
    plain = [*OF_CLASSES.overrides(tmp_path), "trainer.max_duration=2st", f"hydra.run.dir={tmp_path}/plain"]
    train(*plain)
    for name in ("last/model", "best-1/model", "last/optimizer"):
        assert {key: value.shape for key, value in tensors(own, name).items()} == {
            key: value.shape for key, value in tensors(tmp_path / "plain", name).items()
        }
    shutil.rmtree(teacher)
    assert len(Loaded.of(own, device="cpu").predict(["a b", "c"])) == 2
    evaluate(f"run={own}", f"out={tmp_path}/scored", "resamples=0")
    scored, kept = (json.loads((run / "result.json").read_text()) for run in (tmp_path / "scored", own))
    assert scored["metrics"]["dev"]["loss"] == kept["metrics"]["dev"]["loss"]


def test_the_logits_of_a_teacher_are_computed_once_for_all_students(
    teacher_of: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    teacher = teacher_of("classes", seed=3)
    for name, model in (("one", TEXTCNN), ("other", MODEL)):
        kind = Kind(OF_CLASSES.options, classes, model)
        student(kind, tmp_path, teacher, "trainer.max_duration=1st", name=name)
    said = capsys.readouterr().err
    assert said.count("computing the logits of") == 1
    assert said.count(f"teacher: {teacher}/checkpoints/best-1, Bert with 1,010 parameters") == 2


def test_a_run_is_not_continued_with_a_teacher_that_has_changed(
    teacher_of: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    teacher = tmp_path / "teacher"
    shutil.copytree(teacher_of("classes"), teacher)
    options = ("trainer.max_duration=4st", "resume=auto")
    student(OF_CLASSES, tmp_path, teacher, *options, "trainer.stop_after=2st")
    shutil.rmtree(teacher)
    shutil.copytree(teacher_of("classes", seed=2), teacher)
    given = f"method.teacher={teacher}"
    train(*OF_CLASSES.overrides(tmp_path), "method=distil", given, *options, f"hydra.run.dir={tmp_path}/run", status=2)
    assert "a run that has changed since this run began" in capsys.readouterr().err


REFUSED = {
    "other labels": (Kind(("data.labels=[bad, good, fair]",), classes), "classes", (), "it lacks fair; name"),
    "another kind of task": (Kind(("task=regress",), number), "classes", (), "which predicts classes, but this run"),
    "other texts": (OF_CLASSES, "pairs", (), "which reads text_a and text_b, but this run reads text"),
    "a loss without a distribution": (Kind(("loss=bce", *OF_CLASSES.options), classes), "classes", (), "loss=bce"),
    "a run that is not there": (OF_CLASSES, None, (), "does not exist here"),
    "too few files": (
        OF_CLASSES, "classes", ("method.logits=[{rows},{rows}]",), "names 2 files for 1 teacher",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_teacher_that_does_not_fit_is_refused(
    name: str, teacher_of: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, taught, more, said = REFUSED[name]
    teacher = tmp_path / "absent" if taught is None else teacher_of(taught)
    overrides = kind.overrides(tmp_path)
    capsys.readouterr()
    train(
        *overrides, "method=distil", f"method.teacher={teacher}",
        *(one.format(rows=tmp_path / "train.jsonl") for one in more), f"hydra.run.dir={tmp_path}/run", status=2,
    )  # fmt: skip
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
