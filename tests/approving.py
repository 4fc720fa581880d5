"""What people read, kept as it was approved: which words and numbers a table, a figure or a page shows, in which order.

Only the content is kept, without the spaces and lines that a library draws around it, so that other versions of the
libraries pass too. After an intended change, `NLU_APPROVE=1 python -m pytest FILE` writes what the code makes now. Look
at the difference that git shows before committing it.
"""

import html
import os
import re
from collections.abc import Iterator
from pathlib import Path

DRAWN = "│┃║┼╇╪━─═┏┓┗┛┡┩┌┐└┘├┤"
"""characters of which tables are drawn"""
CELL_ENDS = re.compile(rf"\s*[{DRAWN}]\s*| {{2,}}|\t")
BLOCKS = re.compile(r"<(?:tr|h1|h2|p|li|ul|section|pre|div|dl|title|svg|noscript)\b")


def assert_approved(kept: Path, found: str) -> None:
    """Assert that a text has the content that was approved; it is written if NLU_APPROVE is set."""
    text = "".join(f"{line}\n" for line in content_of(found))
    if os.environ.get("NLU_APPROVE"):
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(text, encoding="utf-8")
    assert text.splitlines() == kept.read_text(encoding="utf-8").splitlines(), f"{kept.name} is not what was approved"


def content_of(text: str) -> Iterator[str]:
    """Yield the lines of a text that say something, the cells of a table separated by one mark."""
    for line in text.splitlines():
        cells = [cell for cell in CELL_ENDS.split(line.strip()) if cell]
        if cells:
            yield " | ".join(cells)


def page_in_lines(path: Path) -> str:
    """Return the texts of a page of HTML: a line for each row of a table, heading, paragraph and entry of a list."""
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"<style>.*?</style>|<script>.*?</script>", "", text, flags=re.DOTALL)
    text = BLOCKS.sub(lambda found: f"\n{found[0]}", text.replace("\n", " "))
    return "\n".join(html.unescape(re.sub(r"(?:\s*<[^>]*>\s*)+", "  ", line)) for line in text.splitlines())
