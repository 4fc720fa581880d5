"""nlu.fit: a run on rows of a program, which is that of the command on the same rows in files."""

import json
import random
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest

import nlu
from nlu.commands import train as train_command
from nlu.config.errors import UserError
from nlu.config.stopping import Stopped
from tests.training.in_process import TINY, command

STEPS = ("trainer.max_duration=6st", "trainer.eval_interval=3st", "tracker=none")
FIELDS = ("data.fields={text: review, label: label}",)
SPANS = ("task=tag", "data.labels=[thing]")


@pytest.fixture(autouse=True)
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing figures takes two thirds of such a run."""
    monkeypatch.setattr("nlu.training.finish.draw", lambda *_, **__: None)


def rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    texts = [" ".join(rng.choice("abcdefgh") for _ in range(5)) for _ in range(count)]
    return [{"text": text, "label": "1" if "a" in text else "0", "id": 7} for text in texts]


def fit(folder: Path, *overrides: str, **sets: object) -> Any:
    return nlu.fit([*TINY, *STEPS, f"hydra.run.dir={folder}", *overrides], **sets)


def scores(folder: Path) -> object:
    return json.loads((folder / "result.json").read_text())["metrics"]


def written(path: Path, given: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in given))
    return path


def test_rows_give_the_weights_and_scores_of_the_command_on_a_file_of_them(tmp_path: Path) -> None:
    train, dev = rows(48), rows(20, seed=1)
    run = fit(tmp_path / "fit", train=pd.DataFrame(train), dev=dev, test=pd.DataFrame(dev))
    sets = {"train": train, "dev": dev, "test": dev}
    files = [f"data.{name}={written(tmp_path / f'{name}.jsonl', given)}" for name, given in sets.items()]
    command(*TINY, *STEPS, "data=files", *files, f"hydra.run.dir={tmp_path / 'command'}")
    assert scores(tmp_path / "fit") == scores(tmp_path / "command")
    weights = "checkpoints/last/model.safetensors"
    assert (tmp_path / "fit" / weights).read_bytes() == (tmp_path / "command" / weights).read_bytes()
    texts = [row["text"] for row in dev]
    predicted = run.predict(texts, logits=True)
    assert nlu.load(tmp_path / "fit", device="cpu").predict(texts, logits=True) == predicted
    # The run repeats itself by what is in its folder.
    command("--rerun", str(tmp_path / "fit"), f"hydra.run.dir={tmp_path / 'again'}")
    assert scores(tmp_path / "again") == scores(tmp_path / "fit")


@pytest.mark.parametrize(
    ("given", "kept", "overrides"),
    [
        (
            datasets.Dataset.from_dict(
                {"text": ["a b", "c"] * 9, "label": [1, 0] * 9},
                datasets.Features(text=datasets.Value("string"), label=datasets.ClassLabel(names=["bad", "good"])),
            ),
            {"text": "a b", "label": "good"},
            (),
        ),
        (pd.DataFrame({"review": ["a", "b"] * 9, "label": [1, 2] * 9}), {"review": "a", "label": 1}, FIELDS),
        (
            pd.DataFrame({"text": ["a", "b"] * 9, "label": [np.array(["x", "y"]), []] * 9, "no": [None, 2.5] * 9}),
            {"text": "a", "label": ["x", "y"], "no": None},
            ("task=multilabel",),
        ),
        (
            [{"text": "ab c", "spans": [{"start": 0, "end": 2, "label": "thing"}], "score": float("nan")}] * 18,
            {"text": "ab c", "spans": [{"start": 0, "end": 2, "label": "thing"}], "score": None},
            SPANS,
        ),
    ],
    ids=["names of classes", "numbers", "lists of labels", "spans"],
)  # fmt: skip
def test_rows_keep_their_types(tmp_path: Path, given: Any, kept: object, overrides: tuple[str, ...]) -> None:
    # One row alone is a row too.
    one = given[:1] if not isinstance(given, datasets.Dataset) else given.select([0])
    fit(tmp_path / "run", *overrides, train=given, dev=one)
    with open(tmp_path / "run/rows/train.jsonl") as lines:
        assert json.loads(next(lines)) == kept
    assert json.loads((tmp_path / "run/rows/dev.jsonl").read_text()) == [kept]
    assert "dev" in json.loads((tmp_path / "run/data.json").read_text())["sets"]


@pytest.mark.parametrize(
    ("overrides", "sets", "message"),
    [
        (["optimizer.lrr=1", "task.x=2"], {"train": rows(9)}, r"(?s)task\.x.*optimizer\.lrr: .*optimizer\.lr\b"),
        (["--multirun"], {}, "--multirun is a flag; nlu.fit takes only overrides"),
        (["trainer.devices=2"], {"train": rows(9)}, "trainer.devices=2: .* in this process.* use python -m nlu.train"),
        (["hydra/launcher=slurm"], {"train": rows(9)}, "hydra/launcher: nlu.fit trains one run"),
        (["seeds=3"], {"train": rows(9)}, "folds.count and seeds, 3 runs: nlu.fit trains one"),
        (["dry_run=true"], {"train": rows(9)}, "dry_run=true: "),
        (["data.train=x.csv"], {"train": rows(9)}, "data.train is set, but rows are given as train="),
        ([], {"train": pd.DataFrame({"text": []})}, "^train is empty"),
        ([], {"train": "mine.csv"}, "train is a str, .* give the override data.train=mine.csv"),
        ([], {"train": {"train": rows(9)}}, "train is a dict, but must be a DataFrame"),
        ([], {"train": ["good"]}, "train has the row 'good'; make it a dict"),
        ([], {"train": rows(9), "dev": [{"text": "a", "label": None}]}, "^dev:1: field label"),
    ],
)  # fmt: skip
def test_a_mistake_is_raised_before_anything_is_kept(
    tmp_path: Path, overrides: list[str], sets: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message) as raised:
        fit(tmp_path / "run", *overrides, **sets)
    assert not (tmp_path / "run").exists()
    assert raised.value._render_traceback_()[0].startswith("nlu: error: ")


def test_a_stopped_run_is_saved_and_continues_with_the_same_rows_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, whole = tmp_path / "run", tmp_path / "whole"
    fit(whole, train=rows(48))

    def stopped(config: Any) -> int:
        main(config)
        return 130

    main = train_command.main
    monkeypatch.setattr(train_command, "main", stopped)
    with pytest.raises(Stopped):
        fit(folder, "trainer.stop_after=3st", train=rows(48))
    monkeypatch.setattr(train_command, "main", main)
    with pytest.raises(UserError, match="holds a run; set resume=auto"):
        fit(folder, train=rows(48))
    with pytest.raises(UserError, match="holds other rows of train"):
        fit(folder, "resume=auto", train=rows(48, seed=2))
    with pytest.raises(UserError, match="holds other rows of dev"):
        fit(folder, "resume=auto", train=rows(48), dev=rows(9))
    fit(folder, "resume=auto", train=rows(48))
    assert scores(folder) == scores(whole)
