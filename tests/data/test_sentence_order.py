"""Pairs of halves, compared with a statement of the rule for one example at a time, and their statistics."""

from collections import Counter
from pathlib import Path

import numpy as np

from nlu.data.collate import Batch, collate
from nlu.data.corpus import Corpus
from nlu.data.examples import Examples
from nlu.data.prepare import prepare
from nlu.data.store_plan import plan_of
from nlu.data.targets import SentenceOrder
from nlu.data.targets.masked import Masking
from nlu.data.tokenizing import WordPiece

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = [chr(0x61 + n) for n in range(26)] + [chr(0x3B1 + n) for n in range(17)]
VOCAB = [*SPECIALS, *LETTERS, "##y", "##z"]
CLS, SEP, MASK = (VOCAB.index(name) for name in ("[CLS]", "[SEP]", "[MASK]"))
TEXT = "a b c\nd e f g\nh i\n\nj k\nl m\n\nn o p q r\n\ns\nt u v w x\n"
"""documents; with blocks of at most nine tokens the first is abcdefghi, and no other one is longer"""
HALVES = [("abc", "defghi"), ("jk", "lm"), ("no", "pqr"), ("s", "tuvwx")]
KEY = (3, 7)
CLASSES = ("next", "previous", "other")


def opened(folder: Path, text: str, masking: Masking | None = None, **settings: object) -> Examples:
    """Return the training set of a corpus; without `masking` no token is hidden."""
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in VOCAB))
    (folder / "corpus.txt").write_text(text)
    path = str(folder / "corpus.txt")
    given = {"train": path, "dev": path, "max_len": 12, "break_mode": "complete_doc", **settings}
    plan = plan_of(
        Corpus(**given), WordPiece(), "nlu.data.targets.SentenceOrder", ("single",), pretrained=None,  # type: ignore[arg-type]
        vocab=folder / "vocab.txt",
    )  # fmt: skip
    store = prepare(plan)
    assert isinstance(store.target, SentenceOrder)
    store.target.choose(masking or Masking(fraction=0.0))
    part = store.sets["train"]
    # What a checkpoint keeps must give the same pairs.
    return Examples("train", part.stored, part.rows_N, SentenceOrder.from_meta(store.target.meta()), part.layout)


def pairs_of(batch: Batch) -> dict[int, tuple[str, str, str]]:
    """Return the class and both halves of each example, after checking that they form a pair."""
    tokens, segments = batch.tokens_T.numpy(), batch.segments_T.numpy()
    assert sorted(batch.lengths) == batch.lengths
    found = {}
    for place, example in enumerate(batch.examples_B.tolist()):
        start = int(batch.starts_S[place])
        own = slice(start, start + batch.lengths[place])
        assert batch.positions_T[own].tolist() == list(range(batch.lengths[place]))
        cls, *inner, last = tokens[own].tolist()
        middle = inner.index(SEP)
        assert (cls, last) == (CLS, SEP) and inner.count(SEP) == 1
        assert segments[own].tolist() == [0] * (middle + 2) + [1] * (len(inner) - middle)
        halves = "".join(VOCAB[t] for t in inner[:middle]), "".join(VOCAB[t] for t in inner[middle + 1 :])
        found[example] = (CLASSES[int(batch.targets["classes"][place])], *halves)
    return found


def test_a_block_is_stored_as_two_halves_at_the_sentence_nearest_to_its_middle(tmp_path: Path) -> None:
    part = opened(tmp_path, TEXT)
    # The whole of a block fits with the three special tokens of a pair, and not with a token more.
    assert part.lengths_N.max() == 12
    found = []
    for row in range(len(part)):
        tokens = part.stored.tokens(np.array([row])).tolist()
        boundary = int(part.stored.boundaries(np.array([row]))[0])
        assert tokens[boundary - 1] == SEP
        halves = tokens[1 : boundary - 1], tokens[boundary:-1]
        found.append(tuple("".join(VOCAB[token] for token in half) for half in halves))
    assert found == HALVES
    assert part.stored.scalars("target", part.rows_N).tolist() == [0, 1, 2, 3]


