"""A convolutional encoder for single texts and pairs: small, fast, trained from scratch.

Kim 2014 (https://arxiv.org/abs/1408.5882), section 2, with several layers of same-length convolutions instead of one;
the texts of a pair are encoded separately and joined as [a, b, |a - b|, a * b] (Mou et al. 2016, https://arxiv.org/abs/1512.08422,
section 3.3, plus the absolute difference).

Axes: T tokens of all sequences, S sequences, X texts (two if a sequence is a pair), L the longest, D width.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from nlu.config.errors import UserError
from nlu.config.keys import takes
from nlu.data.collate import Batch
from nlu.models import keys as schemas
from nlu.models.encoder import Encoded
from nlu.models.encoders.over_words import (
    OverWords,
    joined_texts,
    kept_of_tokens,
    largest_of_texts,
    padded_texts,
    places_of_texts,
)
from nlu.models.formats.pretrained import Pretrained


@takes(schemas.TextCnn)
class TextCnn(OverWords):
    """Convolutions over word embeddings with max-pooling; both texts of a pair use the same weights."""

    def __init__(self, vocab_size: int, source: Pretrained | None, keys: schemas.TextCnn):
        if not keys.kernel_sizes:
            raise UserError("model.kernel_sizes is empty, but there must be at least one; e.g. [3,5]")
        sizes = ("embedding_size", "hidden_size", "layers", "kernel_sizes")
        super().__init__(vocab_size, source, keys, "textcnn", sizes)
        self.hidden_size = keys.hidden_size
        self.pads = True
        widths = [keys.embedding_size, *[keys.hidden_size] * keys.layers]
        self.layers = nn.ModuleList(
            nn.ModuleList(nn.Conv1d(before, after, size, padding=size // 2) for size in keys.kernel_sizes)
            for before, after in zip(widths, widths[1:], strict=False)
        )
        self.draw_words()

    def width_of(self, layout: str) -> int:
        """Return the width of the vector of a sequence or, for the layout units, of a token."""
        return self.hidden_size * (4 if layout == "pair" else 1)

    def encode(self, x_TD: Tensor, batch: Batch, *, tokens: bool = False, pooled: bool = False) -> Encoded:
        """Return vectors of tokens, (T, D), and of sequences, (S, D), or (S, 4D) for pairs."""
        if not tokens and not pooled:
            return Encoded()
        place_T, count, longest = places_of_texts(batch, is_pair=self.layout == "pair")
        hidden_XLD, real_XL = self._convolve(x_TD, place_T, count, longest)
        found = Encoded()
        if tokens:
            found.tokens_TD = hidden_XLD.flatten(0, 1).index_select(0, place_T)
        if pooled:
            found.pooled_SD = self._pool(hidden_XLD, real_XL)
        return found

    def _pool(self, hidden_XLD: Tensor, real_XL: Tensor) -> Tensor:
        best_XD = largest_of_texts(hidden_XLD, real_XL)
        return joined_texts(best_XD) if self.layout == "pair" else best_XD

    def _convolve(self, x_TD: Tensor, place_T: Tensor, count: int, longest: int) -> tuple[Tensor, Tensor]:
        """Return hidden vectors, (X, L, D), and whether each position is a token, (X, L)."""
        words_XLD, real_XL = padded_texts(self.dropout(x_TD), place_T, count, longest)
        hidden_XDL = words_XLD.transpose(1, 2)
        for convolutions in self.layers:
            summed: Tensor = sum(conv(hidden_XDL) for conv in convolutions)  # type: ignore[attr-defined, assignment]
            # Padding must stay zero; otherwise the result would depend on the padded length.
            kept_XLD = kept_of_tokens(self.dropout, summed.transpose(1, 2), place_T, real_XL)
            hidden_XDL = F.gelu(summed) * kept_XLD.transpose(1, 2)
        return hidden_XDL.transpose(1, 2), real_XL
