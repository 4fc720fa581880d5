"""Pretraining by words and the order of sentences: loss, what is learned, fine-tuning, export and what is refused."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import nlu
from nlu.commands.evaluate import main as evaluate
from nlu.commands.export import main as export
from nlu.config.schema import Run
from nlu.data.collate import collate
from nlu.display.progress_bars import Progress
from nlu.metrics.words import WordsAndClassScorer
from nlu.reports.runs import saved_config
from nlu.training.build import build_data
from nlu.training.ranks import Ranks
from tests.training.in_process import MODEL, NO_DROPOUT, PLAIN, of_composed, train
from tests.training.runs import result

OPTIONS = ("task=structbert", "data=corpus", "data.break_mode=complete_doc")


def written(folder: Path, documents: int = 80) -> tuple[str, ...]:
    """Write documents of two sentences, and return the overrides of a run on them.

    A document has its own letter; the first sentence begins with a, the second one with b.
    """
    rng = random.Random(0)
    for name, count in (("train", documents), ("dev", documents)):
        rows = [
            f"a {' '.join([letter] * rng.randint(2, 4))}\nb {' '.join([letter] * rng.randint(2, 4))}\n"
            for letter in (rng.choice("cdefgh") for _ in range(count))
        ]
        (folder / f"{name}.txt").write_text("\n".join(rows))
    files = (f"data.train={folder}/train.txt", f"data.dev={folder}/dev.txt")
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]) + "\n")
    return (*OPTIONS, *files, f"tokenizer.vocab={folder}/vocab.txt", *MODEL, *PLAIN)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of task=structbert that has learned the order of its sentences."""
    folder = tmp_path_factory.mktemp("pretrained")
    learned = ("trainer.max_duration=120st", "optimizer.lr=1e-2", "trainer.batch_size=32", "model.hidden_size=32",
               "trainer.ema_decay=0", "trainer.eval_interval=0")  # fmt: skip
    train(*written(folder), *NO_DROPOUT, *learned, "task.order_weight=3", "task.shuffle_fraction=0.3",
          f"hydra.run.dir={folder}/run")  # fmt: skip
    return folder / "run"


def test_a_run_learns_which_sentence_comes_first(pretrained: Path) -> None:
    # A share of 1/3 is chance.
    found = result(pretrained)["metrics"]["dev"]
    assert found["order_accuracy"] > 0.55
    assert set(found) == {"loss", "perplexity", "accuracy", "order_accuracy"}


def test_loss_and_accuracies_are_those_of_torch_for_the_pairs_of_the_set(pretrained: Path) -> None:
    loaded = nlu.load(pretrained, device="cpu").trained
    part = build_data_of(pretrained).sets["dev"]
    # As `task` has set it.
    part.target = loaded.target
    batch = collate(part, np.arange(len(part)))
    model = loaded.model
    with torch.no_grad():
        hidden_TD = model.backbone.encode(model.backbone.embed(batch), batch, tokens=True).tokens_TD
        head = model.head
        assert hidden_TD is not None and batch.units_U is not None
        inner = head.predictions["transform"].dense(hidden_TD[batch.units_U])  # type: ignore[attr-defined]
        inner = head.predictions["transform"].LayerNorm(F.gelu(inner))  # type: ignore[attr-defined]
        words = inner @ model.backbone.words.weight.T + head.predictions["decoder"].bias  # type: ignore[attr-defined]
        classes = F.linear(hidden_TD[batch.starts_S], head.classes.weight, head.classes.bias)  # type: ignore[attr-defined]
    masked = ~batch.targets["is_shuffled"]
    assert 0 < int(masked.sum()) < len(masked)
    right = words.argmax(1) == batch.targets["labels"]
    of_masked = F.cross_entropy(words[masked], batch.targets["labels"][masked]).item()
    of_words = F.cross_entropy(words, batch.targets["labels"]).item()
    of_order = F.cross_entropy(classes, batch.targets["classes"]).item()
    found = result(pretrained)["metrics"]["dev"]
    assert found["loss"] == pytest.approx(of_words + 3 * of_order, abs=1e-4)
    assert found["perplexity"] == pytest.approx(np.exp(of_masked), rel=1e-4)
    assert found["accuracy"] == right[masked].double().mean().item()
    assert found["order_accuracy"] == (classes.argmax(1) == batch.targets["classes"]).double().mean().item()


def build_data_of(run_dir: Path) -> Any:
    with Progress() as progress:
        return build_data(Run.of(saved_config(run_dir)), Ranks(0, 1, torch.device("cpu")), progress).store


def test_a_run_is_scored_on_other_files_and_its_words_are_exported(pretrained: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    of_composed(evaluate, "evaluate", f"run={pretrained}", f"data.test={pretrained.parent}/dev.txt",
                f"out={tmp_path}/scored")  # fmt: skip
    scored = json.loads((tmp_path / "scored/result.json").read_text())["metrics"]["test"]
    assert scored == result(pretrained)["metrics"]["dev"]
    # Its own dev set has the words masked and shuffled that the run has chosen.
    of_composed(evaluate, "evaluate", f"run={pretrained}", "compare=true", f"out={tmp_path}/again")
    assert json.loads((tmp_path / "again/result.json").read_text())["metrics"] == result(pretrained)["metrics"]
    assert nlu.load(pretrained, device="cpu").encode(["a c", "b"]).shape == (2, 32)
    of_composed(export, "export", f"run={pretrained}", "format=huggingface", f"out={tmp_path}/exported")
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "exported")
    assert type(theirs).__name__ == "BertForMaskedLM"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("data.break_mode=complete",), "data.break_mode is complete, with which a block may have"),
        (("data=files", "data.train=rows.tsv", "data.fields={text: 0}"), "task=structbert needs documents"),
    ],
)
def test_what_has_no_order_of_sentences_is_refused_before_anything_is_read(
    options: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.tsv").write_text("a\n")
    given = written(tmp_path)
    if "data=files" in options:
        given = (*(one for one in given if not one.startswith("data")), "data.max_len=32")
        options = tuple(one.replace("=rows", f"={tmp_path}/rows") for one in options)
    train(*given, *options, f"hydra.run.dir={tmp_path}/run", status=2)
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_all_words_of_a_set_weigh_alike_and_so_do_all_its_examples() -> None:
    records = [
        {"masked": 3, "right": 1, "loss": 1.5, "shuffled": 1, "shuffled_loss": 0.9, "class": "next",
         "predicted_class": "next", "class_loss": 0.2},
        {"masked": 0, "right": 0, "loss": 0.0, "shuffled": 0, "shuffled_loss": 0.0, "class": "other",
         "predicted_class": "next", "class_loss": 1.0},
        {"masked": 1, "right": 1, "loss": 0.1, "shuffled": 3, "shuffled_loss": 1.5, "class": "previous",
         "predicted_class": "previous", "class_loss": 0.3},
    ]  # fmt: skip
    one, other = (WordsAndClassScorer("order_accuracy", {"words": 2.0, "classes": 0.5}) for _ in range(2))
    one.add(records[2])
    for record in records[:2]:
        other.add(record)
    one.merge(other)
    assert one.result().metrics == pytest.approx(
        {"loss": 2 * 4.0 / 8 + 0.5 * 1.5 / 3, "perplexity": np.exp(0.4), "accuracy": 0.5, "order_accuracy": 2 / 3}
    )
