"""However a step is divided into micro-batches, its loss and its gradient are those of all rows at once."""

from pathlib import Path

import numpy as np
import pytest

from nlu.data.order import Order, Whole
from nlu.runs.records import read_rows
from tests.training.in_process import NO_DROPOUT, composed, start, tensors
from tests.training.kinds import (
    KINDS,
    Kind,
    classes,
    few_first,
    pair_of_classes,
    query,
    read,
    tags,
    write,
)

ROWS = 11
SPLITS = {"whole": (11, 1), "uneven": (4, 3), "single": (1, 11)}
"""batch size and micro-batches of the one step over all rows; 4, 4 and 3 rows, or one each"""
OVER_STEPS = ("siamese with InfoNCE", "siamese of numbers", "retrieve", "circle", "ghm_c")
"""losses that compare all rows of a step"""
SYMMETRIC = ("loss.symmetric=true", "task.dims=[4,2]")
BY_ROW = {
    **{name: KINDS[name] for name in (
        "classify", "regress", "regress of pairs", "multilabel", "tag", "tag with a CRF", "siamese",
        "siamese with contrastive loss", "mlm", "mlm of pairs", "mlm_pairs", "structbert",
        "rdrop and the order of sentences", "rerank", "retrieve of queries", "retrieve of queries, listwise",
        "cross-entropy", "focal", "bce", "taylor", "rdrop", "fgm", *OVER_STEPS,
    )},
    "siamese with InfoNCE, symmetric": Kind((*KINDS["siamese with InfoNCE"].options, *SYMMETRIC), pair_of_classes),
    "freelb": Kind(("method=freelb", "method.init_magnitude=0"), classes),
    "freelb in linf, tags and a CRF": Kind(
        ("method=freelb", "method.init_magnitude=0", "method.norm=linf", "task=tag", "head=crf"), tags
    ),
}  # fmt: skip


