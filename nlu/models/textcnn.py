"""A convolutional encoder for single texts and pairs: small, fast, trained from scratch.

Kim 2014 (https://arxiv.org/abs/1408.5882), section 2, with several layers of same-length convolutions in place of one;
a pair is encoded text by text and joined as [a, b, |a - b|, a * b] (Mou et al. 2016, https://arxiv.org/abs/1512.08422,
section 3.3, plus the absolute difference).

Axes: T tokens of all examples, B examples, S sequences (a pair has two), L the longest, P asked-for places, D width.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlu.config.errors import UserError
from nlu.config.types import OddPositiveInt, PositiveInt, Probability
from nlu.data.collate import Batch
from nlu.models.dropout import Dropout
from nlu.models.embedding import Embedding
from nlu.models.pretrained import Pretrained


class TextCnn(nn.Module):
    """Convolutions over word embeddings, max-pooled; a pair goes through the same weights twice."""

    def __init__(
        self,
        vocab_size: int,
        source: Pretrained | None,
        *,
        pretrained: str | None,
        embedding_size: PositiveInt = 128,
        hidden_size: PositiveInt = 256,
        layers: PositiveInt = 1,
        kernel_sizes: list[OddPositiveInt] = [3, 5],  # noqa: B006 - read as a schema, never changed
        dropout: Probability = 0.2,
        head_dropout: Probability = 0.2,
    ):
        """`pretrained`: a former run with this model; null = random. `kernel_sizes` are odd; each layer runs one
        convolution of every size and adds them up."""
        super().__init__()
        if not kernel_sizes:
            raise UserError("model.kernel_sizes is empty, but there must be at least one; e.g. [3,5]")
        self._settings: dict[str, Any] = {
            "model_type": "textcnn", "embedding_size": embedding_size, "hidden_size": hidden_size, "layers": layers,
            "kernel_sizes": list(kernel_sizes),
        }  # fmt: skip
        require_same_sizes(self._settings, source)
        self.layout = "single"
        self.head_dropout = head_dropout
        self.max_positions: int | None = None
        self.hidden_size = hidden_size
        self.pads = True
        self.word_embeddings = Embedding(vocab_size, embedding_size)
        widths = [embedding_size, *[hidden_size] * layers]
        self.layers = nn.ModuleList(
            nn.ModuleList(nn.Conv1d(before, after, size, padding=size // 2) for size in kernel_sizes)
            for before, after in zip(widths, widths[1:], strict=False)
        )
        self.dropout = Dropout(dropout)
        nn.init.normal_(self.word_embeddings.weight, std=0.1)

    def settings(self) -> dict[str, Any]:
        """What config.json of a checkpoint holds."""
        return self._settings

    def width_of(self, layout: str) -> int:
        """Return the width of what `pooled` (single, pair) or `at` (units) gives."""
        return self.hidden_size * (4 if layout == "pair" else 1)

    def pooled(self, batch: Batch) -> Tensor:
        """Return one vector for each example: (B, D) for single texts, (B, 4D) for pairs."""
        pair = self.layout == "pair"
        hidden_SLD, real_SL, _ = self._encode(batch, pair)
        best_SD = hidden_SLD.masked_fill(~real_SL[:, :, None], float("-inf")).amax(dim=1)
        # A text of which no token is left has nothing to pool.
        best_SD = best_SD.masked_fill(~real_SL.any(dim=1)[:, None], 0.0)
        if not pair:
            return best_SD
        first, second = best_SD[0::2], best_SD[1::2]
        return torch.cat([first, second, (first - second).abs(), first * second], dim=1)

    def at(self, batch: Batch, places_P: Tensor) -> Tensor:
        """Return the vectors of the tokens at the given places of the packed batch; (P, D)."""
        hidden_SLD, _, place_T = self._encode(batch, pair=False)
        return hidden_SLD.reshape(-1, self.hidden_size).index_select(0, place_T.index_select(0, places_P))

    def depth_of(self, name: str) -> int:
        return 0 if name.startswith("word_embeddings") else int(name.split(".")[1]) + 1

    @property
    def depth(self) -> int:
        return len(self.layers) + 1

    def checkpoint_names(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return tensors

    def _encode(self, batch: Batch, pair: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return hidden (S, L, D), which places are tokens (S, L), and each token's place in S * L."""
        device = batch.tokens_T.device
        example_T = torch.repeat_interleave(
            torch.arange(batch.num_sequences, device=device), torch.tensor(batch.lengths, device=device)
        )
        if pair:
            sequence_T = example_T * 2 + batch.segments_T
            firsts_B = torch.zeros(batch.num_sequences, dtype=torch.long, device=device)
            firsts_B = firsts_B.index_add(0, example_T, 1 - batch.segments_T)
            column_T = batch.positions_T - batch.segments_T * firsts_B[example_T]
        else:
            sequence_T, column_T = example_T, batch.positions_T
        count, longest = batch.num_sequences * (2 if pair else 1), int(column_T.max()) + 1
        place_T = sequence_T * longest + column_T
        embedded_TD = self.dropout(self.word_embeddings(batch.tokens_T))
        width = embedded_TD.shape[1]
        hidden = embedded_TD.new_zeros(count * longest, width).index_copy(0, place_T, embedded_TD)
        real_SL = torch.zeros(count * longest, dtype=torch.bool, device=device).index_fill(0, place_T, True)
        real_SL = real_SL.view(count, longest)
        hidden_SDL = hidden.view(count, longest, width).transpose(1, 2)
        for convolutions in self.layers:
            summed: Tensor = sum(conv(hidden_SDL) for conv in convolutions)  # type: ignore[attr-defined, assignment]
            # Padding must stay zero, or a longer neighbour would reach into the next layer's window.
            hidden_SDL = self.dropout(F.gelu(summed)) * real_SL[:, None, :]
        return hidden_SDL.transpose(1, 2), real_SL, place_T


def require_same_sizes(settings: dict[str, Any], source: Pretrained | None) -> None:
    """Raise UserError listing every size that is not that of the run whose weights are to be taken."""
    config = source.config if source else {}
    if config.get("model_type") != settings["model_type"]:
        return
    problems = [
        f"model.{key} is {value}, but the pretrained weights have {config[key]}; set model.{key}={config[key]}, "
        "or model.pretrained=null for random initialisation"
        for key, value in settings.items()
        if key in config and config[key] != value
    ]
    if problems:
        raise UserError(*problems)
