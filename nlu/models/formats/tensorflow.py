"""Reading TensorFlow checkpoints (V2 format, `*.index` beside `*.data-00000-of-00001`) without TensorFlow.

Many Chinese encoders were published as TensorFlow checkpoints only. The index is a table of sorted keys in LevelDB's
file format whose values are small protocol buffers; the data files hold the raw tensors. Their checksum is CRC-32C
(Castagnoli), here fast enough for the weights of a large encoder: it is linear, so pieces are processed in parallel,
one byte of each at a time, and then joined in pairs: the first one is shifted by as many zero bytes as the second one
has bytes.

Axes: P pieces, a power of two; L bytes of a piece.
"""

import math
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nlu.config.errors import CheckpointError

POLYNOMIAL = 0x82F63B78
MASK_DELTA = 0xA282EAD8
PIECE_BYTES = 2048
ONES = 0xFFFFFFFF


def _table() -> np.ndarray:
    values = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        values = np.where(values & 1, values >> 1 ^ np.uint32(POLYNOMIAL), values >> 1)
    return values


_TABLE = _table()


def masked_crc32c(data: bytes | np.ndarray) -> int:
    """Return the checksum as it is stored in files: rotated and shifted by a constant, because a checksum of data that
    contains checksums is weak."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + MASK_DELTA) & ONES


def crc32c(data: bytes | np.ndarray) -> int:
    """Return the checksum of bytes, or of an array's memory."""
    array = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else np.ascontiguousarray(data)
    flat = array.reshape(-1).view(np.uint8)
    count = 1
    while count * PIECE_BYTES < len(flat):
        count *= 2
    length = -(-len(flat) // count)
    # Leading zeros do not change a register that is zero.
    bytes_PL = np.zeros((count, length), np.uint8)
    bytes_PL.reshape(-1)[count * length - len(flat) :] = flat
    register_P = np.zeros(count, np.uint32)
    # One byte of every piece at a time, since a loop over single bytes is slow in Python.
    for byte_P in np.ascontiguousarray(bytes_PL.T):
        register_P = _TABLE[(register_P ^ byte_P) & 0xFF] ^ register_P >> 8
    zeros = _zeros(length)
    while len(register_P) > 1:
        register_P = _shifted(register_P[0::2], zeros) ^ register_P[1::2]
        zeros = _shifted(zeros, zeros)
    # The register starts with ones; here they are shifted by as many zero bytes as the data has bytes.
    begun = _shifted(np.array([ONES], np.uint32), _zeros(len(flat)))
    return int(register_P[0] ^ begun[0]) ^ ONES


def _shifted(register_P: np.ndarray, zeros: np.ndarray) -> np.ndarray:
    """Return registers shifted by zero bytes; `zeros` has the result for each of the 32 bits."""
    found = np.zeros_like(register_P)
    for bit in range(32):
        found ^= np.where(register_P >> np.uint32(bit) & 1, zeros[bit], np.uint32(0)).astype(np.uint32)
    return found


def _zeros(length: int) -> np.ndarray:
    """Return the result for each bit of a register after `length` zero bytes."""
    bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
    one = _TABLE[bits & 0xFF] ^ bits >> 8
    found = bits
    while length:
        if length & 1:
            found = _shifted(found, one)
        one, length = _shifted(one, one), length >> 1
    return found


FOOTER_BYTES = 48
TRAILER_BYTES = 5
MAGIC = 0xDB4775248B80FB57
STRING = 7
BFLOAT16 = 14
DTYPES = {
    1: "<f4", 2: "<f8", 3: "<i4", 4: "u1", 5: "<i2", 6: "i1", 8: "<c8", 9: "<i8", 10: "?",
    BFLOAT16: "<u2", 17: "<u2", 18: "<c16", 19: "<f2", 22: "<u4", 23: "<u8",
}  # fmt: skip
"""NumPy types by TensorFlow's DataType numbers; bfloat16 is read as bits and widened"""


@dataclass(frozen=True)
class TensorEntry:
    """The place of a tensor: bytes [offset, offset + size) of a data file."""

    name: str
    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int


class MalformedError(Exception):
    """Bytes that break the format; `read_checkpoint` adds the file's name."""


def read_checkpoint(prefix: Path) -> dict[str, np.ndarray]:
    """Return all numeric tensors of the checkpoint `prefix`.index by TensorFlow's names, as separate arrays.

    Types are kept, except that bfloat16 becomes float32; string tensors (object graphs) are dropped. Raises
    CheckpointError, with the file, if it is missing, truncated or not a checkpoint, and for unsupported content:
    compressed blocks, partitioned variables, big-endian data.
    """
    index = Path(f"{prefix}.index")
    try:
        entries, shard_count = _parse_index(_read(index))
    except (MalformedError, IndexError, struct.error, UnicodeDecodeError) as error:
        raise CheckpointError(f"{index} is not a readable TensorFlow checkpoint index: {error}") from error
    sizes: dict[Path, int] = {}
    tensors = {}
    for entry in entries:
        shard = Path(f"{prefix}.data-{entry.shard:05d}-of-{shard_count:05d}")
        if shard not in sizes:
            sizes[shard] = _size(shard)
        tensors[entry.name] = _read_tensor(entry, shard, sizes[shard])
    return tensors


def find_checkpoint(folder: Path) -> Path | None:
    """Return the prefix of the checkpoint in a folder that has its index and all data files, or None.

    If there are several, it is the one in the folder's `checkpoint` file, else the one with the highest step in its
    name.
    """
    prefixes = [path.with_suffix("") for path in folder.glob("*.index")]
    # A folder may hold checkpoints whose download was broken off.
    complete = [prefix for prefix in prefixes if _has_all_shards(prefix)]
    return max(complete, key=lambda prefix: (prefix.name == _named_latest(folder), _step(prefix)), default=None)


def _has_all_shards(prefix: Path) -> bool:
    pattern = re.compile(re.escape(prefix.name) + r"\.data-(\d{5})-of-(\d{5})")
    matches = [match for path in prefix.parent.iterdir() if (match := pattern.fullmatch(path.name))]
    found = {(int(match[1]), int(match[2])) for match in matches}
    return any(all((shard, count) in found for shard in range(count)) for _, count in found)


def _named_latest(folder: Path) -> str | None:
    state = folder / "checkpoint"
    text = state.read_text(encoding="utf-8", errors="replace") if state.is_file() else ""
    match = re.search(r'^model_checkpoint_path:\s*"(.*)"', text, re.MULTILINE)
    return re.split(r"[/\\]", match[1])[-1] if match else None


def _step(prefix: Path) -> tuple[int, str]:
    match = re.search(r"(\d+)$", prefix.name)
    return (int(match[1]) if match else -1, prefix.name)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}; give the prefix of a checkpoint") from error


