"""Word vectors for the table of an encoder: from a text file (word2vec's and fastText's .vec, GloVe) or an encoder.

A line of a file is a word and its numbers, separated by spaces. A first line of two integers, the number of words and
their width, is skipped. Words may contain spaces, as some of GloVe do.

The vector of a word from an encoder is its output for the word by itself, for a model without attention. Tulkens & van
Dongen 2024 (https://github.com/MinishLab/model2vec) distil sentence encoders in this way: the mean of the encoder's
outputs over a word's tokens and the special tokens around them, and the first principal components of all these means.
Differences: the vectors are scaled to the standard deviation of random ones, 0.1, so that a learning rate suits both;
`model=static` weighs words by their frequency in the training texts, where model2vec guesses it from their rank in the
vocabulary.

Axes: V tokens of the vocabulary, N words with an output, D width of the encoder, W width of a word vector.
"""

import gzip
import logging
import re
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
from torch import nn

from nlu.config.errors import CheckpointError, DataError, UserError
from nlu.config.sentences import counted
from nlu.data.arrays import flatten
from nlu.data.collate import collate
from nlu.data.examples import in_memory
from nlu.data.layouts import LAYOUTS
from nlu.data.order import evaluation_batches
from nlu.data.store import EncodedRows
from nlu.data.tokenizing import Tokenizer, load_tokenizer
from nlu.display.progress_bars import Progress
from nlu.models import keys as schemas
from nlu.models.encoders.bert import Bert
from nlu.models.formats.nano_e5 import is_nano_e5
from nlu.models.formats.pretrained import Pretrained, load_into, open_pretrained, run_part
from nlu.models.heads.linear import LinearHead
from nlu.models.task_model import TaskModel
from nlu.storage.cache import file_digest
from nlu.storage.resources import fetch

log = logging.getLogger(__name__)

DEVIATION = 0.1
WORDS_AT_ONCE = 512
MAX_TOKENS = 32
"""of a word; the rest is cut off"""
MARKS = re.compile("^(##|\u2581|\u0120)")
"""what a token begins with that continues a word (WordPiece), or that begins one (SentencePiece, bytes)"""

KEY = "model.embeddings"
NAMED = 5
"""lines and words that a message names"""


@dataclass(frozen=True)
class _OneNumber:
    """The target of a head that is not used."""

    names: tuple[str, ...] = ()
    kind: str = "number"
    num_outputs: int = 1


