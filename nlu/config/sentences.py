"""Numbers and paths in sentences."""

import errno
import os
import re
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path


def counted(count: int, noun: str) -> str:
    """Return `1 trial`, `3 trials`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def shortened(text: str, most: int = 40) -> str:
    """Return a text, or its beginning and "..." if it has more than `most` characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def joined_tokens(tokens: Sequence[str]) -> str:
    """Return tokens as a text, with spaces between them except beside Chinese and Japanese characters."""
    parts = list(tokens[:1])
    for before, token in pairwise(tokens):
        parts.append(token if _is_wide(before[-1:]) or _is_wide(token[:1]) else f" {token}")
    return "".join(parts)


def _is_wide(letter: str) -> bool:
    # Korean letters are wide too, but Korean puts spaces between words.
    return bool(letter) and unicodedata.east_asian_width(letter) in "WF" and not "가" <= letter <= "힣"


def listed(names: Sequence[str], most: int = 12) -> str:
    """Return names with commas between them, and "..." in place of those after the first `most`."""
    return ", ".join([*names[:most], *(["..."] if len(names) > most else [])])


def one_of(names: Sequence[str]) -> str:
    """Return `a`, `a or b`, `a, b or c`."""
    return " or ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def numbered(noun: str, numbers: Sequence[int]) -> str:
    """Return `trial 3`, `trials 3 and 5`, `trials 3, 5 and 7`."""
    texts = [str(number) for number in numbers]
    listing = " and ".join(filter(None, [", ".join(texts[:-1]), *texts[-1:]]))
    return f"{noun}{'s' * (len(texts) != 1)} {listing}"


_origins: dict[str, list[str]] = {}
"""Origins of local copies, by absolute path. Several origins may share a copy."""
_lengths: set[int] = set()
"""Lengths of these paths."""
_BEGINS = re.compile(r"(?<![\w.\-/])/")
"""The beginning of an absolute path."""
_CONTINUES = re.compile(r"[\w-]|\.\w|/\.\.")
"""What follows a path that is only the beginning of another one, such as rows.csv.lock."""
_DISK_ERRORS = tuple(map(os.strerror, (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS)))


def show_as(path: Path, origin: str) -> None:
    """Make messages name the origin of a copied file or folder, and of everything below it, instead of the copy."""
    origins = _origins.setdefault(os.path.abspath(path), [])
    if origin not in origins:
        origins.append(origin)
    _lengths.add(len(os.path.abspath(path)))


def with_origins(text: str) -> str:
    """Return a text with the origins of copies in place of their paths, unless it is an error of the local disk."""
    # A full disk is a problem of the copy's path, which the user must see.
    if not _origins or any(message in text for message in _DISK_ERRORS):
        return text
    # The longest first: a copy may be inside another one.
    pieces, done, lengths = [], 0, sorted(_lengths, reverse=True)
    for start in (found.start() for found in _BEGINS.finditer(text)):
        ends = (start + length for length in lengths)
        end = next((end for end in ends if text[start:end] in _origins and not _CONTINUES.match(text, end)), None)
        if end is not None and start >= done:
            pieces += [text[done:start], " or ".join(_origins[text[start:end]])]
            done = end
    return "".join([*pieces, text[done:]])


def called(path: Path) -> str:
    """Return the given path, or the origin if it is a copy."""
    return with_origins(str(path))


def path_text(path: Path) -> str:
    """Return a path, relative if it is below the working folder and else absolute, or the origin if it is a copy."""
    absolute = os.path.abspath(path)
    if (origin := with_origins(absolute)) != absolute:
        return origin
    return os.path.relpath(absolute) if Path(absolute).is_relative_to(Path.cwd()) else absolute


def beyond_positions(max_len: int, positions: int, layouts: Iterable[str]) -> str:
    """Return the problem of a `data.max_len` beyond the positions of a model; `layouts`: those that may apply."""
    longer = "; data.long=windows reads longer texts in windows" if {"single", "units"} & set(layouts) else ""
    return f"data.max_len is {max_len}, but the model has {positions} positions; set it to <= {positions}{longer}"
