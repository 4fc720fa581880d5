"""CoNLL columns: a token and its tag per line, an empty line after each sentence.

Lines that begin with # may be comments or tokens, such as hashtags. The columns of the other lines decide.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Self

from nlu.config.sentences import counted
from nlu.data.reader import WHOLE_ROW, BadRow, Mark, Row

BLANK = " \t\r\n"
BLANKS = re.compile("[ \t]+")
"""separates columns in a line without tab; an ideographic space is a token like any other"""
TABS = re.compile("\t+")
DOCUMENT_MARK = "-DOCSTART-"
SAMPLED_LINES = 10_000
"""lines at the beginning of a file that tell its columns"""
COMMENT = re.compile(r"#( |$|(begin|end) document\b|\S+ = )")
CONLL_U = 10
"""columns of CoNLL-U, in which a line such as 1-2 or 1.1 is no token of its own"""
NO_TOKEN = re.compile(r"\d+[-.]\d+")


@dataclass(frozen=True)
class Columns:
    """The columns of a file, as its first lines that do not begin with # have them."""

    wanted: tuple[int, ...]
    """index of the tokens and, if they are read, of the tags"""
    width: int
    """0 if all lines begin with #"""
    is_tabbed: bool
    tags: frozenset[str]

    @classmethod
    def of(cls, lines: Iterable[str], wanted: Sequence[int]) -> Self:
        found = [line for line in islice(lines, SAMPLED_LINES) if line.strip(BLANK) and not line.startswith("#")]
        cells = [own for own in map(split, found) if own[0] != DOCUMENT_MARK]
        widths = Counter(map(len, cells)).most_common(1)
        tags = frozenset(own[wanted[-1]] for own in cells if len(wanted) > 1 and len(own) > wanted[-1])
        is_tabbed = 2 * sum("\t" in line for line in found) > len(found)
        return cls(tuple(wanted), widths[0][0] if widths else 0, is_tabbed, tags)

    def cells(self, line: str, *, in_sentence: bool) -> list[str] | None:
        """Return the cells of a line; None for a line without a token: empty, a mark or a comment."""
        cells = split(line)
        if cells[0] == DOCUMENT_MARK or not line.strip(BLANK):
            return None
        if max(self.wanted) >= len(cells) < len(by_blanks := BLANKS.split(line.strip(BLANK))):
            cells = by_blanks
        if line.startswith("#") and self.width and self._is_comment(line, cells, in_sentence):
            return None
        is_part = self.wanted[0] > 0 and self.width >= CONLL_U and NO_TOKEN.fullmatch(cells[0])
        return None if is_part else cells

    def _is_comment(self, line: str, cells: list[str], in_sentence: bool) -> bool:
        if (len(TABS.split(line)) if self.is_tabbed else len(split(line))) != self.width:
            return not in_sentence or COMMENT.match(line) is not None
        # With as many columns as a token, only the tag or the form of a comment tells.
        is_odd = len(self.wanted) > 1 and cells[self.wanted[-1]] not in self.tags
        return not self.is_tabbed and not in_sentence and (is_odd or " = " in line)

    def of_lines(self, lines: Iterable[str]) -> Iterator[tuple[str, list[str] | None]]:
        """Yield each line, without blanks at its end, with its cells, as `cells` returns them."""
        in_sentence = False
        for line in lines:
            cells = self.cells(line, in_sentence=in_sentence)
            in_sentence = cells is not None or in_sentence and bool(line.strip(BLANK)) and not is_mark(line)
            yield line.rstrip(BLANK), cells


def split(line: str) -> list[str]:
    """Return the cells of a line: between its tabs if it has some, so that a token may be a blank, else its words."""
    if "\t" not in line.rstrip(BLANK):
        return BLANKS.split(line.strip(BLANK))
    return [cell.strip(" ") or cell for cell in TABS.split(line.rstrip(BLANK))]


def is_mark(line: str) -> bool:
    """Return whether a line begins a document."""
    return split(line)[0] == DOCUMENT_MARK


def sentences(lines: Iterable[str], first: int, columns: Columns) -> Iterator[Row | BadRow | Mark]:
    """Yield the sentences of lines, of which the first one has the number `first`."""
    tokens: list[str] = []
    tags: list[str] = []
    bad: BadRow | None = None
    with_tags = len(columns.wanted) > 1
    # An empty line after the last one ends the last sentence.
    for number, (line, cells) in enumerate(columns.of_lines(chain(lines, [""])), first):
        if cells is not None and max(columns.wanted) < len(cells):
            tokens.append(cells[columns.wanted[0]])
            tags.append(cells[columns.wanted[-1]])
        elif cells is not None:
            rule = f"has {counted(len(cells), 'column')}, not {max(columns.wanted) + 1}"
            # The first problem of a sentence is reported, and its other lines are skipped.
            bad = bad or BadRow(number, WHOLE_ROW, line.strip(BLANK), rule)
        elif not line or is_mark(line):
            if bad or tokens:
                yield bad or Row(first, {"tokens": tokens, "tags": tags if with_tags else None})
            if line:
                yield Mark(number)
            tokens, tags, first, bad = [], [], number + 1, None
