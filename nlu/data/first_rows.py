"""The first rows of each set as the model gets them, for display: texts, pieces, ids, segments and targets.

Axes: U units of a row.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from nlu.config.sentences import called
from nlu.data.layouts import Layout
from nlu.data.reading import Texts
from nlu.data.store import StoredSet
from nlu.data.targets import SCORING, Gathered, Target
from nlu.data.tokenizing import Tokenizer


@dataclass
class Sample:
    """The first `count` rows of a set, and what is needed to show them."""

    name: str
    stored: StoredSet
    count: int
    texts: Texts
    target: Target
    layout: Layout
    tokenizer: Tokenizer

    def examples(self) -> Iterator[dict[str, Any]]:
        """Yield each row as a record: place, texts, target and its name, and sequences of pieces, ids and segments.

        Where each unit of a row has a target, `targets` and `names` of a sequence stand at the first token of a unit,
        and are empty at other tokens.
        """
        rows_N = np.arange(min(self.count, len(self.stored)))
        files_N = self.stored.scalars("file", rows_N)
        for row, texts in zip(rows_N.tolist(), self.texts.of(self.stored, rows_N), strict=True):
            rows_B = np.array([row])
            packed = self.layout.pack(self.stored, rows_B)
            of_units = self._of_units(rows_B, packed)
            target, name = (None, None) if of_units is not None else self._of_row(rows_B)
            tokens = [self.tokenizer.backend.id_to_token(int(token)) for token in packed.tokens_T]
            sequences = []
            for sequence in packed.sequences_KB.reshape(-1).tolist():
                start = int(packed.starts_S[sequence])
                inside = slice(start, start + int(packed.lengths_S[sequence]))
                own = {
                    "pieces": tokens[inside],
                    "ids": packed.tokens_T[inside].tolist(),
                    "segments": packed.segments_T[inside].astype(int).tolist(),
                }
                if of_units is not None:
                    own |= {key: values[inside] for key, values in of_units.items()}
                sequences.append(own)
            yield {
                "place": f"{called(self.texts.sources[files_N[row]].path)}:{self.stored.number_N[row]}",
                "texts": texts or {},
                "target": target,
                "name": name,
                "sequences": sequences,
            }

    def _of_units(self, rows_B: np.ndarray, packed: Any) -> dict[str, list[str]] | None:
        """Return the target of each unit and its name, at the unit's first token; None unless each unit has one."""
        if packed.units_U is None or not self.stored.has("target"):
            return None
        # The tokens may change here too, such as those that a target masks.
        found = self.target.collate(Gathered(self.stored, rows_B, rows_B, SCORING, packed)).get("labels")
        if found is None or len(found) != len(packed.units_U):
            return None
        numbers = [""] * len(packed.tokens_T)
        names = list(numbers)
        for place, value in zip(packed.units_U.tolist(), found.tolist(), strict=True):
            numbers[place], names[place] = str(value), self._name(value)
        return {"targets": numbers, "names": names}

    def _of_row(self, rows_B: np.ndarray) -> tuple[str | None, str | None]:
        """Return the target as it is stored, and its name; None without one."""
        if not self.stored.has("target"):
            return None, None
        if self.stored.is_list("target"):
            values = self.stored.lists("target", rows_B)[0].tolist()
            return str(values), ", ".join(map(self._name, values)) or None
        value = self.stored.scalars("target", rows_B)[0].item()
        return str(value), self._name(value) or None

    def _name(self, value: Any) -> str:
        """Return the name of a number, or "" for a number without a name."""
        names = self.target.names
        return names[value] if isinstance(value, int) and 0 <= value < len(names) else ""
