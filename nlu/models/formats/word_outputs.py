"""Vectors of words from an encoder: its output for each word by itself, for a model without attention.

Tulkens & van Dongen 2024 (https://github.com/MinishLab/model2vec) distil sentence encoders in this way: the mean of the
encoder's outputs over a word's tokens and the special tokens around them, and the first principal components of all
these means. Differences: the vectors are scaled to the standard deviation of random ones, 0.1, so that a learning rate
suits both; `model=static` weighs words by their frequency in the training texts, where model2vec guesses it from their
rank in the vocabulary.

Axes: V words of the vocabulary, N words with an output, D width of the encoder, W width of a word vector.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nlu.config.addresses import Reference
from nlu.config.errors import CheckpointError, UserError
from nlu.data.arrays import flatten
from nlu.data.collate import collate
from nlu.data.examples import in_memory
from nlu.data.layouts import LAYOUTS
from nlu.data.order import evaluation_batches
from nlu.data.store import EncodedRows
from nlu.data.tokenizing import Tokenizer, load_tokenizer
from nlu.display.progress import Progress
from nlu.models import keys as schemas
from nlu.models.encoders.bert import Bert
from nlu.models.formats.pretrained import Pretrained, load_into
from nlu.models.heads.linear import LinearHead
from nlu.models.task_model import TaskModel
from nlu.storage.cache import Entry

DEVIATION = 0.1
WORDS_AT_ONCE = 512
MAX_TOKENS = 32
"""of a word; the rest is cut off"""
MARKS = re.compile("^(##|\u2581|\u0120)")
"""what a token begins with that continues a word (WordPiece), or that begins one (SentencePiece, bytes)"""


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
    outputs_ND = _kept(source, encoder.eval(), tokenizer, [own for _, own in found], progress)
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


def _kept(
    source: Pretrained, encoder: Bert, tokenizer: Tokenizer, tokens: list[list[int]], progress: Progress
) -> np.ndarray:
    """Return what `_outputs` returns, from the cache if another run on this machine has computed it, such as a seed."""

    def written(folder: Path) -> Path:
        np.save(folder / "outputs.npy", _outputs(encoder, tokenizer, tokens, progress))
        return folder / "outputs.npy"

    weights = hashlib.sha256()
    for name, value in sorted(encoder.state_dict().items()):
        weights.update(name.encode())
        weights.update(value.numpy().tobytes())
    around = tokenizer.single
    # Equal weights compute something else with other heads, or another activation.
    read = hashlib.sha256(json.dumps([tokens, around.before, around.after, encoder.settings()]).encode())
    # Another number of threads may round differently.
    machine = f"{torch.__version__} {torch.get_num_threads()}"
    entry = Entry.of("word_outputs", weights.hexdigest(), read.hexdigest(), machine)
    found: np.ndarray = np.load(entry.computed(Reference(source.reference, "", None, "the outputs of"), written))
    return found


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
