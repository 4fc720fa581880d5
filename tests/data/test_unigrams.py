"""Pieces of a unigram model, compared with counts and segmentations that are found by trying all."""

import itertools
import math
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import nlu
from nlu.data.subwords import Subwords
from nlu.data.tokenizing import SPECIALS, load_tokenizer
from nlu.data.unigrams import LONGEST, _counted, _scored, _substrings, _without, learned
from tests.tasks.test_mlm import written
from tests.training.in_process import MODEL, PLAIN, train

TEXTS = [["我爱北京天安门，北京天安门", "Lower lowest newest", "我爱长城和北京"] * 6, ["newer 天安门 wider"] * 3]


def words_of(seed: int) -> Counter[str]:
    rng = random.Random(seed)
    words = {"".join(rng.choices("abcd", (6, 3, 2, 1), k=rng.randint(1, 9))): rng.randint(1, 9) for _ in range(60)}
    return Counter(words)


def spellings(word: str, pieces: dict[str, float]) -> list[tuple[float, list[str]]]:
    """Return all ways to spell a word by pieces, and the sum of the scores of each."""
    found = []
    for count in range(len(word)):
        for cuts in itertools.combinations(range(1, len(word)), count):
            bounds = [0, *cuts, len(word)]
            parts = [word[a:b] for a, b in itertools.pairwise(bounds)]
            if all(part in pieces for part in parts):
                found.append((sum(pieces[part] for part in parts), parts))
    return found


def test_substrings_are_counted_as_in_each_word_by_itself() -> None:
    counts = words_of(1) + Counter({"a" * (LONGEST + 3): 4})
    expected: Counter[str] = Counter()
    for word, number in counts.items():
        for start, stop in itertools.combinations(range(len(word) + 1), 2):
            expected[word[start:stop]] += number
    frequent = {piece: count for piece, count in expected.items() if count >= 5 and len(piece) <= LONGEST}
    words = sorted(counts)
    assert _substrings(words, [counts[word] for word in words], 5) == frequent


def test_pieces_are_counted_in_the_best_spelling_of_each_word() -> None:
    counts, rng = words_of(2), random.Random(0)
    pieces = {piece: rng.randint(1, 500) for piece in ("a", "b", "c", "d", "ab", "aa", "ba", "aab", "abc", "bca")}
    scores = dict(_scored(pieces))
    whole = sum(pieces.values())
    assert all(math.isclose(score, math.log(pieces[piece] / whole)) for piece, score in scores.items())
    expected: Counter[str] = Counter()
    for word, number in counts.items():
        best = max(spellings(word, scores))
        for part in best[1]:
            expected[part] += number
    found = _counted(_scored(pieces), list(counts), list(counts.values()))
    assert +found == expected


def test_a_piece_is_lost_to_the_best_spelling_by_others() -> None:
    scores = dict(_scored({"a": 7, "b": 5, "ab": 3, "ba": 4, "aba": 2, "abab": 9}))
    for piece in ("ab", "aba", "abab"):
        others = {one: score for one, score in scores.items() if one != piece}
        assert math.isclose(_without(piece, scores), max(spellings(piece, others))[0])


def test_the_result_has_its_size_and_does_not_depend_on_the_order_of_words() -> None:
    counts = words_of(3)
    for size, min_count in ((3, 1), (12, 1), (30, 2), (60, 40)):
        found = learned(counts, size, min_count)
        shuffled = Counter(dict(random.Random(size).sample(list(counts.items()), len(counts))))
        assert found == learned(shuffled, size, min_count)
        assert len(found) <= size and {piece for piece, _ in found} >= set("abcd"[: min(size, 4)])
        # Longer pieces come with at least so many occurrences.
        scores = dict(found)
        if size == 60:
            seen = _counted(found, list(counts), list(counts.values()))
            assert all(seen[piece] > 0 for piece in scores if len(piece) > 1)
    assert len(learned(counts, 12, 1)) == 12


def test_another_process_learns_the_same_tokenizer_to_the_last_bit() -> None:
    build = f"Subwords(kind='unigram', vocab_size=40).build({TEXTS!r})"
    program = f"from nlu.data.subwords import Subwords; print({build}.digest)"
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": "5"}, check=True, capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.stdout.strip() == Subwords(kind="unigram", vocab_size=40).build(TEXTS).digest


def test_words_of_several_ideographs_are_pieces_and_special_tokens_come_first(tmp_path: Path) -> None:
    tokenizer = Subwords(kind="unigram", vocab_size=60).build(TEXTS)
    names = {number: token for token, number in tokenizer.vocabulary.items()}
    assert [names[number] for number in range(5)] == SPECIALS and len(names) <= 60
    spelled = [names[token] for token in tokenizer.ids(["天安门，[MASK] newest 城"])[0].tolist()]
    assert "天安门" in "".join(spelled[:2]) and len(spelled[:2]) == 2
    assert "[MASK]" not in spelled and "".join(spelled).endswith("▁newest▁城")
    tokenizer.save(tmp_path)
    again = load_tokenizer(tmp_path, None)
    assert again is not None and again.digest == tokenizer.digest


def test_a_learned_unigram_vocabulary_is_saved_with_a_run_and_goes_into_the_next(tmp_path: Path) -> None:
    own = [one for one in written(tmp_path) if not one.startswith("tokenizer.")]
    subwords = ("tokenizer=subwords", "tokenizer.kind=unigram", "tokenizer.vocab_size=30")
    train(*own, *subwords, "trainer.max_duration=2st", f"hydra.run.dir={tmp_path}/run")
    train(
        *MODEL, *PLAIN, "data=files", f"data.train={tmp_path}/corpus.txt", f"data.dev={tmp_path}/corpus.txt",
        "data.fields={text: 0}", "task=mlm", f"model.pretrained={tmp_path}/run", "trainer.max_duration=1st",
        f"hydra.run.dir={tmp_path}/more",
    )  # fmt: skip
    first, second = (nlu.load(tmp_path / name, device="cpu").trained.tokenizer for name in ("run", "more"))
    assert first.digest == second.digest and any(len(piece) > 2 for piece in set(first.vocabulary) - set(SPECIALS))
