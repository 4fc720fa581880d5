"""Checkpoints in TensorFlow's V2 format, of fixed bytes and of the product's own writer."""

import base64
import struct
from pathlib import Path

import numpy as np
import pytest

from nlu.config.errors import CheckpointError
from nlu.models.formats.tensorflow import crc32c, find_checkpoint, read_checkpoint
from nlu.models.formats.tensorflow import masked_crc32c as fast_masked_crc32c
from nlu.models.formats.tensorflow_writing import _block, _nested, _number, _table, encoder_names, write_checkpoint


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


@pytest.mark.parametrize("count", [1, 120])
def test_any_number_of_written_tensors_is_read_back(tmp_path, count):
    rng = np.random.default_rng(1)
    tensors = {f"bert/encoder/layer_{row}/kernel": rng.normal(size=(row % 5, 3)).astype("<f4") for row in range(count)}
    tensors["global_step"] = np.array(7)
    write_checkpoint(tmp_path / "model.ckpt", tensors)
    found = read_checkpoint(find_checkpoint(tmp_path))
    assert found.keys() == tensors.keys()
    for name, values in tensors.items():
        assert found[name].tobytes() == values.tobytes() and found[name].shape == values.shape


FILES = {
    "data-00000-of-00002": "AAAAAAAAgD8AAABAAABAQAAAgEAAAKBAAQAHAAAAAAAAAAABAg==",
    "data-00001-of-00002": "AAAAAAAA+D8AAAAAAAAAwAA4",
    "index": (
        "AAACCAIAExdiZXJ0L2xheWVyXzAva2VybmVsCAESCBICCAISAggDGAAgACgYNcDbPRcLCBMxL2tlcm5lbAgCEgQSAggCGAEgACgQ"
        "NezQ4r0AAAAAAQAAAADtknMhABETYmVydC9sYXllcl8xL21hc2sIChIEEgIIAhgAIBgoAjVfsM6BAAUXZW1wdHkIARIIEgIIABIC"
        "CAMYASAQKAA12OqCogALD2dsb2JhbF9zdGVwCAkSABgAIBooCDW7158RAAAAAAEAAAAAgKV7kgAEF2hhbGYIExIIEgIIARICCAEY"
        "ASAQKAI1joHbbwABE3UIBBIEEgIIAxgAICIoAzXSEHg6AAAAAAEAAAAArWX+VwAAAAABAAAAAMDyobAAEwJiZXJ0L2xheWVyXzEv"
        "a2VybmVsAFgACwJnbG9iYWxfc3RlcF1rAAEDdc0BPQAAAAABAAAAAIzBoV6PAgicAjcAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
        "AAAAAAAAAAAAV/uAiyR1R9s="
    ),
}
"""a checkpoint of the format's description, in base64: keys that share prefixes, three to a block, two data files"""
TENSORS = {
    "bert/layer_0/kernel": np.arange(6, dtype=np.float32).reshape(2, 3), "bert/layer_1/kernel": np.array([1.5, -2.0]),
    "bert/layer_1/mask": np.array([True, False]), "empty": np.zeros((0, 3), np.float32), "global_step": np.array(7),
    "half": np.array([[0.5]], np.float16), "u": np.arange(3, dtype=np.uint8),
}  # fmt: skip
W = np.ones(2, dtype=np.float32)


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        (tmp_path / f"model.ckpt.{name}").write_bytes(base64.b64decode(content))
    return tmp_path / "model.ckpt"


def entry(values: np.ndarray, dtype: int = 1, more: bytes = b"") -> bytes:
    shape = b"".join(_nested(2, _number(1, size)) for size in values.shape)
    return _number(1, dtype) + _nested(2, shape) + _number(5, values.nbytes) + more


