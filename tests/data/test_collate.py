"""A packed batch against the rows that it was made of."""

import numpy as np
import pytest
import torch

from nlu.data.collate import collate


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
