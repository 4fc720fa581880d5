"""Pretraining by masked words: the loss of transformers, its weights, fine-tuning, and what is refused."""

import json
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import nlu
from nlu.commands.export import main as export
from nlu.commands.predict import main as predict
from nlu.config.errors import UserError
from nlu.data.collate import collate
from nlu.data.examples import Examples
from nlu.data.layouts import LAYOUTS
from nlu.data.store import Origin, StoredSet, record_batch
from nlu.metrics.words import WordScorer
from tests.training.in_process import MODEL, PLAIN, of_composed, train
from tests.training.runs import result

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh", "##a", "##b"]
TEXTS = ["a b c d e f g h ab ba", "h g f e d", "a a b b", "c", "dab e e f g bab"]


def written(folder: Path, rows: int = 40) -> tuple[str, ...]:
    """Write a corpus, and return the overrides of a run that starts from random weights."""
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in VOCAB))
    lines = [TEXTS[number % len(TEXTS)] for number in range(rows)]
    (folder / "corpus.txt").write_text("".join(f"{line}\n" + "\n" * (n % 7 == 6) for n, line in enumerate(lines)))
    corpus = (f"data.train={folder}/corpus.txt", f"data.dev={folder}/corpus.txt", "data.break_mode=complete_doc")
    vocab = f"tokenizer.vocab={folder}/vocab.txt"
    return ("data=corpus", *corpus, vocab, *MODEL, *PLAIN, "task.mask_fraction=0.3")


@pytest.mark.parametrize("name", ["bert", "electra"])
def test_loss_and_accuracy_are_those_of_transformers_for_its_own_weights(name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"vocab_size": len(VOCAB), "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
             "intermediate_size": 32, "max_position_embeddings": 32, "initializer_range": 0.5}  # fmt: skip
    if name == "bert":
        theirs = transformers.BertForMaskedLM(transformers.BertConfig(**sizes))
    else:
        theirs = transformers.ElectraForMaskedLM(transformers.ElectraConfig(**sizes, embedding_size=12))
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    theirs.eval().save_pretrained(tmp_path / "weights")
    (tmp_path / "weights/vocab.txt").write_text("".join(f"{token}\n" for token in VOCAB))
    own = [one for one in written(tmp_path) if not one.startswith(("model.", "model=", "tokenizer.", "data.max_len"))]
    train(
        *own, "model=bert", f"model.pretrained={tmp_path}/weights", "data.max_len=16", "trainer.max_duration=1st",
        "optimizer.lr=1e-30", "optimizer.weight_decay=0", "trainer.ema_decay=0", f"hydra.run.dir={tmp_path}/run",
    )  # fmt: skip
    found = result(tmp_path / "run")["metrics"]["dev"]
    loss, right, count = 0.0, 0, 0
    for tokens, labels in masked_rows(tmp_path / "run"):
        with torch.no_grad():
            logits = theirs(torch.tensor([tokens])).logits[0].double()
        for place, label in labels.items():
            loss -= float(logits[place].log_softmax(-1)[label])
            right += int(logits[place].argmax()) == label
            count += 1
    assert count > 50
    assert found["loss"] == pytest.approx(loss / count, abs=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(loss / count), rel=1e-5)
    assert found["accuracy"] == right / count


def masked_rows(run_dir: Path) -> list[tuple[list[int], dict[int, int]]]:
    """Return the dev blocks of a run as they are scored, and the label of each masked place."""
    loaded = nlu.load(run_dir, device="cpu")
    records = [json.loads(line) for line in (run_dir / "predictions/dev.jsonl").read_text().splitlines()[1:]]
    encoded = loaded.predictor.encode([{"text": record["text"]} for record in records])
    count = len(records)
    stored = StoredSet([record_batch(encoded, [], None, Origin(*(np.zeros(count, np.int64) for _ in range(4))))])
    part = Examples("dev", stored, np.arange(count), loaded.trained.target, LAYOUTS["single"])
    found = []
    for row in range(count):
        batch = collate(part, np.array([row]))
        assert batch.units_U is not None
        labels = dict(zip(batch.units_U.tolist(), batch.targets["labels"].tolist(), strict=True))
        found.append((batch.tokens_T.tolist(), labels))
    assert [len(labels) for _, labels in found] == [record["masked"] for record in records]
    return found


