"""One vector for each sequence of a packed batch, from the vectors of its tokens or of several layers.

No result depends on the other sequences of the batch.

Axes: T tokens of all sequences, S sequences, L the longest, D width.
"""

import numpy as np
import torch
from torch import Tensor, nn

from nlu.config.errors import UserError
from nlu.data.arrays import ranges
from nlu.data.collate import Batch, to_device
from nlu.models.layers.exact_linear import Linear
from nlu.models.layers.filled_attention import mean_of_filled
from nlu.models.model_rules import pooled_layers_problems


def mean_of_sequences(hidden_TD: Tensor, lengths: list[int]) -> Tensor:
    """Return the mean of each sequence's tokens; (S, D)."""
    lengths_S = to_device(torch.tensor(lengths), hidden_TD.device)
    return _sums(hidden_TD, _sequences(lengths_S, hidden_TD), len(lengths)) / lengths_S[:, None]


def last_of_sequences(batch: Batch) -> Tensor:
    """Return the place of each sequence's last token; (S,), int64."""
    if batch.filling is not None:
        return batch.starts_S + (batch.filling.lengths_S - 1).clamp_min(0)
    return batch.starts_S + to_device(torch.tensor(batch.lengths), batch.starts_S.device) - 1


def largest_of_sequences(hidden_TD: Tensor, lengths: list[int]) -> Tensor:
    """Return the largest value of each feature over each sequence's tokens; (S, D)."""
    lengths_S, longest = np.array(lengths, dtype=np.int64), max(lengths)
    # Computed on the host, so that nothing here waits for the device.
    place_T = to_device(torch.from_numpy(ranges(np.arange(len(lengths_S)) * longest, lengths_S)), hidden_TD.device)
    width = hidden_TD.shape[1]
    # Minus infinity and not 0: all values of a feature may be negative.
    padded = hidden_TD.new_full((len(lengths) * longest, width), float("-inf")).index_copy(0, place_T, hidden_TD)
    return padded.view(len(lengths), longest, width).amax(1)


class MaxPooling(nn.Module):
    """The largest value of each feature over a sequence's tokens."""

    def forward(self, hidden_TD: Tensor, lengths: list[int]) -> Tensor:
        """Return (S, D)."""
        return largest_of_sequences(hidden_TD, lengths)


class AttentionPooling(nn.Module):
    """A weighted mean of each sequence's tokens; a token with the vector h has the weight softmax(tanh(W h + b) . q).

    Yang et al. 2016 (https://aclanthology.org/N16-1174), equations 5 to 7. W, b and q are trained.
    """

    def __init__(self, width: int):
        super().__init__()
        self.dense = Linear(width, width)
        self.query = nn.Parameter(torch.empty(width))

    def reset(self, sd: float) -> None:
        """Draw the weights from a normal distribution."""
        for weights in (self.dense.weight, self.query):
            nn.init.normal_(weights, std=sd)
        nn.init.zeros_(self.dense.bias)

    def forward(self, hidden_TD: Tensor, lengths: list[int]) -> Tensor:
        """Return (S, D), float32, also under autocast: bf16's 8 bits are too few for weights of long texts."""
        hidden_TD = hidden_TD.float()
        with torch.autocast(hidden_TD.device.type, enabled=False):
            # float64, so that the exponential function of a token does not depend on its place in the batch.
            score_T1 = (torch.tanh(self.dense(hidden_TD)) * self.query).sum(1, keepdim=True).double()
            sequence_T = _sequences(to_device(torch.tensor(lengths), hidden_TD.device), hidden_TD)
            # The largest exponent of a sequence is 0, so that none overflows.
            best_S1 = largest_of_sequences(score_T1.detach(), lengths)
            share_T1 = (score_T1 - best_S1.index_select(0, sequence_T)).exp()
            total_S1 = _sums(share_T1, sequence_T, len(lengths))
            share_T1 = (share_T1 / total_S1.index_select(0, sequence_T)).float()
            return _sums(share_T1 * hidden_TD, sequence_T, len(lengths))


