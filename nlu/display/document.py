"""The page around what a page of this package shows: its head, its heading, and the styles inside it."""

import html
from collections.abc import Sequence
from importlib.resources import files
from string import Template


def document(body: str, title: str, counts: str, styles: Sequence[str], *, facts: str = "", **shown: str) -> str:
    """Return a page of HTML that needs no other file.

    `body` names a template of this package, whose places `shown` fills, and `styles` its style sheets; `title` and
    `counts` are texts, all else is HTML.
    """
    return Template(part("document.html")).substitute(
        title=html.escape(title), counts=html.escape(counts), facts=facts, style="".join(map(part, styles)),
        body=Template(part(body)).substitute(shown),
    )  # fmt: skip


def part(name: str) -> str:
    """Return the text of a file of this package."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
