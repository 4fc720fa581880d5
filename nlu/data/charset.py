"""Files that are not UTF-8: at which line, and what they seem to be instead."""

import codecs
from pathlib import Path

from nlu.config.errors import DataError

MARKS = {
    codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32", codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}  # fmt: skip
"""First bytes that name an encoding; those of UTF-32 begin like those of UTF-16, so they come first."""
CANDIDATES = {"gb18030": "Chinese", "cp1252": "Western European"}
"""What files are found in, the stricter one first, since almost any bytes can be read as the latter."""
SAMPLE_BYTES = 1 << 20


def not_utf_8(path: Path, error: UnicodeDecodeError) -> DataError:
    """Return the error to raise for a file that could not be decoded, with an encoding only where it fits the bytes."""
    with open(path, "rb") as file:
        start = file.read(4)
    for mark, name in MARKS.items():
        if start.startswith(mark):
            return DataError(f"{path}: is {name.upper()}, not UTF-8; convert the file: iconv -f {name} -t utf-8")
    number, sample = _first_undecodable(path)
    for name, language in CANDIDATES.items():
        if _decodes(sample, name):
            remedy = f"convert the file, e.g. iconv -f {name} -t utf-8 if it is {language}, as its bytes allow"
            break
    else:
        remedy = "convert the file from the encoding that it was written in, e.g. by iconv, or mend this line"
    return DataError(f"{path}:{number}: is not UTF-8 ({error.reason}); {remedy}")


def _first_undecodable(path: Path) -> tuple[int, bytes]:
    """The number of the line, since the decoder that failed knows only the place in its buffer, and what follows."""
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, 1):
            if not _decodes(line, "utf-8"):
                return number, line + lines.read(SAMPLE_BYTES) + lines.readline()
    return 1, b""


def _decodes(content: bytes, encoding: str) -> bool:
    try:
        content.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True