def test_the_pair_of_each_example_is_one_of_its_class_in_any_batch_and_epoch(tmp_path: Path) -> None:
    part = opened(tmp_path, TEXT)
    seen = set()
    for epoch in range(60):
        whole = pairs_of(collate(part, np.arange(4), (3, epoch)))
        for example, (name, first, second) in whole.items():
            seen.add((name, first, second))
            if epoch < 5:
                assert pairs_of(collate(part, np.array([example]), (3, epoch))) == {example: (name, first, second)}
            if name != "other":
                assert (first, second) == (HALVES[example] if name == "next" else HALVES[example][::-1])
                continue
            assert first in HALVES[example]
            # Halves that are too long together with the first one lose their end.
            assert any(other != example and half.startswith(second) and len(second) == min(len(half), 9 - len(first))
                       for other, halves in enumerate(HALVES) for half in halves)  # fmt: skip
    # Every class of every example, and the first one with every half of the other documents.
    for one, other in HALVES:
        assert {("next", one, other), ("previous", other, one)} <= seen
    assert {half[0] for name, first, half in seen if name == "other" and first in HALVES[0]} == set("jlnpst")


def test_classes_are_equally_frequent_and_other_documents_equally_likely(tmp_path: Path) -> None:
    documents = "\n".join(f"{a} {a}\n{b} {b}\n" for a, b in zip(LETTERS[:20], LETTERS[20:40], strict=True))
    part = opened(tmp_path, documents, max_len=16)
    names: Counter[str] = Counter()
    firsts: Counter[tuple[str, bool]] = Counter()
    partners: Counter[str] = Counter()
    for epoch in range(60):
        for example, (name, first, second) in pairs_of(collate(part, np.arange(20), (5, epoch))).items():
            names[name] += 1
            firsts[name, first[0] in LETTERS[:20]] += 1
            if name == "other":
                assert second[0] not in (LETTERS[example], LETTERS[20 + example])
                partners[second[0]] += 1
    # Four standard deviations of a share of 1200, and of one of 400; each of 40 halves is drawn 10 times in the mean.
    assert all(abs(count / 1200 - 1 / 3) < 0.055 for count in names.values()) and len(names) == 3
    assert abs(firsts["other", True] / names["other"] - 0.5) < 0.1
    assert len(partners) == 40 and max(partners.values()) < 26


def test_the_second_document_is_of_the_same_set_also_where_a_sample_is_scored(tmp_path: Path) -> None:
    part = opened(tmp_path, "\n".join(f"{a} {a}\n{b} {b}\n" for a, b in zip(LETTERS[:20], LETTERS[20:40], strict=True)))
    known = np.array([1, 4, 5, 9, 16])
    own = Examples("dev", part.stored, known, part.target, part.layout)
    letters = {LETTERS[row] for row in known} | {LETTERS[20 + row] for row in known}
    for epoch in range(15):
        whole = pairs_of(collate(own, np.arange(5), (1, epoch)))
        assert {half[0] for _, *halves in whole.values() for half in halves} <= letters
        sample = pairs_of(collate(own.some(np.array([2, 4])), np.arange(2), (1, epoch)))
        assert sample == {0: whole[2], 1: whole[4]}


def test_pairs_differ_between_epochs_and_seeds_and_are_the_same_in_each_evaluation(tmp_path: Path) -> None:
    part = opened(tmp_path, "\n".join(f"{a} b\n{a} c\n" for a in LETTERS))
    scored = [pairs_of(collate(part, np.arange(len(part)))) for _ in range(2)]
    assert scored[0] == scored[1]
    drawn = [pairs_of(collate(part, np.arange(len(part)), key)) for key in (KEY, KEY, (3, 8), (4, 7))]
    assert drawn[0] == drawn[1] and drawn[0] != drawn[2] != drawn[3] != drawn[0]


def test_a_set_with_one_document_has_two_classes(tmp_path: Path) -> None:
    part = opened(tmp_path, "a b\nc d\ne f\ng h\n", max_len=8)
    names = {one[0] for epoch in range(30) for one in pairs_of(collate(part, np.arange(2), (1, epoch))).values()}
    assert len(part) == 2 and names == {"next", "previous"}


