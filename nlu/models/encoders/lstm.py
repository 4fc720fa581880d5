"""A bidirectional LSTM over word vectors, for tags (with head=crf), texts and pairs; trained from scratch.

Huang et al. 2015 (https://arxiv.org/abs/1508.01991), sections 2.2 and 2.5, without hand-made features. A text is the
largest value of each feature over its tokens (Conneau et al. 2017, https://arxiv.org/abs/1705.02364, section 3.2.1);
the texts of a pair are read separately and joined as in `nlu.models.encoders.textcnn`.

Axes: T tokens of all sequences, S sequences, X texts (two if a sequence is a pair), D width.
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from nlu.config.errors import UserError
from nlu.config.keys import takes
from nlu.data.arrays import ranges, starts_of
from nlu.data.collate import Batch, to_device
from nlu.models import keys as schemas
from nlu.models.encoder import Encoded
from nlu.models.encoders.over_words import OverWords, joined_texts
from nlu.models.formats.pretrained import Pretrained
from nlu.models.layers.pooling import largest_of_sequences


@takes(schemas.Lstm)
class Lstm(OverWords):
    """Layers of an LSTM in both directions over texts of any length, without padding.

    A vector differs by rounding, about 1e-6, between batches: the products of a step include all texts that have a
    token there. It computes in fp32 with every precision.
    """

    def __init__(self, vocab_size: int, source: Pretrained | None, keys: schemas.Lstm):
        if keys.hidden_size % 2:
            raise UserError(
                f"model.hidden_size is {keys.hidden_size}, but each direction has half of it; set it to an even "
                f"number, such as {keys.hidden_size + 1}"
            )
        super().__init__(vocab_size, source, keys, "lstm", ("embedding_size", "hidden_size", "layers"))
        self.hidden_size = keys.hidden_size
        self.pads = False
        # One module for each layer, because between layers torch would draw dropout masks from its own generator.
        self.layers = nn.ModuleList(
            nn.LSTM(width, keys.hidden_size // 2, bidirectional=True)
            for width in [keys.embedding_size, *[keys.hidden_size] * (keys.layers - 1)]
        )
        self.draw_words()

    def width_of(self, layout: str) -> int:
        """Return the width of the vector of a sequence or, for the layout units, of a token."""
        return self.hidden_size * (4 if layout == "pair" else 1)

    def encode(self, x_TD: Tensor, batch: Batch, *, tokens: bool = False, pooled: bool = False) -> Encoded:
        """Return vectors of tokens, (T, D), and of sequences, (S, D), or (S, 4D) for pairs."""
        if not tokens and not pooled:
            return Encoded()
        if torch.jit.is_tracing():
            return self._of_one(x_TD, batch)
        lengths_X = _texts(batch) if self.layout == "pair" else np.array(batch.lengths, dtype=np.int64)
        with torch.autocast(x_TD.device.type, enabled=False):
            hidden_TD = self._read(x_TD.float(), lengths_X)
        found = Encoded()
        if tokens:
            found.tokens_TD = hidden_TD
        if pooled:
            found.pooled_SD = self._pool(hidden_TD, lengths_X)
        return found

    def _read(self, x_TD: Tensor, lengths_X: np.ndarray) -> Tensor:
        """Return the last layer's vectors of all tokens, (T, D)."""
        # torch wants the tokens in order of their place in the text, and the longest texts first.
        order_X = np.argsort(-lengths_X, kind="stable")
        order_X = order_X[lengths_X[order_X] > 0]
        starts_X, sorted_X = starts_of(lengths_X)[order_X], lengths_X[order_X]
        sizes = (sorted_X[None, :] > np.arange(sorted_X[0])[:, None]).sum(1)
        text_T = ranges(np.zeros(len(sizes), np.int64), sizes)
        place_T = to_device(torch.from_numpy(starts_X[text_T] + np.repeat(np.arange(len(sizes)), sizes)), x_TD.device)
        hidden_TD = x_TD
        for layer in self.layers:
            packed = PackedSequence(self.dropout(hidden_TD).index_select(0, place_T), torch.from_numpy(sizes))
            read_TD = layer(packed)[0].data
            hidden_TD = torch.empty_like(read_TD).index_copy(0, place_T, read_TD)
        return hidden_TD

    def _of_one(self, x_TD: Tensor, batch: Batch) -> Encoded:
        """Return all vectors of a batch with one sequence, by operators whose graph holds for any length."""
        texts = [x_TD[batch.segments_T == text] for text in range(2)] if self.layout == "pair" else [x_TD]
        for layer in self.layers:
            texts = [layer(hidden_TD)[0] for hidden_TD in texts]
        best_XD = torch.stack([hidden_TD.amax(0) for hidden_TD in texts])
        return Encoded(torch.cat(texts), joined_texts(best_XD) if self.layout == "pair" else best_XD)

    def _pool(self, hidden_TD: Tensor, lengths_X: np.ndarray) -> Tensor:
        present_X = np.flatnonzero(lengths_X)
        best_XD = largest_of_sequences(hidden_TD, lengths_X[present_X].tolist())
        if len(present_X) < len(lengths_X):
            # A text without tokens has a vector of zeros.
            places = to_device(torch.from_numpy(present_X), hidden_TD.device)
            best_XD = best_XD.new_zeros(len(lengths_X), best_XD.shape[1]).index_copy(0, places, best_XD)
        return joined_texts(best_XD) if self.layout == "pair" else best_XD


def _texts(batch: Batch) -> np.ndarray:
    """Return the number of tokens of each text of the pairs, in the order of the tokens; (2S,)."""
    lengths_S = np.array(batch.lengths, dtype=np.int64)
    # The host needs the lengths of the texts, so an accelerator is waited for.
    seconds_S = np.add.reduceat(batch.segments_T.cpu().numpy(), starts_of(lengths_S))
    return np.stack([lengths_S - seconds_S, seconds_S], axis=1).reshape(-1)
