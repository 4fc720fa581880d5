"""What a person looks at, kept as it was approved: looks and words have no formula that a test could compute.

After a change on purpose, `NLU_APPROVE=1 python -m pytest FILE` writes what is made now. Look at the difference that
git shows before committing it.
"""

import os
import re
from pathlib import Path


def assert_approved(kept: Path, found: str) -> None:
    """Assert that a text is the one that was approved; it is written where NLU_APPROVE is set."""
    text = "".join(f"{line.rstrip()}\n" for line in found.splitlines())
    if os.environ.get("NLU_APPROVE"):
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(text, encoding="utf-8")
    assert text.splitlines() == kept.read_text(encoding="utf-8").splitlines(), f"{kept.name} is not what was approved"


def page_in_lines(path: Path) -> str:
    """Return a page of HTML, a tag a line, without its styles and its programs."""
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"<style>.*?</style>|<script>.*?</script>", "", text, flags=re.DOTALL)
    return "\n".join(line for line in re.sub(r"(?=<[a-zA-Z!])", "\n", text).splitlines() if line.strip())
