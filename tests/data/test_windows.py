"""Windows of long rows, against the same rules written row by row in plain Python."""

from itertools import accumulate

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nlu.data.examples import in_memory
from nlu.data.layouts import LAYOUTS
from nlu.data.windows import UNCUT, Lengths
from tests.data.test_encoding import ROBERTA_LIKE, TEXTS, TOKENIZERS, UNITS, rows

SIZES = st.integers(8, 14).flatmap(lambda max_len: st.tuples(st.just(max_len), st.integers(0, max_len // 2)))
LONG = st.lists(st.lists(st.sampled_from("ab"), min_size=1, max_size=60), min_size=1, max_size=6)


@given(LONG, SIZES)
def test_windows_are_few_and_even_and_share_as_many_tokens_as_asked(texts, sizes):
    max_len, stride = sizes
    single, values = LAYOUTS["single"], [{"text": " ".join(text)} for text in texts]
    whole = single.encode(ROBERTA_LIKE, values, UNCUT)
    found = Lengths(max_len, "windows", stride).encode(single, ROBERTA_LIKE, values)
    windows = iter(rows(found.tokens, found.windows))
    for tokens, count in zip(rows(whole.tokens, whole.lengths_N), found.window_counts_N, strict=True):
        own = [next(windows) for _ in range(count)]
        assert all(part[0] == 2 and part[-1] == 3 and len(part) <= max_len for part in own)
        inner = [part[1:-1] for part in own]
        assert max(map(len, inner)) - min(map(len, inner)) <= 1
        assert all(a[len(a) - stride :] == b[:stride] for a, b in zip(inner, inner[1:], strict=False))
        assert [*inner[0], *(token for part in inner[1:] for token in part[stride:])] == tokens[1:-1]
        # One window less would not hold them.
        assert count == 1 or (count - 1) * (max_len - 2) - (count - 2) * stride < len(tokens) - 2
    assert not found.cut_N.any()


@given(
    TOKENIZERS, st.lists(st.lists(UNITS, min_size=1, max_size=6).map(lambda parts: sum(parts, [])), max_size=5), SIZES
)
def test_each_unit_is_read_once_where_its_nearest_edge_is_farthest(tokenizer, unit_rows, sizes):
    max_len, stride = sizes
    values = [{"tokens": units} for units in unit_rows if units] or [{"tokens": ["a"]}]
    layout, before = LAYOUTS["units"], len(tokenizer.single.before)
    whole = layout.encode(tokenizer, values, UNCUT)
    found = Lengths(max_len, "windows", stride).encode(layout, tokenizer, values)
    places, ends = iter(found.words.tolist()), found.lengths_N - tokenizer.single.size
    sizes_of_rows = rows(found.windows, found.window_counts_N)
    for row, starts_U in enumerate(rows(whole.words, whole.word_counts_N)):
        sizes_W = [size - tokenizer.single.size for size in sizes_of_rows[row]]
        begins = [0, *accumulate(size - stride for size in sizes_W[:-1])]
        stored = [0, *accumulate(size + tokenizer.single.size for size in sizes_W[:-1])]
        total = begins[-1] + sizes_W[-1]
        for first, end in zip(starts_U, [*starts_U[1:], total + before], strict=True):
            first, end = first - before, end - before
            margins = [
                min(
                    first - begin if number else UNCUT,
                    begin + size - end if number < len(begins) - 1 else UNCUT,
                )
                for number, (begin, size) in enumerate(zip(begins, sizes_W, strict=True))
            ]  # fmt: skip
            best = margins.index(max(margins))
            assert next(places) == stored[best] + before + first - begins[best]
    assert next(places, None) is None and len(ends) == len(values)


@given(LONG, SIZES)
def test_a_packed_batch_finds_each_unit_in_its_window(texts, sizes):
    layout, values = LAYOUTS["units"], [{"tokens": text} for text in texts]
    encoded = Lengths(sizes[0], "windows", sizes[1]).encode(layout, ROBERTA_LIKE, values)
    part = in_memory(encoded, layout)
    order_B = np.argsort(part.lengths_N, kind="stable")
    packed = layout.pack(part.stored, order_B)
    assert packed.lengths_S.tolist() == sorted(encoded.windows.tolist())
    read = packed.tokens_T[packed.units_U].tolist()
    names = {token: ROBERTA_LIKE.backend.token_to_id(token) for token in "ab"}
    assert read == [names[token] for row in order_B for token in texts[row]]
    windows_S = [
        packed.tokens_T[start : start + n].tolist() for start, n in zip(packed.starts_S, packed.lengths_S, strict=True)
    ]
    in_order = [windows_S[place] for place in packed.sequences_KB[0]]
    wanted = rows(encoded.tokens, encoded.windows)
    begins = np.cumsum(encoded.window_counts_N) - encoded.window_counts_N
    assert in_order == [
        wanted[begins[row] + number] for row in order_B for number in range(encoded.window_counts_N[row])
    ]


@given(TOKENIZERS, st.lists(TEXTS, min_size=1, max_size=4))
def test_a_prompt_is_read_as_the_beginning_of_its_text_only(tokenizer, texts):
    plain, layout = Lengths(12), LAYOUTS["sides"]
    own = Lengths(12, prompts={"text_b": "a b "})
    found = own.encode(layout, tokenizer, [{"text_a": text, "text_b": text} for text in texts])
    expected = plain.encode(layout, tokenizer, [{"text_a": text, "text_b": f"a b {text}"} for text in texts])
    assert np.array_equal(found.tokens, expected.tokens) and np.array_equal(found.boundary_N, expected.boundary_N)
    # Stores of older versions keep their names.
    assert plain.settings() == [] and own.settings() == ["cut", {"text_b": "a b "}]
