"""The modules of the BERT encoder: embeddings and post-norm transformer layers over packed batches.

Devlin et al. 2019 (https://arxiv.org/abs/1810.04805), section 3. Parameter names are those of Hugging Face's BERT,
except that query, key and value are one matrix, `attention.self.qkv`. Sizes come from the keys of a run, else from the
configuration of pretrained weights, else from BERT-base.

Axes: T tokens of all sequences, S sequences, D width.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from nlu.config.errors import UserError
from nlu.config.types import Config
from nlu.data.collate import Batch
from nlu.models import keys as schemas
from nlu.models.formats.smaller_weights import pruned_heads_of, wrong_heads
from nlu.models.layers.attention import Attention
from nlu.models.layers.dropout import Dropout, hashed, layer_keys
from nlu.models.layers.exact_linear import ACTIVATIONS, IN_PLACE, Linear
from nlu.models.layers.filled_attention import rows_at

CONFIG_KEYS = {
    "hidden_size": "hidden_size", "layers": "num_hidden_layers", "layer_groups": "num_hidden_groups",
    "heads": "num_attention_heads",
    "intermediate_size": "intermediate_size", "embedding_size": "embedding_size",
    "max_positions": "max_position_embeddings", "segment_types": "type_vocab_size", "activation": "hidden_act",
    "dropout": "hidden_dropout_prob", "attention_dropout": "attention_probs_dropout_prob",
    "layer_norm_eps": "layer_norm_eps", "initializer_range": "initializer_range",
}  # fmt: skip


Sizes = dict[str, Any]
"""the keys of CONFIG_KEYS, and `pruned_heads`: the heads that layers lack, by layer; layer_groups: None = all layers
differ; embedding_size: None = hidden_size"""
BERT_BASE: Sizes = {
    "hidden_size": 768, "layers": 12, "layer_groups": None, "heads": 12, "intermediate_size": 3072,
    "embedding_size": None, "max_positions": 512, "segment_types": 2, "activation": "gelu", "dropout": 0.1,
    "attention_dropout": 0.1, "layer_norm_eps": 1e-12, "initializer_range": 0.02,
}  # fmt: skip
TUNABLE = ("dropout", "attention_dropout", "layer_norm_eps", "initializer_range")
MUST_BE_KNOWN = ("hidden_size", "layers", "heads", "intermediate_size", "activation")
"""sizes that cannot be inferred from pretrained weights; a wrong default would not be noticed"""

See = Callable[[Tensor], None]
"""receives the queries, keys and values of a layer, (T, 3D)"""


def resolve_sizes(
    given: dict[str, Any], config: Config | None, names: Mapping[str, str] = CONFIG_KEYS, base: Sizes = BERT_BASE
) -> Sizes:
    """Return each size from the user's keys, else from the checkpoint's configuration, else from `base`.

    `config` is None without pretrained weights. `names`: its key for each of ours. Raises UserError if a key
    contradicts the checkpoint, a size of MUST_BE_KNOWN is unknown, or heads do not divide the width or groups the
    layers.
    """
    sizes: Sizes = {}
    problems = []
    for ours, theirs in names.items():
        written, stored = given.get(ours), (config or {}).get(theirs)
        if written is not None and stored is not None and written != stored and ours not in TUNABLE:
            problems.append(
                f"model.{ours} is {written}, but the pretrained weights have {stored}; "
                f"set model.{ours}=null, or model.pretrained=null for random initialization"
            )
        if config is not None and written is None and stored is None and ours in MUST_BE_KNOWN:
            problems.append(
                f"model.{ours} is null, but no configuration beside the pretrained weights gives {theirs}; "
                f"set model.{ours}, or put the config.json or bert_config.json there"
            )
        sizes[ours] = written if written is not None else stored if stored is not None else base[ours]
    for ours, whole in schemas.Bert.divisors.items():
        if sizes[whole] % (sizes.get(ours) or 1):
            problems.append(
                f"model.{ours} is {sizes[ours]}, which does not divide model.{whole} {sizes[whole]}; set one of the two"
            )
    pruned = pruned_heads_of(config or {})
    problems += [
        f"{problem}; give undamaged weights" for problem in wrong_heads(pruned, sizes["layers"], sizes["heads"])
    ]
    if problems:
        raise UserError(*problems)
    return {**sizes, "pruned_heads": pruned}


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
        summed_TD = x_TD + looked_up(self.position_embeddings, batch.positions_T, batch)
        segments_T = batch.segments_T if differ else torch.zeros_like(batch.segments_T)
        summed_TD = summed_TD + looked_up(types, segments_T, batch)
        return self.dropout(self.LayerNorm(summed_TD), keys=layer_keys(batch, 0, self.training))


def looked_up(table: nn.Embedding, ids_T: Tensor, batch: Batch) -> Tensor:
    """Return a row of the table for each token; (T, D)."""
    found: Tensor = table(ids_T) if batch.filling is None else rows_at(table.weight, ids_T)
    return found


class Layer(nn.Module):
    """One post-norm transformer layer."""

    def __init__(self, sizes: Sizes, heads: int):
        super().__init__()
        self.attention = SelfAttention(sizes, heads)
        self.intermediate = nn.ModuleDict({"dense": Linear(sizes["hidden_size"], sizes["intermediate_size"])})
        self.output = Output(sizes["intermediate_size"], sizes)
        self.activation, self.in_place = ACTIVATIONS[sizes["activation"]], IN_PLACE[sizes["activation"]]

    def forward(
        self, hidden_TD: Tensor, attention: Attention, starts_S: Tensor | None, see: See | None = None,
        keys_T: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Return (T, D), or (S, D) for only the tokens at `starts_S`; `keys_T`: the random numbers of a compiled
        step."""
        keys = keys_T if keys_T is None or starts_S is None else keys_T[starts_S]
        hidden = self.attention(hidden_TD, attention, starts_S, see, keys)
        inner = self.intermediate["dense"](hidden)
        # In place where nothing needs the input: clearing new memory would take as long.
        activation = self.activation if torch.is_grad_enabled() else self.in_place
        # Attention heads draw with 0 and more added to the keys of the layer.
        return self.output(activation(inner), hidden, None if keys is None else hashed(keys - 1))


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
        self, hidden_TD: Tensor, attention: Attention, starts_S: Tensor | None, see: See | None = None,
        keys: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        qkv = self.self["qkv"]
        dropout_p = self.dropout if self.training else 0.0
        if starts_S is None:
            qkv_T3D = qkv(hidden_TD)
            if see is not None:
                see(qkv_T3D)
            return self.output(attention.self_attention(qkv_T3D, dropout_p), hidden_TD, keys)
        first_SD = hidden_TD.index_select(0, starts_S)
        # Every token still needs a key and a value, but only the first ones a query.
        query_SD, key_value_T2D = qkv(first_SD, slice(self.inner)), qkv(hidden_TD, slice(self.inner, None))
        mixed_SD = attention.first_token_attention(query_SD, key_value_T2D, dropout_p)
        return self.output(mixed_SD, first_SD, keys)


class Output(nn.Module):
    """Projection, dropout, residual, norm."""

    def __init__(self, input_size: int, sizes: Sizes):
        super().__init__()
        self.dense = Linear(input_size, sizes["hidden_size"])
        self.LayerNorm = nn.LayerNorm(sizes["hidden_size"], eps=sizes["layer_norm_eps"])
        self.dropout = Dropout(sizes["dropout"])

    def forward(self, hidden: Tensor, residual: Tensor, keys: Tensor | None = None) -> Tensor:
        # Under autocast the projection has lower precision; the residual stream stays in fp32.
        projected = self.dropout(self.dense(hidden).to(residual.dtype), keys=keys)
        return self.LayerNorm(projected + residual if torch.is_grad_enabled() else projected.add_(residual))
