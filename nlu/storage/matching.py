"""Files of an object store that a pattern means, such as `s3://bucket/rows/part-*.csv`."""

from fnmatch import fnmatchcase
from glob import has_magic
from pathlib import Path

from nlu.config.errors import DataError
from nlu.storage.objects import store_of
from nlu.storage.places import parse_place
from nlu.storage.resources import fetch


def fetch_matching(reference: str, what: str) -> list[Path]:
    """Fetch all files whose keys match, in their order; a star goes up to the next slash.

    A key that has such signs itself means that one. Raises DataError where none matches.
    """
    place = parse_place(reference, what)
    found = store_of(place).look(place)
    if found is not None and not found.is_folder:
        return [fetch(reference, what=what)]
    parts = place.path.split("/")
    plain = next(number for number, part in enumerate(parts) if has_magic(part))
    start = f"{place.scheme}://{place.bucket}/{'/'.join(parts[:plain])}".rstrip("/")
    folder = parse_place(start, what)
    names = [name for name in store_of(folder).files(folder) if _matches(name.split("/"), parts[plain:])]
    if not names:
        raise DataError(f"{what} is {place.shown}, which no object matches; correct it")
    return [fetch(f"{start}/{name}", what=what) for name in names]


def _matches(parts: list[str], patterns: list[str]) -> bool:
    return len(parts) == len(patterns) and all(map(fnmatchcase, parts, patterns))
