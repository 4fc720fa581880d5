"""Local files that a data path of a configuration means: in the working folder or else in the folder of data sets."""

import os
from glob import glob, has_magic
from pathlib import Path

DEFAULT_DATA_FOLDER = "../shared/data"


def data_folder() -> Path:
    """Return the folder of data sets: $NLU_DATA, or the default."""
    return Path(os.environ.get("NLU_DATA", DEFAULT_DATA_FOLDER)).expanduser()


def is_pattern(reference: str) -> bool:
    """Return whether a path is a pattern for several files (`split*`), and not the name of an existing file."""
    return has_magic(reference) and "://" not in reference and not Path(reference).expanduser().is_file()


def files_like(pattern: str) -> list[Path]:
    """Return the files that match, sorted by name: those in the working folder or, if none, in `data_folder`."""
    for folder in (Path(), data_folder()):
        found = sorted(Path(name) for name in glob(str(folder / Path(pattern).expanduser())) if Path(name).is_file())
        if found:
            return found
    return []


def named_file(reference: str) -> Path | None:
    """Return the file that a path names, in the working folder or else in `data_folder`; None if there is none."""
    places = (Path(reference).expanduser(), data_folder() / reference)
    return next((path for path in places if path.is_file()), None)


def path_problem(key: str, reference: str) -> str | None:
    """Return why a path names no file of this machine, with rule and remedy; None if it does."""
    folder = data_folder()
    if is_pattern(reference):
        missing = f"{key} is {reference!r}, which no file matches here or in {folder} (NLU_DATA); correct {key}"
        return None if files_like(reference) else missing
    if named_file(reference) is not None:
        return None
    for candidate in (Path(reference).expanduser(), folder / reference):
        if candidate.is_dir():
            return f"{key} is {reference!r}, which is a folder {_content_of(candidate)}; set {key} to a file"
    return f"{key} is {reference!r}, which does not exist here or in {folder} (NLU_DATA); set {key} to a file or URL"


def _content_of(folder: Path) -> str:
    names = sorted(path.name for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    shown = ", ".join([*names[:8], f"and {len(names) - 8} more"] if len(names) > 8 else names)
    return f"that holds {shown}" if names else "without files"
