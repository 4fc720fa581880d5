"""Which texts are the same or nearly so, for some texts that are kept and any number that go by.

Texts are compared by what they say: in Unicode's NFKC form and lower case, letters and digits alone. Near are two texts
whose sets of character trigrams have a Jaccard similarity, |x and y| / |x or y|, of at least a threshold (the
resemblance of Broder, "On the resemblance and containment of documents", 1997). The search is exact: of two sets that
are near, one of the rarest |x| - ceil(t |x|) + 1 trigrams of each is in the other too, if both order theirs alike
(prefix filtering; Bayardo, Ma and Srikant, "Scaling up all pairs similarity search", WWW 2007), so only texts that
share such a one are compared.
"""

import math
import unicodedata
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator

GRAM = 3
"""characters of a gram; a shorter text is one by itself"""


def normalised(text: str) -> str:
    """Return the letters and digits of a text in NFKC form and lower case; of a text without any, the text itself."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return "".join(filter(str.isalnum, folded)) or folded


def grams_of(text: str) -> set[str]:
    """Return the distinct trigrams of a normalised text."""
    return {text[place : place + GRAM] for place in range(max(1, len(text) - GRAM + 1))}


class NearTexts:
    """Texts to which others are held. Memory: some 10 bytes a character."""

    def __init__(self, threshold: float):
        """`threshold` above 0, at most 1: the similarity from which on two texts are near."""
        self.threshold = threshold
        self._number_of: dict[str, int] = {}
        self._pending: list[set[str]] = []
        self._grams: list[array[int]] = []
        """of each text the ranks of its grams, rarest first"""
        self._rank_of: dict[str, int] = {}
        self._having: dict[int, array[int]] = {}
        """by rank of a gram, the texts that have it among their rarest"""

    def __len__(self) -> int:
        return len(self._number_of)

    def add(self, normal: str) -> int:
        """Keep a normalised text and return its number; equal ones share one. All are added before any is looked up."""
        number = self._number_of.setdefault(normal, len(self._number_of))
        if number == len(self._pending):
            self._pending.append(grams_of(normal))
        return number

    def build(self) -> None:
        """Prepare for looking up, once all texts are added."""
        counts = Counter(gram for grams in self._pending for gram in grams)
        self._rank_of = {gram: rank for rank, gram in enumerate(sorted(counts, key=lambda gram: (counts[gram], gram)))}
        having: dict[int, array[int]] = defaultdict(lambda: array("i"))
        for number, grams in enumerate(self._pending):
            ranks = array("i", sorted(self._rank_of[gram] for gram in grams))
            self._grams.append(ranks)
            for rank in ranks[: self._prefix(len(ranks))]:
                having[rank].append(number)
        self._having, self._pending = dict(having), []

    def near(self, normal: str) -> Iterator[tuple[int, float, bool]]:
        """Yield the number of each kept text that is the same as a normalised text or near it, the similarity, and
        whether it is the same."""
        same = self._number_of.get(normal)
        if same is not None:
            yield same, 1.0, True
        grams = grams_of(normal)
        size = len(grams)
        known = {rank for gram in grams if (rank := self._rank_of.get(gram)) is not None}
        # Grams that no kept text has are the rarest of all and come first.
        prefix = self._prefix(size) - (size - len(known))
        if prefix <= 0:
            return
        candidates = {number for rank in sorted(known)[:prefix] for number in self._having.get(rank, ())}
        candidates.discard(-1 if same is None else same)
        for number in sorted(candidates):
            ranks = self._grams[number]
            if min(len(ranks), size) < self.threshold * max(len(ranks), size):
                continue
            common = len(known.intersection(ranks))
            similarity = common / (len(ranks) + size - common)
            if similarity >= self.threshold:
                yield number, similarity, False

    def _prefix(self, size: int) -> int:
        # A product such as 0.7 * 10 may come out above the whole number that it is.
        return size - math.ceil(self.threshold * size - 1e-9) + 1
