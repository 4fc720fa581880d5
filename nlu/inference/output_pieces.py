"""The places of outputs that are made in pieces (`nlu.inference.claimed`), and of the files that they are made of."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Protocol

from nlu.config.command_keys import STANDARD
from nlu.config.errors import UserError
from nlu.config.sentences import counted
from nlu.data.dataset import find_file
from nlu.jobs.placement import placement
from nlu.storage.cache import cache_dir, text_digest
from nlu.storage.locations import files_like, is_pattern, parse_place
from nlu.storage.outputs import require_no_object
from nlu.storage.settle import require_writable
from nlu.storage.tables import TableTarget, is_table

DONE = "done"
"""the last piece, which says that the result is complete"""


class Joins(Protocol):
    """Joins pieces."""

    def join(self, pieces: Sequence[Path], file: BinaryIO) -> None:
        """Write all pieces, in order."""


def folder_beside(output: str, key: str = "output") -> Path:
    """Return the folder of this machine for the pieces of an output: beside a file, or in the cache."""
    if is_table(output):
        shown, name = (target := TableTarget(output, key)).shown, target.name
    elif (place := parse_place(output, key, writes=True)).is_local:
        return Path(output).with_name(f".{place.name}.pieces")
    else:
        shown, name = place.shown, place.name
    return cache_dir() / "outputs" / text_digest(shown) / f".{name}.pieces"


def require_free(output: str) -> None:
    """Raise UserError if there is something at the place of an output, or nothing can be written there."""
    if is_table(output):
        TableTarget(output, "output").require_free()
    elif not (place := parse_place(output, "output", writes=True)).is_local:
        require_no_object(place, "output")
    elif (path := Path(output)).exists():
        raise UserError(f"output is {path}, which exists; nothing was written; choose another, or remove it")
    elif not path.parent.is_dir():
        raise UserError(f"output is {path}, but the folder {path.parent} does not exist; make it, or choose another")
    else:
        require_writable(path.parent, "output", path)


def require_new(output: str) -> None:
    """Raise what `require_free` raises, unless a command may have made the output and was killed before its end."""
    if not any(folder_beside(output).glob(f"*/{DONE}*")):
        require_free(output)


def require_places(inputs: str | Sequence[str], output: str, jobs: int) -> None:
    """Raise UserError for an input that is missing and an output that exists or cannot be written."""
    pairs = pairs_of(inputs, output)
    for path, _ in pairs:
        if path != STANDARD:
            find_file("input", path)
    # Not with several ranks or jobs: one that starts late would find the pieces of the others.
    if output != STANDARD and placement().kind == "alone" and jobs == 1:
        for _, place in pairs:
            require_new(place)


def pairs_of(inputs: str | Sequence[str], output: str) -> list[tuple[str, str]]:
    """Return each input with its output, in which `*` becomes the name of the input without its suffix.

    Patterns stand for the files that match. Raises UserError if several inputs would have the same output.
    """
    given = [inputs] if isinstance(inputs, str) else list(inputs)
    if not given:
        raise UserError("input is [], which names no file; give at least one")
    # A pattern without files stays; the error of a missing file describes it.
    paths = [path for one in given for path in ([*map(str, files_like(one))] if is_pattern(one) else []) or [one]]
    if len(paths) == 1 and "*" not in output:
        return [(paths[0], output)]
    if STANDARD in (*paths, output) or is_table(output):
        raise UserError(
            f"input names {counted(len(paths), 'file')} and output is {output}; give files, and for each a file"
        )
    if output.count("*") != 1:
        raise UserError(
            f"input names {counted(len(paths), 'file')}, but output is {output}; write one * into output, which stands "
            "for the name of each, such as 'output=predicted-*.csv'"
        )
    pairs = {output.replace("*", _name_of(path)): path for path in paths}
    if len(pairs) < len(paths):
        twice = next(path for path in paths if path not in pairs.values())
        other = pairs[output.replace("*", _name_of(twice))]
        raise UserError(
            f"input names {twice} and {other}, whose outputs would have the same name; predict one by itself"
        )
    return [(path, place) for place, path in pairs.items()]


def _name_of(path: str) -> str:
    """Return the name of a file without its suffix, and without that of a compressed file."""
    name = re.split("[?#]", path)[0].rstrip("/").rpartition("/")[2].removesuffix(".gz")
    return Path(name).stem
