"""Texts that occur more than once: within a set, with several labels, and in several sets; with the texts themselves.

Axes: N rows of a set, S sorted hashes, K texts that are shown.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from nlu.data.arrays import among, repeated
from nlu.data.survey.walk import Advance, Survey, label_of, spoken_texts, usable

MOST_PLACES = 6
"""rows of a text that are shown for each set"""


@dataclass
class Occurrence:
    """A row that has a text."""

    set: str
    row: str
    """FILE:ROW"""
    label: str


@dataclass
class Shown:
    """A text that occurs more than once."""

    text: str
    rows: int
    """in all sets"""
    places: list[Occurrence] = field(default_factory=list)
    """the first rows, and one for each further label"""


@dataclass
class Within:
    """Repeated texts of one set."""

    duplicates: int
    """rows whose text occurred before in the set"""
    with_same_label: int
    """rows whose text occurred before with the same label"""
    conflicts: int
    """texts with several labels"""
    shown_duplicates: list[Shown] = field(default_factory=list)
    """the most frequent"""
    shown_conflicts: list[Shown] = field(default_factory=list)


@dataclass
class Between:
    """Texts that two sets share."""

    first: str
    second: str
    rows: tuple[int, int]
    """rows of the first set whose text is in the second, and vice versa"""
    conflicts: int
    """shared texts whose labels differ between the sets"""
    shown: list[Shown] = field(default_factory=list)
    """those with other labels first"""


def within(survey: Survey) -> Within:
    """Count the repeated texts of a set."""
    distinct, pairs_P2 = len(np.unique(survey.hash_N)), _distinct_pairs(survey)
    return Within(len(survey) - distinct, len(survey) - len(pairs_P2), len(repeated(np.sort(pairs_P2[:, 0]))))


def _distinct_pairs(survey: Survey) -> np.ndarray:
    """Return the distinct pairs of text and label, as hashes; (P, 2)."""
    return np.unique(np.stack([survey.hash_N, survey.target_N], axis=1), axis=0)


def between(first: Survey, second: Survey) -> Between:
    """Count the texts that two sets share."""
    in_second_N, in_first_N = _in_other(first, second)
    clashing = _clashing(first, second, in_second_N, in_first_N)
    return Between(first.name, second.name, (int(in_second_N.sum()), int(in_first_N.sum())), len(clashing))


def _in_other(first: Survey, second: Survey) -> tuple[np.ndarray, np.ndarray]:
    """Return which rows of each set have a text of the other one."""
    return among(first.hash_N, np.sort(second.hash_N)), among(second.hash_N, np.sort(first.hash_N))


def _clashing(first: Survey, second: Survey, in_second_N: np.ndarray, in_first_N: np.ndarray) -> np.ndarray:
    """Return the hashes of shared texts whose labels differ; empty unless both sets have labels."""
    if not (first.has_labels and second.has_labels):
        return np.zeros(0, np.int64)
    sides = [
        {tuple(pair) for pair in np.stack([one.hash_N[is_N], one.target_N[is_N]], axis=1).tolist()}
        for one, is_N in ((first, in_second_N), (second, in_first_N))
    ]
    return np.array(sorted({text for text, _ in sides[0] ^ sides[1]}), np.int64)


def find_shown(
    surveys: Sequence[Survey], withins: Mapping[str, Within], betweens: Iterable[Between], count: int, advance: Advance
) -> None:
    """Read the files again for the texts that are shown, at most `count` of each kind, and fill them in."""
    by_name = {survey.name: survey for survey in surveys}
    wanted: dict[int, Shown] = {}
    lists: list[tuple[list[Shown], list[int]]] = []
    # Hashes are chosen first, so that each file is read again only once for all lists.
    for name, one in withins.items():
        survey = by_name[name]
        lists.append((one.shown_duplicates, _most_frequent(survey, count)))
        lists.append((one.shown_conflicts, _conflicting(survey, count)))
    for pair in betweens:
        lists.append((pair.shown, _shared(by_name[pair.first], by_name[pair.second], count)))
    totals: Counter[int] = Counter()
    # Sorted for `among`.
    asked = np.array(sorted({text for _, texts in lists for text in texts}), np.int64)
    for survey in surveys:
        totals.update(survey.hash_N[among(survey.hash_N, asked)].tolist())
    for survey in surveys:
        _read_again(survey, asked, wanted, totals, advance)
    for shown, texts in lists:
        shown += [wanted[text] for text in texts if text in wanted]


def _most_frequent(survey: Survey, count: int) -> list[int]:
    hashes, counts = np.unique(survey.hash_N, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:count]
    return hashes[order][counts[order] > 1].tolist()


def _conflicting(survey: Survey, count: int) -> list[int]:
    return _in_file_order(survey, repeated(np.sort(_distinct_pairs(survey)[:, 0])), count)


def _shared(first: Survey, second: Survey, count: int) -> list[int]:
    in_second_N, in_first_N = _in_other(first, second)
    clashing = _in_file_order(first, _clashing(first, second, in_second_N, in_first_N), count)
    others = _in_file_order(first, np.unique(first.hash_N[in_second_N]), 2 * count)
    return list(dict.fromkeys([*clashing, *others]))[:count]


def _in_file_order(survey: Survey, sorted_S: np.ndarray, count: int) -> list[int]:
    found = survey.hash_N[among(survey.hash_N, sorted_S)]
    return list(dict.fromkeys(found.tolist()))[:count]


def _read_again(
    survey: Survey, asked: np.ndarray, wanted: dict[int, Shown], totals: Counter[int], advance: Advance
) -> None:
    """Fill in the texts and places of the requested hashes that occur in a set: the first rows, and further labels."""
    source, is_asked_N = survey.source, among(survey.hash_N, asked)
    first, left, seen = 0, int(is_asked_N.sum()), Counter[int]()
    for chunk in source.reading.chunks(source.files) if left else ():
        # The same filter as in the first pass, so that row numbers agree.
        rows = list(usable(source, chunk))
        for place in np.flatnonzero(is_asked_N[first : first + len(rows)]).tolist():
            (file, row), text = rows[place], int(survey.hash_N[first + place])
            shown = wanted.setdefault(text, Shown(" / ".join(spoken_texts(source.layout, row.values)), totals[text]))
            label, left = label_of(row.values), left - 1
            seen[text] += 1
            known = any((one.set, one.label) == (source.name, label) for one in shown.places)
            if seen[text] <= MOST_PLACES or not known:
                where = f"{source.files[file].path.name}:{row.number}"
                shown.places.append(Occurrence(source.name, where, label))
        first += len(rows)
        advance(len(chunk))
        if not left:
            return
