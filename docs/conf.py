"""How Sphinx makes the site: `make docs`.

The source folder is the root of the repository, so links between files work both on the site and in the repository.
README.md is the front page; docs/index.md, which is appended to it, lists all other pages in order.
"""

import shutil
import sys
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

import api_pages  # noqa: E402

import nlu  # noqa: E402

project, author, version = "nlu", "The nlu authors", nlu.__version__
project_copyright = author
root_doc = "README"
include_patterns = [
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md"),
    *("docs/*.md", "docs/extending/*.md", "docs/api/*", "benchmarks/*.md"),
]
exclude_patterns = ["docs/index.md", "docs/_build", ".*", "outputs", "multirun", "build", "dist"]
extensions = ["myst_parser", "sphinx.ext.autodoc"]
# Levels of headings that get an anchor, with the names that other Markdown viewers give them.
myst_heading_anchors = 4
highlight_language = "text"
# Smart quotes would turn the two dashes of a flag into one.
smartquotes = False

# The docstring of __init__ describes the keys of a choice.
autoclass_content = "both"
autodoc_inherit_docstrings = False
autodoc_member_order = "bysource"
# Types are annotations; searching the source of each function for comments takes a tenth of the build.
autodoc_use_type_comments = False
python_maximum_signature_line_length = 100
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = "nlu"
html_copy_source = False


def add_navigation(app: Sphinx, page: str, source: list[str]) -> None:
    """Append the list of pages to the front page."""
    if page == root_doc:
        source[0] += "\n" + (ROOT / "docs/index.md").read_text(encoding="utf-8")


def add_index(app: Sphinx, failure: Exception | None) -> None:
    """Copy the front page to index.html, the name that a server looks for."""
    front = Path(app.outdir) / f"{root_doc}.html"
    if failure is None and front.is_file():
        shutil.copy(front, front.with_name("index.html"))


def setup(app: Sphinx) -> None:
    """Write the API pages and connect the hooks."""
    api_pages.write_pages(ROOT / "nlu", ROOT / "docs/api")
    app.connect("source-read", add_navigation)
    app.connect("autodoc-process-signature", api_pages.with_names_of_types)
    app.connect("autodoc-process-docstring", api_pages.as_restructured_text)
    app.connect("build-finished", add_index)
