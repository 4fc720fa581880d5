"""Quotes around words of other scripts, which Hydra's grammar takes in quotes alone: `data.train=数据.csv`."""

import re

_QUOTED = r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\""""
_PIECES_INSIDE = re.compile(rf"{_QUOTED}|[^'\"{{}}\[\](),:]+|.", re.DOTALL)
"""pieces of a list, mapping or function: quoted texts, words, and marks between them"""
_PIECES = re.compile(rf"{_QUOTED}|[^'\",]+|.", re.DOTALL)
"""pieces of plain values, of which a sweep has several"""


def quoted(argument: str) -> str:
    """Return an override with quotes around each word of its value that holds letters beyond ASCII.

    Left as they are: what is in quotes already, has a backslash or an interpolation, and keys of mappings, which Hydra
    knows in ASCII alone.
    """
    key, equals, value = argument.partition("=")
    if value.isascii() or "${" in value:
        return argument
    pieces = (_PIECES_INSIDE if re.search(r"[\[{(]", value) else _PIECES).findall(value)
    following = [*pieces[1:], ""]
    return f"{key}=" + "".join(
        _in_quotes(piece) if after != ":" else piece for piece, after in zip(pieces, following, strict=True)
    )


def _in_quotes(piece: str) -> str:
    word = piece.strip()
    if word.isascii() or word[0] in "'\"" or "\\" in word:
        return piece
    return piece.replace(word, f'"{word}"')
