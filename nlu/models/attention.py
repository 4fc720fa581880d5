"""Self-attention over packed sequences.

Axes: T tokens of all sequences, Q queries (T, or B where only first tokens ask), B sequences, L the length of one,
H heads, E width of a head, D = H * E.
"""

from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor

MIN_QUERIES = 4


def attend(
    query_QD: Tensor, key_value_T2D: Tensor, *, lengths: list[int], heads: int, dropout: float, first_only: bool
) -> Tensor:
    """Return softmax(q k / sqrt(E)) v of every sequence with itself; (Q, D).

    `lengths` must ascend, as `collate` lays batches out: sequences of equal length are neighbours and are computed
    together at exactly their length. So nothing is padded, no mask is needed, and no sequence can influence
    another's result, not even its rounding. With `first_only` there is one query for each sequence, its first token.
    """
    if query_QD.is_cuda:
        return _attend_padded(query_QD, key_value_T2D, lengths, heads, dropout, first_only)
    groups = [(length, len(list(same))) for length, same in groupby(lengths)]
    queries = query_QD.split([count if first_only else count * length for length, count in groups])
    keys_values = key_value_T2D.split([count * length for length, count in groups])
    outputs = []
    for (length, count), query, key_value in zip(groups, queries, keys_values, strict=True):
        query_BHLE = query.view(count, 1 if first_only else length, heads, -1).transpose(1, 2)
        key_2BHLE = key_value.view(count, length, 2, heads, -1).permute(2, 0, 3, 1, 4)
        mixed = _attend_to_equals(query_BHLE, key_2BHLE, dropout)
        outputs.append(mixed.transpose(1, 2).reshape(query.shape))
    return torch.cat(outputs)


def _attend_to_equals(query_BHLE: Tensor, key_2BHLE: Tensor, dropout: float) -> Tensor:
    """Attention among sequences of one length.

    With three queries or fewer the matrix library's order of summation depends on the number of threads, so there are
    always MIN_QUERIES.
    """
    rows = query_BHLE.shape[2]
    if rows < MIN_QUERIES:
        query_BHLE = F.pad(query_BHLE, (0, 0, 0, MIN_QUERIES - rows))
    mixed = F.scaled_dot_product_attention(query_BHLE, key_2BHLE[0], key_2BHLE[1], dropout_p=dropout)
    return mixed[:, :, :rows]


def _attend_padded(
    query_QD: Tensor, key_value_T2D: Tensor, lengths: list[int], heads: int, dropout: float, first_only: bool
) -> Tensor:
    """The same in one kernel call, padded to the longest sequence inside attention only.

    On an accelerator one masked call costs less than a call for each length.
    """
    device = query_QD.device
    count, longest = len(lengths), max(lengths)
    lengths_B = torch.tensor(lengths, device=device)
    real_BL = torch.arange(longest, device=device) < lengths_B[:, None]
    place_T = real_BL.view(-1).nonzero().squeeze(1)
    width = key_value_T2D.shape[-1]
    padded = key_value_T2D.new_zeros(count * longest, width).index_copy(0, place_T, key_value_T2D)
    key_2BHLE = padded.view(count, longest, 2, heads, -1).permute(2, 0, 3, 1, 4)
    if first_only:
        query_BHLE = query_QD.view(count, 1, heads, -1).transpose(1, 2)
    else:
        query = query_QD.new_zeros(count * longest, width // 2).index_copy(0, place_T, query_QD)
        query_BHLE = query.view(count, longest, heads, -1).transpose(1, 2)
    mixed = F.scaled_dot_product_attention(
        query_BHLE, key_2BHLE[0], key_2BHLE[1], attn_mask=real_BL[:, None, None, :], dropout_p=dropout
    )
    flat = mixed.transpose(1, 2).reshape(-1, width // 2)
    return flat if first_only else flat.index_select(0, place_T)
