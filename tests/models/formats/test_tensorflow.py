"""Checkpoints in TensorFlow's V2 format, written here by a small writer."""

import struct
from pathlib import Path

import numpy as np
import pytest

from nlu.config.errors import CheckpointError
from nlu.models.formats.tensorflow import crc32c, find_checkpoint, read_checkpoint
from nlu.models.formats.tensorflow import masked_crc32c as fast_masked_crc32c
from nlu.models.formats.tensorflow_writing import encoder_names, write_checkpoint

DTYPES = {
    "float32": 1, "float64": 2, "int32": 3, "uint8": 4, "int16": 5, "int8": 6, "complex64": 8, "int64": 9, "bool": 10,
    "uint16": 17, "complex128": 18, "float16": 19, "uint32": 22, "uint64": 23,
}  # fmt: skip
"""as TensorFlow's types.proto numbers them"""


def varint(value: int) -> bytes:
    digits = bytearray()
    while value >= 0x80:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])


def masked_crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ 0x82F63B78 * (crc & 1)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@pytest.mark.parametrize("size", [0, 1, 31, 2047, 2048, 2049, 5000])
def test_the_checksum_of_any_number_of_bytes_is_that_of_each_bit_in_turn(size):
    data = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    assert fast_masked_crc32c(data) == fast_masked_crc32c(data.tobytes()) == masked_crc32c(data.tobytes())
    # The value of RFC 3720, appendix B.4.
    assert crc32c(bytes(32)) == 0x8A9136AA


@pytest.mark.parametrize("count", [1, 120, pytest.param(400, marks=pytest.mark.thorough)])
def test_any_number_of_written_tensors_is_read_back(tmp_path, count):
    rng = np.random.default_rng(1)
    tensors = {f"bert/encoder/layer_{row}/kernel": rng.normal(size=(row % 5, 3)).astype("<f4") for row in range(count)}
    tensors["global_step"] = np.array(7)
    write_checkpoint(tmp_path / "model.ckpt", tensors)
    found = read_checkpoint(find_checkpoint(tmp_path))
    assert found.keys() == tensors.keys()
    for name, values in tensors.items():
        assert found[name].tobytes() == values.tobytes() and found[name].shape == values.shape


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def nested(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(value)) + value


def block(items: list[tuple[bytes, bytes]], restart_interval: int = 4) -> bytes:
    """Keys share their prefix with the one before, except every restart_interval-th."""
    data, restarts, before = bytearray(), [], b""
    for row, (key, value) in enumerate(items):
        shared = 0
        if row % restart_interval == 0:
            restarts.append(len(data))
        else:
            pairs = enumerate(zip(key, before, strict=False))
            shared = next((i for i, (a, b) in pairs if a != b), min(len(key), len(before)))
        data += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        before = key
    restarts = restarts or [0]
    return bytes(data) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def table(items: list[tuple[bytes, bytes]], per_block: int, compression: int = 0) -> bytes:
    file = bytearray()

    def put(content: bytes) -> bytes:
        handle = varint(len(file)) + varint(len(content))
        trailed = content + bytes([compression])
        file.extend(trailed + struct.pack("<I", masked_crc32c(trailed)))
        return handle

    groups = [items[start : start + per_block] for start in range(0, len(items), per_block)]
    handles = [(group[-1][0], put(block(group))) for group in groups]
    footer = put(block([])) + put(block(handles))
    return bytes(file) + footer.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)


def entry(values: np.ndarray, shard: int, offset: int, dtype: int | None = None) -> bytes:
    shape = b"".join(nested(2, number(1, size)) for size in values.shape)
    dtype = dtype or DTYPES[values.dtype.name]
    parts = number(1, dtype) + nested(2, shape) + number(3, shard) + number(4, offset) + number(5, values.nbytes)
    return parts + varint(6 << 3 | 5) + struct.pack("<I", masked_crc32c(values.tobytes()))


def write(prefix: Path, tensors: dict[str, np.ndarray], shards: int = 1, per_block: int = 3, **options) -> Path:
    """Writes the tensors round robin over the data files; `extra` adds raw entries, `dtypes` overrides numbers."""
    data = [bytearray() for _ in range(shards)]
    items = {b"": options.get("header", number(1, shards))}
    for row, (name, values) in enumerate(tensors.items()):
        shard = row % shards
        items[name.encode()] = entry(values, shard, len(data[shard]), options.get("dtypes", {}).get(name))
        data[shard] += values.tobytes()
    items |= options.get("extra", {})
    Path(f"{prefix}.index").write_bytes(table(sorted(items.items()), per_block, options.get("compression", 0)))
    for shard, content in enumerate(data):
        Path(f"{prefix}.data-{shard:05d}-of-{shards:05d}").write_bytes(content)
    return prefix


@pytest.fixture
def tensors() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    layers = {f"bert/encoder/layer_{i}/output/dense/kernel": rng.normal(size=(3, i + 1)) for i in range(12)}
    return {
        **layers,
        "a": np.arange(5, dtype=np.uint8),
        "bert/embeddings/word_embeddings": rng.normal(size=(7, 2)).astype(np.float32),
        "half": rng.normal(size=4).astype(np.float16),
        "empty": np.zeros((0, 3), dtype=np.float32),
        "global_step": np.array(7, dtype=np.int64),
    }


