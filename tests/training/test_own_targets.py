"""Targets, tasks and heads of a user's own package that store lists of numbers, or mask words and predict them."""

import importlib
import json
import math
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import nlu
from nlu.config.errors import DataError
from nlu.data.collate import Batch
from nlu.inference.exports.formats import FORMATS
from nlu.inference.exports.padded import NAMES
from nlu.inference.loaded import Loaded
from nlu.runs.predictions import predictions_of
from tests.training.in_process import MODEL, NO_DROPOUT, PLAIN, composed, start

SOFT = '''
"""Shares of labels, three for each text, as another model or several people gave them."""
import numpy as np, pyarrow as pa, torch
from nlu.data.targets import Target
from nlu.losses.loss import RowLoss
from nlu.metrics.kinds import Kind
from nlu.metrics.scores import ExactSum, Scores
from nlu.tasks.task import RowsOfLogits, to_host


class Shares(Target):
    kind, roles = "shares", ("label",)

    def read(self, values):
        return values["label"], None

    def column(self):
        return pa.list_(pa.float32())

    @property
    def num_outputs(self):
        return 3

    def collate(self, rows):
        flat, counts_B = rows.stored.lists("target", rows.rows_B)
        return {"labels": torch.from_numpy(flat.reshape(len(counts_B), 3))}


class CrossEntropy(RowLoss):
    kinds = ("shares",)

    def per_row(self, logits_NC, shares_NC):
        return -(shares_NC * logits_NC.log_softmax(-1)).sum(-1)


class MeanLoss:
    def __init__(self):
        self.total, self.count = ExactSum(), 0

    def add(self, record):
        self.total.add(record["loss"])
        self.count += record.get("rows", 1)

    def merge(self, other):
        self.total.merge(other.total)
        self.count += other.count

    def result(self):
        return Scores({"loss": self.total.value / self.count})


class Kept(Kind):
    name, plural, columns = "loss", "losses", {}


class Apportion(RowsOfLogits):
    layouts, target, scores = ("single",), "ownparts.soft.Shares", "ownparts.soft.MeanLoss"
    kind = "ownparts.soft.Kept"
    heads = ("nlu.models.heads.linear.LinearHead",)
    metrics, binary_metrics, default_metric, lower_is_better = ("loss",), (), "loss", ("loss",)

    def __init__(self, loss, target):
        super().__init__(loss, target)

    def records(self, part, batch, model, outputs):
        labels_NC = batch.targets["labels"]
        loss_N = to_host(self.loss.per_row(outputs["logits"].cpu(), labels_NC))
        return [{"label": label, "loss": loss} for label, loss in zip(labels_NC.tolist(), loss_N.tolist(), strict=True)]

    def scorer(self, decided):
        return MeanLoss()
'''
WORDS = '''
"""A quarter of the words of a text are masked, and predicted by a decoder that shares the encoder's words."""
import numpy as np, torch
from ownparts.soft import MeanLoss
from nlu.data.seeds import uniforms
from nlu.data.targets import Target
from nlu.losses.cross_entropy import CrossEntropy
from nlu.models.head import vectors_of
from nlu.models.heads.linear import LinearHead
from nlu.models.layers.linear import Tied
from nlu.tasks.task import RowsOfLogits, to_host


class Masked(Target):
    kind, roles = "words", ()

    def __init__(self, files):
        """Nothing is read from the rows."""

    def read(self, values):
        return None, None

    def column(self):
        return None

    def fit(self, stored, rows_N, tokenizer):
        self.mask_id, self.specials = tokenizer.unknown_id, [*tokenizer.single.before, *tokenizer.single.after]

    def meta(self):
        return vars(self)

    def collate(self, rows):
        packed, (seed, epoch) = rows.packed, rows.key
        example_T = np.repeat(rows.examples_B, packed.lengths_S)
        drawn_T = uniforms(seed, "masks", epoch, example_T=example_T, place_T=packed.positions_T)
        is_masked_T = (drawn_T < 0.25) & ~np.isin(packed.tokens_T, self.specials)
        packed.units_U = np.flatnonzero(is_masked_T)
        packed.unit_counts_B = np.add.reduceat(is_masked_T, packed.starts_S, dtype=np.int64)
        words_U = packed.tokens_T[packed.units_U].astype(np.int64)
        packed.tokens_T[packed.units_U] = self.mask_id
        return {"labels": torch.from_numpy(words_U)}


class WordLoss(CrossEntropy):
    kinds = ("words",)


class WordHead(LinearHead):
    seen = []

    def __init__(self, width, target, encoder):
        torch.nn.Module.__init__(self)
        self.wants = "units"
        self.linear = Tied(encoder.words)

    def forward(self, encoded, batch):
        vectors_UD = vectors_of(encoded, batch, "units")
        WordHead.seen.append((len(vectors_UD), batch.num_tokens))
        return self.linear(vectors_UD).float()


class PredictWords(RowsOfLogits):
    layouts, target, scores = ("single",), "ownparts.words.Masked", "ownparts.soft.MeanLoss"
    kind = "ownparts.soft.Kept"
    heads = ("ownparts.words.WordHead",)
    metrics, binary_metrics, default_metric, lower_is_better = ("loss",), (), "loss", ("loss",)

    def __init__(self, loss, target):
        super().__init__(loss, target)

    def records(self, part, batch, model, outputs):
        loss_U = to_host(self.loss.per_row(outputs["logits"].cpu(), batch.targets["labels"]))
        parts = np.split(loss_U, np.cumsum(batch.unit_counts_B)[:-1])
        words = np.split(batch.targets["labels"].numpy(), np.cumsum(batch.unit_counts_B)[:-1])
        return [
            {"label": own.tolist(), "rows": len(losses), "loss": float(losses.sum())}
            for own, losses in zip(words, parts, strict=True)
        ]

    def scorer(self, decided):
        return MeanLoss()
'''
OWN = ("data=files", "data.train=rows.jsonl", "data.dev=rows.jsonl", "data.fields={text: text, label: label}",
       "trainer.ema_decay=0", *MODEL, *NO_DROPOUT, *PLAIN)  # fmt: skip