def vectors_of_words(
    source: Pretrained, vocabulary: Mapping[str, int], width: int, progress: Progress
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the number and the vector of each word, (W,), float32.

    `vocabulary`: the number of each word, without special tokens. A word that is a token of the encoder is read as this
    token, and another one as its tokenizer splits it. Raises CheckpointError for weights that the native BERT cannot
    compute, UserError if they are narrower than `width`.
    """
    named = f"{source.key} is {source.reference!r}"
    tokenizer = load_tokenizer(source.folder, None)
    if tokenizer is None:
        raise CheckpointError(f"{named}, which has no tokenizer.json or vocab.txt; put it there")
    # A text is the mean of its tokens, whatever the run that wrote the weights read.
    encoder = Bert(tokenizer.vocab_size, source, schemas.Bert(pretrained=source.reference, pooling="mean"))
    encoder.has_segments = tokenizer.has_segments
    if encoder.width < width:
        raise UserError(
            f"model.embedding_size is {width}, but {named}, whose vectors have {encoder.width} numbers; "
            f"set model.embedding_size={encoder.width} or lower"
        )
    head: Any = LinearHead(encoder.width, _OneNumber())
    load_into(TaskModel(encoder, head, "single"), source, rows_V=np.arange(tokenizer.vocab_size))
    if not vocabulary:
        return
    # In one order in every process: a tokenizer lists its vocabulary in another one each time, and sums would round so.
    numbers, words = zip(*sorted((number, word) for word, number in vocabulary.items()), strict=True)
    tokens = _tokens_of(words, tokenizer)
    found = [(number, own) for number, own in zip(numbers, tokens, strict=True) if own]
    outputs_ND = _outputs(encoder.eval(), tokenizer, [own for _, own in found], progress)
    yield from zip((number for number, _ in found), principal_components(outputs_ND, width), strict=True)


def principal_components(outputs_ND: np.ndarray, width: int) -> np.ndarray:
    """Return the first `width` principal components of each row, scaled to the deviation of random vectors; (N, W).

    The sign of a component is that with which its largest entry is positive, so that it does not depend on a library.
    """
    centred_ND = outputs_ND.astype(np.float64) - outputs_ND.mean(0, dtype=np.float64)
    # Ascending eigenvalues.
    _, vectors_DD = np.linalg.eigh(centred_ND.T @ centred_ND)
    axes_DW = vectors_DD[:, ::-1][:, :width]
    axes_DW = axes_DW * np.sign(axes_DW[np.abs(axes_DW).argmax(0), np.arange(axes_DW.shape[1])])
    found_NW = centred_ND @ axes_DW
    return (found_NW * (DEVIATION / max(found_NW.std(), 1e-12))).astype(np.float32)


def _tokens_of(words: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """Return the tokens of each word without special tokens; none for a word of which the tokenizer leaves nothing."""
    known = tokenizer.vocabulary
    flat, counts_N = tokenizer.ids([MARKS.sub("", word) for word in words])
    split = np.split(flat, np.cumsum(counts_N)[:-1])
    return [
        [known[word]] if word in known else own[:MAX_TOKENS].tolist() for word, own in zip(words, split, strict=True)
    ]


@torch.inference_mode()
def _outputs(encoder: Bert, tokenizer: Tokenizer, tokens: list[list[int]], progress: Progress) -> np.ndarray:
    """Return the mean of the outputs for each list of tokens and the special tokens around it; (N, D)."""
    around = tokenizer.single
    flat, lengths_N = flatten([[*around.before, *own, *around.after] for own in tokens])
    part = in_memory(EncodedRows(flat, lengths_N, lengths_N, np.zeros(len(tokens), bool)), LAYOUTS["single"])
    found_ND = np.empty((len(tokens), encoder.width), np.float32)
    with progress.task("outputs for words", len(tokens)) as bar:
        for rows_B in evaluation_batches(part.lengths_N, batch_size=WORDS_AT_ONCE, rank=0, world_size=1):
            batch = collate(part, rows_B)
            pooled_SD = encoder.encode(encoder.embed(batch), batch, pooled=True).pooled_SD
            assert pooled_SD is not None, "it was requested"
            found_ND[batch.examples_B] = pooled_SD.index_select(0, batch.sequences_KB[0]).float().numpy()
            bar.advance(len(rows_B))
    return found_ND


def fill(
    words: nn.Embedding, vocabulary: Mapping[str, int], reference: str, counts_V: np.ndarray, progress: Progress
) -> None:
    """Set the rows of the words that have a vector, and log which share of the vocabulary and the training texts it is.

    `vocabulary`: the number of each word (`words_of`). `reference`: a file of vectors, or an encoder, whose output for
    each word is its vector. `counts_V`: the number of occurrences of each word in the training texts. Other rows keep
    their random values. Only lines of words in the vocabulary are parsed, so memory does not grow with the file; of a
    word that occurs twice, the first line counts.
    Raises UserError if the vectors have another width than the table, DataError if no word of the vocabulary has a
    vector that can be read.
    """
    width = words.embedding_dim
    is_found_V = np.zeros(words.num_embeddings, bool)
    if (source := encoder_of(reference)) is not None:
        with torch.no_grad():
            for row, output_D in vectors_of_words(source, vocabulary, width, progress):
                words.weight[row] = torch.from_numpy(output_D).to(words.weight)
                is_found_V[row] = True
        if not is_found_V.any():
            raise DataError(f"{KEY} is {reference!r}: the vocabulary has only special tokens; give texts with words")
        _report(vocabulary, is_found_V, counts_V)
        return
    malformed: list[int] = []
    with progress.task("word vectors") as bar, torch.no_grad():
        for number, word, vector_D in _entries(fetch(reference, what=KEY), reference, vocabulary, width, bar.advance):
            place = vocabulary[word]
            if is_found_V[place]:
                continue
            if vector_D is None:
                malformed.append(number)
                continue
            words.weight[place] = torch.from_numpy(vector_D).to(words.weight)
            is_found_V[place] = True
    shown = ", ".join(map(str, malformed[:NAMED])) + (", ..." if len(malformed) > NAMED else "")
    if not is_found_V.any():
        why = (
            f"the lines of its words are malformed ({shown})" if malformed else "it has none of the vocabulary's words"
        )
        raise DataError(f"model.embeddings is {reference!r}: {why}; give vectors of these words, or null")
    if malformed:
        lines, are = counted(len(malformed), "line"), "is" if len(malformed) == 1 else "are"
        log.warning("model.embeddings: %s %s not %d numbers after a word, and skipped: %s", lines, are, width, shown)
    _report(vocabulary, is_found_V, counts_V)


def words_with_vectors(reference: str) -> tuple[str, Callable[[Collection[str]], set[str]]]:
    """Return the digest of a file of vectors, and the function that returns which of some words have one in it."""
    path = fetch(reference, what=KEY)

    def having(words: Collection[str]) -> set[str]:
        wanted = frozenset(words)
        return {word for _, word, vector_D in _entries(path, reference, wanted, None) if vector_D is not None}

    return file_digest(path), having


def words_of(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the number of each token that stands for a text. Special tokens are in every text but in no file."""
    special = {*tokenizer.special_ids, tokenizer.unknown_id, tokenizer.pad_id}
    return {
        word: number
        for word, number in tokenizer.vocabulary.items()
        if number not in special and not (word.startswith("[") and word.endswith("]"))
    }


def encoder_of(reference: str) -> Pretrained | None:
    """Return the weights that a reference of `model.embeddings` names; None for a text file of vectors."""
    if "://" not in reference and Path(f"{reference}.index").expanduser().is_file():
        # TensorFlow names a checkpoint by the prefix of its files.
        return open_pretrained(reference, KEY)
    path = fetch(run_part(reference), what=KEY)
    is_weights = path.is_dir() or path.suffix == ".safetensors" or is_nano_e5(path)
    return open_pretrained(reference, KEY) if is_weights else None


def _open(path: Path) -> TextIO:
    # Vectors from crawled pages have a few words that are not valid UTF-8; none of these is in a vocabulary.
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", errors="replace", newline="\n")
    return open(path, encoding="utf-8", errors="replace", newline="\n")


def _entries(
    path: Path,
    reference: str,
    wanted: Container[str],
    width: int | None,
    advance: Callable[[int], None] = lambda lines: None,
) -> Iterator[tuple[int, str, np.ndarray | None]]:
    """Yield line number, word and vector of the wanted words; None for a vector that is malformed.

    `width`: None = that of the first line. Raises UserError for another width than this.
    """
    with _open(path) as file:
        for number, line in enumerate(file, 1):
            line = line.rstrip(" \r\n")
            if number == 1:
                found, is_header = _width_of(line, reference)
                if width is not None and found != width:
                    raise UserError(
                        f"model.embeddings is {reference!r}, whose vectors have {found} numbers, but those of the "
                        f"model have {width}; set model.embedding_size={found}, or the key of your encoder for it"
                    )
                width = found
                if is_header:
                    continue
            assert width is not None, "it is known from the first line on"
            if number % 4096 == 0:
                advance(4096)
            # The word is cut off first, because most lines of a large file are of words that are not needed.
            word = line.split(" ", 1)[0]
            if not line or word not in wanted and line.count(" ") == width:
                continue
            word, *texts = line.rsplit(" ", width)
            if word in wanted:
                yield number, word, _numbers(texts, width)


def _width_of(line: str, reference: str) -> tuple[int, bool]:
    """Return the width of the vectors, and whether the first line is a header. Raises DataError if it is neither."""
    fields = line.split(" ")
    is_header = len(fields) == 2 and all(field.isdecimal() for field in fields)
    found = int(fields[1]) if is_header else len(fields) - 1
    if not is_header and _numbers(fields[1:], found) is None or found < 1:
        raise DataError(
            f"model.embeddings is {reference!r}, whose first line is not a word and its numbers, separated by "
            f"spaces: {line[:60]!r}; give a text file of word vectors, or null"
        )
    return found, is_header


def _numbers(texts: Sequence[str], width: int) -> np.ndarray | None:
    """Return finite numbers, (D,), float32; None for anything else."""
    try:
        vector = np.array(texts, np.float32)
    except ValueError:
        return None
    return vector if len(vector) == width and np.isfinite(vector).all() else None


def _report(vocabulary: Mapping[str, int], is_found_V: np.ndarray, counts_V: np.ndarray) -> None:
    names = {place: word for word, place in vocabulary.items()}
    places = np.array(sorted(names), np.int64)
    found, total = int(counts_V[places][is_found_V[places]].sum()), int(counts_V[places].sum())
    log.info(
        "word vectors: %d of %d words (%.1f%%), %.1f%% of the words of the training texts",
        is_found_V[places].sum(),
        len(places),
        100 * is_found_V[places].mean(),
        100 * found / max(1, total),
    )
    missing = [place for place in places[~is_found_V[places]].tolist() if counts_V[place]]
    if missing:
        often = sorted(missing, key=lambda place: (-counts_V[place], place))[:NAMED]
        log.info("  without a vector, most often: %s", ", ".join(names[place] for place in often))