def _size(shard: Path) -> int:
    try:
        return shard.stat().st_size
    except OSError as error:
        raise CheckpointError(
            f"{shard} cannot be read: {error.strerror}; the index needs it, put it beside the index"
        ) from error


def _read_tensor(entry: TensorEntry, shard: Path, file_size: int) -> np.ndarray:
    if entry.offset + entry.size > file_size:
        raise CheckpointError(
            f"{shard} has {file_size} bytes but {entry.name} lies in bytes {entry.offset} to "
            f"{entry.offset + entry.size}; the file is truncated, fetch it again"
        )
    values = np.fromfile(shard, dtype=DTYPES[entry.dtype], count=math.prod(entry.shape), offset=entry.offset)
    if entry.dtype == BFLOAT16:
        # bfloat16 is the upper half of a float32.
        values = (values.astype("<u4") << 16).view("<f4")
    return values.reshape(entry.shape)


def _parse_index(data: bytes) -> tuple[list[TensorEntry], int]:
    """Return the tensors of an index file and the number of its data files."""
    if len(data) < FOOTER_BYTES or struct.unpack("<Q", data[-8:])[0] != MAGIC:
        raise MalformedError("it does not end with the mark of an index; it is truncated or another kind of file")
    footer = data[-FOOTER_BYTES:]
    _, position = _handle(footer, 0)
    # The first handle is that of the meta index, which TensorFlow leaves empty.
    root, _ = _handle(footer, position)
    entries = []
    shard_count = 1
    for _, handle in _block(data, *root):
        for key, value in _block(data, *_handle(handle, 0)[0]):
            # The entry without a name is the header of the checkpoint.
            if key == b"":
                shard_count = _parse_header(value)
            elif (entry := _parse_entry(key.decode("utf-8"), value)) is not None:
                entries.append(entry)
    for entry in entries:
        if entry.shard >= shard_count:
            raise MalformedError(f"{entry.name} lies in data file {entry.shard} but there are only {shard_count}")
    return entries, shard_count


