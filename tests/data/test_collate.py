"""A packed batch against the rows that it was made of."""

from collections.abc import Iterable

import numpy as np
import pytest
import torch

from nlu.data.collate import Batch, collate
from nlu.data.examples import Examples
from nlu.data.order import Order, Whole
from nlu.data.seeds import uniforms
from nlu.data.targets import SCORING, Gathered, NoTarget


def plain_rows(part):
    """The tokens and the boundary of each example, taken one by one."""
    return [
        (part.stored.tokens(part.rows_N[[i]]).tolist(), int(part.stored.boundaries(part.rows_N[[i]])[0]))
        for i in range(len(part))
    ]


@pytest.fixture
def pairs(write, open_files):
    texts = ["a", "a b", "a b c", "a b c d e", "a b c d e f g h i j"]
    lines = [f"{a}\t{b}\t{(i + j) % 2}" for i, a in enumerate(texts) for j, b in enumerate(texts)]
    path = write("pairs.tsv", "\n".join(lines))
    return open_files("pair", train=path, dev=path, fields={"text_a": 0, "text_b": 1, "label": 2}, max_len=14)


def test_a_batch_holds_its_examples_side_by_side_shortest_first(pairs):
    part = pairs.sets["train"]
    asked = np.array([24, 0, 7, 13, 3, 12])
    batch = collate(part, asked)
    assert sorted(batch.examples_B) == sorted(asked) and batch.lengths == sorted(batch.lengths)
    assert len(batch) == 6 and batch.num_tokens == sum(batch.lengths)
    rows = plain_rows(part)
    for example, start, length, label in zip(
        batch.examples_B, batch.starts_S, batch.lengths, batch.targets["labels"], strict=True
    ):
        tokens, boundary = rows[example]
        place = slice(int(start), int(start) + length)
        assert batch.tokens_T[place].tolist() == tokens
        assert batch.positions_T[place].tolist() == list(range(length))
        assert batch.segments_T[place].tolist() == [int(i >= boundary) for i in range(length)]
        assert label == part.stored.scalars("target", part.rows_N)[example]
    assert {t.dtype for t in (batch.tokens_T, batch.segments_T, batch.positions_T, batch.targets["labels"])} == {
        torch.int64
    }


def test_the_first_text_with_its_separator_is_segment_0(pairs):
    batch = collate(pairs.sets["train"], np.array([1]))
    begin, end = (pairs.tokenizer.backend.token_to_id(token) for token in ("[CLS]", "[SEP]"))
    assert [int(batch.tokens_T[place]) for place in (0, 2, 5)] == [begin, end, end]
    assert batch.segments_T.tolist() == [0, 0, 0, 1, 1, 1]


def test_a_batch_stays_the_same_object_on_the_host(pairs):
    batch = collate(pairs.sets["train"], np.array([1, 2]))
    assert batch.to(torch.device("cpu")) is batch


def test_units_and_their_tags_stay_aligned_where_max_len_cuts(write, open_files):
    vocab = write("vocab.txt", "\n".join(["[UNK]", "[CLS]", "[SEP]", "p", "##p", "q", "##q"]))
    sentences = [[("pp", "B-X"), ("q", "I-X"), ("p", "O"), ("qqq", "B-Y")], [("p", "O"), ("q", "B-Y")],
                 [("pqpqpqpq", "B-X"), ("q", "O")], [("q", "B-Y")] * 12]  # fmt: skip
    text = "\n\n".join("\n".join(" ".join(unit) for unit in sentence) for sentence in sentences)
    path = write("units.conll", text)
    store = open_files("units", vocab=vocab, train=path, dev=path, fields={"tokens": 0, "tags": 1}, max_len=9)
    batch = collate(store.sets["train"], np.arange(4))
    word = store.tokenizer.backend.id_to_token
    found = []
    for example, count in zip(batch.examples_B, batch.unit_counts_B, strict=True):
        first = len(found)
        units = sentences[example][:count]
        found += units
        places, tags = batch.units_U[first : len(found)], batch.targets["labels"][first : len(found)]
        assert [word(int(batch.tokens_T[place])) for place in places] == [unit[0] for unit, _ in units]
        assert [store.labels[int(tag)] for tag in tags] == [tag for _, tag in units]
    assert len(batch.targets["labels"]) == len(batch.units_U) == len(found)
    counts = dict(zip(batch.examples_B.tolist(), batch.unit_counts_B.tolist(), strict=True))
    assert counts == {0: 4, 1: 2, 2: 0, 3: 7}


