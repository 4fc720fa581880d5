"""A learned vocabulary, compared with merges that are counted again from the beginning at each step."""

import random
from collections import Counter
from pathlib import Path

import pytest

from nlu.data.subwords import Subwords, learned
from nlu.data.tokenizing import SPECIALS


def counted_again(counts: Counter[str], size: int, min_count: int) -> list[str]:
    """Return what `learned` returns, by counting all pairs of all words before each merge."""
    words = {word: [word[0], *(f"##{letter}" for letter in word[1:])] for word in counts}
    characters: Counter[str] = Counter()
    for word, pieces in words.items():
        for piece in pieces:
            characters[piece] += counts[word]
    found = sorted((c for c in characters if characters[c] >= min_count), key=lambda c: (-characters[c], c))[:size]
    words = {word: pieces for word, pieces in words.items() if set(pieces) <= set(found)}
    while len(found) < size:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, pieces in words.items():
            for pair in zip(pieces, pieces[1:], strict=False):
                pairs[pair] += counts[word]
        best = min(pairs, key=lambda pair: (-pairs[pair], pair), default=None)
        if best is None or pairs[best] < min_count:
            break
        piece = best[0] + best[1].removeprefix("##")
        for pieces in words.values():
            place = 0
            while place < len(pieces) - 1:
                if (pieces[place], pieces[place + 1]) == best:
                    pieces[place : place + 2] = [piece]
                place += 1
        found += [piece] if piece not in found else []
    return found


@pytest.mark.parametrize(("size", "min_count"), [(4, 1), (12, 1), (40, 2), (1000, 3)])
def test_pieces_are_those_of_counting_all_pairs_before_each_merge(size: int, min_count: int) -> None:
    rng = random.Random(size)
    words = ["".join(rng.choices("abcd", (5, 3, 2, 1), k=rng.randint(1, 7))) for _ in range(120)]
    counts = Counter({word: rng.randint(1, 9) for word in words})
    assert learned(counts, size, min_count) == counted_again(counts, size, min_count)
    shuffled = Counter(dict(rng.sample(list(counts.items()), len(counts))))
    assert learned(shuffled, size, min_count) == learned(counts, size, min_count)


def test_frequent_words_are_pieces_and_rare_ones_are_spelled(tmp_path: Path) -> None:
    texts = [["The widest Tower", "wider towers"] * 5, ["widened 我爱"] * 2]
    tokenizer = Subwords(vocab_size=40).build(texts)
    names = {number: token for token, number in tokenizer.vocabulary.items()}
    assert [names[number] for number in range(5)] == SPECIALS
    flat, _ = tokenizer.ids(["the tower widows 爱"])
    found = [names[token] for token in flat.tolist()]
    assert found[:2] == ["the", "tower"] and found[-1] == "爱" and len(found) > 4
    assert "".join(found).replace("##", "") == "thetowerwidows爱"


def test_a_learned_vocabulary_holds_no_more_than_its_size_and_no_rare_character() -> None:
    tokenizer = Subwords(vocab_size=9, min_count=3).build([["aaab aaab aaab c"]])
    assert len(tokenizer.vocabulary) == 9 and "c" not in tokenizer.vocabulary
