"""`python -m nlu.report errors` on runs that were really trained, of every kind."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from nlu.config.errors import UserError
from nlu.report import main
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
    content = json.loads(errors(capsys, run, "--json", "--rows", "3"))
    records = kept(run)
    if content["kind"] == "numbers":
        distances = [abs(record["prediction"] - record["label"]) for record in records]
        assert content["whole"]["value"] == pytest.approx(np.mean(distances))
        assert content["mistakes"][0]["distance"] == max(distances)
    else:
        wrong = [record for record in records if record["label"] != record.get("spans", record.get("prediction"))]
        assert (content["whole"]["wrong"], content["whole"]["rows"]) == (len(wrong), len(records))
        assert {one["id"] for one in content["mistakes"]} <= {record["id"] for record in wrong}
        assert len(content["mistakes"]) == min(3, len(wrong))
    for name in ("length", "unknown"):
        assert sum(part["rows"] for part in content["by"][name]) == len(records)
    overlap = {part["name"]: part["rows"] for part in content["by"]["overlap"]}
    near = "a near one in train (0.7 or more)"
    assert sum(overlap[name] for name in ("the same text in train", near, "neither")) == len(records)
    # Folds cannot add probabilities of classes to other kinds of records.
    advice = "folds=5, then report errors" if "probabilities" in records[0] else "read the first mistakes, those with"
    assert advice in content["remarks"][-1] and content["label_errors"] is None
    place = content["mistakes"][0]["place"]
    assert place == f"{tmp_path}/dev.jsonl:{content['mistakes'][0]['row']}"
    out = errors(capsys, run, "--rows", "3")
    assert out.splitlines()[0].startswith(f"{run}  dev: ") and "by length in tokens" in out and "text" in out
    overlaps = any(sum(part["rows"] for part in parts) > len(records) for parts in content["by"].values())
    assert ("a row may stand in several of these lines" in out) == overlaps


def test_tokens_are_counted_as_the_run_counted_them_but_not_cut(tmp_path, capsys):
    run = trained(TASKS["classify"], tmp_path, "data.max_len=8")
    content = json.loads(errors(capsys, run, "--json", "--rows", "99", "--by", "length"))
    for one in content["mistakes"]:
        # Each letter is a token, with one before and one behind the text.
        assert one["tokens"] == len(one["text"].split()) + 2
    lengths = np.array([len(record["text"].split()) + 2 for record in kept(run)])
    parts = {part["name"]: part["rows"] for part in content["by"]["length"]}
    assert parts == {"1-8": int((lengths <= 8).sum()), "9-16 (cut)": int((lengths > 8).sum())}


def test_rankings_are_answered_with_a_sentence(tmp_path):
    run = trained(TASKS["retrieve"], tmp_path)
    with pytest.raises(UserError, match="rank candidates"):
        main(["errors", str(run)])


def test_folds_are_put_together_and_their_labels_suspected(folds, capsys):
    content = json.loads(errors(capsys, folds, "--json"))
    assert content["set"] == "out-of-fold" and content["whole"]["rows"] == 60
    assert sorted({one["fold"] for one in content["mistakes"]} - {0, 1, 2}) == []
    joined = [json.loads(line) for line in (folds / "predictions" / "out-of-fold.jsonl").read_text().splitlines()][1:]
    assert content["whole"]["wrong"] == sum(record["label"] != record["prediction"] for record in joined)
    pytest.importorskip("cleanlab")
    found = content["label_errors"]
    threshold = {
        name: np.mean([record["probabilities"][name] for record in joined if record["label"] == name])
        for name in ("bad", "good")
    }
    wanted = {
        record["id"] for record in joined
        if (other := "bad" if record["label"] == "good" else "good") == record["prediction"]
        and record["probabilities"][other] >= threshold[other]
    }  # fmt: skip
    assert {suspect["id"] for suspect in found["suspects"]} == wanted
    assert "suspected label errors, " in errors(capsys, folds)


def test_a_single_fold_and_folds_without_cleanlab_say_what_is_lacking(folds, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "cleanlab", None)
    assert "needs cleanlab; install it with pip install 'nlu[errors]'" in errors(capsys, folds, "--by", "class")
    said = errors(capsys, folds / "fold-1", "--by", "class")
    assert f"give the folder of all folds, {folds}" in said and "by length" not in said


def test_a_page_holds_whole_texts_and_overwrites_nothing(folds, tmp_path, capsys):
    page = tmp_path / "errors.html"
    errors(capsys, folds, "--html", page, "--rows", "2")
    text = page.read_text(encoding="utf-8")
    assert "<h2>mistakes, the largest probability first</h2>" in text and "95 % from" in text
    with pytest.raises(UserError, match="which exists"):
        main(["errors", str(folds), "--html", str(page)])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "required: RUN"),
        (["nowhere"], "nowhere is not a folder"),
        (["RUN", "--set", "tset"], "consists of 3 folds"),
        (["RUN/fold-0", "--set", "tset"], "keeps no predictions; valid: dev"),
        (["RUN", "--seed", "7"], "holds the seeds 1"),
        (["RUN", "--near", "0"], "must be a number above 0"),
        (["RUN", "--by", "size"], "invalid choice: 'size'"),
        (["RUN", "--rank-by", "luck"], "invalid choice: 'luck'"),
        (["RUN", "--json", "--html", "x"], "not allowed with"),
    ],
)
def test_mistakes_are_reported_in_one_sentence(folds, arguments, words):
    with pytest.raises(UserError) as refused:
        main(["errors", *(argument.replace("RUN", str(folds)) for argument in arguments)])
    assert words in str(refused.value)


def test_folds_that_are_not_all_complete_are_refused(folds, tmp_path):
    shutil.copytree(folds, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "fold-2")
    with pytest.raises(UserError, match="of 3 folds are missing 2"):
        main(["errors", str(tmp_path / "run")])


def test_one_of_several_seeds_is_used_and_the_others_are_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for seed, right in ((1, 3), (2, 1)):
        rows = [(number, "good", "good" if number < right else "bad") for number in range(4)]
        predict(end_run(begin_run(tmp_path / "run" / f"seed-{seed}", seed=seed), 0.5), rows)
    out = errors(capsys, tmp_path / "run", "--by", "class")
    assert "dev: 1 of 4 rows wrong" in out and "of several seeds this is 1; --seed takes one of 2" in out
    out = errors(capsys, tmp_path / "run", "--by", "class", "--seed", "2")
    assert "dev: 3 of 4 rows wrong" in out and "several seeds" not in out


@pytest.mark.thorough
def test_sets_of_labels_are_suspected_too(tmp_path, capsys):
    pytest.importorskip("cleanlab")
    kind = TASKS["multilabel"]
    options = [one for one in kind.overrides(tmp_path, train_rows=40) if not one.startswith("data.dev=")]
    train(*options, "folds.count=2", "trainer.max_duration=4st", f"hydra.run.dir={tmp_path}/run")
    found = json.loads(errors(capsys, tmp_path / "run", "--json"))["label_errors"]
    assert found["method"] == "confident joint of each label" and found["rows"] == 40
    assert all(0 <= one["self_confidence"] <= 1 for one in found["suspects"])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "words"), [("tag", "the largest loss of the right tags"), ("regress", "the largest distance")]
)
def test_a_sentence_says_why_label_errors_cannot_be_estimated(name, words, tmp_path, capsys):
    options = [one for one in TASKS[name].overrides(tmp_path, train_rows=20) if not one.startswith("data.dev=")]
    train(*options, "folds.count=2", "trainer.max_duration=2st", f"hydra.run.dir={tmp_path}/run")
    assert words in errors(capsys, tmp_path / "run", "--by", "class")
