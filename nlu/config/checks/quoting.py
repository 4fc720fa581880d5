"""Quotes around what Hydra's grammar takes in quotes alone: words of other scripts, `data.train=数据.csv`, and
addresses with a query, a sha256 or a partition, `output=odps://PROJECT/tables/NAME/pt=1`.
"""

import re

_QUOTED = r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\""""
_PIECES_INSIDE = re.compile(rf"{_QUOTED}|[^'\"{{}}\[\](),:]+|.", re.DOTALL)
"""pieces of a list, mapping or function: quoted texts, words, and marks between them"""
_PIECES = re.compile(rf"{_QUOTED}|[^'\",]+|.", re.DOTALL)
"""pieces of plain values, of which a sweep has several"""
_ADDRESSES = re.compile(rf"{_QUOTED}|(?P<address>[A-Za-z][\w+.-]*://[^\s'\"{{}}\[\](),\\]*)")


def quoted(argument: str) -> str:
    """Return an override with quotes around each word of its value that holds letters beyond ASCII, and each address
    that holds one of =#&~!;.

    Left as they are: what is in quotes already, has a backslash or an interpolation, and keys of mappings, which Hydra
    knows in ASCII alone.
    """
    key, equals, value = argument.partition("=")
    if "${" in value:
        return argument
    value = _ADDRESSES.sub(
        lambda match: f'"{match[0]}"' if set("=#&~!;").intersection(match["address"] or "") else match[0], value
    )
    if value.isascii():
        return f"{key}{equals}{value}"
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