def write(prefix: Path, entries: dict[bytes, bytes], values: np.ndarray = W, header: bytes = b"") -> Path:
    """Write an index of these entries, and a data file of one tensor."""
    Path(f"{prefix}.index").write_bytes(_table(sorted({b"": header, **entries}.items())))
    Path(f"{prefix}.data-00000-of-00001").write_bytes(values.tobytes())
    return prefix


def test_all_tensors_come_back_with_type_shape_and_values(prefix):
    read = read_checkpoint(prefix)
    assert read.keys() == TENSORS.keys()
    for name, values in TENSORS.items():
        assert read[name].dtype == values.dtype and read[name].shape == values.shape
        assert np.array_equal(read[name], values) and read[name].flags.writeable


def test_bfloat16_becomes_float32_and_strings_are_left_out(tmp_path):
    bits = np.array([0x3F80, 0xC040], dtype=np.uint16)
    entries = {b"b": entry(bits, 14), b"_OBJECT_GRAPH": _number(1, 7) + _number(5, 3)}
    read = read_checkpoint(write(tmp_path / "m", entries, bits))
    assert read.keys() == {"b"} and read["b"].dtype == np.float32 and read["b"].tolist() == [1.0, -3.0]


def test_a_truncated_data_file_is_named_with_what_is_missing(prefix):
    shard = Path(f"{prefix}.data-00001-of-00002")
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"data-00001-of-00002 has \d+ bytes but .* truncated"):
        read_checkpoint(prefix)
    shard.unlink()
    with pytest.raises(CheckpointError, match="data-00001-of-00002 cannot be read"):
        read_checkpoint(prefix)


def test_an_index_cut_anywhere_or_with_any_byte_changed_is_refused(prefix):
    index = Path(f"{prefix}.index")
    whole = index.read_bytes()
    for size in range(0, len(whole), 7):
        index.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match=r"ckpt\.index is not a readable TensorFlow checkpoint index"):
            read_checkpoint(prefix)
    for position in range(0, len(whole) - 48, 5):
        index.write_bytes(whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :])
        try:
            read = read_checkpoint(prefix)
        except CheckpointError as error:
            assert "ckpt.index" in str(error)
        else:
            assert read.keys() == TENSORS.keys(), "only a byte outside of every block that is read may change unseen"


@pytest.mark.parametrize(
    ("reason", "entries", "header"),
    [
        ("w is a partitioned variable", {b"w": entry(W, more=_nested(7, b""))}, b""),
        ("big-endian", {b"w": entry(W)}, _number(2, 1)),
        ("w has the data type 99", {b"w": entry(W, 99)}, b""),
        ("w has 8 bytes, which does not fit", {b"w": entry(W, 2)}, b""),
        ("data file 1 but", {b"w": entry(W, more=_number(3, 1))}, b""),
    ],
)
def test_unsupported_checkpoints_are_refused_with_the_reason(tmp_path, reason, entries, header):
    with pytest.raises(CheckpointError, match=reason):
        read_checkpoint(write(tmp_path / "m", entries, header=header))


def test_compressed_checkpoints_are_refused(tmp_path):
    index = Path(f"{write(tmp_path / 'm', {b'w': entry(W)})}.index")
    whole, first = index.read_bytes(), _block([(b"", b""), (b"w", entry(W))])
    assert whole.startswith(first)
    trailer = b"\1" + struct.pack("<I", masked_crc32c(first + b"\1"))
    index.write_bytes(first + trailer + whole[len(first) + 5 :])
    with pytest.raises(CheckpointError, match="snappy"):
        read_checkpoint(tmp_path / "m")


def test_a_checkpoint_is_found_only_with_all_its_data_files(tmp_path):
    assert find_checkpoint(tmp_path) is None
    for name in ("9.index", "9.data-00000-of-00001", "100.index", "100.data-00000-of-00001"):
        (tmp_path / f"model.ckpt-{name}").touch()
    for name in ("200.index", "200.data-00000-of-00002"):
        (tmp_path / f"model.ckpt-{name}").touch()
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
