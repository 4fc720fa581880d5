"""The site of the docs is built without a warning, and a page that is wrong is one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distribution import copy_checkout

sphinx = pytest.importorskip("sphinx", reason="the extra docs is not installed")
pytest.importorskip("myst_parser", reason="the extra docs is not installed")
pytest.importorskip("furo", reason="the extra docs is not installed")

PAGES = "include_patterns=README.md,CONTRIBUTING.md,CHANGELOG.md,docs/*.md,benchmarks/*.md"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a copy, since what is built lies beside the pages."""
    copy_checkout(tmp_path / "checkout")
    return tmp_path / "checkout"


def build(checkout: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Build the site as the Makefile does."""
    strict = ("--quiet", "--fail-on-warning", "--keep-going", "--fresh-env")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    # It takes three minutes on an idle core, and other tests run at the same time.
    return subprocess.run(
        [sys.executable, "-m", "sphinx", *strict, "-c", "docs", "-b", "html", *options, ".", "docs/_build/html"],
        cwd=checkout, env=environment, capture_output=True, text=True, timeout=3600,
    )  # fmt: skip


@pytest.mark.thorough
def test_the_site_is_built_without_a_warning_and_loads_nothing_from_elsewhere(checkout):
    done = build(checkout)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    site = checkout / "docs/_build/html"
    front = (site / "index.html").read_text(encoding="utf-8")
    assert front == (site / "README.html").read_text(encoding="utf-8") and 'href="docs/losses.html"' in front
    for path in (*checkout.glob("docs/*.md"), *checkout.glob("benchmarks/*.md")):
        page = site / path.relative_to(checkout).with_suffix(".html")
        assert page.is_file() == (path.name != "index.md")
    for path in (checkout / "nlu").rglob("__init__.py"):
        assert (site / f"docs/api/{'.'.join(path.parent.relative_to(checkout).parts)}.html").is_file()
    losses = (site / "docs/api/nlu.losses.html").read_text(encoding="utf-8")
    assert "how strongly the weight of confident, correct rows is reduced" in losses and "NonNegativeFloat" in losses
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert 'src="http' not in text and '<link rel="preconnect' not in text and "fonts.g" not in text


@pytest.mark.thorough
def test_a_broken_link_a_missing_anchor_and_a_page_without_a_place_fail(checkout):
    (checkout / "docs/extra.md").write_text(
        "# Extra\n\n[a](nowhere.md), [b](losses.md#nowhere), [c](losses.md#weights)\n"
    )
    done = build(checkout, "-D", PAGES)
    assert done.returncode != 0
    warnings = [line for line in done.stderr.splitlines() if "extra.md" in line]
    assert [word for word in ("nowhere.md", "'nowhere'", "toctree") if not any(word in line for line in warnings)] == []
    assert not any("weights" in line for line in warnings)


def test_docstrings_keep_code_columns_and_stars(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "docs"))
    import api_pages

    lines = ["Say `key_` of *** and a_b_.", "    code * here", "after", "", "python -m nlu.train --flag", "b    c", ""]
    api_pages.as_restructured_text(None, "module", "name", None, None, lines)
    assert [line for line in lines if line] == [
        r"Say \ ``key_``\  of \*\*\* and a_b\_.", "::", "        code * here", "after",
        "::", "    python -m nlu.train --flag", "    b    c",
    ]  # fmt: skip


def test_the_page_of_files_lists_each_with_its_lines_and_first_sentence(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "docs"))
    import api_pages

    (tmp_path / "pkg/inner").mkdir(parents=True)
    (tmp_path / "pkg/b.py").write_text('"""Count words. Then stop.\n\nMore."""\n')
    (tmp_path / "pkg/a.py").write_text('"""Read a.b | c,\nthen go on."""\nx = 1\n')
    (tmp_path / "pkg/inner/c.py").write_text('"""Last."""\n')
    rows = [line for line in api_pages.files_page(tmp_path, ["pkg"]).splitlines() if line.startswith(("## ", "| "))]
    assert [row for row in rows if "what it does" not in row] == [
        "## pkg", r"| a.py | 3 | Read a.b \| c, then go on. |", "| b.py | 3 | Count words. |",
        "## pkg/inner", "| c.py | 1 | Last. |",
    ]  # fmt: skip
