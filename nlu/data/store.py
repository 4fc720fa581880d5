"""Files of a set in the data store: Arrow IPC with one batch and a checksum of its values.

The checksum is compared each time a shard is mapped, which reads the store once from the disk at each start.

Tokenized rows on disk: Arrow IPC shards, memory-mapped, so that memory does not grow with the number of rows.

A set (train, dev, ...) is a folder of shards of SHARD_ROWS rows, the last one may be smaller.
Axes: N rows of a set, B requested rows.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nlu.config.errors import DataError, UserError
from nlu.data.arrays import ranges, starts_of, values_of
from nlu.storage.checksum import checksum

CHECKSUM = "checksum"
"""in the metadata of a shard"""


class StoreDamaged(DataError):
    """A set of the store lacks rows that were written, or has other bytes; build the store again."""


def write_shard(batch: pa.RecordBatch, path: Path) -> None:
    """Write a shard, which gets its name when it is complete."""
    # `StoredSet.open` maps only *.arrow, so a shard that was being written is never read.
    temporary = path.with_suffix(".tmp")
    with pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch, {CHECKSUM: checksum(_arrays_of(batch))})
    temporary.rename(path)


def mapped(path: Path) -> pa.RecordBatch:
    """Map a shard. Raises StoreDamaged if it cannot be read, or is not what was written."""
    try:
        with pa.memory_map(str(path)) as source:
            # The batch keeps the mapping open after the file object is closed.
            batch, metadata = pa.ipc.open_file(source).get_batch_with_custom_metadata(0)
        # Shards of an earlier version have none.
        kept = dict(metadata or {}).get(CHECKSUM.encode())
        if kept is not None and kept.decode() != checksum(_arrays_of(batch)):
            raise ValueError("it does not match its checksum")
    # numpy raises ValueError for arrays beyond their buffers.
    except (pa.ArrowException, OSError, ValueError) as error:
        raise StoreDamaged(f"{path} cannot be read ({error})") from None
    return batch


def _arrays_of(batch: pa.RecordBatch) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the names and arrays of the columns; of lists the offsets and the values."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if pa.types.is_list(column.type):
            yield name, values_of(column.offsets)
            column = column.values
        yield name, values_of(column)


SHARD_ROWS = 65_536
FORMAT_VERSION = 5
CHUNK_ROWS = 8_192
"""rows that are read at a time in a pass over a whole set"""


class Misfit(ValueError):
    """A target that the type of its column cannot hold; `row` is its index in the chunk."""

    def __init__(self, row: int, value: object, kind: pa.DataType):
        super().__init__(f"{value!r} does not fit a column of type {kind}")
        self.row, self.value, self.kind = row, value, kind

    def described(self, place: str, target: object) -> DataError:
        """Return the error for the row at `place`, whose target was read by `target`."""
        return DataError(
            f"{place}: {type(target).__name__} reads {self.value!r} as the target, but its column() is of type "
            f"{self.kind}, which cannot hold that; let column() return a type that does, such as pa.float32(), or "
            "pa.list_(pa.float32()) for lists"
        )


@dataclass
class EncodedRows:
    """The tokens of one chunk of N rows; flat arrays hold the rows one after another."""

    tokens: np.ndarray
    """flat int32"""
    lengths_N: np.ndarray
    boundary_N: np.ndarray
    """number of tokens before the second text; the length of the row if it has only one"""
    cut_N: np.ndarray
    """bool: whether tokens were cut off"""
    words: np.ndarray | None = None
    """flat int32: the index in its row of the first token of each unit that fits"""
    word_counts_N: np.ndarray | None = None
    places: np.ndarray | None = None
    """flat int32: the first and the last character of each unit of a text, including units that do not fit; None if all
    rows are lists of units"""
    place_counts_N: np.ndarray | None = None
    """two for each unit"""
    windows: np.ndarray | None = None
    """flat: the tokens of each window of each row; None if rows are not read in windows"""
    window_counts_N: np.ndarray | None = None


@dataclass
class Origin:
    """Where rows come from, and hashes (int64) that are equal for equal texts or groups."""

    text_hash_N: np.ndarray
    group_N: np.ndarray
    """0 without groups"""
    file_N: np.ndarray
    """index of the row's file in its set"""
    number_N: np.ndarray
    """line or position of the row in its file"""
    first_N: np.ndarray | None = None
    """hash of the first text of a pair; None if a row is one text"""
    second_N: np.ndarray | None = None
    """hash of the second text; a text has the same hash on either side"""


