"""The modules of the BERT encoder: embeddings and post-norm transformer layers over packed batches.

Devlin et al. 2019 (https://arxiv.org/abs/1810.04805), section 3. Parameter names are those of Hugging Face's BERT,
except that query, key and value are one matrix, `attention.self.qkv`.

Axes: T tokens of all sequences, S sequences, D width.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from nlu.data.collate import Batch
from nlu.models.encoders.bert_sizes import Sizes
from nlu.models.layers.activations import ACTIVATIONS, IN_PLACE
from nlu.models.layers.attention import Attention
from nlu.models.layers.dropout import Dropout
from nlu.models.layers.linear import Linear

See = Callable[[Tensor], None]
"""receives the queries, keys and values of a layer, (T, 3D)"""


class Embeddings(nn.Module):
    """Sum of word, position and segment embeddings, normalized."""

    def __init__(self, vocab_size: int, sizes: Sizes):
        super().__init__()
        width = sizes["embedding_size"] or sizes["hidden_size"]
        self.word_embeddings = nn.Embedding(vocab_size, width)
        self.position_embeddings = nn.Embedding(sizes["max_positions"], width)
        self.token_type_embeddings = nn.Embedding(sizes["segment_types"], width)
        self.LayerNorm = nn.LayerNorm(width, eps=sizes["layer_norm_eps"])
        self.dropout = Dropout(sizes["dropout"])

    def forward(self, x_TD: Tensor, batch: Batch, has_segments: bool = True) -> Tensor:
        """Return (T, D); without `has_segments` all tokens are of segment 0."""
        types = self.token_type_embeddings
        # With a single type, only the separator divides the texts of a pair, as in RoBERTa.
        differ = has_segments and types.num_embeddings > 1
        summed_TD = x_TD + self.position_embeddings(batch.positions_T)
        segments_T = batch.segments_T if differ else torch.zeros_like(batch.segments_T)
        return self.dropout(self.LayerNorm(summed_TD + types(segments_T)))


class Layer(nn.Module):
    """One post-norm transformer layer."""

    def __init__(self, sizes: Sizes, heads: int):
        super().__init__()
        self.attention = SelfAttention(sizes, heads)
        self.intermediate = nn.ModuleDict({"dense": Linear(sizes["hidden_size"], sizes["intermediate_size"])})
        self.output = Output(sizes["intermediate_size"], sizes)
        self.activation, self.in_place = ACTIVATIONS[sizes["activation"]], IN_PLACE[sizes["activation"]]

    def forward(
        self, hidden_TD: Tensor, attention: Attention, starts_S: Tensor | None, see: See | None = None
    ) -> Tensor:
        """Return (T, D), or (S, D) for only the tokens at `starts_S`."""
        hidden = self.attention(hidden_TD, attention, starts_S, see)
        inner = self.intermediate["dense"](hidden)
        # In place where nothing needs the input: clearing new memory would take as long.
        activation = self.activation if torch.is_grad_enabled() else self.in_place
        return self.output(activation(inner), hidden)


class SelfAttention(nn.Module):
    """Self-attention with its output projection, residual and norm."""

    def __init__(self, sizes: Sizes, heads: int):
        super().__init__()
        width = sizes["hidden_size"]
        # Narrower than the width if the layer lacks heads.
        self.inner = heads * (width // sizes["heads"])
        self.self = nn.ModuleDict({"qkv": Linear(width, 3 * self.inner)})
        self.output = Output(self.inner, sizes)
        self.dropout = sizes["attention_dropout"]

    def forward(
        self, hidden_TD: Tensor, attention: Attention, starts_S: Tensor | None, see: See | None = None
    ) -> Tensor:
        qkv = self.self["qkv"]
        dropout_p = self.dropout if self.training else 0.0
        if starts_S is None:
            qkv_T3D = qkv(hidden_TD)
            if see is not None:
                see(qkv_T3D)
            return self.output(attention.self_attention(qkv_T3D, dropout_p), hidden_TD)
        first_SD = hidden_TD.index_select(0, starts_S)
        # Every token still needs a key and a value, but only the first ones a query.
        query_SD, key_value_T2D = qkv(first_SD, slice(self.inner)), qkv(hidden_TD, slice(self.inner, None))
        return self.output(attention.first_token_attention(query_SD, key_value_T2D, dropout_p), first_SD)


class Output(nn.Module):
    """Projection, dropout, residual, norm."""

    def __init__(self, input_size: int, sizes: Sizes):
        super().__init__()
        self.dense = Linear(input_size, sizes["hidden_size"])
        self.LayerNorm = nn.LayerNorm(sizes["hidden_size"], eps=sizes["layer_norm_eps"])
        self.dropout = Dropout(sizes["dropout"])

    def forward(self, hidden: Tensor, residual: Tensor) -> Tensor:
        # Under autocast the projection has lower precision; the residual stream stays in fp32.
        projected = self.dropout(self.dense(hidden).to(residual.dtype))
        return self.LayerNorm(projected + residual if torch.is_grad_enabled() else projected.add_(residual))
