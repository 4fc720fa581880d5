"""The pieces of a unigram language model, learned from words, the same in every process (Kudo 2018,
https://arxiv.org/abs/1804.10959, section 3.2).

Unlike in the paper, pieces are counted in the best segmentation of each word instead of in expectation over all of
them. So counts are whole numbers, and the result does not depend on the order of additions; that of the trainer of the
package tokenizers does, in the last digits of its scores.

Axes: T characters of all words, P places at which a substring begins.
"""

import math
from collections import Counter

import numpy as np
from tokenizers import Tokenizer as Backend
from tokenizers.models import Unigram

LONGEST = 12
"""characters of a piece"""
SEEDS = 4
"""pieces at the beginning, for each one that is wanted"""
KEPT = 0.75
"""share of the pieces that a round keeps"""
PASSES = 2
"""times that the words are segmented in a round"""
UNKNOWN = "[UNK]"
Scored = list[tuple[str, float]]
"""pieces and the logarithms of their probabilities"""


def learned(counts: Counter[str], size: int, min_count: int, always: str = "") -> Scored:
    """Return at most `size` pieces of the words: characters, the most frequent first, then the other pieces by score.

    Every piece occurs at least `min_count` times, except the characters `always`. Memory: some 50 bytes for each
    character of the distinct words.
    """
    words = sorted(counts)
    numbers = [counts[word] for word in words]
    found = _substrings(words, numbers, min_count)
    characters = dict.fromkeys(always, 0) | {piece: count for piece, count in found.items() if len(piece) == 1}
    kept = sorted(characters, key=lambda piece: (piece not in always, -characters[piece], piece))[:size]
    room = size - len(kept)
    others = sorted((p for p in found if len(p) > 1), key=lambda piece: (-found[piece] * len(piece), piece))
    # Substrings of others are counted too; the first pass corrects this.
    pieces = {piece: found.get(piece, 0) for piece in (*kept, *others[: SEEDS * room])}
    while True:
        for _ in range(PASSES):
            seen = _counted(_scored(pieces), words, numbers)
            pieces = {p: seen[p] for p in pieces if len(p) == 1 or seen[p] >= min_count}
        more = len(pieces) - len(kept)
        if more <= room:
            break
        pieces = _pruned(pieces, max(room, int(KEPT * more)))
    scored = _scored(pieces)
    order = {piece: place for place, piece in enumerate(kept)}
    return sorted(scored, key=lambda one: (order.get(one[0], len(order)), -one[1], one[0]))


def _substrings(words: list[str], numbers: list[int], min_count: int) -> dict[str, int]:
    """Return the substrings of up to LONGEST characters that occur at least `min_count` times, and how often."""
    # A blank stands behind each word, which no word has.
    text = " ".join(words) + " "
    text_T = np.frombuffer(text.encode("utf-32-le"), np.uint32).astype(np.int64)
    ends_T = text_T == ord(" ")
    weights_T = np.repeat(np.array(numbers, np.int64), np.array([len(word) + 1 for word in words], np.int64))
    _, character_T = np.unique(text_T, return_inverse=True)
    starts_P, name_P = np.flatnonzero(~ends_T), character_T[~ends_T]
    found: dict[str, int] = {}
    for length in range(1, LONGEST + 1):
        if length > 1:
            # A frequent substring begins with a frequent one.
            last_P = starts_P + length - 1
            inside_P = ~ends_T[last_P]
            starts_P, last_P, name_P = starts_P[inside_P], last_P[inside_P], name_P[inside_P]
            name_P = name_P * (character_T.max() + 1) + character_T[last_P]
        if not len(starts_P):
            break
        _, first, name_P = np.unique(name_P, return_index=True, return_inverse=True)
        total = np.zeros(len(first), np.int64)
        np.add.at(total, name_P, weights_T[starts_P])
        frequent = total >= min_count
        for start, count in zip(starts_P[first[frequent]].tolist(), total[frequent].tolist(), strict=True):
            found[text[start : start + length]] = count
        is_kept_P = frequent[name_P]
        starts_P, name_P = starts_P[is_kept_P], name_P[is_kept_P]
    return found


def _scored(pieces: dict[str, int]) -> Scored:
    # A character that the best segmentations do not use is needed for other words.
    counts = {piece: max(count, 1) for piece, count in pieces.items()}
    whole = math.log(sum(counts.values()))
    return [(piece, math.log(count) - whole) for piece, count in counts.items()]


def _counted(scored: Scored, words: list[str], numbers: list[int]) -> Counter[str]:
    """Return how often each piece occurs in the best segmentation of the words."""
    backend = Backend(Unigram([(UNKNOWN, 0.0), *scored], unk_id=0))
    totals = np.zeros(1 + len(scored), np.int64)
    for encoding, number in zip(backend.encode_batch_fast(words, add_special_tokens=False), numbers, strict=True):
        np.add.at(totals, encoding.ids, number)
    return Counter({piece: int(count) for (piece, _), count in zip(scored, totals[1:], strict=True)})


def _pruned(pieces: dict[str, int], count: int) -> dict[str, int]:
    """Return all characters and the `count` longer pieces without which the words would lose most of their likelihood.

    Without a piece, its occurrences are spelled by the best sequence of others.
    """
    score = dict(_scored(pieces))
    losses = {piece: pieces[piece] * (score[piece] - _without(piece, score)) for piece in pieces if len(piece) > 1}
    kept = set(sorted(losses, key=lambda piece: (-losses[piece], piece))[:count])
    return {piece: number for piece, number in pieces.items() if len(piece) == 1 or piece in kept}


def _without(piece: str, score: dict[str, float]) -> float:
    """Return the score of the best sequence of other pieces that spells this one."""
    best = [0.0] + [-math.inf] * len(piece)
    for stop in range(1, len(piece) + 1):
        for start in range(stop):
            if stop - start < len(piece) and (own := score.get(piece[start:stop])) is not None:
                best[stop] = max(best[stop], best[start] + own)
    return best[-1]