def _numbers(values_N: npt.ArrayLike, dtype: npt.DTypeLike) -> pa.Array:
    """Return numbers as a column; `pa.array` would import pandas if it is installed, which takes 0.25 s."""
    values_N = np.ascontiguousarray(values_N, dtype)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values_N.dtype), len(values_N), [None, pa.py_buffer(values_N)])


def _lists(flat: np.ndarray, counts_N: Sequence[int] | np.ndarray, dtype: npt.DTypeLike = np.int32) -> pa.Array:
    """Return a column of lists from their values, one list after another, and the length of each."""
    # Arrow's lists have int32 offsets. A shard has at most SHARD_ROWS rows, so its tokens fit.
    offsets = np.zeros(len(counts_N) + 1, dtype=np.int32)
    np.cumsum(counts_N, out=offsets[1:])
    return pa.ListArray.from_arrays(_numbers(offsets, np.int32), _numbers(flat, dtype))


def _targets(targets: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return targets as a column of type `kind`. Raises Misfit for the first target that does not fit."""
    if not pa.types.is_list(kind):
        return _numbers(_held(targets, kind, np.arange(len(targets))), kind.to_pandas_dtype())
    counts_N = [len(values) for values in targets]
    row_of = np.repeat(np.arange(len(targets)), counts_N)
    flat = _held(list(chain.from_iterable(targets)), kind.value_type, row_of)
    return _lists(flat, counts_N, flat.dtype)


def _held(values: Sequence[object], kind: pa.DataType, row_of: np.ndarray) -> np.ndarray:
    """Return values in a column's type. Raises Misfit for the first value that the type cannot hold.

    A float may be rounded to fewer digits; every other value must stay equal.
    """
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise UserError(f"targets are stored as {kind}, but must be numbers or lists of them; change column()")
    given = np.asarray(values) if len(values) else np.zeros(0, np.int64)
    # A dtype such as object means that some value is of another type; find that value.
    if given.dtype.kind not in "biuf":
        place = next(place for place, value in enumerate(values) if np.asarray(value).dtype.kind not in "biuf")
        raise Misfit(int(row_of[place]), values[place], kind)
    with np.errstate(over="ignore", invalid="ignore"):
        held = given.astype(kind.to_pandas_dtype())
    if given.dtype == held.dtype:
        return held
    # Rounding is fine, but a finite number must not become infinite.
    if given.dtype.kind == held.dtype.kind == "f":
        is_lost_N = np.isinf(held) & np.isfinite(given)
    else:
        # Compared in both types: 2^53 + 1 equals its float64, which is 2^53 when it is converted back to an integer.
        with np.errstate(over="ignore", invalid="ignore"):
            is_lost_N = (held != given) | (held.astype(given.dtype) != given)
    if is_lost_N.any():
        place = int(is_lost_N.argmax())
        raise Misfit(int(row_of[place]), values[place], kind)
    return held


def record_batch(
    encoded: EncodedRows, targets: Sequence[object], target: pa.DataType | None, origin: Origin
) -> pa.RecordBatch:
    """Return rows and their targets, in the same order, as the columns of a shard.

    The columns are `tokens`, `boundary`, `words`, `target` (unless its type is None), `text_hash`, `group`, `file` and
    `number`; of pairs `first` and `second`; of texts whose words are tagged `places`; of rows
    in windows `windows`.
    """
    words, word_counts_N = encoded.words, encoded.word_counts_N
    # Every layout has the column `words`, so that all stores have the same schema.
    if words is None or word_counts_N is None:
        words, word_counts_N = np.zeros(0, np.int32), np.zeros(len(encoded.lengths_N), np.int64)
    columns = {
        "tokens": _lists(encoded.tokens, encoded.lengths_N),
        "boundary": _numbers(encoded.boundary_N, np.int32),
        "words": _lists(words, word_counts_N),
    }
    columns |= {} if target is None else {"target": _targets(targets, target)}
    columns["text_hash"] = _numbers(origin.text_hash_N, np.int64)
    columns["group"] = _numbers(origin.group_N, np.int64)
    columns["file"] = _numbers(origin.file_N, np.int32)
    columns["number"] = _numbers(origin.number_N, np.int64)
    if origin.first_N is not None and origin.second_N is not None:
        columns |= {"first": _numbers(origin.first_N, np.int64), "second": _numbers(origin.second_N, np.int64)}
    if encoded.places is not None and encoded.place_counts_N is not None:
        columns["places"] = _lists(encoded.places, encoded.place_counts_N)
    if encoded.windows is not None and encoded.window_counts_N is not None:
        columns["windows"] = _lists(encoded.windows, encoded.window_counts_N)
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


@dataclass
class SetWriter:
    """Writes one set, chunk by chunk; a shard gets its name only when it is complete."""

    folder: Path
    target: pa.DataType | None
    """type of the targets; None: no target is stored"""
    rows: int = 0
    _pending: list[pa.RecordBatch] = field(default_factory=list)
    _pending_rows: int = 0
    _shards: int = 0

    def __post_init__(self) -> None:
        # A writer that was killed writes the same shards again.
        self.folder.mkdir(parents=True, exist_ok=True)

    def add(self, encoded: EncodedRows, targets: Sequence[object], origin: Origin) -> None:
        """Append rows and their targets, in the same order. Raises Misfit for a target of another type."""
        batch = record_batch(encoded, targets, self.target, origin)
        self.rows += len(batch)
        while batch.num_rows:
            room = SHARD_ROWS - self._pending_rows
            # A slice shares memory with its batch; `concat_batches` copies it.
            self._pending.append(batch.slice(0, room))
            self._pending_rows += self._pending[-1].num_rows
            batch = batch.slice(room)
            if self._pending_rows == SHARD_ROWS:
                self._flush()

    def close(self) -> None:
        """Write the remaining rows as the last, smaller shard."""
        if self._pending_rows:
            self._flush()

    def _flush(self) -> None:
        write_shard(pa.concat_batches(self._pending), self.folder / f"{self._shards:05d}.arrow")
        self._pending, self._pending_rows = [], 0
        self._shards += 1


class StoredSet:
    """The rows of a set in shards, memory-mapped or in memory. Columns with one value per row are plain arrays; mapped
    tokens stay on disk until they are gathered."""

    def __init__(self, batches: list[pa.RecordBatch], remap: list[int] | None = None):
        """`batches`: the shards. `remap`: the final number for each stored target; None: the stored ones are final."""
        self._final: dict[str, np.ndarray] = {}
        if remap is not None:
            self.renumber("target", np.asarray(remap, np.int32))
        self._batches, self._starts_S = batches, starts_of(np.array(list(map(len, batches)), np.int64))
        self.lengths_N = self._per_row(lambda batch: np.diff(values_of(batch.column("tokens").offsets)))
        self.text_hash_N = self._column("text_hash")

    @classmethod
    def open(cls, folder: Path, rows: int | None = None, remap: list[int] | None = None) -> Self:
        """Map the shards of a folder of `rows` rows (None: unknown). Raises StoreDamaged if one is damaged."""
        batches = [mapped(path) for path in sorted(folder.glob("*.arrow"))]
        found = sum(map(len, batches))
        # Without the number of rows, a shard that is not full shows that rows are missing.
        if (rows is not None and found != rows) or any(len(batch) != SHARD_ROWS for batch in batches[:-1]):
            raise StoreDamaged(
                f"{folder} holds {found:,} rows in {len(batches)} shards, not the {rows:,} that were written"
                if rows is not None
                else f"{folder}: a shard before the last one has fewer than {SHARD_ROWS:,} rows"
            )
        return cls(batches, remap)

    def renumber(self, column: str, final: np.ndarray) -> None:
        """Return `final[value]` for each value of a column from now on."""
        self._final[column] = final

    @cached_property
    def group_N(self) -> np.ndarray:
        """Hash of each row's group; rows of a group share a fold."""
        return self._column("group")

    @cached_property
    def first_N(self) -> np.ndarray:
        """Hash of each row's text or, in pairs, of its first text."""
        return self._column("first") if self.has("first") else self.text_hash_N

    @cached_property
    def second_N(self) -> np.ndarray | None:
        """Hash of the second text of each pair; None if a row is one text."""
        return self._column("second") if self.has("second") else None

    def has(self, column: str) -> bool:
        """Whether the rows were written with this column, which only some layouts have."""
        return bool(self._batches) and column in self._batches[0].schema.names

    def is_list(self, column: str) -> bool:
        """Whether each row has several values in a column that it has."""
        return bool(pa.types.is_list(self._batches[0].schema.field(column).type))

    @cached_property
    def number_N(self) -> np.ndarray:
        """Line or position of each row in its file."""
        return self._column("number")

    def __len__(self) -> int:
        return len(self.lengths_N)

    def tokens(self, rows_B: np.ndarray) -> np.ndarray:
        """Return the tokens of the rows, one after another; flat int32."""
        return self.lists("tokens", rows_B)[0]

    def boundaries(self, rows_B: np.ndarray) -> np.ndarray:
        """Return the number of tokens before the second text of each row; (B,)."""
        return self.scalars("boundary", rows_B)

    def words(self, rows_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the index in its row of the first token of each unit that fits; flat, and counts (B,)."""
        return self.lists("words", rows_B)

    def scalars(self, column: str, rows_B: np.ndarray) -> np.ndarray:
        """Return the values of a column with one value per row; (B,), of the column's type."""
        out = np.empty(len(rows_B), self._dtype(column))
        for shard, places in self._by_shard(rows_B):
            out[places] = values_of(self._batches[shard].column(column))[rows_B[places] - self._starts_S[shard]]
        return self._renumbered(column, out)

    def lists(self, column: str, rows_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the values of a column of lists, one row after another, and the number of each row; flat, (B,)."""
        counts_B = np.empty(len(rows_B), np.int64)
        pieces: dict[int, np.ndarray] = {}
        groups = self._by_shard(rows_B)
        for shard, places in groups:
            starts, counts_B[places] = self._extents(column, shard, rows_B[places])
            pieces[shard] = values_of(self._batches[shard].column(column).values)[ranges(starts, counts_B[places])]
        # Most batches of a small set are in one shard, whose values are in order already.
        if len(groups) == 1:
            flat = pieces[groups[0][0]]
        else:
            flat = np.empty(int(counts_B.sum()), self._dtype(column))
            begin_B = starts_of(counts_B)
            for shard, places in groups:
                flat[ranges(begin_B[places], counts_B[places])] = pieces[shard]
        return self._renumbered(column, flat), counts_B

    def counts(self, column: str, rows_B: np.ndarray) -> np.ndarray:
        """Return the number of values of each row in a column of lists; (B,), int64."""
        counts_B = np.empty(len(rows_B), np.int64)
        for shard, places in self._by_shard(rows_B):
            counts_B[places] = self._extents(column, shard, rows_B[places])[1]
        return counts_B

    def _extents(self, column: str, shard: int, rows_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the start and the number of the values in a column of lists, for rows of one shard."""
        offsets, local_B = values_of(self._batches[shard].column(column).offsets), rows_B - self._starts_S[shard]
        starts_B = offsets[local_B].astype(np.int64)
        return starts_B, offsets[local_B + 1] - starts_B

    def _dtype(self, column: str) -> np.dtype:
        kind = self._batches[0].schema.field(column).type if self._batches else pa.int32()
        return np.dtype((kind.value_type if pa.types.is_list(kind) else kind).to_pandas_dtype())

    def _renumbered(self, column: str, values: np.ndarray) -> np.ndarray:
        final = self._final.get(column)
        # Renumbered when read, so the files are never written again.
        return values if final is None or not len(values) else final[values]

    def _per_row(self, read: Callable[[pa.RecordBatch], np.ndarray]) -> np.ndarray:
        parts = [read(batch) for batch in self._batches]
        return np.concatenate(parts) if parts else np.zeros(0, np.int32)

    def _column(self, name: str) -> np.ndarray:
        return self._per_row(lambda batch: values_of(batch.column(name)))

    def _by_shard(self, rows_B: np.ndarray) -> list[tuple[int, np.ndarray]]:
        if len(self._batches) == 1:
            return [(0, np.arange(len(rows_B)))]
        shard_B = np.searchsorted(self._starts_S, rows_B, side="right") - 1
        return [(int(shard), np.nonzero(shard_B == shard)[0]) for shard in np.unique(shard_B)]


def chunks_of(rows_N: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the rows in chunks, so that the memory of gathered values does not grow with their number."""
    for start in range(0, len(rows_N), CHUNK_ROWS):
        yield rows_N[start : start + CHUNK_ROWS]