SHARES = {"task": "ownparts.soft.Apportion", "loss": "ownparts.soft.CrossEntropy"}
MASKED = {"task": "ownparts.words.PredictWords", "loss": "ownparts.words.WordLoss"}
ROWS = 60


def text(rng: random.Random) -> str:
    """Return one of seven words again and again, so that a masked one follows from the others."""
    return " ".join([rng.choice("abcdefg")] * rng.randrange(4, 12))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the package with its choices, and rows; returns their folder, which is the current one."""
    files = {"ownparts/__init__.py": "", "ownparts/soft.py": SOFT, "ownparts/words.py": WORDS}
    rng = random.Random(0)
    rows = [{"text": text(rng), "label": [round(rng.random(), 3) for _ in range(3)]} for _ in range(ROWS)]
    files["rows.jsonl"] = "".join(json.dumps(row) + "\n" for row in rows)
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "ownparts"]:
        monkeypatch.delitem(sys.modules, name)
    importlib.invalidate_caches()
    return tmp_path


def run(name: str, parts: dict[str, str], *overrides: str) -> None:
    """Train in the folder `name`, with these classes of the package as task and loss."""
    config = composed(*OWN, *overrides)
    own = {group: {"_target_": target} for group, target in parts.items()}
    start(replace(config, trusted_packages=["ownparts"], **own), Path(name).absolute())


def rows_of(package: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (package / "rows.jsonl").read_text().splitlines()]


def kept(folder: Path) -> list[dict[str, Any]]:
    """Return the records that a run kept of its dev rows."""
    return list(predictions_of(folder, "dev"))


def test_a_run_learns_from_lists_of_floats_which_come_back_as_they_were_written(package: Path) -> None:
    run("run", SHARES, "trainer.max_duration=3ep")
    found = kept(package / "run")
    rows = rows_of(package)
    assert [record["label"] for record in found] == [np.array(row["label"], np.float32).tolist() for row in rows]
    loaded = nlu.load(package / "run", device="cpu")
    scores = loaded.evaluate(rows)
    assert scores["loss"] == pytest.approx(sum(record["loss"] for record in found) / ROWS, rel=1e-6)
    rows[1]["label"][0] = 1e300
    with pytest.raises(DataError, match=r"^row 2: Shares reads 1e\+300 as the target, but its column\(\) is of type"):
        loaded.evaluate(rows)


def test_a_target_that_its_column_cannot_hold_is_named_by_file_and_row(package: Path) -> None:
    with (package / "rows.jsonl").open("a") as file:
        file.write('{"text": "a b", "label": [0.5, 1e39, 0]}\n')
    with pytest.raises(DataError, match=rf"rows\.jsonl:{ROWS + 1}: Shares reads 1e\+39 as the target, but its column"):
        run("run", SHARES)


def logits_of(loaded: Loaded, texts: list[str], masked: list[list[int]]) -> list[np.ndarray]:
    """Return the logits of the masked places of each text, computed with numpy from the encoder's vectors."""
    predictor, model = loaded.predictor, loaded.trained.model
    found = []
    for words, places in zip(texts, masked, strict=True):
        tokens = predictor.encode([{"text": words}]).tokens.copy()
        tokens[places] = loaded.trained.target.mask_id  # type: ignore[attr-defined]
        table = model.backbone.words.weight.detach().double().numpy()
        bias = model.state_dict()["head.linear.bias"].double().numpy()
        vectors = _vectors(model, tokens)[places]
        found.append(vectors @ table.T + bias)
    return found


