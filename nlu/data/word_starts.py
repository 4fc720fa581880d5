"""The mark that tokenizers put before a text, as if a space preceded it, and the same tokenizer without it.

SentencePiece's tokenizers (Metaspace, written ▁) and some byte-level ones mark the beginning of words, and treat the
beginning of a text as one. A unit that directly follows another one, such as a comma or an ideograph, does not begin a
word, so its tokens are those of the tokenizer without this mark.

Axes: U units, P some of them; flat arrays hold the tokens of units one after another.
"""

import json
import re
import unicodedata
from collections.abc import Container
from typing import Any

import numpy as np
from tokenizers import Tokenizer as Backend

from nlu.data.arrays import ranges, starts_of
from nlu.data.pieces import IDEOGRAPHS, encoded

SPACE_BYTE = "\u0120"
"""a space in a byte-level vocabulary"""
BLANK_MARKS = ("\u2581", SPACE_BYTE)
"""what stands for a blank at the beginning of a token, in vocabularies of SentencePiece and of bytes"""
UNSPACED = re.compile(f"[{IDEOGRAPHS}\u3041-\u30ff\u31f0-\u31ff\uff66-\uff9f\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff]")
"""scripts without blanks between words: ideographs, kana, Thai, Lao, Tibetan, Burmese, Khmer"""
AS_THEMSELVES = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
OTHER_BYTES = sorted({*range(0x100)}.difference(AS_THEMSELVES))
BYTE_OF = {chr(byte): byte for byte in AS_THEMSELVES} | {chr(0x100 + n): byte for n, byte in enumerate(OTHER_BYTES)}
"""the byte of each character of a byte-level vocabulary, which cannot show some bytes as they are"""
PARTS = ("normalizer", "pre_tokenizer")
MODEL = ',"model":'
"""where the vocabulary begins in the text of a tokenizer; inside a string of JSON the quotes would be escaped"""


def options_of(backend: Backend) -> dict[str, Any]:
    """Return the JSON of a tokenizer without its vocabulary, which would take most of the time."""
    options: dict[str, Any] = json.loads(backend.to_str().partition(MODEL)[0] + "}")
    return options


def marks_beginnings(backend: Backend) -> bool:
    """Return whether the tokenizer marks the beginning of a text."""
    options = options_of(backend)
    return any(_unmarked(options[part]) != options[part] for part in PARTS)


def without_mark(backend: Backend) -> Backend:
    """Return the same tokenizer, except that it does not mark the beginning of a text."""
    document = json.loads(backend.to_str())
    for part in PARTS:
        document[part] = _unmarked(document[part])
    return Backend.from_str(json.dumps(document))


def ids_of_units(
    backend: Backend, unmarked: Backend, units: list[str], inside: list[bool]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens of units, flat int32, and the count of each, int64; those `inside` of a word by `unmarked`."""
    inside_U, counts_U, parts = np.array(inside, bool), np.zeros(len(units), np.int64), []
    for places_P, of_part in ((np.flatnonzero(~inside_U), backend), (np.flatnonzero(inside_U), unmarked)):
        flat, counts_U[places_P] = encoded(of_part, [units[place] for place in places_P])
        parts.append((places_P, flat))
    joined, starts_U = np.empty(int(counts_U.sum()), np.int32), starts_of(counts_U)
    for places_P, flat in parts:
        joined[ranges(starts_U[places_P], counts_U[places_P])] = flat
    return joined, counts_U


def _unmarked(node: Any) -> Any:
    """Return the JSON of a normalizer or pre-tokenizer without what marks the beginning; None if nothing is left."""
    if node is None or node["type"] == "Prepend":
        return None
    if node["type"] == "Sequence":
        (several,) = (key for key, value in node.items() if isinstance(value, list))
        parts = (_unmarked(part) for part in node[several])
        return {**node, several: [part for part in parts if part is not None]}
    if node["type"] == "Metaspace":
        return {**node, "prepend_scheme": "never"}
    return {**node, "add_prefix_space": False} if node.get("add_prefix_space") else node


def begins_word(token: str, vocabulary: Container[str]) -> bool:
    """Return whether a token begins a word, by its spelling in this vocabulary.

    In a script without blanks each token that begins a character is a word. Otherwise, in WordPiece a token that begins
    with ## continues a word; where a mark stands for a blank, so does a token without it that begins with a letter or
    digit.
    """
    mark = next((mark for mark in BLANK_MARKS if mark in vocabulary), None)
    if mark is not None and token.startswith(mark):
        return True
    first = _character(token) if mark == SPACE_BYTE else token.removeprefix("##")[:1]
    # Vowels and tones that are written above or below a letter are marks.
    if not first or unicodedata.category(first).startswith("M"):
        return False
    return UNSPACED.match(first) is not None or not token.startswith("##") and (mark is None or not first.isalnum())


def _character(token: str) -> str:
    """Return the first character that begins in a token of bytes, "a" if none does.

    An ideograph stands for one of which only the first bytes are there, if it may be of a script without blanks.
    """
    spelled = bytes(BYTE_OF.get(character, 0) for character in token).lstrip(bytes(range(0x80, 0xC0)))
    first = spelled.decode("utf-8", errors="replace")[:1] or "a"
    if first != "\ufffd":
        return first
    return "一" if 0xE0 <= spelled[0] < 0xEA or spelled[0] >= 0xEF else "a"
