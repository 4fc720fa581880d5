"""What is encoded of a row: its texts behind their prompts and, of one longer than `data.max_len`, all or a part.

Axes: N rows of a chunk, W windows of all of them, U units, B rows of a batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self, get_args

import numpy as np

from nlu.config.types import ConfigLike
from nlu.data.arrays import ranges, starts_of
from nlu.data.layouts import Layout, Problem, Values, assemble
from nlu.data.store import EncodedRows
from nlu.data.tokenizing import Template, Tokenizer

Long = Literal["cut", "windows", "error"]
CHOICES: tuple[Long, ...] = get_args(Long)
UNCUT = 1 << 30
"""more tokens than any row has"""
WINDOWS, CUT = SIGNS = "windows", "cut"
"""what an answer says of the length of its row"""


@dataclass(frozen=True)
class Lengths:
    """How many tokens a sequence has at most, what becomes of longer rows, and what is put before texts."""

    max_len: int
    long: Long = "cut"
    stride: int | None = None
    """tokens that neighbouring windows share; None: an eighth of `max_len`"""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """the text that is put before that of a field"""

    @classmethod
    def of(cls, data: ConfigLike) -> Self:
        """Return those of a configuration's `data`; older runs have only `max_len`."""
        return cls(data["max_len"], data.get("long", "cut"), data.get("stride"), data.get("prompts") or {})

    def settings(self) -> list[object]:
        """Return what shapes tokens beside `max_len`, as JSON; empty where texts are only cut."""
        prompts = [dict(self.prompts)] if self.prompts else []
        if self.long == WINDOWS:
            return [self.long, self._shared, *prompts]
        return [self.long, *prompts] if prompts or self.long != CUT else []

    @property
    def _shared(self) -> int:
        return self.max_len // 8 if self.stride is None else self.stride

    def encode(self, layout: Layout, tokenizer: Tokenizer, rows: Sequence[Values]) -> EncodedRows:
        """Return the tokens of valid rows."""
        rows = self.prompted(rows)
        if self.long != WINDOWS:
            return layout.encode(tokenizer, rows, self.max_len)
        return in_windows(layout.encode(tokenizer, rows, UNCUT), tokenizer.single, self.max_len, self._shared)

    def prompted(self, rows: Sequence[Values]) -> Sequence[Values]:
        """Return rows whose texts begin with the prompts of their fields."""
        if not self.prompts:
            return rows
        return [{**row, **{role: f"{text}{row[role]}" for role, text in self.prompts.items()}} for row in rows]

    def problem(self, layout: Layout, tokenizer: Tokenizer, values: Values) -> Problem | None:
        """Return a valid row's text field, and the rule that it breaks, if `long` refuses the row."""
        if self.long != "error" or not self.encode(layout, tokenizer, [values]).cut_N[0]:
            return None
        count = int(layout.encode(tokenizer, self.prompted([values]), UNCUT).lengths_N[0])
        rule = f"has {count:,} tokens, more than data.max_len, {self.max_len}, and data.long is error"
        return layout.roles_of(values)[0], rule

    def signs(self, encoded: EncodedRows) -> list[dict[str, Any]]:
        """Return what the answer for each row says of its length: the number of `windows`, or `cut`, or nothing."""
        if encoded.window_counts_N is not None:
            return [{WINDOWS: count} for count in encoded.window_counts_N.tolist()]
        return [{CUT: True} if is_cut else {} for is_cut in encoded.cut_N.tolist()]


def in_windows(encoded: EncodedRows, template: Template, max_len: int, stride: int) -> EncodedRows:
    """Return rows of one text as windows of at most `max_len` tokens, each with special tokens of its own.

    Two neighbours share `stride` tokens. A row has as few windows as that allows, all of the same length to a token, so
    that none is a short rest. A unit belongs to the window in which its nearest edge is farthest, the first of equal
    ones; the beginning and the end of the text are no edges. `words` counts from the beginning of the first window.
    """
    before, room = len(template.before), max_len - template.size
    own_N = encoded.lengths_N - template.size
    counts_N = np.maximum(1, -(-(own_N - stride) // (room - stride)))
    row_W = np.repeat(np.arange(len(own_N)), counts_N)
    place_W = ranges(np.zeros_like(counts_N), counts_N)
    each_N, longer_N = np.divmod(own_N + (counts_N - 1) * stride, counts_N)
    sizes_W = each_N[row_W] + (place_W < longer_N[row_W])
    # From the beginning of the row's own tokens.
    first_W = place_W * (each_N[row_W] - stride) + np.minimum(place_W, longer_N[row_W])
    begin_N = starts_of(encoded.lengths_N) + before
    flat = encoded.tokens[ranges(begin_N[row_W] + first_W, sizes_W)]
    tokens, lengths_W = assemble(template, [(flat, sizes_W, sizes_W)])
    lengths_N = np.bincount(row_W, weights=lengths_W, minlength=len(own_N)).astype(np.int64)
    found = EncodedRows(tokens, lengths_N, lengths_N, np.zeros(len(own_N), bool))
    found.places, found.place_counts_N = encoded.places, encoded.place_counts_N
    found.windows, found.window_counts_N = lengths_W, counts_N
    if encoded.words is not None and encoded.word_counts_N is not None:
        row_U = np.repeat(np.arange(len(own_N)), encoded.word_counts_N)
        first_U = encoded.words - before
        last_U, has_units_N = np.append(first_U, 0)[1:], encoded.word_counts_N > 0
        last_U[np.cumsum(encoded.word_counts_N)[has_units_N] - 1] = own_N[has_units_N]
        # In the tokens of all rows, where windows ascend: a unit goes to the next window if it is nearer to the end of
        # this one than to the beginning of the next.
        offset_N = starts_of(own_N)
        is_last_W = place_W == counts_N[row_W] - 1
        turns = (2 * offset_N[row_W] + first_W + sizes_W)[~is_last_W] + first_W[1:][~is_last_W[:-1]]
        passed_U = np.searchsorted(turns, 2 * offset_N[row_U] + first_U + last_U, side="left")
        window_U = passed_U + row_U
        starts_W = starts_of(lengths_W) - starts_of(lengths_N)[row_W]
        found.words = (starts_W[window_U] + before + first_U - first_W[window_U]).astype(np.int32)
        found.word_counts_N = encoded.word_counts_N
    return found