class LayerPooling(nn.Module):
    """tanh(W [h_1, h_2, ...] + b) of a token's vectors after several layers; W and b are trained."""

    def __init__(self, width: int, layers: int):
        super().__init__()
        self.dense = Linear(layers * width, width)

    def reset(self, sd: float) -> None:
        """Draw the weights from a normal distribution."""
        nn.init.normal_(self.dense.weight, std=sd)
        nn.init.zeros_(self.dense.bias)

    def forward(self, of_layers: list[Tensor]) -> Tensor:
        """Return (S, D), float32, of the vectors after each layer, (S, D) each."""
        joined = torch.cat([vectors_SD.float() for vectors_SD in of_layers], dim=1)
        with torch.autocast(joined.device.type, enabled=False):
            return torch.tanh(self.dense(joined))


def of_windows(values_WC: Tensor, windows_B: np.ndarray | None, reduce: str = "mean") -> Tensor:
    """Return one row for each example from rows of its windows, which stand example by example; (B, C).

    `reduce`: mean or max. The windows of an example are taken in their order, so its row depends on no other example.
    """
    if windows_B is None:
        return values_WC
    counts_B = to_device(torch.from_numpy(windows_B), values_WC.device)
    return torch.segment_reduce(values_WC, reduce, lengths=counts_B, axis=0, unsafe=True)


PoolingModule = MaxPooling | AttentionPooling | LayerPooling
OVER_TOKENS = (MaxPooling, AttentionPooling)
"""those that read the vectors of all tokens after the last layer"""


def pooling_module(
    pooling: str, pooled_layers: list[int] | None, width: int, layers: int, sd: float
) -> PoolingModule | None:
    """Return the module of `model.pooling`, None if it has none.

    `layers`: the number of layers of the encoder. `sd`: the standard deviation of the first weights. Raises UserError
    if `pooled_layers` does not fit.
    """
    if problems := list(pooled_layers_problems(pooling, pooled_layers, layers)):
        raise UserError(*problems)
    if pooling == "max":
        return MaxPooling()
    if pooling not in ("attention", "layers"):
        return None
    made = AttentionPooling(width) if pooling == "attention" else LayerPooling(width, len(pooled_layers or ()))
    made.reset(sd)
    return made


def pooled_by(
    pooling: str, module: nn.Module | None, hidden_TD: Tensor, batch: Batch, of_layers: list[Tensor]
) -> Tensor:
    """Return the vector of each sequence by the `pooling_module` of `pooling`, (S, D); without one of tokens or layers,
    that of its first or last token. `of_layers`: the vectors of tokens after each pooled layer, (T, D) each."""
    if pooling == "mean":
        filling = batch.filling
        return mean_of_filled(hidden_TD, filling) if filling else mean_of_sequences(hidden_TD, batch.lengths)
    if isinstance(module, OVER_TOKENS):
        return module(hidden_TD, batch.lengths)
    if isinstance(module, LayerPooling):
        return module([each_TD.index_select(0, batch.starts_S) for each_TD in of_layers])
    return hidden_TD.index_select(0, last_of_sequences(batch) if pooling == "last" else batch.starts_S)


def _sequences(lengths_S: Tensor, hidden_TD: Tensor) -> Tensor:
    """Return the sequence of each token; (T,)."""
    numbers_S = torch.arange(len(lengths_S), device=hidden_TD.device)
    # `output_size` spares the accelerator a synchronization to learn it.
    return torch.repeat_interleave(numbers_S, lengths_S, output_size=len(hidden_TD))


def _sums(values_TD: Tensor, sequence_T: Tensor, count: int) -> Tensor:
    return values_TD.new_zeros(count, values_TD.shape[1]).index_add(0, sequence_T, values_TD)
