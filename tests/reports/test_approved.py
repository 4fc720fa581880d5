"""What `python -m nlu.report` prints and writes for run folders of every state and kind is what was approved.

The other files of this folder compare its numbers with numbers computed independently.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from nlu.commands.report import main
from nlu.config.errors import UserError
from tests.approving import assert_approved
from tests.reports.folders import begin_run, checkpoints, end_run, evaluate, keep_records, predict

APPROVED = Path(__file__).parent / "approved"
KINDS = {
    "classes": "ClassKind", "sets": "LabelSetKind", "numbers": "NumberKind", "spans": "SpanKind",
    "cosines": "ClassBySimilarityKind",
}  # fmt: skip
FIELDS: dict[str, Any] = {"data__fields": {"text": 0, "label": 1}}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.setenv("NLU_DATA", str(tmp_path))


def said(capsys: pytest.CaptureFixture[str], *lines: str) -> str:
    """What the command prints for each of these lines, on both streams."""
    parts = []
    for line in lines:
        try:
            status = f"status {main(line.split())}"
        except UserError as error:
            status = f"refused: {error}"
        printed = capsys.readouterr()
        parts += [f"$ {line}", printed.out, printed.err, status]
    # Other versions of numpy and scipy may round the last digits in another way.
    return re.sub(r"\d\.\d{7,}", lambda found: f"{float(found[0]):.6f}", "\n".join(parts)).replace(
        str(Path.cwd()), "HERE"
    )


def a_run(folder: str, value: float, *overrides: str, **changes: Any) -> Path:
    return checkpoints(end_run(begin_run(Path(folder), *overrides, **changes), value), best=2)


def test_tables_of_runs_of_every_state(capsys: pytest.CaptureFixture[str]) -> None:
    for seed, value in ((1, 0.5), (2, 0.75), (3, 0.875)):
        a_run(f"out/seeds/{seed}", value, "optimizer.lr=1", seed=seed, optimizer__lr=1)
    Path("out/seeds/1/checkpoints/best-2/model.safetensors").write_bytes(b"m" * 1_260_000)
    for number in range(8):
        a_run(f"out/many/{number}", 0.25, seed=number, optimizer__lr=2)
    a_run("out/again", 0.5, optimizer__lr=2, seed=0)
    end_run(begin_run(Path("out/pruned"), optimizer__lr=3, model__layers=4, task__of=True), 0.625, pruned=True)
    evaluate(begin_run(Path("out/unfinished"), optimizer__lr=4, model__layers=4), 0.25, 0.5, 0.375)
    failed = evaluate(begin_run(Path("out/failed"), optimizer__lr=5, model__layers=[2, "a"]), 0.5)
    (failed / "log.txt").write_text("2026-01-01T00:00:00+0000 ERROR out of memory\n")
    begin_run(Path("out/begun"), optimizer__lr=6)
    evaluate(begin_run(Path("out/loss"), trainer__major_metric="loss"), 0.4, 0.3, metric="loss")
    rows = {0: [(0, "good", "good"), (2, "bad", "good")], 1: [(1, "bad", "bad"), (3, "good", "good")]}
    for seed, fold in ((1, 0), (1, 1), (2, 0), (2, 1), (3, 1)):
        run = begin_run(Path(f"out/folds/seed-{seed}-fold-{fold}"), seed=seed, folds__count=2, fold=fold)
        predict(end_run(run, 0.5 + fold / 4 + seed / 16), rows[fold])
        facts = {"labels": ["bad", "good"], "sets": {"train": {"examples": 2}, "dev": {"examples": 2}}}
        (run / "data.json").write_text(json.dumps(facts))
    Path("out/no run").mkdir()
    Path("out/no run/log.txt").write_text("2026-01-01T00:00:00+0000 ERROR no such model\n")
    found = said(
        capsys, "out", "out --csv", "out/seeds --metric test/accuracy --metric accuracy",
        "out/folds", "clean out", "clean out/seeds --yes --keep-optimizer", "clean out/seeds --yes",
        "out/seeds --metric acuracy", "out/none",
    )  # fmt: skip
    assert_approved(APPROVED / "runs.txt", found)


def records(kind: str, shift: int) -> list[dict[str, Any]]:
    """Forty predictions of a kind; `shift` moves what is wrong."""
    found = []
    for place in range(40):
        wrong = place % 8 == 1 if shift == 2 else (place * 7 + shift * 3) % 5 < 2 or place % 11 == 3
        text = f"row number {place} has words" if place != 9 else "x" * 120
        if kind == "classes":
            label, other = "abc"[place % 3], "abc"[(place + 1 + place % 2) % 3]
            found.append({"label": label, "prediction": other if wrong else label, "probability": 0.5 + place / 100,
                          "loss": 0.25 + wrong, "text": text})  # fmt: skip
        elif kind == "sets":
            labels = ["law"] * (place % 2) + ["sport"]
            shares = {"law": place / 50, "sport": 0.75, "war": 1 - place / 64}
            found.append({"label": labels, "prediction": ["law", "war"][: place % 3] if wrong else labels,
                          "probabilities": shares, "text": text})  # fmt: skip
        elif kind == "numbers":
            away = (place % 7 - 3 + shift) / 8 if wrong else 0.0
            found.append({"label": place / 4, "prediction": place / 4 + away, "text_a": text, "text_b": "other"})
        elif kind == "spans":
            gold = [[0, 1, "PER"], [3, 3, "LOC"]][: place % 3]
            spans = [[0, 1, "ORG"], [3, 4, "LOC"], [5, 6, "PER"]][: 1 + place % 3] if wrong else gold
            found.append({"label": gold, "spans": spans, "loss": place / 8, "tokens": [*"abcdefg"]})
        else:
            label = str(place % 2)
            found.append({"label": label, "prediction": str(1 - place % 2) if wrong else label, "text": text,
                          "similarity": 0.5 + place / 100})  # fmt: skip
    return found


def keep(folder: str, kind: str, shift: int, **changes: Any) -> Path:
    measured: dict[str, Any] = {"loss": 0.75 - shift / 8, "f1_macro": 0.5, "threshold": 0.25 + shift / 8}
    run = end_run(begin_run(Path(folder), "optimizer.lr=1", "resume=auto", **changes), 0.5 + shift / 8, **measured)
    rows = [{"id": place, "file": 0, "row": place + 1, **one} for place, one in enumerate(records(kind, shift))]
    return keep_records(
        run, rows, kind=KINDS[kind], by_label=[{"label": name} for name in "abc"], metrics={"threshold": 0.75}
    )  # fmt: skip


def test_two_and_three_configurations_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    kinds = ("classes", "sets", "numbers", "spans", "cosines")
    for kind in kinds:
        for shift in (0, 1, 2):
            keep(f"{kind}/{shift}", kind, shift, optimizer__lr=shift)
    for side in (0, 1):
        for seed in (1, 2):
            keep(f"seeds/{side}/{seed}", "classes", 2 * side + seed, optimizer__lr=side, seed=seed)
    for side, folds in ((0, (0, 1)), (1, (1,))):
        for fold in folds:
            keep(f"folds/{side}/fold-{fold}", "classes", fold, optimizer__lr=side, folds__count=2, fold=fold)
    lines = [f"diff {kind}/0 {kind}/1" for kind in kinds]
    lines += [
        "diff classes/0 classes/2 --examples 1", "diff seeds/0 seeds/1", "diff folds/0 folds/1",
        "diff classes/0 numbers/1", "diff classes/0 classes/1 classes/2", "diff classes/0 classes/0",
        "diff seeds/0 seeds/1 classes/2", "diff folds/0/fold-0 folds/1/fold-1", "diff classes/0 classes/1 spans/2",
    ]  # fmt: skip
    assert_approved(APPROVED / "differences.txt", said(capsys, *lines))


def facts_of(run: Path, layout: str = "single", examples: int = 40) -> None:
    sets = {"train": {"examples": examples}, "dev": {"examples": examples}}
    (run / "data.json").write_text(json.dumps({"layout": layout, "labels": [*"abc"], "sets": sets}))


def test_errors_of_every_kind(capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.tsv").write_text("row number 2 has words\tc\nrow number 3 has wordss\tb\nelse\ta\n")
    Path("dev.tsv").write_text("text\tlabel\n")
    for kind in ("classes", "sets", "numbers", "spans", "cosines"):
        facts_of(keep(kind, kind, 0, data__dev="dev.tsv", **FIELDS), "units" if kind == "spans" else "single")
    lines = [f"errors {kind} --rows 4" for kind in ("classes", "sets", "numbers", "spans", "cosines")]
    assert_approved(APPROVED / "errors.txt", said(capsys, *lines, "errors classes --rows 0"))


def test_suspected_labels_of_folds(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("cleanlab")
    Path("train.tsv").write_text("".join(f"text {place}\t{'abc'[place % 3]}\n" for place in range(40)))
    for fold in (0, 1):
        run = end_run(begin_run(Path(f"run/fold-{fold}"), folds__count=2, fold=fold, **FIELDS), 0.5)
        facts_of(run, examples=20)
        rows = []
        for place in range(fold, 40, 2):
            own, other = place % 3, (place // 3) % 3
            # Every fourth row is surely of another class, and no two rows are equally sure.
            sure = 30 * (place % 4 == 0)
            weights = [1 + place / 64 + 5 * (own == number) + sure * (other == number) for number in range(3)]
            shares = {name: weight / sum(weights) for name, weight in zip("abc", weights, strict=True)}
            best = max(shares, key=lambda name: shares[name])
            rows.append({"id": place, "file": 0, "row": place + 1, "label": "abc"[own], "prediction": best, "loss": 0.5,
                         "probability": shares[best], "probabilities": shares, "text": f"text {place}"})  # fmt: skip
        keep_records(run, rows, by_label=[{"label": name} for name in "abc"])
    assert_approved(
        APPROVED / "label_errors.txt", said(capsys, "errors run --rows 3",
                                            "errors run/fold-1 --rows 1")
    )  # fmt: skip
