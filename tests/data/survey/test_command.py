"""python -m nlu.data: its page, and what it says of files that cannot be used."""

import re
from pathlib import Path

import pytest

from nlu.commands.data import main
from nlu.config.errors import UserError
from tests import warm
from tests.training.runs import REPOSITORY, SAME_THREADS

ROWS = "review,stars\n" + "".join(f"what number {n} says is fine,{n % 2}\n" for n in range(12))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NLU_DATA", str(tmp_path / "data"))
    (tmp_path / "shop.csv").write_text(ROWS)
    return tmp_path


def test_the_page_stands_by_itself_and_shows_texts_as_texts(capsys: pytest.CaptureFixture[str]) -> None:
    Path("rows.csv").write_text(ROWS + "</script><b>bold</b> & $title,1\n" * 2)
    assert main(["rows.csv", "--out", "page.html"]) == 0
    assert capsys.readouterr().out.endswith("page.html\n")
    page = Path("page.html").read_text()
    assert page.count("<svg") == 1 and "prefers-color-scheme: dark" in page and "width=device-width" in page
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?!["'#])|url\((?!#)|@import|<script|<link""", page)
    assert "&lt;/script&gt;&lt;b&gt;bold&lt;/b&gt; &amp; $title" in page and "<b>bold" not in page


def test_the_survey_runs_as_a_module_and_refuses_with_status_2(here: Path) -> None:
    environment = {**SAME_THREADS, "PYTHONPATH": str(REPOSITORY)}
    done = warm.run(["-m", "nlu.data", "nowhere.csv"], cwd=here, env=environment)
    assert done.returncode == 2 and done.stdout == "" and "Traceback" not in done.stderr
    assert done.stderr.startswith("nlu: error: 'nowhere.csv' does not exist here")


BAD = {
    "empty.csv": b"",
    "head.csv": b"text,label\n",
    "blank.csv": b"text,label\n,a\n ,b\n",
}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["empty.csv"], "empty.csv is empty; give a file with rows"),
        (["head.csv"], "head.csv holds no row; give a file with rows"),
        (["blank.csv", "--fields", "text=text"], "none of its 2 rows can be used"),
        (["shop.csv", "--fields", "text=reviw"], "--fields text is 'reviw', but the header has .*nearest: review"),
        (["shop.csv", "--fields", "txt=review"], "'txt' is not a role of a column; nearest: text"),
        (["--fields", "text=review", "shop.csv"], "must be ROLE=COLUMN, after the files"),
        (["shop.csv", "--fields", "label=stars"], "needs a column of texts"),
        (["shop.csv", "--tokenizer", "nowhere"], "--tokenizer nowhere does not exist"),
        (["shop.csv", "--model", "a", "--tokenizer", "b"], "both name a tokenizer"),
        (["shop.csv", "--out", "shop.csv"], "a page is a file whose name ends in .html"),
        (["shop.csv", "--out", "there.html"], "which exists; nothing was written"),
        (["shop.csv", "--separator", "ab"], "--separator is 'ab' but must be one character"),
        (["shop.csv", "--separator", ";"], "correct --separator, or leave it out"),
        (["shop.csv", "shop.csv"], "two sets would be called"),
    ],
)
def test_mistakes_are_reported_in_one_sentence_with_status_2(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    for name, content in BAD.items():
        (here / name).write_bytes(content)
    (here / "there.html").write_text("kept")
    with pytest.raises(UserError, match=words):
        main(arguments)
    assert (here / "there.html").read_text() == "kept" and capsys.readouterr().out == ""
