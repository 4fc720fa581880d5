"""How many tokens the texts of predictions have, and how many of them the tokenizer does not know.

Axes: N records, B records of a chunk, T tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nlu.data.layouts import LAYOUTS, Layout
from nlu.data.tokenizing import Tokenizer, load_tokenizer
from nlu.runs.predictions import Record

CHECKPOINTS = ("best-1", "last")
NO_CUT = 1 << 30


@dataclass(frozen=True)
class TokenCounter:
    """Counts as the run did, save that nothing is cut."""

    tokenizer: Tokenizer
    layout: Layout

    def count(self, records: Sequence[Record]) -> tuple[np.ndarray, np.ndarray]:
        """Return the number of tokens of each record, special ones too, and how many of them are unknown; (B,) each.

        A record without a text has none.
        """
        tokens_B, unknown_B = (np.zeros(len(records), np.int64) for _ in range(2))
        # A list of words and a text are encoded apart.
        for role in ("tokens", None):
            places = [
                place for place, record in enumerate(records)
                if has_text(record, self.layout) and (role is None) != ("tokens" in record)
            ]  # fmt: skip
            if not places:
                continue
            encoded = self.layout.encode(self.tokenizer, [dict(records[place]) for place in places], NO_CUT)
            tokens_B[places] = encoded.lengths_N
            row_T = np.repeat(np.arange(len(places)), encoded.lengths_N)
            is_unknown_T = self.tokenizer.is_unknown(encoded.tokens)
            unknown_B[places] = np.bincount(row_T[is_unknown_T], minlength=len(places))
        return tokens_B, unknown_B


def has_text(record: Record, layout: Layout) -> bool:
    """Whether a record kept a text that its layout can read."""
    try:
        return layout.problem(record) is None
    except KeyError:
        return False


def token_counter(run_dir: Path, layout: str) -> TokenCounter | None:
    """Return a counter with the tokenizer that a checkpoint of the run holds; None where there is none."""
    for name in CHECKPOINTS:
        folder = run_dir / "checkpoints" / name
        if folder.is_dir() and (tokenizer := load_tokenizer(folder, None)) is not None:
            return TokenCounter(tokenizer, LAYOUTS[layout])
    return None
