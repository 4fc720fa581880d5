"""python -m nlu.data: its page, and what it says of files that cannot be used."""

import json
import re
import shlex
from pathlib import Path

import pytest

from nlu.config.errors import UserError
from nlu.data.__main__ import main
from tests import warm
from tests.training.in_process import composed
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
    assert page.count("<svg") == 3 and "prefers-color-scheme: dark" in page and "width=device-width" in page
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?!["'#])|url\((?!#)|@import|<script|<link""", page)
    assert "&lt;/script&gt;&lt;b&gt;bold&lt;/b&gt; &amp; $title" in page and "<b>bold" not in page


def test_the_command_to_begin_with_trains_on_these_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train=shop.csv", "shop2=shop.csv", "--json"]) == 0
    command = json.loads(capsys.readouterr().out)["command"]
    _, _, module, *overrides = shlex.split(command)
    assert module == "nlu.train"
    config = composed(*overrides)
    assert config.data["fields"] == {"text": "review", "label": "stars"} and config.data["dev"].endswith("shop.csv")


def test_a_separator_is_used_and_repeated_in_the_suggested_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("bars.csv").write_text(ROWS.replace(",", "|").replace("what", "what,"))
    assert main(["bars.csv", "--separator", "|", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    config = composed(*shlex.split(told["command"])[3:])
    assert config.data["separator"] == "|" and config.data["fields"] == {"text": "review", "label": "stars"}
    assert told["sets"]["bars"]["rows"] == 12


def test_the_survey_runs_as_a_module_with_status_0_and_2(here: Path) -> None:
    environment = {**SAME_THREADS, "PYTHONPATH": str(REPOSITORY)}
    done = warm.run(["-m", "nlu.data", "shop.csv", "--fields", "text=review"], cwd=here, env=environment)
    assert done.returncode == 0 and "text = review (as given)" in done.stdout
    done = warm.run(["-m", "nlu.data", "nowhere.csv"], cwd=here, env=environment)
    assert done.returncode == 2 and done.stdout == "" and "Traceback" not in done.stderr
    assert done.stderr.startswith("nlu: error: 'nowhere.csv' does not exist here")


BAD = {
    "empty.csv": b"",
    "head.csv": b"text,label\n",
    "latin.csv": b"text,label\n" + "schön und gut,a\n".encode("latin-1") * 3,
    "blank.csv": b"text,label\n,a\n ,b\n",
    "sheet.xlsx": b"x",
    "what.dat": b"x",
}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["empty.csv"], "empty.csv is empty; give a file with rows"),
        (["head.csv"], "head.csv holds no row; give a file with rows"),
        (["latin.csv"], "latin.csv:2: is not UTF-8"),
        (["blank.csv", "--fields", "text=text"], "none of its 2 rows can be used"),
        (["sheet.xlsx"], "not an Excel workbook"),
        (["what.dat"], "set --format to one of"),
        (["shop.csv", "--fields", "text=reviw"], "--fields text is 'reviw', but the header has .*nearest: review"),
        (["shop.csv", "--fields", "txt=review"], "'txt' is not a role of a column; nearest: text"),
        (["--fields", "text=review", "shop.csv"], "must be ROLE=COLUMN, after the files"),
        (["shop.csv", "--fields", "label=stars"], "needs a column of texts"),
        (["."], "'.' is a folder"),
        (["shop.csv", "--tokenizer", "nowhere"], "--tokenizer nowhere does not exist"),
        (["shop.csv", "--tokenizer", "shop.csv"], "lacks \\[UNK\\]"),
        (["shop.csv", "--model", "a", "--tokenizer", "b"], "both name a tokenizer"),
        (["shop.csv", "--out", "shop.csv"], "a page is a file whose name ends in .html"),
        (["shop.csv", "--out", "there.html"], "which exists; nothing was written"),
        (["shop.csv", "--field", "text=review"], "nearest: --fields"),
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
