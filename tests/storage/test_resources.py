"""Dispatch by scheme, local paths and the written form of references."""

import hashlib
import logging
import subprocess
import sys

import pytest

from nlu.config.errors import DataError, UserError
from nlu.config.words import path_text
from nlu.data.readers import BadRow, read_rows
from nlu.runs.logs import HidingFormatter
from nlu.storage.places import Reference, parse_place
from nlu.storage.resources import fetch


def test_a_local_path_is_returned_as_it_is_and_never_copied(tmp_path, monkeypatch, cache):
    (tmp_path / "data.txt").write_text("x")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert fetch(str(tmp_path)) == tmp_path
    assert fetch("data.txt").read_text() == "x"
    assert fetch("~/data.txt") == fetch(f"file://{tmp_path}/data.txt") == tmp_path / "data.txt"
    assert not cache.exists()


def test_errors_and_logs_name_what_was_written_and_not_where_the_cache_has_it(server, cache, tmp_path):
    server.files |= {"/rows.csv": b"text,label\na,b\nc\n", "/folder/rows.csv.more": b""}
    path = fetch(server.url("/rows.csv?version=2"))
    (bad,) = [row for row in read_rows(path, "auto", {"text": "text"}, True) if isinstance(row, BadRow)]
    assert bad.describe(path).startswith(f"{server.url('/rows.csv')}:3: field (row)")
    with pytest.raises(DataError, match=f"{server.url('/rows.csv')}:1: data.fields.text is 'x'"):
        list(read_rows(path, "auto", {"text": "x"}, True))
    record = logging.LogRecord("nlu", logging.INFO, "", 0, "%s and %s-more", (path, path), None)
    assert HidingFormatter().format(record) == f"{server.url('/rows.csv')} and {path}-more"
    assert path_text(path) == server.url("/rows.csv") and parse_place(str(path)).path == str(path)
    # What is no copy keeps its name.
    assert str(UserError(f"{tmp_path}/rows.csv:3: no")) == f"{tmp_path}/rows.csv:3: no"


def test_a_missing_local_path_is_named_with_what_it_is_for(tmp_path):
    with pytest.raises(DataError, match=r"training set .*missing\.txt does not exist.*correct the path"):
        fetch(str(tmp_path / "missing.txt"), what="training set")


def test_a_local_file_is_checked_against_its_sha256(tmp_path):
    file = tmp_path / "data.txt"
    file.write_bytes(b"x")
    right, wrong = hashlib.sha256(b"x").hexdigest(), "0" * 64
    assert fetch(f"{file}#sha256={right.upper()}") == file
    with pytest.raises(DataError, match=f"{right}.*{wrong}"):
        fetch(f"{file}#sha256={wrong}")
    with pytest.raises(DataError, match="folder"):
        fetch(f"{tmp_path}#sha256={right}")


def test_a_number_sign_in_a_file_name_is_part_of_the_name(tmp_path):
    (tmp_path / "a#b.txt").write_text("x")
    assert fetch(str(tmp_path / "a#b.txt")) == tmp_path / "a#b.txt"


@pytest.mark.parametrize("reference", ["", "  ", "data.txt#sha256=123", "nosuch://bucket/file"])
def test_a_malformed_reference_is_refused(reference):
    with pytest.raises(UserError):
        fetch(reference)


@pytest.mark.parametrize(
    ("reference", "shown", "name"),
    [
        ("https://user:secret@host/a/b.txt?signature=secret#part", "https://***@host/a/b.txt", "b.txt"),
        ("https://host", "https://host", "host"),
        ("https://host/a/..", "https://host/a/..", "file"),
        ("sftp://user:secret@host/a/b?c#d", "sftp://***@host/a/b?c#d", "b?c#d"),
    ],
)
def test_messages_show_no_credentials_and_names_stay_inside_their_folder(reference, shown, name):
    parsed = Reference(reference, reference.partition("://")[0], None, "file")
    assert (parsed.shown, parsed.name) == (shown, name)


def test_importing_fetch_imports_nothing_heavy():
    code = "import sys, nlu.storage.resources; print({'torch', 'numpy', 'fsspec', 'rich'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"