@torch.inference_mode()
def _vectors(model: Any, tokens: np.ndarray) -> np.ndarray:
    count = len(tokens)
    batch = Batch(
        np.arange(1), [count], torch.from_numpy(tokens.astype(np.int64)), torch.zeros(count, dtype=torch.int64),
        torch.arange(count), torch.zeros(1, dtype=torch.int64), torch.zeros(1, 1, dtype=torch.int64),
    )  # fmt: skip
    backbone = model.backbone
    return backbone.encode(backbone.embed(batch), batch, tokens=True).tokens_TD.double().numpy()


@pytest.mark.thorough
def test_masked_words_are_learned_through_the_encoders_own_table(package: Path) -> None:
    wider = ("model.hidden_size=32", "model.intermediate_size=64", "optimizer.lr=1e-2")
    run("run", MASKED, *wider, "trainer.max_duration=30ep", "trainer.eval_interval=30ep")
    loss = json.loads((package / "run" / "result.json").read_text())["metrics"]["dev"]["loss"]
    assert loss < 0.5 * math.log(7), "that of a guess among seven words is log 7"
    seen = sys.modules["ownparts.words"].WordHead.seen
    masked, tokens = map(sum, zip(*seen, strict=True))
    assert all(rows < count for rows, count in seen) and 0.1 < masked / tokens < 0.3
    tensors = nlu.load(package / "run", device="cpu").trained.model.state_dict()
    assert [name for name in tensors if name.startswith("head.")] == ["head.linear.bias"]


def test_masks_and_scores_of_dev_rows_are_the_same_in_every_evaluation_of_every_run(package: Path) -> None:
    short = ("trainer.max_duration=2st", "optimizer.lr=1e-30", "optimizer.weight_decay=0")
    run("one", MASKED, *short, "trainer.eval_interval=1st")
    run("two", MASKED, *short, "trainer.eval_interval=2st", "seed=2", "trainer.eval_batch_size=3")
    rows = (package / "one" / "valid.tsv").read_text().splitlines()[1:]
    assert len({row.split("\t")[-1] for row in rows}) == 1 and len(rows) == 2
    labels = [[record["label"] for record in kept(package / name)] for name in ("one", "two")]
    assert labels[0] == labels[1] and sum(map(len, labels[0])) > ROWS


def test_masks_of_training_depend_on_the_example_and_not_on_accumulation_or_batches(package: Path) -> None:
    common = ("trainer.max_duration=1ep", "trainer.eval_interval=1ep", "trainer.log_interval=1st")
    ways = {"one": ("trainer.batch_size=60",), "two": ("trainer.batch_size=6", "trainer.accumulation=10")}
    losses = []
    for name, how in ways.items():
        run(name, MASKED, *common, *how)
        header, row = (line.split("\t") for line in (package / name / "train.tsv").read_text().splitlines()[:2])
        losses.append(float(row[header.index("loss")]))
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_the_tie_survives_the_checkpoint_resuming_and_an_export(package: Path) -> None:
    short = ("trainer.eval_interval=4st", "trainer.save_interval=4st")
    run("whole", MASKED, *short, "trainer.max_duration=8st")
    run("parts", MASKED, *short, "trainer.max_duration=4st")
    run("again", MASKED, *short, "trainer.max_duration=8st", "resume=parts")
    models = [nlu.load(package / name / "last", device="cpu") for name in ("whole", "again")]
    states = [loaded.trained.model.state_dict() for loaded in models]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    loaded, texts = models[0], ["a b c d", "d e f g a"]
    expected = logits_of(loaded, texts, [[2], [1, 3]])
    # The same tensor plays both parts.
    model = loaded.trained.model
    assert model.head.linear.weight is model.backbone.words.weight  # type: ignore[attr-defined]
    format = FORMATS["torchscript"]
    format.write(loaded.trained, package)
    compute = format.read(package, loaded.trained)
    for words, places, wanted in zip(texts, [[2], [1, 3]], expected, strict=True):
        tokens = loaded.predictor.encode([{"text": words}]).tokens.astype(np.int64)[None]
        tokens[0, places] = loaded.trained.target.mask_id  # type: ignore[attr-defined]
        found = compute(dict(zip(NAMES, (tokens, np.ones_like(tokens), np.zeros_like(tokens)), strict=True)))
        np.testing.assert_allclose(found[0, places], wanted, rtol=1e-4, atol=1e-5)