def one_step(kind: Kind, folder: Path, split: str, *options: str) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Do a step over all rows; return the loss with its terms, and the gradient by parameter."""
    batch_size, accumulation = SPLITS[split]
    usual = {"model=bert_tiny": NO_DROPOUT, "model=hf": ("model.head_dropout=0",)}
    dropout = usual.get(kind.model[0], ("model.dropout=0", "model.head_dropout=0"))
    start(
        composed(
            *kind.overrides(folder, train_rows=ROWS), *dropout, f"trainer.batch_size={batch_size}",
            f"trainer.accumulation={accumulation}", "trainer.max_duration=1st", "trainer.clip_norm=0",
            "optimizer.betas=[0.5,0.999]", *options,
        ),
        folder / split,
    )  # fmt: skip
    (row,) = read_rows(folder / split / "train.tsv")
    moments = tensors(folder / split, "last/optimizer")
    gradient = {key: 2 * value for key, value in moments.items() if key.startswith("exp_avg:")}
    return {key: float(row[key]) for key in row if key.startswith(("loss", "gnorm"))}, gradient  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "kind",
    few_first(
        BY_ROW, "mlm", "structbert", "tag with a CRF", "siamese with contrastive loss", "siamese of numbers",
        "siamese with InfoNCE, symmetric", "rerank", "retrieve of queries",
        "freelb in linf, tags and a CRF",
    ),
)  # fmt: skip
def test_micro_batches_of_any_size_give_the_loss_and_the_gradient_of_the_whole_step(kind: Kind, tmp_path: Path) -> None:
    (loss, gradient), *others = [one_step(kind, tmp_path, split) for split in SPLITS]
    assert loss["gnorm"] > 1e-3
    largest = max(np.abs(value).max() for value in gradient.values())
    for other_loss, other_gradient in others:
        assert other_loss == pytest.approx(loss, rel=1e-5, abs=1e-7)
        assert other_gradient.keys() == gradient.keys()
        for name, value in gradient.items():
            np.testing.assert_allclose(other_gradient[name], value, rtol=1e-3, atol=2e-6 * largest, err_msg=name)


DROPPING = ("model.dropout=0.3", "model.head_dropout=0.3")
"""dropout everywhere but in attention, which a TextCNN does not have"""
WITH_DROPOUT = {
    **{name: KINDS[name] for name in (
        "classify", "tag with a CRF", "siamese with contrastive loss", "siamese with InfoNCE", "freelb",
        "freelb of a TextCNN", "rerank", "retrieve of queries", "retrieve of queries, listwise",
    )},
    "queries that share a sequence": Kind(("task=retrieve", "loss=contrastive", "model.pooling=mean"), query),
    "fgm of R-Drop": Kind(("method=fgm", "method.of={_target_: nlu.methods.rdrop.RDrop, alpha: 4}"), classes),
}  # fmt: skip


@pytest.mark.parametrize(
    "kind",
    few_first(WITH_DROPOUT, "tag with a CRF", "siamese with InfoNCE", "fgm of R-Drop", "queries that share a sequence"),
)
def test_parts_of_a_step_with_dropout_masks_by_example_equal_the_whole(kind: Kind, tmp_path: Path) -> None:
    has_attention = kind.model[0] == "model=bert_tiny"
    options = (*DROPPING, "model.attention_dropout=0.3") if has_attention else DROPPING
    (loss, gradient), *others = [one_step(kind, tmp_path, split, *options) for split in SPLITS]
    without, _ = one_step(kind, tmp_path / "without", "whole")
    assert without["loss"] != pytest.approx(loss["loss"], rel=1e-5)
    largest = max(np.abs(value).max() for value in gradient.values())
    for other_loss, other_gradient in others:
        assert other_loss == pytest.approx(loss, rel=1e-5, abs=1e-6)
        for name, value in gradient.items():
            np.testing.assert_allclose(other_gradient[name], value, rtol=1e-3, atol=5e-6 * largest, err_msg=name)


def test_a_column_for_each_term_and_the_loss_is_their_weighted_sum(tmp_path: Path) -> None:
    for name, weights in (
        ("rdrop", {"labels": 1.0, "consistency": 2.0}), ("fgm", {"labels": 1.0, "adversarial_labels": 0.5}),
    ):  # fmt: skip
        # R-Drop without dropout makes one prediction twice.
        options = ("method.alpha=4", "model.head_dropout=0.5") if name == "rdrop" else ("method.weight=0.5",)
        row, _ = one_step(KINDS[name], tmp_path / name, "uneven", *options)
        terms = {key.removeprefix("loss_"): value for key, value in row.items() if key.startswith("loss_")}
        assert terms.keys() == weights.keys() and all(terms.values())
        assert row["loss"] == pytest.approx(sum(weights[term] * terms[term] for term in weights))
    # A single term is the loss.
    assert one_step(KINDS["classify"], tmp_path / "plain", "uneven")[0].keys() == {"loss", "gnorm"}


OVER_BATCHES = {
    "fgm and InfoNCE": Kind(("method=fgm", "method.epsilon=0.01", "task=siamese", "loss=info_nce"), pair_of_classes),
    "rdrop and circle": Kind(("method=rdrop", "loss=circle"), classes),
}
"""methods with passes of their own, whose losses compare the rows of a micro-batch"""


@pytest.mark.parametrize("name", few_first(list(OVER_BATCHES), "fgm and InfoNCE"))
def test_a_loss_over_whole_micro_batches_weighs_each_by_the_rows_that_it_sums_over(name: str, tmp_path: Path) -> None:
    kind = OVER_BATCHES[name]
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
    (tmp_path / "vocab.txt").write_text("".join(f"{token}\n" for token in vocabulary))
    labels = "[bad,good]" if kind.row is classes else "['0','1']"
    options = (f"tokenizer.vocab={tmp_path}/vocab.txt", "trainer.bucket_batches=1", f"data.labels={labels}")
    loss, gradient = one_step(kind, tmp_path, "uneven", *options)
    rows = read(tmp_path / "train.jsonl")
    order = Order(
        Whole(np.ones(ROWS, np.int64)), seed=1, batch_size=4, accumulation=3, bucket_batches=1, rank=0, world_size=1
    )
    counts, losses, gradients = [], [], []
    for micro, places in enumerate(order.global_step(0)):
        apart = tmp_path / f"apart-{micro}"
        write(apart / "rows.jsonl", [rows[place] for place in places])
        found, own = one_step(kind, apart, "whole", *options, f"data.train={apart}/rows.jsonl")
        losses.append(found["loss"])
        gradients.append(own)
        # InfoNCE sums over the pairs that belong together, the others over all rows.
        counts.append(sum(rows[place]["label"] == "1" for place in places) if "InfoNCE" in name else len(places))
    assert sorted(map(len, order.global_step(0))) == [3, 4, 4] and len(set(losses)) == 3
    assert loss["loss"] == pytest.approx(np.average(losses, weights=counts), rel=1e-5)
    for key, value in gradient.items():
        expected = np.average([own[key] for own in gradients], weights=counts, axis=0)
        np.testing.assert_allclose(value, expected, rtol=1e-3, atol=1e-6, err_msg=key)
