"""Tokenized rows on disk: Arrow IPC shards, memory-mapped, so that memory does not grow with the number of rows.

A set (train, dev, ...) is a folder of shards of SHARD_ROWS rows each, the last one smaller. Axes: N rows of a set.
"""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from nlu.data.encoding import Encoded
from nlu.data.ragged import ranges
from nlu.data.seeds import bytes_hash

SHARD_ROWS = 65_536
FORMAT_VERSION = 2

SCHEMA = pa.schema(
    {
        "tokens": pa.list_(pa.int32()),
        "boundary": pa.int32(),
        "label": pa.int32(),
        "words": pa.list_(pa.int32()),
        "tags": pa.list_(pa.int32()),
        "text_hash": pa.int64(),
        "group": pa.int64(),
        "file": pa.int32(),
        "number": pa.int64(),
    }
)


def _list_array(flat: np.ndarray, counts_N: np.ndarray) -> pa.Array:
    offsets = np.zeros(len(counts_N) + 1, dtype=np.int32)
    np.cumsum(counts_N, out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat.astype(np.int32, copy=False)))


def _values(column: pa.Array) -> np.ndarray:
    """Return a column of whole numbers without copying; `to_numpy` would import pandas where that is installed."""
    dtype = np.dtype(column.type.to_pandas_dtype())
    return np.frombuffer(column.buffers()[1], dtype)[column.offset : column.offset + len(column)]


@dataclass
class SetWriter:
    """Writes one set, chunk by chunk; each shard appears under its name only when it is whole."""

    folder: Path
    rows: int = 0
    _pending: list[pa.RecordBatch] = field(default_factory=list)
    _pending_rows: int = 0
    _shards: int = 0

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)

    def add(self, encoded: Encoded, labels: dict[str, Any]) -> None:
        """Append a chunk; `labels` holds label_N, or tags and tag_counts_N, and text_hash_N, group_N, file_N,
        number_N."""
        count = len(encoded.lengths_N)
        none = np.zeros(count, np.int64), np.zeros(0, np.int32)
        words = encoded.words if encoded.words is not None else none[1]
        word_counts_N = encoded.word_counts_N if encoded.word_counts_N is not None else none[0]
        batch = pa.record_batch(
            [
                _list_array(encoded.tokens, encoded.lengths_N),
                pa.array(encoded.boundary_N.astype(np.int32)),
                pa.array(labels["label_N"].astype(np.int32)),
                _list_array(words, word_counts_N),
                _list_array(labels.get("tags", none[1]), labels.get("tag_counts_N", none[0])),
                pa.array(labels["text_hash_N"]),
                pa.array(labels["group_N"]),
                pa.array(labels["file_N"].astype(np.int32)),
                pa.array(labels["number_N"]),
            ],
            schema=SCHEMA,
        )
        while batch.num_rows:
            room = SHARD_ROWS - self._pending_rows
            self._pending.append(batch.slice(0, room))
            self._pending_rows += self._pending[-1].num_rows
            batch = batch.slice(room)
            if self._pending_rows == SHARD_ROWS:
                self._flush()
        self.rows += count

    def close(self) -> None:
        """Write what is left as the last, smaller shard."""
        if self._pending_rows:
            self._flush()

    def _flush(self) -> None:
        whole = pa.concat_batches(self._pending)
        path = self.folder / f"{self._shards:05d}.arrow"
        temporary = path.with_suffix(".tmp")
        with pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
            writer.write_batch(whole)
        temporary.rename(path)
        self._pending, self._pending_rows = [], 0
        self._shards += 1


