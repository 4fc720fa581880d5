"""`python -m nlu.report errors` on runs that were really trained, of every kind."""

import json
from pathlib import Path

import numpy as np
import pytest

from nlu.commands.report import main
from nlu.config.errors import UserError
from nlu.reports.error_report import analyse
from nlu.reports.error_source import source_of
from tests.inference.runs import kept, trained
from tests.reports.folders import begin_run, end_run, predict
from tests.training.in_process import TINY, train, write_rows
from tests.training.kinds import TASKS, few_first


def errors(capsys, *arguments):
    """Return what the command prints."""
    capsys.readouterr()
    assert main(["errors", *map(str, arguments)]) == 0
    return capsys.readouterr().out


@pytest.fixture(scope="module")
def folds(tmp_path_factory) -> Path:
    """Three folds of rows whose words tell their class, except five that have the other label."""
    folder = tmp_path_factory.mktemp("folds")
    lines = write_rows(folder / "train.tsv", 60).read_text().splitlines()
    for place in range(0, 60, 12):
        text, label = lines[place].split("\t")
        lines[place] = f"{text}\t{'good' if label == 'bad' else 'bad'}"
    (folder / "train.tsv").write_text("".join(f"{line}\n" for line in lines))
    data = ("data=files", f"data.train={folder}/train.tsv", "data.fields={text: 0, label: 1}")
    train(
        *TINY,
        *data,
        "folds.count=3",
        "trainer.max_duration=9st",
        "trainer.eval_interval=9st",
        f"hydra.run.dir={folder}/run",
    )
    return folder / "run"


@pytest.mark.parametrize(
    "kind",
    few_first({name: kind for name, kind in TASKS.items() if name != "retrieve"}, "classify", "tag"),
)
def test_counts_are_those_of_the_predictions(kind, tmp_path, capsys):
    run = trained(kind, tmp_path)
    found, records = analyse(source_of(run), 3), kept(run)
    slices = {name: parts for name, (_, parts) in found.tables.items()}
    if found.kind.plural == "numbers":
        distances = [abs(record["prediction"] - record["label"]) for record in records]
        assert found.whole.value == pytest.approx(np.mean(distances))
        assert found.mistakes[0].confidence == max(distances)
    else:
        wrong = [record for record in records if record["label"] != record.get("spans", record.get("prediction"))]
        assert (found.whole.wrong, found.whole.rows) == (len(wrong), len(records))
        assert {one.record["id"] for one in found.mistakes} <= {record["id"] for record in wrong}
        assert len(found.mistakes) == min(3, len(wrong))
    assert sum(part.rows for part in slices["length"]) == len(records)
    # The ranges end at powers of 2 from 8 on, and at max_len.
    assert slices["length"][0].name in ("1-8", "9-16")
    # Folds cannot add probabilities of classes to other kinds of records.
    advice = "folds=5, then report errors" if "probabilities" in records[0] else "read the first mistakes, those with"
    assert advice in found.remarks[-1] and found.suspects is None
    first = found.mistakes[0].record
    assert found.place_of(first) == f"{tmp_path}/dev.jsonl:{first['row']}"
    out = errors(capsys, run, "--rows", "3")
    assert out.splitlines()[0].startswith(f"{run}  dev: ") and "by length in tokens" in out and "text" in out
    overlaps = any(sum(part.rows for part in parts) > len(records) for parts in slices.values())
    assert ("a row may stand in several of these lines" in out) == overlaps


def test_folds_are_put_together_and_their_labels_suspected(folds, capsys):
    found = analyse(source_of(folds))
    assert found.source.name == "out-of-fold" and found.whole.rows == 60
    assert {one.record["fold"] for one in found.mistakes} <= {0, 1, 2}
    joined = [json.loads(line) for line in (folds / "predictions" / "out-of-fold.jsonl").read_text().splitlines()][1:]
    assert found.whole.wrong == sum(record["label"] != record["prediction"] for record in joined)
    pytest.importorskip("cleanlab")
    threshold = {
        name: np.mean([record["probabilities"][name] for record in joined if record["label"] == name])
        for name in ("bad", "good")
    }
    wanted = {
        record["id"] for record in joined
        if (other := "bad" if record["label"] == "good" else "good") == record["prediction"]
        and record["probabilities"][other] >= threshold[other]
    }  # fmt: skip
    assert {record["id"] for _, record in found.suspects or []} == wanted
    assert "suspected label errors, " in errors(capsys, folds)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "required: RUN"),
        (["nowhere"], "nowhere is not a folder"),
        (["RUN", "--set", "tset"], "consists of 3 folds"),
        (["RUN/fold-0", "--set", "tset"], "keeps no predictions; valid: dev"),
        (["RUN", "--rows", "-1"], "must be a whole number >= 0"),
    ],
)
def test_mistakes_are_reported_in_one_sentence(folds, arguments, words):
    with pytest.raises(UserError) as refused:
        main(["errors", *(argument.replace("RUN", str(folds)) for argument in arguments)])
    assert words in str(refused.value)


def test_one_of_several_seeds_is_used_and_the_others_are_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for seed, right in ((1, 3), (2, 1)):
        rows = [(number, "good", "good" if number < right else "bad") for number in range(4)]
        predict(end_run(begin_run(tmp_path / "run" / f"seed-{seed}", seed=seed), 0.5), rows)
    out = errors(capsys, "run")
    assert "dev: 1 of 4 rows wrong" in out and "of 2 seeds or splits this is the first one, run/seed-1" in out
    out = errors(capsys, "run/seed-2")
    assert "dev: 3 of 4 rows wrong" in out and "seeds" not in out
