"""The word vectors that a run starts from: what they bring to its vocabulary, and the rows of the table that they fill.

Axes: V words of the vocabulary.
"""

from pathlib import Path

import numpy as np

from nlu.config.schema import Run
from nlu.config.targets import build
from nlu.data.opening import Store
from nlu.data.tokenizing import Tokenizer, Vocabulary
from nlu.data.trimming import is_trimmable
from nlu.display.progress_bars import Progress
from nlu.models.encoder import Encoder, WeighsTokens
from nlu.models.formats.pretrained import Pretrained
from nlu.models.formats.vectors import encoder_of, fill, words_of, words_with_vectors


def tokenizing_of(config: Run, source: Pretrained | None) -> tuple[Vocabulary, Path | None]:
    """Return the chosen tokenizer, and the folder of weights whose vocabulary it has, if any.

    Word vectors from an encoder are those of its own tokens. A vocabulary that is built from the training rows keeps
    words that have a vector in a file, however rare they are.
    """
    tokenizing: Vocabulary = build(config.tokenizer)
    if source is not None:
        return tokenizing, source.folder
    vectors = config.model.get("embeddings")
    if not vectors or config.tokenizer.get("vocab"):
        return tokenizing, None
    if (encoder := encoder_of(vectors)) is not None:
        return tokenizing, encoder.folder
    tokenizing.keep(*words_with_vectors(vectors))
    return tokenizing, None


def is_trimmed(config: Run, source: Pretrained | None, whole: Tokenizer | None) -> bool:
    """Return whether the vocabulary is only the pieces of `whole` that the training rows use."""
    if config.model.get("trim_vocab"):
        return True
    # Without weights and without a file of a vocabulary it is that of an encoder of word vectors.
    return source is None and whole is not None and not config.tokenizer.get("vocab") and is_trimmable(whole)


def start_words(config: Run, encoder: Encoder, store: Store, source: Pretrained | None, progress: Progress) -> None:
    """Fill the table of word vectors by `model.embeddings`, and weigh words by the training rows, if wanted.

    Raises UserError and DataError as `nlu.models.formats.vectors.fill` does.
    """
    vectors = config.model.get("embeddings")
    # Former runs have the weights of the rows that they were trained on.
    weighs = source is None and isinstance(encoder, WeighsTokens)
    if not vectors and not weighs:
        return
    trained = store.of_role("train").values()
    # While rows are still written, nothing is asked of all of them: vectors are refused, and words weigh alike.
    if any(part.is_growing for part in trained):
        return
    counts_V = np.sum([part.token_counts(store.tokenizer.vocab_size) for part in trained], axis=0)
    if vectors:
        # On top of pretrained weights too: the vectors are what the user asked for by name.
        fill(encoder.words, words_of(store.tokenizer), vectors, counts_V, progress)
    if isinstance(encoder, WeighsTokens) and weighs:
        encoder.weigh(counts_V, [*store.tokenizer.special_ids, store.tokenizer.unknown_id])
