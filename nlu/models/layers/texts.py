"""The texts of a batch one by one, padded to the longest: for encoders that read the texts of a pair separately.

Axes: T tokens of all sequences, S sequences, X texts (two if a sequence is a pair), L the longest, D width.
"""

import numpy as np
import torch
from torch import Tensor

from nlu.data.arrays import ranges
from nlu.data.collate import Batch, to_device
from nlu.models.layers.dropout import Dropout


def places_of_texts(batch: Batch, *, is_pair: bool) -> tuple[Tensor, int, int]:
    """Return each token's index in X * L, the number of texts X and their padded length L.

    The two texts of a pair are side by side; special tokens belong to the text of their segment.
    """
    device, lengths_S = batch.tokens_T.device, np.array(batch.lengths, dtype=np.int64)
    count, longest = len(lengths_S), max(batch.lengths)
    if not is_pair:
        return to_device(torch.from_numpy(ranges(np.arange(count) * longest, lengths_S)), device), count, longest
    sequence_T = to_device(torch.from_numpy(np.repeat(np.arange(count), lengths_S)), device)
    # The number of tokens of the first text, by which the second one starts later.
    firsts_S = batch.segments_T.new_zeros(count).index_add(0, sequence_T, 1 - batch.segments_T)
    column_T = batch.positions_T - batch.segments_T * firsts_S[sequence_T]
    if device.type == "cpu":
        # On an accelerator, the longest pair bounds the lengths of texts, so that the host need not wait for them.
        longest = int(column_T.max()) + 1
    return (sequence_T * 2 + batch.segments_T) * longest + column_T, 2 * count, longest


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
