"""A WordPiece vocabulary that is learned from the training rows, the same in every process.

The pairs of neighboring pieces that occur most often become pieces, one after another (Sennrich et al.
2016, https://arxiv.org/abs/1508.07909, section 3.2), spelled as BERT's: a piece that continues a word begins with ##.
The trainers of the package tokenizers do the same in an order that differs between processes.
"""

import heapq
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

import numpy as np

from nlu.config.errors import UserError
from nlu.config.keys import takes
from nlu.config.sentences import counted
from nlu.data import keys as schemas
from nlu.data.tokenizing import SPECIALS, Tokenizer, WordPiece

log = logging.getLogger(__name__)

CONTINUES = "##"
Pair = tuple[str, str]


@takes(schemas.Subwords)
class Subwords(WordPiece):
    """BERT's WordPiece tokenizer with a vocabulary of characters and frequent parts of words."""

    def __init__(self, keys: schemas.Subwords):
        words = schemas.WordPiece(
            vocab=keys.vocab,
            lowercase=keys.lowercase,
            min_count=keys.min_count,
            max_size=keys.vocab_size,
            added_tokens=keys.added_tokens,
        )
        super().__init__(words)
        if keys.vocab_size <= len(SPECIALS):
            raise UserError(
                f"tokenizer.vocab_size is {keys.vocab_size}, but {len(SPECIALS)} tokens are special; set it to >= "
                f"{len(SPECIALS) + 1}, such as 8000"
            )

    def given(self, path: Path | None, pretrained: Path | None) -> Tokenizer | None:
        """Return what `Vocabulary.given` does; warn if weights bring the vocabulary, so that none is learned."""
        found = super().given(path, pretrained)
        if path is None and found is not None:
            log.warning(
                "tokenizer=subwords learns no vocabulary, since the weights bring theirs, of %s; leave tokenizer= out, "
                "or start from random weights (such as model=bert_tiny) to learn one",
                counted(found.vocab_size, "token"),
            )
        return found

    def settings(self) -> dict[str, object]:
        return {**super().settings(), "counted": "rows of train, before any is held out", "learned": "merged pairs"}

    def keep(self, digest: str, chosen: Callable[[Collection[str]], set[str]]) -> None:
        """Keep nothing more: pieces are learned, whether they have vectors or not."""

    def build(self, texts: Iterable[list[str]]) -> Tokenizer:
        """Return the tokenizer of the pieces of all rows of the training set, before any is held out."""
        pieces = learned(self.count(texts), self.max_size - len(SPECIALS), self.min_count)
        return self.marked(self.tokenizer(SPECIALS + pieces, "learned vocabulary"))

    def restrict(self, built: Tokenizer, counts_V: np.ndarray) -> tuple[Tokenizer, np.ndarray]:
        """Return the tokenizer as it is: a piece of a rarer word may be part of others."""
        return built, np.arange(len(counts_V), dtype=np.int32)


def learned(counts: Counter[str], size: int, min_count: int) -> list[str]:
    """Return at most `size` pieces in which all words can be spelled whose characters are among them.

    Characters come first, the most frequent of them; then the results of merges, in their order. Of pairs that are
    equally frequent the first in the order of their spelling is merged. Memory: some hundred bytes for each distinct
    word.
    """
    # Longer words are not split by the tokenizer either: it replaces them by [UNK].
    words = sorted((word, count) for word, count in counts.items() if 0 < len(word) <= 100 and word not in SPECIALS)
    spelled = [_characters(word) for word, _ in words]
    of_piece: Counter[str] = Counter()
    for pieces, (_, count) in zip(spelled, words, strict=True):
        for piece in pieces:
            of_piece[piece] += count
    ranked = sorted(of_piece.items(), key=lambda entry: (-entry[1], entry[0]))
    found = [piece for piece, count in ranked if count >= min_count][:size]
    known = set(found)
    pairs = _Pairs(spelled, [count for _, count in words], known)
    for first, second in pairs.merges(min_count):
        if len(found) >= size:
            break
        # Two ways of merging may spell the same piece.
        if (piece := first + second.removeprefix(CONTINUES)) not in known:
            known.add(piece)
            found.append(piece)
    return found


def _characters(word: str) -> list[str]:
    return [word[0], *(CONTINUES + character for character in word[1:])]


class _Pairs:
    """The neighboring pieces of all words, and how often each pair occurs."""

    def __init__(self, spelled: list[list[str]], counts: list[int], known: set[str]):
        """`spelled`: the pieces of each word; a word with a piece that is not `known` has no pairs."""
        self._spelled, self._counts = spelled, counts
        self._total: defaultdict[Pair, int] = defaultdict(int)
        self._words: defaultdict[Pair, set[int]] = defaultdict(set)
        for number, pieces in enumerate(spelled):
            if known.issuperset(pieces):
                self._count(number, 1)
        self._heap = [(-count, pair) for pair, count in self._total.items()]
        heapq.heapify(self._heap)

    def _count(self, number: int, sign: int) -> set[Pair]:
        """Add the pairs of a word, or take them away; returns them."""
        pieces = self._spelled[number]
        pairs = list(zip(pieces, pieces[1:], strict=False))
        for pair in pairs:
            self._total[pair] += sign * self._counts[number]
            if sign > 0:
                self._words[pair].add(number)
        return set(pairs)

    def merges(self, min_count: int) -> Iterator[Pair]:
        """Yield the most frequent pair and merge it in all words, again and again."""
        while self._heap:
            count, pair = heapq.heappop(self._heap)
            # An entry is older than a change of its pair, which has entered the heap again since.
            if -count != self._total[pair]:
                continue
            if -count < min_count:
                return
            yield pair
            changed: set[Pair] = set()
            for number in self._words.pop(pair):
                changed |= self._count(number, -1)
                self._spelled[number] = _merged(self._spelled[number], pair)
                changed |= self._count(number, 1)
            for other in changed - {pair}:
                if self._total[other] > 0:
                    heapq.heappush(self._heap, (-self._total[other], other))


def _merged(pieces: list[str], pair: Pair) -> list[str]:
    found: list[str] = []
    place = 0
    while place < len(pieces):
        if tuple(pieces[place : place + 2]) == pair:
            found.append(pair[0] + pair[1].removeprefix(CONTINUES))
            place += 2
        else:
            found.append(pieces[place])
            place += 1
    return found
