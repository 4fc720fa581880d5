"""Word vectors of a file become the rows of the words that it has, in every usual form of such files."""

import gzip
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from nlu.config.errors import DataError, UserError
from nlu.display.progress_bars import Progress
from nlu.models.formats.vectors import fill

VOCABULARY = {"good": 2, "bad": 3, "of course": 4, "rare": 5}
LINES = ["good 1 2 3", "elsewhere 9 9 9", "of course -1 0.5 1e-3", "good 7 7 7", "bad 4 5 6"]


def filled(path: Path, counts_V: Any = (0,) * 6) -> np.ndarray:
    """The rows of the table afterwards; those that no vector has set are -8."""
    words = nn.Embedding(6, 3)
    nn.init.constant_(words.weight, -8)
    fill(words, VOCABULARY, str(path), np.array(counts_V), Progress(enabled=False))
    return words.weight.detach().numpy()


@pytest.fixture
def messages(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.INFO, logger="nlu.models.formats.vectors")
    return lambda: [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("header", [[], ["5 3"]])
@pytest.mark.parametrize("name", ["glove.txt", "cc.vec", "cc.vec.gz"])
def test_the_words_of_the_vocabulary_get_their_vectors(tmp_path: Path, header: list[str], name: str) -> None:
    text = "\n".join([*header, *LINES]) + "\n"
    (tmp_path / name).write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    expected = np.full((6, 3), -8.0, np.float32)
    # Of a word that occurs twice, the first line counts; words may contain spaces.
    expected[2], expected[3], expected[4] = (1, 2, 3), (4, 5, 6), (-1, 0.5, 1e-3)
    assert np.array_equal(filled(tmp_path / name), expected)


def test_another_width_is_refused_with_the_key_to_set(tmp_path: Path) -> None:
    for text in ("good 1 2 3 4\n", "7 4\ngood 1 2 3 4\n"):
        (tmp_path / "v.txt").write_text(text)
        with pytest.raises(
            UserError, match="have 4 numbers, but those of the model have 3; set model.embedding_size=4, or"
        ):
            filled(tmp_path / "v.txt")


def test_malformed_lines_are_counted_and_a_file_of_only_such_lines_is_refused(tmp_path: Path, messages: Any) -> None:
    (tmp_path / "v.txt").write_text("good 1 2 3\nbad 1 x 3\nrare 1 nan 3\n")
    rows = filled(tmp_path / "v.txt")
    assert rows[2].tolist() == [1, 2, 3] and rows[3].tolist() == rows[5].tolist() == [-8, -8, -8]
    assert "model.embeddings: 2 lines are not 3 numbers after a word, and skipped: 2, 3" in messages()
    (tmp_path / "v.txt").write_text("other 1 2 3\nbad 1 x 3\n")
    with pytest.raises(DataError, match=r"the lines of its words are malformed \(2\); give vectors of these words"):
        filled(tmp_path / "v.txt")
    (tmp_path / "v.txt").write_text("other 1 2 3\n")
    with pytest.raises(DataError, match="it has none of the vocabulary's words"):
        filled(tmp_path / "v.txt")


@pytest.mark.parametrize("line", ["text,label", "good 1 2 x", "text"])
def test_a_file_without_vectors_is_refused_with_its_first_line(tmp_path: Path, line: str) -> None:
    (tmp_path / "v.txt").write_text(f"{line}\nfine,1\n")
    with pytest.raises(DataError, match=f"whose first line is not a word and its numbers, .*: '{line}'; give a text"):
        filled(tmp_path / "v.txt")
