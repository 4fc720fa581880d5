"""Files of a set in the data store: Arrow IPC with one batch and a checksum of its values.

The checksum is compared each time a shard is mapped, which reads the store once from the disk at each start.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from nlu.config.errors import DataError
from nlu.data.arrays import values_of
from nlu.storage.tensors import checksum

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