@pytest.mark.parametrize("width", ["null", "12"])
def test_an_export_to_transformers_predicts_the_same_words(width: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    train(*written(tmp_path), f"model.embedding_size={width}", "trainer.max_duration=2st",
          f"hydra.run.dir={tmp_path}/run")  # fmt: skip
    of_composed(export, "export", f"run={tmp_path}/run", "format=huggingface", f"out={tmp_path}/exported")
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "exported").eval()
    names = {name for name, _ in theirs.named_parameters()}
    assert (
        "cls.predictions.transform.dense.weight" if width == "null" else "generator_predictions.dense.weight"
    ) in names
    loss, count = 0.0, 0
    for tokens, labels in masked_rows(tmp_path / "run"):
        with torch.no_grad():
            logits = theirs(torch.tensor([tokens])).logits[0].double()
        loss -= sum(float(logits[place].log_softmax(-1)[label]) for place, label in labels.items())
        count += len(labels)
    assert result(tmp_path / "run")["metrics"]["dev"]["loss"] == pytest.approx(loss / count, abs=1e-5)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of task=mlm."""
    folder = tmp_path_factory.mktemp("pretrained")
    learned = ("trainer.max_duration=40st", "trainer.eval_interval=10st", "optimizer.lr=1e-2")
    train(*written(folder), *learned, f"hydra.run.dir={folder}/run")
    return folder / "run"


def test_a_run_learns_the_words_of_its_corpus(pretrained: Path) -> None:
    rows = [line.split("\t") for line in (pretrained / "valid.tsv").read_text().splitlines()[1:]]
    losses = [float(value) for _, _, _, _, metric, value in rows if metric == "loss"]
    assert len(losses) == 4 and losses[-1] < losses[0] - 0.2
    assert result(pretrained)["best"]["metric"] == "loss"


def test_the_encoder_of_a_run_goes_into_fine_tuning_without_a_warning(
    pretrained: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "rows.tsv").write_text("a b c\t0\nd e f\t1\n" * 6)
    options = [one for one in (*MODEL, *PLAIN) if not one.startswith("data.max_len")]
    with caplog.at_level(logging.INFO):
        train(
            *options, "data=files", f"data.train={tmp_path}/rows.tsv", "data.fields={text: 0, label: 1}",
            "data.max_len=16", f"data.dev={tmp_path}/rows.tsv", f"model.pretrained={pretrained}",
            "trainer.max_duration=1st", "optimizer.lr=1e-30", "optimizer.weight_decay=0", "trainer.ema_decay=0",
            f"hydra.run.dir={tmp_path}/run",
        )  # fmt: skip
    log = (tmp_path / "run/log.txt").read_text()
    assert "pretrained by masked words; its encoder is loaded" in log
    assert not [line for line in log.splitlines() if "WARNING" in line and "pretrained" in line]
    states: list[dict[str, Any]] = [
        nlu.load(path, device="cpu").trained.model.state_dict() for path in (pretrained, tmp_path / "run")
    ]
    encoder = [name for name in states[0] if name.startswith("backbone.")]
    assert encoder and all(torch.equal(states[0][name], states[1][name]) for name in encoder)


def test_pretraining_continues_from_a_run_with_its_head(pretrained: Path, tmp_path: Path) -> None:
    still = ("trainer.max_duration=1st", "optimizer.lr=1e-30", "optimizer.weight_decay=0", "trainer.ema_decay=0")
    more = [one for one in written(tmp_path) if not one.startswith("tokenizer.")]
    train(*more, *still, f"model.pretrained={pretrained}", f"hydra.run.dir={tmp_path}/run")
    assert result(tmp_path / "run")["metrics"]["dev"] == result(pretrained)["metrics"]["dev"]


def test_predicting_by_a_pretrained_run_is_refused_and_its_vectors_are_not(
    pretrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.tsv").write_text("a b\n")
    of_composed(export, "export", f"run={pretrained}", "format=onnx", f"out={tmp_path}/exported", status=2)
    assert "a run of task=mlm is exported only as huggingface" in capsys.readouterr().err
    for reading in ("input.fields={text: 0}", "input.format=lines", "input.format=tsv"):
        of_composed(
            predict, "predict", f"run={pretrained}", f"input={tmp_path}/rows.tsv", f"output={tmp_path}/out.jsonl",
            reading, status=2,
        )  # fmt: skip
        said = capsys.readouterr().err
        assert "predicts only words that it masks itself; fine-tune it with model.pretrained=RUN" in said
    assert not (tmp_path / "out.jsonl").exists()
    loaded = nlu.load(pretrained, device="cpu")
    with pytest.raises(UserError, match="fine-tune it with model.pretrained=RUN"):
        loaded.predict([{"text": "a b"}])
    assert loaded.encode(["a b", "c"]).shape == (2, 8)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("task.mask_fraction=0",), "task.mask_fraction is 0, so no token is predicted; set it to a share"),
        (("task.keep=0.6", "task.replace=0.5"), "more than all masked tokens together; set both so that their sum"),
        (("task=classify",), "task=classify needs label, but data=corpus has only sentences; set task=mlm"),
        (("folds.group_by=0",), "folds.group_by is 0, but lines of a corpus have no column; set folds.group_by=null"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_read(
    options: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    given = [one for one in written(tmp_path) if "task=classify" not in options or not one.startswith("task.")]
    train(*given, *options, f"hydra.run.dir={tmp_path}/run", status=2)
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_all_masked_words_of_a_set_weigh_alike_however_they_are_merged() -> None:
    records = [{"masked": 3, "right": 1, "loss": 1.5}, {"masked": 0, "right": 0, "loss": 0.0},
               {"masked": 1, "right": 1, "loss": 0.1}]  # fmt: skip
    one, other, empty = WordScorer(), WordScorer(), WordScorer()
    for record in records[:2]:
        one.add(record)
    other.add(records[2])
    one.merge(other)
    assert one.result().metrics == pytest.approx({"loss": 0.4, "perplexity": math.exp(0.4), "accuracy": 0.5})
    assert all(map(math.isnan, empty.result().metrics.values()))


@pytest.mark.parametrize(
    ("train_text", "dev_text", "options", "said"),
    [
        ("a\n", "a\n", (), "the vocabulary has no token that can be masked: all of its 5 are special"),
        ("a b\n" * 4, "x y\n", (), "the set dev has no token that can be masked: all are [UNK] or special"),
        ("a b\n" * 4, "a b\n", ("tokenizer.vocab_size=3",), "tokenizer.vocab_size is 3, but 5 tokens are special"),
        ("a b\n" * 4, "a b\n", ("data.min_len=40",), "data.min_len is 40, but data.max_len is 32, so every"),
        ("a b\n" * 4, "a b\n", ("data.min_len=9",), "they have fewer than data.min_len, 9 tokens; set"),
        ("a\n\n" * 4, "a b\n", ("task=structbert", "data.break_mode=eos"), "since a block of one word has no halves"),
    ],
)  # fmt: skip
def test_texts_without_a_word_to_mask_are_refused_before_the_run_folder_is_made(
    train_text: str, dev_text: str, options: tuple[str, ...], said: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "one.txt").write_text(train_text)
    (tmp_path / "dev.txt").write_text(dev_text)
    files = ("data=corpus", f"data.train={tmp_path}/one.txt", f"data.dev={tmp_path}/dev.txt", "tokenizer=subwords")
    task = () if any(one.startswith("task=") for one in options) else ("task=mlm",)
    train(*task, *files, *MODEL, *PLAIN, *options, f"hydra.run.dir={tmp_path}/run", status=2)
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
