"""The walk that every row takes once: read, checked, its target read, encoded, written.

Axes: N rows of one chunk.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nlu.config.errors import DataError
from nlu.config.sentences import called, counted
from nlu.data.findings import Collector, Seen
from nlu.data.layouts import Layout, Problem, Values, unusable
from nlu.data.lists_in_cells import labels_of
from nlu.data.reader import BadRows, Mark, Row
from nlu.data.readers import GROUP
from nlu.data.reading import Chunk
from nlu.data.seeds import text_hash, text_hashes
from nlu.data.store import Misfit, Origin, SetWriter
from nlu.data.store_plan import Plan
from nlu.data.tokenizing import Tokenizer

Good = list[tuple[int, Row, Any]]
"""index of the file, the row and its target"""


class Builder:
    """Writes the sets of a plan in order; train comes first, because it decides the names of the target."""

    def __init__(self, plan: Plan, tokenizer: Tokenizer):
        self.counts: dict[str, dict[str, Any]] = {}
        """of each set: rows, bad_rows, cut, document_marks, listed_bad_rows, findings"""
        self._plan, self._tokenizer = plan, tokenizer
        self._reading = plan.reading.by(tokenizer)
        self._cut = Seen()
        self._seen: Collector

    def add_set(self, folder: Path, name: str, advance: Callable[[int], None]) -> None:
        """Write a set into a folder.

        Raises DataError for rows that cannot be used and may not be skipped, and for a set without usable rows.
        """
        writer = SetWriter(folder, self._plan.target.column())
        skips = self._plan.files.on_bad_row == "skip"
        bad, counts = BadRows(), {"read": 0, "cut": 0, "document_marks": 0}
        if (blocks := self._plan.reading.blocks) is not None:
            blocks.left_out.clear()
        for good in self._chunks_of(name, bad, counts, advance):
            # Once a row has to be corrected, the other rows are only checked.
            if good and (skips or not bad.count):
                self._write(writer, name, good, counts)
        # All bad rows are counted before the first error, so that a user can correct them in one go.
        writer.close()
        if bad.count and not skips:
            raise _not_usable(bad, counts, name)
        if not writer.rows:
            where = ", ".join(str(source.path) for source in self._plan.sets[name])
            if blocks is not None and blocks.left_out and not bad.count:
                raise DataError(
                    *(
                        f"the set {name} is empty: {counted(count, 'block')} of {where} left out, since {why}; {remedy}"
                        for (why, remedy), count in blocks.left_out.items()
                    )
                )
            raise DataError(
                *bad.described(),
                summary=f"the set {name} is empty: {where} holds no usable row",
                remedy=f"set {self._plan.files.sources()[name][0]} to a file with rows",
            )
        self._close(name)
        kind, max_len = self._plan.target.kind, self._plan.files.max_len
        findings = self._seen.found(kind, self._plan.sets[name], self._cut, max_len)
        self.counts[name] = {
            "rows": writer.rows,
            **counts,
            "bad_rows": bad.count,
            "listed_bad_rows": bad.described(),
            "findings": list(map(asdict, findings)),
        }

    def _chunks_of(
        self, name: str, bad: BadRows, counts: dict[str, int], advance: Callable[[int], None]
    ) -> Iterator[Good]:
        """Yield the usable rows of each chunk of a set."""
        # Folds group training rows only; any set can be scored by group.
        with_group = self._plan.is_trained or name == "train"
        files, sources, target = self._plan.files, self._plan.sets[name], self._plan.target
        split = partial(labels_of, separator=files.label_separator) if target.kind == "label_set" else None
        self._seen = Collector(self._reading, sources[0].path, split, has_labels=files.given_labels is not None)
        self._cut = Seen()
        for chunk in self._reading.chunks(sources, with_group=with_group):
            good = self._usable(name, chunk, bad, counts)
            for source, row, _ in good:
                self._seen.see((source, row.number), row.values)
            yield good
            advance(len(chunk))

    def _close(self, name: str) -> None:
        # Other sets come later, and must not add labels.
        if name == "train":
            self._plan.target.close()

    def _usable(self, name: str, chunk: Chunk, bad: BadRows, counts: dict[str, int]) -> Good:
        """Return the usable rows; count the others."""
        good: Good = []
        for source, row in chunk:
            if isinstance(row, Mark):
                counts["document_marks"] += 1
                continue
            counts["read"] += 1
            # Texts first: a target may need a valid text, as spans do.
            target = None
            checked = self._plan.reading.checked(row, self._plan.layout)
            if isinstance(checked, Row):
                target, problem = self._target(checked.values)
                problem = problem or self._too_long(checked.values)
                checked = checked if problem is None else self._plan.reading.bad(checked, *problem)
            if isinstance(checked, Row):
                good.append((source, checked, target))
            else:
                bad.add(self._plan.sets[name][source].path, checked)
        return good

    def _target(self, values: Values) -> tuple[object, tuple[str, str] | None]:
        """Return (target, None), or (None, the field and the rule that it breaks)."""
        if GROUP in values:
            # The hash of an empty group would join all rows without one.
            group = values[GROUP]
            if group is None or not str(group).strip() or unusable(str(group)) is not None:
                return None, (GROUP, "is not a group (folds.group_by)")
        return self._plan.target.read(values)

    def _too_long(self, values: Values) -> Problem | None:
        return self._plan.files.lengths.problem(self._plan.layout, self._tokenizer, values)

    def _write(self, writer: SetWriter, name: str, good: Good, counts: dict[str, int]) -> None:
        """Encode and write rows, and count those that were cut."""
        rows = [row.values for _, row, _ in good]
        encoded = self._plan.files.lengths.encode(self._plan.layout, self._tokenizer, rows)
        for cut in np.flatnonzero(encoded.cut_N).tolist():
            self._cut.add((good[cut][0], good[cut][1].number))
        counts["cut"] += int(encoded.cut_N.sum())
        text_hash_N, first_N, second_N = hashes_of(self._plan.layout, rows)
        origin = Origin(
            text_hash_N,
            # 0 stands for "no group"; a hash of 63 bits is practically never 0.
            np.array([text_hash(str(own)) if (own := row.get(GROUP)) is not None else 0 for row in rows], np.int64),
            np.array([source for source, _, _ in good]),
            np.array([row.number for _, row, _ in good], np.int64),
            first_N,
            second_N,
        )
        try:
            # Whether the type of the column can hold a target is known only here.
            writer.add(encoded, [target for _, _, target in good], origin)
        except Misfit as error:
            source, row, _ = good[error.row]
            path = self._plan.sets[name][source].path
            raise error.described(f"{called(path)}:{row.number}", self._plan.target) from None


def hashes_of(layout: Layout, rows: Sequence[Values]) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Return the hash of each row's texts and, for pairs, of its first and of its second text; (N,), int64."""
    text_hash_N = text_hashes(layout.identity(values) for values in rows)
    pairs = [pair for values in rows if (pair := layout.sides(values)) is not None]
    if not pairs:
        return text_hash_N, None, None
    firsts, seconds = zip(*pairs, strict=True)
    return text_hash_N, text_hashes(firsts), text_hashes(seconds)


def _not_usable(bad: BadRows, counts: dict[str, int], name: str) -> DataError:
    remedy = "fix these rows, or set data.on_bad_row=skip to leave such rows out and count them"
    return bad.error(f"{counted(counts['read'], 'row')} of {name}", remedy)


@contextmanager
def gc_frozen() -> Iterator[None]:
    """Exclude the objects that exist now from garbage collection.

    Otherwise every collection scans the modules of the libraries and of the model. That takes a third of the time in
    which rows are read, since they are millions of objects, and a tenth of the training of a small model.
    """
    # Frozen objects are skipped by every collection. What is created from here on is collected as usual.
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