class StoredSet:
    """One set, memory-mapped. The per-row columns are plain arrays; tokens stay on disk until they are gathered."""

    def __init__(self, folder: Path, remap: list[int] | None):
        self._remap = np.asarray(remap, dtype=np.int32) if remap is not None else None
        self._batches = []
        for path in sorted(folder.glob("*.arrow")):
            with pa.memory_map(str(path)) as source:
                self._batches.append(pa.ipc.open_file(source).get_batch(0))
        self.lengths_N = self._per_row(lambda batch: np.diff(_values(batch.column("tokens").offsets)))
        self.labels_N = self._remapped(self._column("label"))
        self.text_hash_N = self._column("text_hash")

    @cached_property
    def group_N(self) -> np.ndarray:
        """Hash of the value by which rows stay together in folds."""
        return self._column("group")

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
        return self._gather("tokens", rows_B)[0]

    def boundaries(self, rows_B: np.ndarray) -> np.ndarray:
        """Return how many tokens of each row stand before its second text; (B,)."""
        return self._pick("boundary", rows_B)

    def words(self, rows_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the place, within its row, of the first token of each unit that fits; flat, and counts (B,)."""
        return self._gather("words", rows_B)

    def tags(self, rows_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the tag of every unit of the rows, also of those that max_len cut off; flat, and counts (B,)."""
        flat, counts_B = self._gather("tags", rows_B)
        return self._remapped(flat), counts_B

    def targets(self, rows_B: np.ndarray) -> np.ndarray:
        """Return a number for each row that is the same for equal labels, or for equal tags; (B,), int64."""
        labels_B = self.labels_N[rows_B].astype(np.int64)
        if not len(labels_B) or labels_B[0] >= 0:
            return labels_B
        flat, counts_B = self.tags(rows_B)
        tags_of_rows = np.split(flat, np.cumsum(counts_B)[:-1])
        return np.array([bytes_hash(tags_U.tobytes()) for tags_U in tags_of_rows], np.int64)

    def _remapped(self, values: np.ndarray) -> np.ndarray:
        if self._remap is None or not len(values):
            return values
        return np.where(values >= 0, self._remap[np.maximum(values, 0)], values)

    def _per_row(self, read: Any) -> np.ndarray:
        parts = [read(batch) for batch in self._batches]
        return np.concatenate(parts) if parts else np.zeros(0, np.int32)

    def _column(self, name: str) -> np.ndarray:
        return self._per_row(lambda batch: _values(batch.column(name)))

    def _pick(self, name: str, rows_B: np.ndarray) -> np.ndarray:
        out = np.empty(len(rows_B), np.int32)
        for shard, places in self._by_shard(rows_B):
            out[places] = _values(self._batches[shard].column(name))[rows_B[places] - shard * SHARD_ROWS]
        return out

    def _gather(self, name: str, rows_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        counts_B = np.empty(len(rows_B), np.int64)
        pieces: dict[int, np.ndarray] = {}
        groups = self._by_shard(rows_B)
        for shard, places in groups:
            column = self._batches[shard].column(name)
            offsets, values = _values(column.offsets), _values(column.values)
            local = rows_B[places] - shard * SHARD_ROWS
            starts = offsets[local].astype(np.int64)
            counts_B[places] = offsets[local + 1] - starts
            pieces[shard] = values[ranges(starts, counts_B[places])]
        if len(groups) == 1:
            return pieces[groups[0][0]], counts_B
        flat = np.empty(int(counts_B.sum()), np.int32)
        begin_B = np.cumsum(counts_B) - counts_B
        for shard, places in groups:
            flat[ranges(begin_B[places], counts_B[places])] = pieces[shard]
        return flat, counts_B

    def _by_shard(self, rows_B: np.ndarray) -> list[tuple[int, np.ndarray]]:
        if len(self._batches) == 1:
            return [(0, np.arange(len(rows_B)))]
        shard_B = rows_B // SHARD_ROWS
        return [(int(shard), np.nonzero(shard_B == shard)[0]) for shard in np.unique(shard_B)]


class Examples:
    """A view of a stored set: the rows that take part, in file order. Indices of examples count these rows."""

    def __init__(self, name: str, stored: StoredSet, rows_N: np.ndarray):
        self.name = name
        self.stored = stored
        self.rows_N = rows_N
        self.lengths_N = stored.lengths_N[rows_N]
        self.labels_N = stored.labels_N[rows_N]

    def __len__(self) -> int:
        return len(self.rows_N)