def _handle(data: bytes, position: int) -> tuple[tuple[int, int], int]:
    """Return a block handle, (offset, size), and the position after it."""
    offset, position = _varint(data, position)
    size, position = _varint(data, position)
    return (offset, size), position


def _block(data: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the (key, value) pairs of a block; a key is stored without the prefix that it shares with the last one."""
    end = offset + size
    if size < 4 or end + TRAILER_BYTES > len(data):
        raise MalformedError(f"a block at bytes {offset} to {end} is outside of the file's {len(data)} bytes")
    kind, checksum = struct.unpack("<BI", data[end : end + TRAILER_BYTES])
    # The checksum includes the byte that says how the block is compressed.
    if masked_crc32c(data[offset : end + 1]) != checksum:
        raise MalformedError(f"the block at byte {offset} is damaged, its checksum differs; fetch the file again")
    if kind != 0:
        raise MalformedError("its blocks are compressed with snappy, which is not supported; save it uncompressed")
    block = data[offset:end]
    # A block ends with an array of restart points for searches, which a full read does not need.
    restarts_at = size - 4 - 4 * struct.unpack("<I", block[-4:])[0]
    position, key = 0, b""
    while position < restarts_at:
        shared, position = _varint(block, position)
        own_size, position = _varint(block, position)
        value_size, position = _varint(block, position)
        value_at = position + own_size
        if shared > len(key) or value_at + value_size > restarts_at:
            raise MalformedError(f"an entry of the block at byte {offset} does not fit into it")
        key = key[:shared] + block[position:value_at]
        position = value_at + value_size
        yield key, block[value_at:position]


def _parse_header(value: bytes) -> int:
    fields = dict(_fields(value))
    if fields.get(2, 0) != 0:
        raise MalformedError("its data are big-endian, which is not supported; save it on a little-endian machine")
    return int(fields.get(1, 1))


def _parse_entry(name: str, value: bytes) -> TensorEntry | None:
    """Return the entry of a tensor, or None for a tensor of strings."""
    fields = dict(_fields(value))
    if 7 in fields:
        raise MalformedError(f"{name} is a partitioned variable, which is not supported; save it unpartitioned")
    dtype = int(fields.get(1, 0))
    if dtype == STRING:
        return None
    if dtype not in DTYPES:
        raise MalformedError(f"{name} has the data type {dtype}, which is not supported")
    shape = tuple(dict(_fields(dimension)).get(1, 0) for field, dimension in _fields(fields.get(2, b"")) if field == 2)
    entry = TensorEntry(name, dtype, shape, fields.get(3, 0), fields.get(4, 0), fields.get(5, 0))
    if entry.size != math.prod(shape) * np.dtype(DTYPES[dtype]).itemsize:
        raise MalformedError(f"{name} has {entry.size} bytes, which does not fit its shape {shape}")
    return entry


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the (field number, value) pairs of a protocol buffer message: int for numbers, bytes for the rest."""
    position = 0
    value: int | bytes
    while position < len(message):
        tag, position = _varint(message, position)
        kind = tag & 7
        if kind == 0:
            value, position = _varint(message, position)
        else:
            size, position = _varint(message, position) if kind == 2 else ({1: 8, 5: 4}.get(kind, 0), position)
            content = message[position : position + size]
            if size == 0 and kind != 2 or len(content) < size:
                raise MalformedError("an entry is damaged")
            position += size
            value = content if kind == 2 else int.from_bytes(content, "little")
        yield tag >> 3, value


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Return a number in base 128, lowest digit first, and the position after it."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, position
