"""What the encoders share that are trained from scratch over a table of word vectors.

Those that read the texts of a pair separately see the texts of a batch one by one, padded to the longest.

Axes: T tokens of all sequences, S sequences, X texts (two if a sequence is a pair), L the longest, D width, V words of
the vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from nlu.config.errors import UserError
from nlu.data.collate import Batch
from nlu.models import keys as schemas
from nlu.models.formats.pretrained import Pretrained
from nlu.models.layers.dropout import Dropout


class OverWords(nn.Module):
    """The base of such an encoder. Only former runs have weights for it."""

    def __init__(
        self,
        vocab_size: int,
        source: Pretrained | None,
        keys: schemas.OverWords,
        model_type: str,
        sizes: Sequence[str],
    ):
        """`sizes`: the keys that are sizes of the encoder.

        A derived class draws the word vectors by `draw_words` after all its other weights. Raises UserError with every
        size that differs from those of a former run.
        """
        super().__init__()
        self._settings = {"model_type": model_type, **{name: getattr(keys, name) for name in sizes}}
        require_same_sizes(self._settings, source)
        self.layout, self.has_segments = "single", True
        self.head_dropout = keys.head_dropout
        self.max_positions: int | None = None
        self.word_embeddings = nn.Embedding(vocab_size, keys.embedding_size)
        self.dropout = Dropout(keys.dropout)

    def draw_words(self) -> None:
        """Draw the word vectors from a normal distribution."""
        nn.init.normal_(self.word_embeddings.weight, std=0.1)

    def settings(self) -> dict[str, object]:
        """Return the content of a checkpoint's config.json."""
        return self._settings

    @property
    def words(self) -> nn.Embedding:
        """The table of word vectors, (V, D)."""
        return self.word_embeddings

    def embed(self, batch: Batch) -> Tensor:
        """Return the word vector of each token, before dropout; (T, D)."""
        return self.word_embeddings(batch.tokens_T)

    def depth_of(self, name: str) -> int:
        """Return the layer of a parameter: 0 = word vectors, 1 = the first layer or block, ..."""
        return 0 if name.startswith("word_embeddings") else int(name.split(".")[1]) + 1

    @property
    def depth(self) -> int:
        return max(self.depth_of(name) for name, _ in self.named_parameters()) + 1

    def checkpoint_names(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors unchanged: no other library writes these encoders."""
        return tensors


def require_same_sizes(settings: dict[str, object], source: Pretrained | None) -> None:
    """Raise UserError with every size that differs from those of the loaded run."""
    config = source.config if source else {}
    if config.get("model_type") != settings["model_type"]:
        return
    problems = [
        f"model.{key} is {value}, but the pretrained weights have {config[key]}; set model.{key}={config[key]}, "
        "or model.pretrained=null for random initialization"
        for key, value in settings.items()
        if key in config and config[key] != value
    ]
    if problems:
        raise UserError(*problems)


def places_of_texts(batch: Batch, *, is_pair: bool) -> tuple[Tensor, int, int]:
    """Return each token's index in X * L, the number of texts X and their padded length L.

    The two texts of a pair are side by side; special tokens belong to the text of their segment.
    """
    count, longest, sequence_T = batch.starts_S.size(0), max(batch.lengths), sequences_of(batch)
    if not is_pair:
        return sequence_T * longest + batch.positions_T, count, longest
    # The number of tokens of the first text, by which the second one starts later.
    firsts_S = batch.segments_T.new_zeros(count).scatter_add(0, sequence_T, 1 - batch.segments_T)
    column_T = batch.positions_T - batch.segments_T * firsts_S[sequence_T]
    if column_T.device.type == "cpu" and not torch.jit.is_tracing():
        # On an accelerator, the longest pair bounds the lengths of texts, so that the host need not wait for them.
        longest = int(column_T.max()) + 1
    return (sequence_T * 2 + batch.segments_T) * longest + column_T, 2 * count, longest


def padded_texts(x_TD: Tensor, place_T: Tensor, count: int, longest: int) -> tuple[Tensor, Tensor]:
    """Return the vectors of tokens at `places_of_texts`, (X, L, D), and whether each place holds one, (X, L)."""
    padded = x_TD.new_zeros(count * longest, x_TD.shape[1]).index_copy(0, place_T, x_TD)
    real = torch.zeros(count * longest, dtype=torch.bool, device=place_T.device).index_fill(0, place_T, 1)
    return padded.view(count, longest, -1), real.view(count, longest)


def sequences_of(batch: Batch) -> Tensor:
    """Return the number of each token's sequence, (T,); computed on the device, so that a graph can be traced."""
    return (batch.positions_T == 0).long().cumsum(0) - 1


def kept_of_tokens(dropout: Dropout, input_XLD: Tensor, place_T: Tensor, real_XL: Tensor) -> Tensor:
    """Return the factors of padding and dropout for padded vectors; (X, L, D) or, without dropout, (X, L, 1)."""
    if not dropout.training or not dropout.probability:
        return real_XL[:, :, None]
    count, longest, width = input_XLD.shape
    # The factors for tokens by themselves, without the values: a token has the same mask for any padded length.
    mask_TD = dropout(input_XLD.new_ones(len(place_T), width))
    return input_XLD.new_zeros(count * longest, width).index_copy(0, place_T, mask_TD).view(count, longest, width)


def largest_of_texts(hidden_XLD: Tensor, real_XL: Tensor) -> Tensor:
    """Return the largest value of each feature over the tokens of each text; (X, D). Zeros for a text without tokens.

    `real_XL`: whether each place holds a token.
    """
    # Minus infinity and not 0: all values of a feature may be negative.
    best_XD = hidden_XLD.masked_fill(~real_XL[:, :, None], float("-inf")).amax(dim=1)
    return best_XD.masked_fill(~real_XL.any(dim=1)[:, None], 0.0)


def joined_texts(vectors_XD: Tensor) -> Tensor:
    """Return [a, b, |a - b|, a * b] for the texts a and b of each pair, which are neighbors; (S, 4D)."""
    first_SD, second_SD = vectors_XD[0::2], vectors_XD[1::2]
    return torch.cat([first_SD, second_SD, (first_SD - second_SD).abs(), first_SD * second_SD], dim=1)
