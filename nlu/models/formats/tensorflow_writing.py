"""Writing TensorFlow checkpoints (V2 format) without TensorFlow: the inverse of `nlu.models.formats.tensorflow`.

One data file has the tensors in the order of their names. The index is a LevelDB table with an entry for each tensor,
which includes the checksum that TensorFlow verifies.

The rest of the package uses only the parameter names of Hugging Face. The names of TensorFlow's encoders (BERT,
ELECTRA) are converted here, in both directions.
"""

import re
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from nlu.config.errors import CheckpointError
from nlu.models.formats.tensorflow import DTYPES, MAGIC, masked_crc32c

OPTIMIZER_STATE = re.compile(r"(^|/)(global_step|[^/]*_power|adam_[mv]|lamb_[mv]|Adam(_\d+)?|LAMB(_\d+)?|Momentum)$")
ENCODER_PREFIX = re.compile(r"^(bert|electra)/")
PROJECTION = re.compile(r"(?:^|(?<=/))(?:encoder/)?(?:embedding_hidden_mapping_in|embeddings_project)(?=/)")
LEAVES = {"gamma": "weight", "beta": "bias", "kernel": "weight"}

NUMBERS = {np.dtype(name): number for number, name in DTYPES.items() if number in (1, 2, 3, 9, 10, 19)}
RESTART_INTERVAL = 16
BLOCK_BYTES = 4096
Item = tuple[bytes, bytes]


def encoder_names(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the tensors under Hugging Face's names, for example `encoder.layer.0.attention.self.query.weight`.

    Kernels (in, out) become weights (out, in); the projection of narrow embeddings is `embeddings_project`;
    float64 becomes float32; an optimizer's state is dropped. Heads keep their names, with dots. Raises
    CheckpointError if two tensors would get the same name.
    """
    renamed: dict[str, np.ndarray] = {}
    sources: dict[str, str] = {}
    for source, values in tensors.items():
        # Twice the size of the weights, and of no use in another optimizer.
        if OPTIMIZER_STATE.search(source):
            continue
        name = _rename(source)
        if name in sources:
            raise CheckpointError(
                f"the tensors {sources[name]} and {source} would both be named {name}; save one encoder per checkpoint"
            )
        sources[name] = source
        renamed[name] = _convert(source, values)
    return renamed


def tensorflow_names(tensors: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """Return an encoder's tensors under TensorFlow's names, such as `bert/encoder/layer_0/attention/self/query/kernel`.

    This is the inverse of `encoder_names`; weights of layers become kernels. `prefix` is bert or electra.
    """
    found = {}
    for source, values in tensors.items():
        path = re.sub(r"(^|\.)layer\.(\d+)(?=\.)", r"\1layer_\2", source).replace(".", "/")
        parent, _, leaf = path.rpartition("/")
        if parent.endswith("_embeddings"):
            path = parent
        elif parent.endswith("LayerNorm"):
            path = f"{parent}/{'gamma' if leaf == 'weight' else 'beta'}"
        elif leaf == "weight":
            path, values = f"{parent}/kernel", np.ascontiguousarray(values.T)
        found[f"{prefix}/{path}"] = values
    return found


def _rename(source: str) -> str:
    path = PROJECTION.sub("embeddings_project", ENCODER_PREFIX.sub("", source))
    parent, _, leaf = path.rpartition("/")
    # TensorFlow names the table itself; in torch it is the weight of a module.
    if leaf.endswith("_embeddings"):
        leaf += ".weight"
    path = f"{parent}/{LEAVES.get(leaf, leaf)}" if parent else leaf
    return re.sub(r"(^|/)layer_(\d+)(?=/)", r"\1layer/\2", path).replace("/", ".")


def _convert(source: str, values: np.ndarray) -> np.ndarray:
    if source.endswith("/kernel") and values.ndim == 2:
        values = np.ascontiguousarray(values.T)
    return values.astype(np.float32) if values.dtype == np.float64 else values


def write_checkpoint(prefix: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Write `prefix`.index and `prefix`.data-00000-of-00001, and the file `checkpoint` that names them."""
    items: list[Item] = [(b"", _number(1, 1) + _nested(3, _number(1, 1)))]
    offset = 0
    with open(f"{prefix}.data-00000-of-00001", "wb") as file:
        # By bytes, the order of LevelDB's keys.
        for name, values in sorted(tensors.items(), key=lambda item: item[0].encode()):
            # Not ascontiguousarray, which gives a scalar an axis.
            values = np.asarray(values, order="C")
            file.write(values.tobytes())
            items.append((name.encode(), _entry(values, offset)))
            offset += values.nbytes
    Path(f"{prefix}.index").write_bytes(_table(items))
    (prefix.parent / "checkpoint").write_text(f'model_checkpoint_path: "{prefix.name}"\n', encoding="utf-8")


def _entry(values: np.ndarray, offset: int) -> bytes:
    shape = b"".join(_nested(2, _number(1, size)) for size in values.shape)
    checksum = _varint(6 << 3 | 5) + struct.pack("<I", masked_crc32c(values))
    # Protocol buffers leave out fields with the value 0.
    place = (_number(4, offset) if offset else b"") + (_number(5, values.nbytes) if values.nbytes else b"")
    return _number(1, NUMBERS[values.dtype]) + _nested(2, shape) + place + checksum


def _table(items: list[Item]) -> bytes:
    """Return blocks of items, LevelDB's empty meta block, a block of the last keys of other blocks, and a footer."""
    file = bytearray()

    def put(content: bytes) -> bytes:
        handle = _varint(len(file)) + _varint(len(content))
        # Not compressed.
        trailed = content + b"\0"
        file.extend(trailed + struct.pack("<I", masked_crc32c(trailed)))
        return handle

    handles = [(group[-1][0], put(_block(group))) for group in _groups(items)]
    footer = put(_block([])) + put(_block(handles, restart_interval=1))
    return bytes(file) + footer.ljust(40, b"\0") + struct.pack("<Q", MAGIC)


def _groups(items: list[Item]) -> list[list[Item]]:
    groups: list[list[Item]] = [[]]
    size = 0
    for key, value in items:
        if size > BLOCK_BYTES:
            groups.append([])
            size = 0
        groups[-1].append((key, value))
        size += len(key) + len(value)
    return groups


def _block(items: list[Item], restart_interval: int = RESTART_INTERVAL) -> bytes:
    """A key is stored as what it does not share with the one before; at each restart it is whole."""
    content, restarts, before = bytearray(), [0], b""
    for number, (key, value) in enumerate(items):
        shared = 0
        # At a restart a key is whole, so that a search can begin there.
        if number % restart_interval == 0:
            restarts += [len(content)] if number else []
        else:
            while shared < min(len(key), len(before)) and key[shared] == before[shared]:
                shared += 1
        content += _varint(shared) + _varint(len(key) - shared) + _varint(len(value)) + key[shared:] + value
        before = key
    return bytes(content) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _nested(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    digits = bytearray()
    while value >= 0x80:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])
