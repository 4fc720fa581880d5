"""Special tokens, cutting and places of units, against the same rules written row by row in plain Python."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nlu.data.layouts import check_text, check_tokens, cut_pair, encode_pair, encode_single, encode_units
from nlu.data.tokenizing import SPECIALS, Template, Tokenizer, wordpiece

WORDPIECE = wordpiece([*SPECIALS, "a", "b", "##a", "##b", "界", "."], True, "here")
ROBERTA_LIKE = Tokenizer(WORDPIECE.backend, Template((2,), (), (3,)), Template((2,), (3, 3), (3,)), 1)
TOKENIZERS = st.sampled_from([WORDPIECE, ROBERTA_LIKE])
TEXTS = st.text(alphabet="ab界. \u200bx", max_size=14)
UNITS = st.lists(st.sampled_from(["a", "ab", "界", " ", "\u200b", "abab.", "x", "ababab界界"]), max_size=8)
MAX_LEN = st.integers(8, 14)
COUNTS = st.integers(0, 30)


def ids(tokenizer, text):
    return tokenizer.backend.encode(text, add_special_tokens=False).ids


def rows(flat, counts_N):
    return [part.tolist() for part in np.split(flat, np.cumsum(counts_N)[:-1])]


@given(COUNTS, COUNTS, st.integers(4, 40))
def test_a_pair_is_cut_only_as_needed_and_by_the_rule_of_halves(count_a, count_b, room):
    keep_a, keep_b = (int(keep_N[0]) for keep_N in cut_pair(np.array([count_a]), np.array([count_b]), room))
    assert keep_a + keep_b == min(count_a + count_b, room)
    assert 0 <= keep_a <= count_a and 0 <= keep_b <= count_b
    half_a, half_b = room - room // 2, room // 2
    if count_a + count_b > room:
        assert keep_a == (half_a if count_a > half_a and count_b > half_b else min(count_a, room - keep_b))
        assert keep_a == count_a or keep_a >= half_a
        assert keep_b == count_b or keep_b >= half_b


@given(TOKENIZERS, st.lists(TEXTS, min_size=1, max_size=6), MAX_LEN)
def test_single_texts_are_encoded_as_written_row_by_row(tokenizer, texts, max_len):
    encoded = encode_single(tokenizer, texts, max_len)
    plain = [ids(tokenizer, text) for text in texts]
    kept = [text_ids[: max_len - tokenizer.single.size] for text_ids in plain]
    wanted = [[*tokenizer.single.before, *part, *tokenizer.single.after] for part in kept]
    assert rows(encoded.tokens, encoded.lengths_N) == wanted
    assert encoded.boundary_N.tolist() == encoded.lengths_N.tolist() == list(map(len, wanted))
    assert encoded.cut_N.tolist() == [part != text_ids for part, text_ids in zip(kept, plain, strict=True)]
    assert encoded.tokens.dtype == np.int32 and encoded.lengths_N.max() <= max_len


@given(TOKENIZERS, st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=6), MAX_LEN)
def test_pairs_are_encoded_as_written_row_by_row(tokenizer, pairs, max_len):
    encoded = encode_pair(tokenizer, [a for a, _ in pairs], [b for _, b in pairs], max_len)
    template, room = tokenizer.pair, max_len - tokenizer.pair.size
    wanted, boundaries, cut = [], [], []
    for a, b in ((ids(tokenizer, a), ids(tokenizer, b)) for a, b in pairs):
        keep_a, keep_b = (int(keep_N[0]) for keep_N in cut_pair(np.array([len(a)]), np.array([len(b)]), room))
        first = [*template.before, *a[:keep_a], *template.between]
        wanted.append([*first, *b[:keep_b], *template.after])
        boundaries.append(len(first))
        cut.append(len(a) + len(b) > room)
    assert rows(encoded.tokens, encoded.lengths_N) == wanted
    assert encoded.boundary_N.tolist() == boundaries
    assert encoded.cut_N.tolist() == cut
    assert encoded.lengths_N.max() <= max_len


@given(TOKENIZERS, st.lists(UNITS, min_size=1, max_size=5), MAX_LEN)
def test_units_are_encoded_as_written_row_by_row(tokenizer, unit_rows, max_len):
    encoded = encode_units(tokenizer, unit_rows, max_len)
    template, wanted, places, cut = tokenizer.single, [], [], []
    for units in unit_rows:
        row, starts = list(template.before), []
        pieces = [ids(tokenizer, unit) or [tokenizer.unknown_id] for unit in units]
        for part in pieces:
            if len(row) + len(part) + len(template.after) > max_len:
                break
            starts.append(len(row))
            row += part
        cut.append(len(starts) < len(units))
        wanted.append([*row, *template.after])
        places.append(starts)
    assert rows(encoded.tokens, encoded.lengths_N) == wanted
    assert rows(encoded.words, encoded.word_counts_N) == places
    assert encoded.cut_N.tolist() == cut


@pytest.mark.parametrize(
    ("value", "rule"),
    [("text", None), ("\u3000 \n", "is empty"), (None, "is not a text"), (3, "is not a text"),
     ("cut \ud83d", "holds half of a surrogate pair"), ("whole \U0001f600", None)],
)  # fmt: skip
def test_a_text_that_cannot_be_encoded_breaks_a_rule(value, rule):
    assert check_text(value) == rule


@pytest.mark.parametrize(
    ("value", "rule"),
    [(["a", " "], None), ([], "is empty"), ("a b", "is not a list of texts"), (["a", 1], "is not a list of texts"),
     (None, "is not a list of texts"), (["\udc00"], "holds half of a surrogate pair")],
)  # fmt: skip
def test_a_list_of_tokens_that_cannot_be_encoded_breaks_a_rule(value, rule):
    assert check_tokens(value) == rule
