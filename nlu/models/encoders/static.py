"""The mean of static word vectors, weighted by how rare the words are: the fastest encoder.

Arora et al. 2017 (https://openreview.net/forum?id=SyK00v5xx), section 3: a word with the share p of all words has the
weight a / (a + p), here divided by the mean weight of all words of the training texts. The first principal component of
texts is not removed. With `model.embeddings` of an encoder the vectors are distilled from it, as in model2vec
(https://github.com/MinishLab/model2vec), and then fine-tuned. As there, special and unknown tokens do not count.

Axes: T tokens of all sequences, S sequences, X texts (two if a sequence is a pair), V words, D width.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from nlu.config.keys import takes
from nlu.data.collate import Batch
from nlu.models import keys as schemas
from nlu.models.encoder import Encoded
from nlu.models.encoders.over_words import OverWords, joined_texts, sequences_of
from nlu.models.formats.pretrained import Pretrained


@takes(schemas.Static)
class Static(OverWords):
    """Word vectors without context. The order of words does not matter."""

    weights_V: Tensor

    def __init__(self, vocab_size: int, source: Pretrained | None, keys: schemas.Static):
        super().__init__(vocab_size, source, keys, "static", ("embedding_size",))
        self.embedding_size = keys.embedding_size
        self.rarity = keys.rarity
        self.pads = False
        # Not trained, but saved: the counts are those of the rows that the run was trained on.
        self.register_buffer("weights_V", torch.ones(vocab_size))
        self.draw_words()

    def weigh(self, counts_V: np.ndarray, left_out: Sequence[int]) -> None:
        """Set the weight of each word from its number of occurrences in the training texts; 0 for those `left_out`.

        The mean weight of all other words of these texts is 1, so that `rarity` does not scale the vectors of texts.
        """
        counts_V = counts_V.copy()
        counts_V[left_out] = 0
        if self.rarity and counts_V.any():
            share_V = counts_V / counts_V.sum()
            weights_V = self.rarity / (self.rarity + share_V)
            self.weights_V.copy_(torch.from_numpy(weights_V / (share_V @ weights_V)))
        self.weights_V[left_out] = 0

    def width_of(self, layout: str) -> int:
        """Return the width of the vector of a sequence or, for the layout units, of a token."""
        return self.embedding_size * (4 if layout == "pair" else 1)

    def encode(self, x_TD: Tensor, batch: Batch, *, tokens: bool = False, pooled: bool = False) -> Encoded:
        """Return vectors of tokens, (T, D), and of sequences, (S, D), or (S, 4D) for pairs."""
        found = Encoded()
        if not tokens and not pooled:
            return found
        weights_T1 = self.weights_V.index_select(0, batch.tokens_T)[:, None]
        weighed_TD = self.dropout(x_TD) * weights_T1
        if tokens:
            found.tokens_TD = weighed_TD
        if pooled:
            found.pooled_SD = self._means(weighed_TD, weights_T1 != 0, batch)
        return found

    def _means(self, weighed_TD: Tensor, has_weight_T1: Tensor, batch: Batch) -> Tensor:
        """Return the mean of each text's tokens with a weight, of pairs both means joined; zeros for a text without."""
        count, text_T = batch.starts_S.size(0), sequences_of(batch)
        if self.layout == "pair":
            text_T, count = 2 * text_T + batch.segments_T, 2 * count
        # Tokens are added in their order, so the sum of a text does not depend on other texts. Not index_add, of which
        # the exporter to ONNX forgets repeated places.
        text_TD = text_T[:, None].expand_as(weighed_TD)
        sum_XD = weighed_TD.new_zeros(count, weighed_TD.shape[1]).scatter_add(0, text_TD, weighed_TD)
        size_X1 = weighed_TD.new_zeros(count, 1).scatter_add(0, text_T[:, None], has_weight_T1.to(weighed_TD.dtype))
        mean_XD = sum_XD / size_X1.clamp(min=1)
        return joined_texts(mean_XD) if self.layout == "pair" else mean_XD