class Masked(NoTarget):
    """A third of the tokens of each example, to be predicted: in their place stands MASK."""

    MASK = 1

    def collate(self, rows: Gathered) -> dict[str, torch.Tensor]:
        packed, (seed, epoch) = rows.packed, rows.key
        example_T = np.repeat(rows.examples_B, packed.lengths_S)
        drawn_T = uniforms(seed, "masks", epoch, example_T=example_T, place_T=packed.positions_T)
        packed.units_U = np.flatnonzero(drawn_T < 1 / 3)
        packed.unit_counts_B = np.array([part.sum() for part in np.split(drawn_T < 1 / 3, packed.starts_S[1:])])
        words_U = packed.tokens_T[packed.units_U].astype(np.int64)
        packed.tokens_T[packed.units_U] = self.MASK
        return {"words": torch.from_numpy(words_U)}


Masks = dict[int, tuple[list[int], list[int], list[int]]]


def masks_of(batches: Iterable[Batch]) -> Masks:
    """Return by example the tokens that a model sees, the places that are masked, and the words that stood there."""
    found: Masks = {}
    for batch in batches:
        first = 0
        for example, start, length, count in zip(
            batch.examples_B, batch.starts_S, batch.lengths, batch.unit_counts_B, strict=True
        ):
            units = slice(first, first + count)
            found[int(example)] = (
                batch.tokens_T[start : start + length].tolist(), (batch.units_U[units] - start).tolist(),
                batch.targets["words"][units].tolist(),
            )  # fmt: skip
            first += count
    return found


def epoch_of(part: Examples, epoch: int, **how: int) -> Masks:
    """Return the masks of an epoch over all ranks; `how` the order puts batches together."""
    ranks = how.get("world_size", 1)
    orders = [Order(Whole(part.lengths_N), seed=5, rank=rank, **how) for rank in range(ranks)]
    steps = -(-len(part) // (how["batch_size"] * how.get("accumulation", 1)))
    shares = [share for step in range(steps) for order in orders for share in order.step(epoch * steps + step)]
    return masks_of(collate(part, share, (5, epoch)) for share in shares if len(share))


@pytest.fixture
def words(write, open_files):
    lines = [" ".join(f"w{(3 * row + place) % 31}" for place in range(2 + row % 9)) for row in range(50)]
    path = write("words.tsv", "\n".join(f"{line}\t{number % 2}" for number, line in enumerate(lines)))
    part = open_files(train=path, dev=path).sets["train"]
    return Examples("train", part.stored, part.rows_N, Masked.from_meta({}), part.layout)


def test_masks_are_the_same_in_any_batch_order_accumulation_and_number_of_ranks(words):
    found = epoch_of(words, 0, batch_size=8)
    assert sorted(found) == list(range(50))
    for example, (seen, places, hidden) in found.items():
        tokens = np.array(seen)
        assert (tokens[places] == Masked.MASK).all()
        tokens[places] = hidden
        assert tokens.tolist() == words.stored.tokens(words.rows_N[[example]]).tolist()
    masked = sum(len(places) for _, places, _ in found.values())
    assert 0.25 < masked / words.lengths_N.sum() < 0.42
    for how in ({"batch_size": 1}, {"batch_size": 50}, {"batch_size": 7, "accumulation": 3},
                {"batch_size": 8, "world_size": 2}, {"batch_size": 6, "bucket_batches": 1}):  # fmt: skip
        assert epoch_of(words, 0, **how) == found


def test_another_epoch_has_other_masks_and_scoring_always_the_same(words):
    epochs = [epoch_of(words, epoch, batch_size=8) for epoch in (0, 1)]
    assert sum(epochs[0][example] == epochs[1][example] for example in range(50)) < 10
    once, shuffled = collate(words, np.arange(50)), np.random.default_rng(0).permutation(50)
    again = (collate(words, shuffled[start : start + 9]) for start in range(0, 50, 9))
    assert once.key == SCORING and masks_of([once]) == masks_of(again)
    assert all(masks_of([once]) != masks for masks in epochs)


def test_masking_does_not_change_the_stored_tokens(words):
    before = words.stored.tokens(words.rows_N).tolist()
    collate(words, np.arange(50), (5, 0))
    assert words.stored.tokens(words.rows_N).tolist() == before
