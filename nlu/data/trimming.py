"""A tokenizer with the pieces that some rows use, and with all that spell the others.

Abdaoui et al. 2020 (https://arxiv.org/abs/2010.05609) trim multilingual BERT in this way to the languages of its texts.
Kept are the pieces that occur, special tokens, and every single character of the vocabulary. A text whose pieces are
all kept has the same pieces as before: Unigram chooses the cut with the largest sum of scores, WordPiece the longest
piece at each place, and neither chooses another one when pieces vanish that were not chosen. Another text is cut into
smaller pieces. In BPE a piece is the result of merges, which need all pieces on the way, so it is refused.

Axes: V pieces of the whole tokenizer.
"""

import json
from collections.abc import Iterator

import numpy as np
from tokenizers import Tokenizer as Backend

from nlu.config.errors import UserError
from nlu.config.types import Config
from nlu.data.arrays import occurrences
from nlu.data.opening import Store
from nlu.data.store import chunks_of
from nlu.data.tokenizing import ROLES, Tokenizer, of_backend

KINDS = ("Unigram", "WordPiece")


def require_trimmable(tokenizer: Tokenizer) -> None:
    """Raise UserError for a tokenizer that cannot cut an unknown piece into smaller ones by its own rule."""
    if not is_trimmable(tokenizer):
        kind = type(tokenizer.backend.model).__name__
        why = "whose merges need all pieces" if kind == "BPE" else "which does not split words"
        raise UserError(
            f"model.trim_vocab is true, but the tokenizer of the weights is a {kind}, {why}; set "
            f"model.trim_vocab=false, or choose weights with {' or '.join(KINDS)}"
        )


def is_trimmable(tokenizer: Tokenizer) -> bool:
    """Return whether the tokenizer can cut an unknown piece into smaller ones by its own rule."""
    return type(tokenizer.backend.model).__name__ in KINDS


def counts_of(store: Store) -> np.ndarray:
    """Return how often each token occurs in the stored rows of train, including those that are held out of it; (V,)."""
    stored = store.sets["train"].stored
    return occurrences(map(stored.tokens, chunks_of(np.arange(len(stored)))), store.tokenizer.vocab_size)


def trimmed(whole: Tokenizer, counts_V: np.ndarray) -> Tokenizer:
    """Return the tokenizer of the pieces that occur and of those that are always kept, in their order.

    `whole` must satisfy `require_trimmable`.
    """
    document = json.loads(whole.backend.to_str())
    kept_V = counts_V > 0
    kept_V[list(_always_kept(whole, document["model"]))] = True
    number_of = {int(old): new for new, old in enumerate(np.flatnonzero(kept_V))}
    model = document["model"]
    if model["type"] == "Unigram":
        model["vocab"] = [entry for number, entry in enumerate(model["vocab"]) if number in number_of]
        model["unk_id"] = number_of.get(model["unk_id"])
    else:
        known = {piece: number_of[number] for piece, number in model["vocab"].items() if number in number_of}
        model["vocab"] = known
    for token in document["added_tokens"]:
        token["id"] = number_of[token["id"]]
    _renumber(document["post_processor"], number_of)
    return of_backend(Backend.from_str(json.dumps(document)), "the trimmed vocabulary")


def rows_of(tokenizer: Tokenizer, whole: Tokenizer) -> np.ndarray:
    """Return the number in `whole` of each token of a tokenizer, which may be trimmed; -1 for those that the weights
    do not have."""
    # All tokens have their own numbers, unless it is trimmed; to look up 250,000 takes most of a second.
    rows = np.arange(tokenizer.vocab_size)
    if tokenizer.digest != whole.digest:
        number_of = whole.vocabulary
        for piece, number in tokenizer.vocabulary.items():
            rows[number] = number_of[piece]
    rows[rows >= whole.vocab_size - whole.new_tokens] = -1
    return rows


def _always_kept(whole: Tokenizer, model: Config) -> Iterator[int]:
    yield whole.unknown_id
    for template in (whole.single, whole.pair):
        yield from (*template.before, *template.between, *template.after)
    yield from whole.backend.get_added_tokens_decoder()
    for name in filter(None, map(whole.special, ROLES)):
        yield whole.vocabulary[name]
    if model["type"] == "Unigram":
        pieces = [piece for piece, _ in model["vocab"]]
        # The score of an unknown character follows the lowest score, which must stay.
        yield int(np.argmin([score for _, score in model["vocab"]]))
        yield from (number for number, piece in enumerate(pieces) if len(piece) == 1 or _is_byte(piece))
    else:
        prefix = model["continuing_subword_prefix"]
        yield from (number for piece, number in model["vocab"].items() if len(piece.removeprefix(prefix)) == 1)


def _is_byte(piece: str) -> bool:
    """Return whether a piece stands for a byte, as <0xE4> does."""
    return len(piece) == 6 and piece.startswith("<0x")


def _renumber(processor: Config | None, number_of: dict[int, int]) -> None:
    """Give the special tokens of a post-processor their new numbers, in place."""
    if processor is None:
        return
    for part in processor.get("processors", []):
        _renumber(part, number_of)
    for token in (processor.get("special_tokens") or {}).values():
        token["ids"] = [number_of[number] for number in token["ids"]]
    for key in ("cls", "sep"):
        if key in processor:
            processor[key] = [processor[key][0], number_of[processor[key][1]]]
