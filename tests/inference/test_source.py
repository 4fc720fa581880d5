"""Standard input as the rows to predict."""

import io
import logging
import shutil

import pytest

from nlu.inference.source import found


class Piped:
    """Standard input that is a pipe with bytes."""

    def __init__(self, content: bytes):
        self.buffer = io.BytesIO(content)


def test_standard_input_is_a_file_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Piped(b"a\nb\n"))
    with found("-", "lines") as path:
        assert path.read_bytes() == b"a\nb\n"
    assert not path.parent.exists()


def test_a_copy_that_cannot_be_removed_is_logged_and_does_not_fail_the_command(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sys.stdin", Piped(b"a\n"))
    with caplog.at_level(logging.WARNING), found("-", "lines") as path:
        # A folder that became a file, which rmtree refuses for every user, root too.
        shutil.rmtree(path.parent)
        path.parent.write_text("")
    assert f"{path.parent}, a copy of standard input, cannot be removed: Not a directory" in caplog.text
    path.parent.unlink()


def test_an_error_of_the_command_is_not_hidden_by_one_of_the_clean_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Piped(b"a\n"))
    with pytest.raises(ZeroDivisionError), found("-", "lines") as path:
        shutil.rmtree(path.parent)
        path.parent.write_text("")
        raise ZeroDivisionError
    path.parent.unlink()