@pytest.mark.parametrize(("shards", "per_block"), [(1, 100), (2, 3), (3, 1)])
def test_all_tensors_come_back_with_type_shape_and_values(tmp_path, tensors, shards, per_block):
    read = read_checkpoint(write(tmp_path / "model.ckpt", tensors, shards, per_block))
    assert read.keys() == tensors.keys()
    for name, values in tensors.items():
        assert read[name].dtype == values.dtype and read[name].shape == values.shape
        assert np.array_equal(read[name], values) and read[name].flags.writeable


def test_bfloat16_becomes_float32_and_strings_are_left_out(tmp_path):
    bits = np.array([0x3F80, 0xC040], dtype=np.uint16)
    graph = number(1, 7) + number(5, 3)
    prefix = write(tmp_path / "m", {"b": bits}, dtypes={"b": 14}, extra={b"_OBJECT_GRAPH": graph})
    read = read_checkpoint(prefix)
    assert read.keys() == {"b"} and read["b"].dtype == np.float32 and read["b"].tolist() == [1.0, -3.0]


def test_a_truncated_data_file_is_named_with_what_is_missing(tmp_path, tensors):
    prefix = write(tmp_path / "model.ckpt", tensors, shards=2)
    shard = tmp_path / "model.ckpt.data-00001-of-00002"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"data-00001-of-00002 has \d+ bytes but .* truncated"):
        read_checkpoint(prefix)
    shard.unlink()
    with pytest.raises(CheckpointError, match="data-00001-of-00002 cannot be read"):
        read_checkpoint(prefix)


def test_an_index_cut_anywhere_or_with_any_byte_changed_is_refused(tmp_path, tensors):
    index = Path(f"{write(tmp_path / 'm', tensors)}.index")
    whole = index.read_bytes()
    for size in range(0, len(whole), 37):
        index.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match=r"m\.index is not a readable TensorFlow checkpoint index"):
            read_checkpoint(tmp_path / "m")
    for position in range(0, len(whole) - 48, 41):
        index.write_bytes(whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :])
        try:
            read = read_checkpoint(tmp_path / "m")
        except CheckpointError as error:
            assert "m.index" in str(error)
        else:
            assert read.keys() == tensors.keys(), "only a byte outside of every block that is read may change unseen"


def test_unsupported_checkpoints_are_refused_with_the_reason(tmp_path):
    values = {"w": np.ones(2, dtype=np.float32)}
    sliced = {b"p": entry(values["w"], 0, 0) + nested(7, b"")}
    refused = {
        "snappy": {"compression": 1},
        "p is a partitioned variable": {"extra": sliced},
        "big-endian": {"header": number(1, 1) + number(2, 1)},
        "w has the data type 99": {"dtypes": {"w": 99}},
        "w has 8 bytes, which does not fit": {"dtypes": {"w": 2}},
        "data file 1 but": {"extra": {b"x": entry(values["w"], 1, 0)}},
    }
    for reason, options in refused.items():
        with pytest.raises(CheckpointError, match=reason):
            read_checkpoint(write(tmp_path / "m", values, **options))


def test_a_checkpoint_is_found_only_with_all_its_data_files(tmp_path):
    values = {"w": np.ones(2, dtype=np.float32)}
    assert find_checkpoint(tmp_path) is None
    write(tmp_path / "model.ckpt-9", values)
    write(tmp_path / "model.ckpt-100", values)
    write(tmp_path / "model.ckpt-200", values, shards=2)
    (tmp_path / "model.ckpt-200.data-00001-of-00002").unlink()
    assert find_checkpoint(tmp_path) == tmp_path / "model.ckpt-100"
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "/far/away/model.ckpt-9"\n')
    assert find_checkpoint(tmp_path) == tmp_path / "model.ckpt-9"


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("bert/embeddings/word_embeddings", "embeddings.word_embeddings.weight"),
        ("electra/embeddings/position_embeddings", "embeddings.position_embeddings.weight"),
        ("bert/embeddings/LayerNorm/gamma", "embeddings.LayerNorm.weight"),
        ("bert/encoder/layer_11/attention/self/query/kernel", "encoder.layer.11.attention.self.query.weight"),
        ("bert/encoder/layer_0/attention/output/LayerNorm/beta", "encoder.layer.0.attention.output.LayerNorm.bias"),
        ("bert/encoder/embedding_hidden_mapping_in/kernel", "embeddings_project.weight"),
        ("electra/embeddings_project/bias", "embeddings_project.bias"),
        ("generator/embeddings_project/kernel", "generator.embeddings_project.weight"),
        ("bert/pooler/dense/kernel", "pooler.dense.weight"),
        ("cls/predictions/transform/dense/kernel", "cls.predictions.transform.dense.weight"),
        ("cls/predictions/output_bias", "cls.predictions.output_bias"),
        ("discriminator_predictions/dense/bias", "discriminator_predictions.dense.bias"),
    ],
)
def test_names_become_those_of_hugging_face(source, name):
    assert list(encoder_names({source: np.ones((2, 2), dtype=np.float32)})) == [name]


def test_kernels_are_transposed_and_doubles_become_floats():
    kernel = np.arange(6.0).reshape(2, 3)
    table_ = np.arange(6, dtype=np.float32).reshape(3, 2)
    read = encoder_names({"bert/pooler/dense/kernel": kernel, "bert/embeddings/word_embeddings": table_})
    weight = read["pooler.dense.weight"]
    assert np.array_equal(weight, kernel.T) and weight.dtype == np.float32 and weight.flags.c_contiguous
    assert np.array_equal(read["embeddings.word_embeddings.weight"], table_)
