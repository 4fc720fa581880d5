"""Tokenized rows on disk: Arrow IPC shards, memory-mapped, so that memory does not grow with the number of rows.

A set (train, dev, ...) is a folder of shards of SHARD_ROWS rows each, the last one smaller. Axes: N rows of a set, B
rows asked for.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa

from nlu.config.errors import DataError, UserError
from nlu.data.encoding import EncodedRows
from nlu.data.ragged import ranges

SHARD_ROWS = 65_536
FORMAT_VERSION = 3
CHUNK_ROWS = 8_192
"""rows that are looked at together where a whole set is gone through"""


class Misfit(ValueError):
    """A target that the type of its column cannot hold; `row` is its place among those that were given."""

    def __init__(self, row: int, value: Any, kind: pa.DataType):
        super().__init__(f"{value!r} does not fit a column of type {kind}")
        self.row, self.value, self.kind = row, value, kind

    def described(self, place: str, target: object) -> DataError:
        """Return the error for the row at `place`, whose target this object read."""
        return DataError(
            f"{place}: {type(target).__name__} reads {self.value!r} as the target, but its column() is of type "
            f"{self.kind}, which cannot hold that; let column() return a type that does, such as pa.float32(), or "
            "pa.list_(pa.float32()) for lists"
        )


class StoreDamaged(DataError):
    """A set of the store that does not have the rows that were written; build the store again."""


@dataclass
class Origin:
    """What is stored of some rows beside their tokens."""

    text_hash_N: np.ndarray
    """int64, the same for equal texts"""
    group_N: np.ndarray
    """int64, the same for rows of one group"""
    file_N: np.ndarray
    """number of the row's file among the set's"""
    number_N: np.ndarray
    """line or place of the row in its file"""
    first_N: np.ndarray | None = None
    """int64, the same for equal texts, be they the first or the second of their pairs; null where a row is one text"""
    second_N: np.ndarray | None = None
    """the same of the second texts"""


def schema(target: pa.DataType | None, *, with_sides: bool = False, with_places: bool = False) -> pa.Schema:
    """Return the columns of a set whose targets are of this type, None where its rows have none; `with_sides` where
    they are pairs of texts, `with_places` where they are texts of which each word is tagged."""
    columns = {"tokens": pa.list_(pa.int32()), "boundary": pa.int32(), "words": pa.list_(pa.int32())}
    columns |= {} if target is None else {"target": target}
    columns |= {"text_hash": pa.int64(), "group": pa.int64(), "file": pa.int32(), "number": pa.int64()}
    columns |= {"first": pa.int64(), "second": pa.int64()} if with_sides else {}
    return pa.schema(columns | ({"places": pa.list_(pa.int32())} if with_places else {}))


def _numbers(values_N: Any, dtype: Any) -> pa.Array:
    """Return numbers as a column; `pa.array` would import pandas where that is installed, a quarter of a second."""
    values_N = np.ascontiguousarray(values_N, dtype)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values_N.dtype), len(values_N), [None, pa.py_buffer(values_N)])


def _lists(flat: Any, counts_N: Any, dtype: Any = np.int32) -> pa.Array:
    """Return lists of numbers as a column: their values one after another, and how many each has."""
    offsets = np.zeros(len(counts_N) + 1, dtype=np.int32)
    np.cumsum(counts_N, out=offsets[1:])
    return pa.ListArray.from_arrays(_numbers(offsets, np.int32), _numbers(flat, dtype))


def _targets(targets: list[Any], kind: pa.DataType) -> pa.Array:
    """Return targets as a column of their type. Raises Misfit for the first that it cannot hold."""
    if not pa.types.is_list(kind):
        return _numbers(_held(targets, kind, np.arange(len(targets))), kind.to_pandas_dtype())
    counts_N = [len(values) for values in targets]
    row_of = np.repeat(np.arange(len(targets)), counts_N)
    flat = _held(list(chain.from_iterable(targets)), kind.value_type, row_of)
    return _lists(flat, counts_N, flat.dtype)


def _held(values: list[Any], kind: pa.DataType, row_of: np.ndarray) -> np.ndarray:
    """Return values in a column's type. A float may be rounded to fewer digits; anything else must stay what it is.

    Raises Misfit for the first value that does not.
    """
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise UserError(f"targets are stored as {kind}, but must be numbers or lists of them; change column()")
    given = np.asarray(values) if len(values) else np.zeros(0, np.int64)
    if given.dtype.kind not in "biuf":
        place = next(place for place, value in enumerate(values) if np.asarray(value).dtype.kind not in "biuf")
        raise Misfit(int(row_of[place]), values[place], kind)
    with np.errstate(over="ignore", invalid="ignore"):
        held = given.astype(kind.to_pandas_dtype())
    if given.dtype == held.dtype:
        return held
    if given.dtype.kind == held.dtype.kind == "f":
        is_lost_N = np.isinf(held) & np.isfinite(given)
    else:
        # In both types: 2^53 + 1 is equal to what float64 makes of it, and not to what it is again as a whole number.
        with np.errstate(over="ignore", invalid="ignore"):
            is_lost_N = (held != given) | (held.astype(given.dtype) != given)
    if is_lost_N.any():
        place = int(is_lost_N.argmax())
        raise Misfit(int(row_of[place]), values[place], kind)
    return held


def _values(column: pa.Array) -> np.ndarray:
    """Return a column of numbers without copying; `to_numpy` would import pandas where that is installed."""
    dtype = np.dtype(column.type.to_pandas_dtype())
    return np.frombuffer(column.buffers()[1], dtype)[column.offset : column.offset + len(column)]


def record_batch(
    encoded: EncodedRows, targets: list[Any], target: pa.DataType | None, origin: Origin
) -> pa.RecordBatch:
    """Return rows and the target of each, in the same order, as a shard holds them."""
    count = len(encoded.lengths_N)
    words = encoded.words if encoded.words is not None else np.zeros(0, np.int32)
    word_counts_N = encoded.word_counts_N if encoded.word_counts_N is not None else np.zeros(count, np.int64)
    columns = [
        _lists(encoded.tokens, encoded.lengths_N),
        _numbers(encoded.boundary_N, np.int32),
        _lists(words, word_counts_N),
    ]
    columns += [] if target is None else [_targets(targets, target)]
    columns += [
        _numbers(origin.text_hash_N, np.int64),
        _numbers(origin.group_N, np.int64),
        _numbers(origin.file_N, np.int32),
        _numbers(origin.number_N, np.int64),
    ]
    columns += [_numbers(side_N, np.int64) for side_N in (origin.first_N, origin.second_N) if side_N is not None]
    columns += [] if encoded.places is None else [_lists(encoded.places, encoded.place_counts_N)]
    return pa.record_batch(
        columns,
        schema=schema(target, with_sides=origin.first_N is not None, with_places=encoded.places is not None),
    )


@dataclass
class SetWriter:
    """Writes one set, chunk by chunk; each shard appears under its name only when it is whole."""

    folder: Path
    target: pa.DataType | None
    """type of the targets; None where there are none"""
    rows: int = 0
    _pending: list[pa.RecordBatch] = field(default_factory=list)
    _pending_rows: int = 0
    _shards: int = 0

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)

    def add(self, encoded: EncodedRows, targets: list[Any], origin: Origin) -> None:
        """Append a chunk of rows and the target of each, in the same order."""
        batch = record_batch(encoded, targets, self.target, origin)
        while batch.num_rows:
            room = SHARD_ROWS - self._pending_rows
            self._pending.append(batch.slice(0, room))
            self._pending_rows += self._pending[-1].num_rows
            batch = batch.slice(room)
            if self._pending_rows == SHARD_ROWS:
                self._flush()
        self.rows += len(encoded.lengths_N)

    def close(self) -> None:
        """Write what is left as the last, smaller shard."""
        if self._pending_rows:
            self._flush()

    def _flush(self) -> None:
        whole = pa.concat_batches(self._pending)
        path = self.folder / f"{self._shards:05d}.arrow"
        temporary = path.with_suffix(".tmp")
        with pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_file(sink, whole.schema) as writer:
            writer.write_batch(whole)
        temporary.rename(path)
        self._pending, self._pending_rows = [], 0
        self._shards += 1


class StoredSet:
    """Rows in shards: of a store, memory-mapped, or in memory. The per-row columns are plain arrays; mapped tokens stay
    on disk until they are gathered."""

    def __init__(self, batches: list[pa.RecordBatch], remap: list[int] | None = None):
        """`batches`: the shards, all but the last of SHARD_ROWS rows. `remap`: the final number for each that the
        targets were written with, null where they are final."""
        self._final: dict[str, np.ndarray] = {}
        if remap is not None:
            self.renumber("target", np.asarray(remap, np.int32))
        self._batches = batches
        self.lengths_N = self._per_row(lambda batch: np.diff(_values(batch.column("tokens").offsets)))
        self.text_hash_N = self._column("text_hash")

    @classmethod
    def open(cls, folder: Path, rows: int | None = None, remap: list[int] | None = None) -> Self:
        """Map the shards of a folder; `rows`: how many were written, null where that is not known.

        Raises StoreDamaged where a shard is missing, cut short or no shard at all.
        """
        batches = [_mapped(path) for path in sorted(folder.glob("*.arrow"))]
        found = sum(map(len, batches))
        if (rows is not None and found != rows) or any(len(batch) != SHARD_ROWS for batch in batches[:-1]):
            raise StoreDamaged(
                f"{folder} holds {found:,} rows in {len(batches)} shards, not the {rows:,} that were written"
                if rows is not None
                else f"{folder}: a shard that is not the last one has fewer than {SHARD_ROWS:,} rows"
            )
        return cls(batches, remap)

    def renumber(self, column: str, final: np.ndarray) -> None:
        """From now on return the values of a column as the final number for each that it was written with."""
        self._final[column] = final

    @cached_property
    def group_N(self) -> np.ndarray:
        """Hash of the value by which rows stay together in folds."""
        return self._column("group")

    @cached_property
    def first_N(self) -> np.ndarray:
        """Hash of each row's text, of a pair that of the first one."""
        return self._column("first") if self.has("first") else self.text_hash_N

    @cached_property
    def second_N(self) -> np.ndarray | None:
        """Hash of the second text of each pair; null where a row is one text."""
        return self._column("second") if self.has("second") else None

    def has(self, column: str) -> bool:
        """Whether the rows were written with this column, which only some layouts have."""
        return bool(self._batches) and column in self._batches[0].schema.names

    @cached_property
    def number_N(self) -> np.ndarray:
        """Line or place of each row in its file."""
        return self._column("number")

    @cached_property
    def file_N(self) -> np.ndarray:
        """Number of each row's file among the set's."""
        return self._column("file")

    def __len__(self) -> int:
        return len(self.lengths_N)

    def tokens(self, rows_B: np.ndarray) -> np.ndarray:
        """Return the tokens of the rows, one after another; flat int32."""
        return self.lists("tokens", rows_B)[0]

    def boundaries(self, rows_B: np.ndarray) -> np.ndarray:
        """Return how many tokens of each row stand before its second text; (B,)."""
        return self.scalars("boundary", rows_B)

    def words(self, rows_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the place, within its row, of the first token of each unit that fits; flat, and counts (B,)."""
        return self.lists("words", rows_B)

    def scalars(self, column: str, rows_B: np.ndarray) -> np.ndarray:
        """Return the rows' values in a column that has one for each; (B,), of the column's type."""
        out = np.empty(len(rows_B), self._dtype(column))
        for shard, places in self._by_shard(rows_B):
            out[places] = _values(self._batches[shard].column(column))[rows_B[places] - shard * SHARD_ROWS]
        return self._renumbered(column, out)

    def lists(self, column: str, rows_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows' values in a column of lists, one row after another, and how many each has; flat, (B,)."""
        counts_B = np.empty(len(rows_B), np.int64)
        pieces: dict[int, np.ndarray] = {}
        groups = self._by_shard(rows_B)
        for shard, places in groups:
            starts, counts_B[places] = self._extents(column, shard, rows_B[places])
            pieces[shard] = _values(self._batches[shard].column(column).values)[ranges(starts, counts_B[places])]
        if len(groups) == 1:
            flat = pieces[groups[0][0]]
        else:
            flat = np.empty(int(counts_B.sum()), self._dtype(column))
            begin_B = np.cumsum(counts_B) - counts_B
            for shard, places in groups:
                flat[ranges(begin_B[places], counts_B[places])] = pieces[shard]
        return self._renumbered(column, flat), counts_B

    def counts(self, column: str, rows_B: np.ndarray) -> np.ndarray:
        """Return how many values each row has in a column of lists; (B,), int64."""
        counts_B = np.empty(len(rows_B), np.int64)
        for shard, places in self._by_shard(rows_B):
            counts_B[places] = self._extents(column, shard, rows_B[places])[1]
        return counts_B

    def _extents(self, column: str, shard: int, rows_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The start and the number of the values that the rows of one shard have in a column of lists."""
        offsets = _values(self._batches[shard].column(column).offsets)
        local_B = rows_B - shard * SHARD_ROWS
        starts_B = offsets[local_B].astype(np.int64)
        return starts_B, offsets[local_B + 1] - starts_B

    def _dtype(self, column: str) -> np.dtype[Any]:
        kind = self._batches[0].schema.field(column).type if self._batches else pa.int32()
        return np.dtype((kind.value_type if pa.types.is_list(kind) else kind).to_pandas_dtype())

    def _renumbered(self, column: str, values: np.ndarray) -> np.ndarray:
        final = self._final.get(column)
        return values if final is None or not len(values) else final[values]

    def _per_row(self, read: Any) -> np.ndarray:
        parts = [read(batch) for batch in self._batches]
        return np.concatenate(parts) if parts else np.zeros(0, np.int32)

    def _column(self, name: str) -> np.ndarray:
        return self._per_row(lambda batch: _values(batch.column(name)))

    def _by_shard(self, rows_B: np.ndarray) -> list[tuple[int, np.ndarray]]:
        if len(self._batches) == 1:
            return [(0, np.arange(len(rows_B)))]
        shard_B = rows_B // SHARD_ROWS
        return [(int(shard), np.nonzero(shard_B == shard)[0]) for shard in np.unique(shard_B)]


def _mapped(path: Path) -> pa.RecordBatch:
    try:
        with pa.memory_map(str(path)) as source:
            return pa.ipc.open_file(source).get_batch(0)
    except (pa.ArrowException, OSError) as error:
        raise StoreDamaged(f"{path} cannot be read ({error})") from None


def chunks_of(rows_N: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the rows some thousands at a time, so that what is gathered of them does not grow with their number."""
    for start in range(0, len(rows_N), CHUNK_ROWS):
        yield rows_N[start : start + CHUNK_ROWS]
