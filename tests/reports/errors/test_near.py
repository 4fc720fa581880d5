"""Texts that are the same or near, against a comparison of all with all."""

import random

import pytest

from nlu.reports.errors.overlap import NearTexts, grams_of, normalised


def jaccard(first, second):
    a, b = grams_of(first), grams_of(second)
    return len(a & b) / len(a | b)


def test_texts_are_compared_only_by_letters_and_digits():
    assert normalised("Hello,  World!") == normalised("ｈｅｌｌｏ world") == "helloworld"
    assert normalised("很好，很 强大。") == "很好很强大" and normalised("!!!") == "!!!"


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.7, 0.9, 1.0])
def test_exactly_the_near_texts_are_found(threshold):
    """Half of the texts that go by are kept ones with a few letters changed, so that all similarities occur."""
    rng = random.Random(0)
    kept = ["".join(rng.choices("abcd", k=rng.randint(1, 30))) for _ in range(120)]
    others = ["".join(rng.choices("abcdx", k=rng.randint(1, 30))) for _ in range(60)]
    for text in kept[:60]:
        letters = list(text)
        for _ in range(rng.randint(0, 3)):
            letters[rng.randrange(len(letters))] = rng.choice("abcdx")
        others.append("".join(letters))
    texts = NearTexts(threshold)
    numbers = [texts.add(text) for text in kept]
    texts.build()
    distinct = dict(zip(numbers, kept, strict=True))
    for other in others:
        found = {number: (similarity, is_same) for number, similarity, is_same in texts.near(other)}
        wanted = {
            number: (jaccard(text, other), text == other)
            for number, text in distinct.items()
            if jaccard(text, other) >= threshold
        }
        assert found == wanted
    assert len(texts) == len(set(kept))


def test_equal_texts_share_a_number():
    texts = NearTexts(0.7)
    assert [texts.add(text) for text in ("ab", "cd", "ab")] == [0, 1, 0]
