"""How Sphinx makes the site: `make docs`.

The folder of the sources is that of the repository, so that a link between two files leads to the same page here as
where the repository is read. README.md is the front page; docs/index.md, which is put below it, has the order of all
others.
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
include_patterns = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/*.md", "docs/api/*", "benchmarks/*.md"]
exclude_patterns = ["docs/index.md", "docs/_build", ".*", "outputs", "multirun", "build", "dist"]
extensions = ["myst_parser", "sphinx.ext.autodoc"]
# Levels of headings that have an anchor, named as they are where the files are read as Markdown.
myst_heading_anchors = 4
highlight_language = "text"
# They would make one dash of the two of a flag.
smartquotes = False

# The keys of a choice are described where they are taken, in __init__.
autoclass_content = "both"
autodoc_inherit_docstrings = False
autodoc_member_order = "bysource"
python_maximum_signature_line_length = 100
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = "nlu"
html_copy_source = False


def add_navigation(app: Sphinx, page: str, source: list[str]) -> None:
    """Put the order of the pages below the front page."""
    if page == root_doc:
        source[0] += "\n" + (ROOT / "docs/index.md").read_text(encoding="utf-8")


def add_index(app: Sphinx, failure: Exception | None) -> None:
    """Have the front page also under the name that a server looks for."""
    front = Path(app.outdir) / f"{root_doc}.html"
    if failure is None and front.is_file():
        shutil.copy(front, front.with_name("index.html"))


def setup(app: Sphinx) -> None:
    """Say what is done when."""
    api_pages.write_pages(ROOT / "nlu", ROOT / "docs/api")
    app.connect("source-read", add_navigation)
    app.connect("autodoc-process-signature", api_pages.with_names_of_types)
    app.connect("autodoc-process-docstring", api_pages.as_restructured_text)
    app.connect("build-finished", add_index)
