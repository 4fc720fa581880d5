"""Pretraining on pairs with labels: both terms of the loss, what is learned, fine-tuning and what is refused."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import nlu
from nlu.config.schema import Run
from nlu.data.collate import collate
from nlu.display.progress_bars import Progress
from nlu.reports.runs import saved_config
from nlu.training.build import build_data
from nlu.training.ranks import Ranks
from tests.training.in_process import MODEL, NO_DROPOUT, PLAIN, train
from tests.training.runs import result

STILL = ("trainer.max_duration=1st", "optimizer.lr=1e-30", "optimizer.weight_decay=0", "trainer.ema_decay=0")


def written(folder: Path, rows: int = 96) -> tuple[str, ...]:
    """Write pairs whose label says whether both texts repeat the same letter, and return the overrides of a run."""
    rng = random.Random(0)
    lines = []
    for _ in range(rows):
        first, second = rng.choice("abcd"), rng.choice("abcd")
        texts = [" ".join([letter] * rng.randint(2, 4)) for letter in (first, second if rng.random() < 0.5 else first)]
        lines.append("\t".join([*texts, "same" if texts[0][0] == texts[1][0] else "other"]) + "\n")
    (folder / "pairs.tsv").write_text("".join(lines))
    files = (f"data.train={folder}/pairs.tsv", f"data.dev={folder}/pairs.tsv")
    return ("task=mlm_pairs", "data=files", *files, "data.fields={text_a: 0, text_b: 1, label: 2}", *PLAIN)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pretrained")
    learned = ("trainer.max_duration=80st", "optimizer.lr=1e-2", "trainer.batch_size=32", "model.hidden_size=32",
               "trainer.ema_decay=0", "trainer.eval_interval=0", "task.label_weight=3")  # fmt: skip
    train(*written(folder), *MODEL, *NO_DROPOUT, *learned, f"hydra.run.dir={folder}/run")
    return folder / "run"


def test_both_terms_are_those_of_torch_and_both_are_learned(pretrained: Path) -> None:
    trained = nlu.load(pretrained, device="cpu").trained
    with Progress() as progress:
        store = build_data(Run.of(saved_config(pretrained)), Ranks(0, 1, torch.device("cpu")), progress).store
    part = store.sets["dev"]
    # As `task` has set it.
    part.target = trained.target
    batch = collate(part, np.arange(len(part)))
    with torch.no_grad():
        outputs = trained.task.forward(trained.model, batch)
    words, labels = outputs["logits"].double(), batch.targets["labels"]
    # The label of each pair in the file itself, which is not the order of the batch.
    lines = (pretrained.parent / "pairs.tsv").read_text().splitlines()
    classes = torch.tensor([["other", "same"].index(lines[row].split("\t")[2]) for row in batch.examples_B])
    right = (outputs["classes"].argmax(1) == classes).double().mean().item()
    of_words = F.cross_entropy(words, labels).item()
    found = result(pretrained)["metrics"]["dev"]
    assert found["loss"] == pytest.approx(of_words + 3 * F.cross_entropy(outputs["classes"].double(), classes).item())
    assert found["perplexity"] == pytest.approx(np.exp(of_words))
    assert found["accuracy"] == (words.argmax(1) == labels).double().mean().item()
    assert found["label_accuracy"] == right
    # Without any learning: the share of the more frequent label, and one of four letters.
    assert right > 0.8 and found["accuracy"] > 0.4


def test_the_run_goes_into_fine_tuning_and_only_a_head_for_the_same_labels_is_taken(
    pretrained: Path, tmp_path: Path
) -> None:
    own = [one for one in written(tmp_path) if not one.startswith("task=")]
    start = (*STILL, "data.max_len=32", f"model.pretrained={pretrained}")
    train(*own, *start, "task=match", f"hydra.run.dir={tmp_path}/tuned")
    train(*own, *start, "task=mlm_pairs", "task.label_weight=3", f"hydra.run.dir={tmp_path}/same")
    text = (tmp_path / "pairs.tsv").read_text()
    (tmp_path / "pairs.tsv").write_text(text.replace("other", "unequal").replace("same", "equal"))
    train(*own, *start, "task=mlm_pairs", f"hydra.run.dir={tmp_path}/others")
    before, tuned, same, others = (
        nlu.load(path, device="cpu").trained.model.state_dict()
        for path in (pretrained, tmp_path / "tuned", tmp_path / "same", tmp_path / "others")
    )
    encoder = [name for name in before if name.startswith("backbone.")]
    assert encoder and all(torch.equal(before[name], tuned[name]) for name in encoder)
    assert result(tmp_path / "same")["metrics"] == result(pretrained)["metrics"]
    assert all(torch.equal(before[name], same[name]) for name in before)
    changed = {name for name in before if not torch.equal(before[name], others[name])}
    assert changed == {"head.classes.weight", "head.classes.bias"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ("loss.class_weights=inverse_frequency",),
            "loss.class_weights is inverse_frequency, but words have no weights",
        ),
        (("data=corpus", "data.break_mode=eos"), "task=mlm_pairs needs label, but data=corpus has only sentences"),
    ],
)
def test_rows_and_losses_that_do_not_fit_are_refused(
    options: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = written(tmp_path)
    if "data=corpus" in options:
        given = tuple(one for one in given if not one.startswith(("data.dev", "data.fields", "data=")))
    train(*given, *MODEL, *options, f"hydra.run.dir={tmp_path}/run", status=2)
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_labels_are_counted_and_records_name_them(pretrained: Path) -> None:
    data = json.loads((pretrained / "data.json").read_text())
    lines = (pretrained.parent / "pairs.tsv").read_text().splitlines()
    counts = {name: sum(line.endswith(name) for line in lines) for name in ("other", "same")}
    assert data["sets"]["train"]["labels"] == counts
    records = [json.loads(line) for line in (pretrained / "predictions/dev.jsonl").read_text().splitlines()[1:]]
    assert [record["class"] for record in records] == [line.split("\t")[2] for line in lines]
