"""Word vectors from a text file, for the table of an encoder: word2vec's and fastText's .vec, GloVe.

A line is a word and its numbers, separated by spaces. A first line of two integers, the number of words and their
width, is skipped. Words may contain spaces, as some of GloVe do.

Axes: V tokens of the vocabulary, D width.
"""

import gzip
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TextIO

import numpy as np
import torch
from torch import nn

from nlu.config.errors import DataError, UserError
from nlu.data.arrays import occurrences
from nlu.data.examples import Examples
from nlu.data.store import chunks_of
from nlu.display.progress import Progress
from nlu.storage.resources import fetch

log = logging.getLogger(__name__)

NAMED = 5
"""lines and words that a message names"""


def fill(
    words: nn.Embedding, vocabulary: Mapping[str, int], reference: str, trained: Sequence[Examples], progress: Progress
) -> None:
    """Set the rows of the words that the file has, and log how much of the vocabulary and the training texts it covers.

    Other rows keep their random values. Only lines of words in the vocabulary are parsed, so memory does not grow with
    the file; of a word that occurs twice, the first line counts. Raises UserError if the file has another width than
    the table, DataError if no word of the vocabulary has a vector that can be read.
    """
    path = fetch(reference, what="model.embeddings")
    width = words.embedding_dim
    is_found_V = np.zeros(words.num_embeddings, bool)
    malformed: list[int] = []
    with progress.task("word vectors") as bar, torch.no_grad(), _open(path) as file:
        for number, line in _vectors(file, width, reference):
            if number % 4096 == 0:
                bar.advance(4096)
            # The word is cut off first, because most lines of a large file are of words that are not needed.
            word = line.split(" ", 1)[0]
            if word not in vocabulary and line.count(" ") == width:
                continue
            word, *texts = line.rsplit(" ", width)
            place = vocabulary.get(word)
            if place is None or is_found_V[place]:
                continue
            if (vector := _numbers(texts, width)) is None:
                malformed.append(number)
                continue
            words.weight[place] = torch.from_numpy(vector).to(words.weight)
            is_found_V[place] = True
    shown = ", ".join(map(str, malformed[:NAMED])) + (", ..." if len(malformed) > NAMED else "")
    if not is_found_V.any():
        why = (
            f"the lines of its words are malformed ({shown})" if malformed else "it has none of the vocabulary's words"
        )
        raise DataError(f"model.embeddings is {reference!r}: {why}; give vectors of these words, or null")
    if malformed:
        log.warning("model.embeddings: %d lines are not %d numbers after a word: %s", len(malformed), width, shown)
    _report(vocabulary, is_found_V, trained)


def _open(path: Path) -> TextIO:
    # Vectors from crawled pages have a few words that are not valid UTF-8; none of these is in a vocabulary.
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", errors="replace", newline="\n")
    return open(path, encoding="utf-8", errors="replace", newline="\n")


def _vectors(file: TextIO, width: int, reference: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of the lines after the header. Raises UserError for another width."""
    for number, line in enumerate(file, 1):
        line = line.rstrip(" \r\n")
        if number == 1:
            fields = line.split(" ")
            is_header = len(fields) == 2 and all(field.isdecimal() for field in fields)
            found = int(fields[1]) if is_header else len(fields) - 1
            if not is_header and _numbers(fields[1:], found) is None or found < 1:
                raise DataError(
                    f"model.embeddings is {reference!r}, whose first line is not a word and its numbers, separated by "
                    f"spaces: {line[:60]!r}; give a text file of word vectors, or null"
                )
            if found != width:
                raise UserError(
                    f"model.embeddings is {reference!r}, whose vectors have {found} numbers, but those of the model "
                    f"have {width}; set model.embedding_size={found}, or the key of your encoder for that width"
                )
            if is_header:
                continue
        if line:
            yield number, line


def _numbers(texts: Sequence[str], width: int) -> np.ndarray | None:
    """Return finite numbers, (D,), float32; None for anything else."""
    try:
        vector = np.array(texts, np.float32)
    except ValueError:
        return None
    return vector if len(vector) == width and np.isfinite(vector).all() else None


def _report(vocabulary: Mapping[str, int], is_found_V: np.ndarray, trained: Sequence[Examples]) -> None:
    chunks = (part.stored.tokens(rows_B) for part in trained for rows_B in chunks_of(part.rows_N))
    counts_V = occurrences(chunks, len(is_found_V))
    # Special tokens, in brackets, are in every text but in no file.
    names = {place: word for word, place in vocabulary.items() if not (word.startswith("[") and word.endswith("]"))}
    places = np.array(sorted(names), np.int64)
    found, total = int(counts_V[places][is_found_V[places]].sum()), int(counts_V[places].sum())
    log.info(
        "word vectors: %d of %d words (%.1f%%), %.1f%% of the words of the training texts",
        is_found_V[places].sum(), len(places), 100 * is_found_V[places].mean(), 100 * found / max(1, total),
    )  # fmt: skip
    missing = [place for place in places[~is_found_V[places]].tolist() if counts_V[place]]
    if missing:
        often = sorted(missing, key=lambda place: (-counts_V[place], place))[:NAMED]
        log.info("  without a vector, most often: %s", ", ".join(names[place] for place in often))