def test_documents_of_two_files_with_the_same_number_are_different(tmp_path: Path) -> None:
    (tmp_path / "more.txt").write_text("x x\nw w\n")
    part = opened(tmp_path, "a b\nc d\n", train=[str(tmp_path / "corpus.txt"), str(tmp_path / "more.txt")])
    names = {one[0] for epoch in range(30) for one in pairs_of(collate(part, np.arange(2), (1, epoch))).values()}
    assert names == set(CLASSES)


def test_a_block_of_one_word_is_left_out_and_one_sentence_is_halved_at_a_word(tmp_path: Path) -> None:
    part = opened(tmp_path, "ayzyz\n\na byz c\n", max_len=16)
    tokens = [VOCAB[token] for token in part.stored.tokens(part.rows_N)]
    assert tokens == ["[CLS]", "a", "[SEP]", "b", "##y", "##z", "c", "[SEP]"]


def test_given_words_move_with_the_half_that_they_are_in(tmp_path: Path) -> None:
    text = "\n".join(f"xyzy {a}\n{b} xzy\n" for a, b in zip(LETTERS[:20], LETTERS[20:40], strict=True))
    masking = Masking(fraction=0.4, keep=0.0, replace=0.0)
    for words in ("plain", "spaces"):
        part = opened(tmp_path, text, masking, words=words, max_len=16)
        hidden = [VOCAB.index(token) for token in ("x", "##y", "##z")]
        for epoch in range(10):
            batch = collate(part, np.arange(20), (2, epoch))
            whole = batch.tokens_T.numpy().copy()
            assert batch.units_U is not None
            masked = np.zeros(len(whole), bool)
            masked[batch.units_U.numpy()] = True
            whole[batch.units_U.numpy()] = batch.targets["labels"].numpy()
            for start in np.flatnonzero(whole == hidden[0]):
                stop = start + 1
                while whole[stop] in hidden[1:]:
                    stop += 1
                assert len(set(masked[start:stop].tolist())) == 1


def test_groups_of_three_unmasked_neighbors_are_shuffled_and_predicted(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = [" ".join(rng.choice(LETTERS, 10)) + "\n" + "\n" * (n % 2) for n in range(400)]
    masking = Masking(fraction=0.15, keep=0.0, replace=0.0, shuffle_fraction=0.3)
    part = opened(tmp_path, "".join(lines), masking, max_len=32)
    calm = opened(tmp_path, "".join(lines), Masking(fraction=0.15, keep=0.0, replace=0.0), max_len=32)
    batch, without = (collate(one, np.arange(len(part)), KEY) for one in (part, calm))
    found, tokens = batch.tokens_T.numpy(), without.tokens_T.numpy()
    assert batch.units_U is not None and without.units_U is not None
    units, is_shuffled = batch.units_U.numpy(), batch.targets["is_shuffled"].numpy()
    # The masks are those of a run that shuffles nothing.
    assert units[~is_shuffled].tolist() == without.units_U.tolist()
    assert (np.delete(found, units) == np.delete(tokens, units)).all()
    assert batch.targets["labels"].numpy()[is_shuffled].tolist() == tokens[units[is_shuffled]].tolist()
    free = np.isin(tokens, [CLS, SEP, MASK], invert=True)
    possible, chosen = 0, []
    for start, length in zip(batch.starts_S.tolist(), batch.lengths, strict=True):
        place = start
        while place < start + length:
            if free[place : place + 3].all() and place + 3 <= start + length:
                possible += 1
                if np.isin([place, place + 1, place + 2], units[is_shuffled]).all():
                    chosen.append(place)
                    assert sorted(found[place : place + 3]) == sorted(tokens[place : place + 3])
                place += 3
            else:
                # A run of free tokens that is too short for a group ends before the next one begins.
                place += 1 if not free[place] else int(np.argmin(np.append(free[place : start + length], False)))
    assert 3 * len(chosen) == is_shuffled.sum() and possible > 800
    assert abs(len(chosen) / possible - 0.3) < 0.08
    # All six orders occur, each as often as another.
    orders = Counter(
        tuple(np.argsort(np.argsort(found[place : place + 3])).tolist())
        for place in chosen
        if tokens[place] < tokens[place + 1] < tokens[place + 2]
    )
    assert len(orders) == 6
