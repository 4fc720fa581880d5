"""RE2: the texts of a pair are encoded, aligned with one another and fused, several times; trained from scratch.

Yang et al. 2019 (https://aclanthology.org/P19-1465), section 2. Differences: words have one table of vectors, and the
prediction layer is the head of the run, which reads [a, b, |a - b|, a * b]; head=mlp head.activation=gelu is theirs.

Axes: T tokens of all sequences, S pairs, X = 2S texts, those of a pair side by side, L the longest text, D width.
"""

import math

import torch
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
from nlu.models.layers.dropout import Dropout

KERNEL_SIZE = 3


@takes(schemas.Re2)
class Re2(OverWords):
    """Blocks of encoding, alignment and fusion over both texts of a pair, with the same weights for both."""

    def __init__(self, vocab_size: int, source: Pretrained | None, keys: schemas.Re2):
        super().__init__(vocab_size, source, keys, "re2", ("embedding_size", "hidden_size", "blocks", "layers"))
        hidden_size = self.hidden_size = keys.hidden_size
        self.pads = True
        # From the second block on, what a block reads includes the word vectors.
        widths = [keys.embedding_size, *[keys.embedding_size + hidden_size] * (keys.blocks - 1)]
        self.blocks = nn.ModuleList(Block(width, hidden_size, keys.layers, self.dropout) for width in widths)
        self.draw_words()

    def width_of(self, layout: str) -> int:
        """Return the width of the vector of a pair. Raises UserError for other layouts than pairs."""
        if layout != "pair":
            raise UserError(
                "model is re2, which compares the two texts of a pair, but this run needs vectors of single texts or "
                "of tokens; set task=match, or choose another model, such as textcnn"
            )
        return 4 * self.hidden_size

    def encode(self, x_TD: Tensor, batch: Batch, *, tokens: bool = False, pooled: bool = False) -> Encoded:
        """Return vectors of tokens, (T, D), and of pairs, (S, 4D)."""
        if not tokens and not pooled:
            return Encoded()
        place_T, count, longest = places_of_texts(batch, is_pair=True)
        words_XLD, real_XL = padded_texts(self.dropout(x_TD), place_T, count, longest)
        read_XLD, hidden_XLD = words_XLD, words_XLD
        for number, block in enumerate(self.blocks):
            if number == 1:
                read_XLD = torch.cat([words_XLD, hidden_XLD], dim=2)
            elif number:
                # Equation 2: the word vectors and the sum of the outputs of the last two blocks, scaled.
                before_XLD = read_XLD[:, :, -self.hidden_size :]
                read_XLD = torch.cat([words_XLD, (before_XLD + hidden_XLD) * math.sqrt(0.5)], dim=2)
            hidden_XLD = block(read_XLD, place_T, real_XL)
        found = Encoded()
        if tokens:
            found.tokens_TD = hidden_XLD.flatten(0, 1).index_select(0, place_T)
        if pooled:
            found.pooled_SD = joined_texts(largest_of_texts(hidden_XLD, real_XL))
        return found


class Block(nn.Module):
    """Convolutions over each text, alignment with the other text, and fusion of both; sections 2.1 to 2.3."""

    def __init__(self, width: int, hidden_size: int, layers: int, dropout: Dropout):
        super().__init__()
        sizes = [width, *[hidden_size] * layers]
        self.convolutions = nn.ModuleList(
            nn.Conv1d(before, after, KERNEL_SIZE, padding=KERNEL_SIZE // 2)
            for before, after in zip(sizes, sizes[1:], strict=False)
        )
        both = width + hidden_size
        self.project = nn.Linear(both, hidden_size)
        self.temperature = nn.Parameter(torch.tensor(1 / math.sqrt(hidden_size)))
        self.fuse_plain, self.fuse_difference, self.fuse_product = (nn.Linear(2 * both, hidden_size) for _ in range(3))
        self.fuse = nn.Linear(3 * hidden_size, hidden_size)
        # The model's, so that it is not registered again in each block.
        self._dropout = (dropout,)

    def forward(self, read_XLD: Tensor, place_T: Tensor, real_XL: Tensor) -> Tensor:
        """Return (X, L, hidden_size), zero at padding."""
        (dropout,) = self._dropout
        real_XL1 = real_XL[:, :, None]

        def dropped(input_XLD: Tensor) -> Tensor:
            return input_XLD * kept_of_tokens(dropout, input_XLD, place_T, real_XL)

        encoded_XLD = read_XLD
        for convolution in self.convolutions:
            # Padding must stay zero; otherwise the result would depend on the padded length.
            encoded_XLD = F.gelu(convolution(dropped(encoded_XLD).transpose(1, 2))).transpose(1, 2) * real_XL1
        both_XLD = torch.cat([read_XLD, encoded_XLD.to(read_XLD.dtype)], dim=2)
        aligned_XLD = self._aligned(both_XLD, dropped(both_XLD), real_XL)
        parts = [
            F.gelu(layer(torch.cat([both_XLD, other_XLD], dim=2)))
            for layer, other_XLD in (
                (self.fuse_plain, aligned_XLD),
                (self.fuse_difference, both_XLD - aligned_XLD),
                (self.fuse_product, both_XLD * aligned_XLD),
            )
        ]
        return F.gelu(self.fuse(dropped(torch.cat(parts, dim=2)))).to(read_XLD.dtype) * real_XL1

    def _aligned(self, both_XLD: Tensor, dropped_XLD: Tensor, real_XL: Tensor) -> Tensor:
        """Return for each token the mean of the other text's tokens, weighted by similarity; equations 3 and 4."""
        projected_XLD = F.gelu(self.project(dropped_XLD))
        scores_XLL = projected_XLD @ _exchanged(projected_XLD).transpose(1, 2) * self.temperature
        # The smallest float and not minus infinity: if the other text is empty, all weights would be NaN. As it is,
        # they are equal, and the vectors they weigh are zero.
        lowest = torch.finfo(torch.float32).min
        weights_XLL = scores_XLL.float().masked_fill(~_exchanged(real_XL)[:, None, :], lowest).softmax(-1)
        return weights_XLL.to(both_XLD.dtype) @ _exchanged(both_XLD)


def _exchanged(texts: Tensor) -> Tensor:
    """Return the texts of each pair in the other order; (X, ...)."""
    return torch.stack([texts[1::2], texts[0::2]], dim=1).reshape(texts.shape)
