"""The texts of a batch one by one, padded to the longest: for encoders that read the texts of a pair separately.

Axes: T tokens of all sequences, S sequences, X texts (two if a sequence is a pair), L the longest, D width.
"""

import torch
from torch import Tensor

from nlu.data.collate import Batch
from nlu.models.layers.dropout import Dropout


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
