"""ModernBERT over packed batches, and its family: Ettin, mmBERT.

Warner et al. 2024 (https://arxiv.org/abs/2412.13663), section 2: rotary positions (Su et al. 2021,
https://arxiv.org/abs/2104.09864), a gated feed-forward part, norms before each part, and layers of which most let a
token see only those near it. Parameter names are those of transformers.

Axes: T tokens of all sequences, S sequences, L places, H heads, D width, E half of the width of a head.
"""

import math
from dataclasses import asdict
from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlu.config.errors import CheckpointError, UserError
from nlu.config.keys import takes
from nlu.data.collate import Batch, Filling
from nlu.models import keys as schemas
from nlu.models.encoder import Encoded, Inside, layers_asked
from nlu.models.encoders.bert import OTHERS, Seen
from nlu.models.encoders.bert_layers import See, Sizes, looked_up, resolve_sizes
from nlu.models.formats.bert_family import FAMILY
from nlu.models.formats.modernbert import DEFAULT_THETAS, EVERY, KIND, modern_config, modern_tensors, strange_parts
from nlu.models.formats.pretrained import Pretrained
from nlu.models.formats.sentence_folder import KEY, after_encoder, finished, require_computed
from nlu.models.layers.attention import Attention, attention_over, attention_weights
from nlu.models.layers.dropout import Dropout, hashed, layer_keys, recomputed
from nlu.models.layers.exact_linear import ACTIVATIONS, Linear, padding_rows, with_rows
from nlu.models.layers.filled_attention import FilledAttention
from nlu.models.layers.pooling import pooled_by, pooling_module

MODEL_TYPE = "nlu-modernbert"
"""model_type of a checkpoint, so that transformers does not load it: config.json lacks what it wants"""
OF_HEADS = {
    "classifier_activation": "gelu", "classifier_bias": False, "decoder_bias": True, "tie_word_embeddings": True,
}  # fmt: skip
CONFIG_KEYS = {
    "hidden_size": "hidden_size", "layers": "num_hidden_layers", "heads": "num_attention_heads",
    "intermediate_size": "intermediate_size", "max_positions": "max_position_embeddings",
    "local_attention": "local_attention", "global_every": EVERY, "activation": "hidden_activation",
    "dropout": "mlp_dropout", "attention_dropout": "attention_dropout", "layer_norm_eps": "norm_eps",
    "initializer_range": "initializer_range", "norm_bias": "norm_bias", "attention_bias": "attention_bias",
    "mlp_bias": "mlp_bias", **{theta: theta for theta in DEFAULT_THETAS},
    **{key: key for key in OF_HEADS},
}  # fmt: skip
MODERNBERT_BASE: Sizes = {
    "hidden_size": 768, "layers": 22, "heads": 12, "intermediate_size": 1152, "max_positions": 8192,
    "local_attention": 128, "global_every": 3, "activation": "gelu", "dropout": 0.0, "attention_dropout": 0.0,
    "layer_norm_eps": 1e-5, "initializer_range": 0.02, "norm_bias": False, "attention_bias": False, "mlp_bias": False,
    **DEFAULT_THETAS, **OF_HEADS,
}  # fmt: skip


@takes(schemas.ModernBert)
class ModernBert(nn.Module):
    """ModernBERT of any size, without padding."""

    def __init__(self, vocab_size: int, source: Pretrained | None, keys: schemas.ModernBert):
        super().__init__()
        if source is not None:
            require_modern(source)
        config = modern_config(source.config) if source else None
        sizes = self.sizes = resolve_sizes(asdict(keys), config, CONFIG_KEYS, MODERNBERT_BASE)
        if (of_head := sizes["hidden_size"] // sizes["heads"]) % 2:
            raise UserError(
                f"model.heads is {sizes['heads']}, so that a head has {of_head} numbers, but positions turn pairs of "
                "them; set model.heads or model.hidden_size so that the number is even"
            )
        self.width: int = sizes["hidden_size"]
        self.max_positions: int | None = sizes["max_positions"]
        self.layout, self.has_segments = "single", False
        self.head_dropout, self.gradient_checkpointing = keys.head_dropout, keys.gradient_checkpointing
        self.after = after_encoder(source, keys.pooling, keys.pooled_layers)
        self.pooling, self.pooled_layers = self.after.pooling, self.after.pooled_layers or []
        self.pads = False
        self.embeddings = Embeddings(vocab_size, sizes)
        self.layers = nn.ModuleList(Layer(sizes, number) for number in range(sizes["layers"]))
        self.final_norm = norm_of(sizes)
        self.angles = nn.ModuleDict({theta: Angles(sizes, sizes[theta]) for theta in DEFAULT_THETAS})
        self._initialize()
        # After all others, so that their random weights do not depend on it.
        sd = sizes["initializer_range"]
        self.pooling_module = pooling_module(self.pooling, self.after.pooled_layers, self.width, sizes["layers"], sd)

    def settings(self) -> dict[str, object]:
        """Return the content of a checkpoint's config.json."""
        sizes = {theirs: self.sizes[ours] for ours, theirs in CONFIG_KEYS.items()}
        return {"model_type": MODEL_TYPE, **sizes, KEY: asdict(self.after)}

    def width_of(self, layout: str) -> int:
        """Return the width of the vectors, which is the same for every layout.

        Raises UserError for vectors of texts that only model=hf computes.
        """
        if layout != "units":
            require_computed(self.after, by=KIND)
        return self.width

    def embed(self, batch: Batch) -> Tensor:
        """Return the word vector of each token, before norm and dropout; (T, D)."""
        return looked_up(self.words, batch.tokens_T, batch)

    @property
    def words(self) -> nn.Embedding:
        """The table of word vectors."""
        return self.embeddings.tok_embeddings

    def encode(
        self, x_TD: Tensor, batch: Batch, *, tokens: bool = False, pooled: bool = False, inside: Inside | None = None
    ) -> Encoded:
        """Return the requested vectors of tokens and sequences, and the requested parts of the layers.

        Queries and keys are those before positions turn them. If only first tokens are requested and the last layer is
        global, it computes only what they need; the result is the same.
        """
        seen = None
        if inside is not None or pooled and self.pooling == "layers":
            seen = Seen(inside or Inside(), batch.lengths, self.sizes["layers"], self.weights_of)
        elif not tokens and not pooled:
            return Encoded()
        ends_global = is_global(self.sizes, self.sizes["layers"] - 1)
        first_only = seen is None and not tokens and self.pooling == "first" and ends_global
        hidden_TD = self._hidden(x_TD, batch, first_only, seen)
        found = Encoded() if seen is None else seen.encoded()
        if tokens:
            found.tokens_TD = hidden_TD
        if pooled:
            pooled_SD = hidden_TD if first_only else self._pool(hidden_TD, batch, [] if seen is None else seen.hidden)
            found.pooled_SD = finished(pooled_SD, self.after, self.layout)
        return found

    def weights_of(self, layer: int, query_TD: Tensor, key_TD: Tensor, lengths: list[int]) -> list[Tensor]:
        """Return the attention weights of a layer for its queries and keys, as in `Encoded`."""
        heads, positions_T = self.sizes["heads"], torch.cat([torch.arange(length) for length in lengths])
        angles_T2E = self.angles[theta_of(self.sizes, layer)](positions_T.to(query_TD.device))
        query_TD, key_TD = turned(torch.cat([query_TD, key_TD], 1), 2, 2, heads, angles_T2E).chunk(2, dim=1)
        return attention_weights(query_TD, key_TD, lengths, heads, reach_of(self.sizes, layer))

    def depth_of(self, name: str) -> int:
        """Return the layer of a parameter: 0 = embeddings, 1 = first layer, ..., the last one = above all layers."""
        if name.startswith("embeddings"):
            return 0
        return int(name.split(".")[1]) + 1 if name.startswith("layers.") else self.depth

    @property
    def depth(self) -> int:
        return int(self.sizes["layers"]) + 1

    def checkpoint_names(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors of a checkpoint of transformers under the names of this module."""
        return modern_tensors(tensors)

    def _pool(self, hidden_TD: Tensor, batch: Batch, hidden: list[Tensor]) -> Tensor:
        asked = layers_asked(tuple(self.pooled_layers), self.sizes["layers"]).values()
        return pooled_by(self.pooling, self.pooling_module, hidden_TD, batch, [hidden[n + 1] for n in asked])

    def _hidden(self, x_TD: Tensor, batch: Batch, first_only: bool, seen: Seen | None) -> Tensor:
        """Return the vectors of all tokens after the last norm, (T, D), or only of first tokens, (S, D)."""
        hidden_TD = self.embeddings(x_TD, layer_keys(batch, 0, self.training))
        if batch.filling is not None:
            return self.final_norm(self._filled(hidden_TD, batch, batch.filling, first_only))
        # Rows of zeros are added once for all layers; attention ignores them, and they are cut off at the end.
        tokens, sizes, device = len(hidden_TD), self.sizes, hidden_TD.device
        more = padding_rows(tokens, device)
        hidden_TD, positions_T = with_rows(hidden_TD, tokens + more), F.pad(batch.positions_T, (0, more))
        angles_of = {theta: each(positions_T) for theta, each in self.angles.items()}
        attention_of = cache(partial(attention_over, batch.lengths, sizes["heads"], device))
        recomputes = self.gradient_checkpointing and self.training and torch.is_grad_enabled()
        for number, layer in enumerate(self.layers):
            starts_S = batch.starts_S if first_only and number + 1 == len(self.layers) else None
            see = None
            if seen is not None:
                seen.hidden.append(hidden_TD[:tokens])
                see = partial(seen.project, number)
            inputs = hidden_TD, attention_of(reach_of(sizes, number)), angles_of[theta_of(sizes, number)], starts_S, see
            hidden_TD = recomputed(layer, *inputs) if recomputes else layer(*inputs)
        # With first_only there are at most `tokens` rows.
        hidden_TD = self.final_norm(hidden_TD[:tokens])
        if seen is not None:
            seen.hidden.append(hidden_TD)
        return hidden_TD

    def _filled(self, hidden_TD: Tensor, batch: Batch, filling: Filling, first_only: bool) -> Tensor:
        """Return what the layers make of a batch with filling, layer by layer in regions that are compiled once."""
        angles_of = {theta: each(batch.positions_T) for theta, each in self.angles.items()}
        for number, layer in enumerate(self.layers):
            # Before the first layer stands the dropout of embeddings.
            keys_T = layer_keys(batch, number + 1, self.training)
            starts_S = batch.starts_S if first_only and number + 1 == len(self.layers) else None
            compute = _filled_layer if number else _layer_of_filled
            hidden_TD = compute(
                layer, self.sizes["heads"], reach_of(self.sizes, number), hidden_TD, filling.slots_SL,
                filling.lengths_S, filling.slot_T, angles_of[theta_of(self.sizes, number)], starts_S, keys_T,
            )  # fmt: skip
        return hidden_TD

    def _initialize(self) -> None:
        sd = self.sizes["initializer_range"]
        for name, module in self.named_modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                # What is added to the sum of all layers begins smaller.
                own_sd = sd / math.sqrt(2 * self.sizes["layers"]) if name.endswith("Wo") else sd
                nn.init.trunc_normal_(module.weight, std=own_sd, a=-2 * own_sd, b=2 * own_sd)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)


def _layer_of_filled(
    layer: nn.Module, heads: int, reach: int | None, hidden_TD: Tensor, slots_SL: Tensor, lengths_S: Tensor,
    slot_T: Tensor, angles_T2E: Tensor, starts_S: Tensor | None, keys_T: Tensor | None,
) -> Tensor:  # fmt: skip
    """Return what a layer makes of a batch with filling."""
    attention = FilledAttention(slots_SL, lengths_S, slot_T, heads, keys_T, reach)
    computed: Tensor = layer(hidden_TD, attention, angles_T2E, starts_S, None, keys_T)
    return computed


# All layers of the same kind are compiled once, but not the first, which lacks a norm: torch would compute the others
# without theirs too.
_filled_layer = torch.compiler.nested_compile_region(_layer_of_filled, max_reuse_entries=1000)


class Embeddings(nn.Module):
    """Word vectors, normalized."""

    def __init__(self, vocab_size: int, sizes: Sizes):
        super().__init__()
        self.tok_embeddings = nn.Embedding(vocab_size, sizes["hidden_size"])
        self.norm = norm_of(sizes)
        self.dropout = Dropout(sizes["dropout"])

    def forward(self, x_TD: Tensor, keys_T: Tensor | None) -> Tensor:
        return self.dropout(self.norm(x_TD), keys=keys_T)


class Layer(nn.Module):
    """One transformer layer with a norm before each of its two parts; the first layer reads normalized vectors."""

    def __init__(self, sizes: Sizes, number: int):
        super().__init__()
        width, inner = sizes["hidden_size"], sizes["intermediate_size"]
        bias, of_mlp = sizes["attention_bias"], sizes["mlp_bias"]
        self.attn_norm = norm_of(sizes) if number else nn.Identity()
        self.attn = nn.ModuleDict({"Wqkv": Linear(width, 3 * width, bias), "Wo": Linear(width, width, bias)})
        self.mlp_norm = norm_of(sizes)
        self.mlp = nn.ModuleDict({"Wi": Linear(width, 2 * inner, of_mlp), "Wo": Linear(inner, width, of_mlp)})
        self.heads, self.activation = sizes["heads"], ACTIVATIONS[sizes["activation"]]
        self.after_attention, self.dropout = Dropout(sizes["attention_dropout"]), Dropout(sizes["dropout"])

    def forward(
        self, hidden_TD: Tensor, attention: Attention, angles_T2E: Tensor, starts_S: Tensor | None,
        see: See | None = None, keys_T: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Return (T, D), or (S, D) for only the tokens at `starts_S`; `keys_T` as in `bert_layers.Layer`."""
        qkv, width = self.attn["Wqkv"], hidden_TD.shape[1]
        normed_TD, keys = self.attn_norm(hidden_TD), keys_T
        dropout_p = self.after_attention.probability if self.training else 0.0
        if starts_S is None:
            qkv_T3D = qkv(normed_TD)
            if see is not None:
                see(qkv_T3D)
            mixed = attention.self_attention(turned(qkv_T3D, 3, 2, self.heads, angles_T2E), dropout_p)
        else:
            keys = None if keys_T is None else keys_T[starts_S]
            hidden_TD, query_SD = hidden_TD.index_select(0, starts_S), normed_TD.index_select(0, starts_S)
            key_value_T2D = turned(qkv(normed_TD, slice(width, None)), 2, 1, self.heads, angles_T2E)
            # First tokens stand at 0, by which nothing is turned.
            mixed = attention.first_token_attention(qkv(query_SD, slice(width)), key_value_T2D, dropout_p)
        # Under autocast products have lower precision; the residual stream stays in fp32.
        hidden_TD = hidden_TD + self.after_attention(self.attn["Wo"](mixed).to(hidden_TD.dtype), keys=keys)
        inner, gate = self.mlp["Wi"](self.mlp_norm(hidden_TD)).chunk(2, dim=-1)
        # Attention heads draw with 0 and more added to the keys of the layer.
        # Contiguous, because torch computes other rows by other code, of which one row would be none.
        gated = self.activation(inner.contiguous()) * gate
        gated = self.dropout(gated, keys=None if keys is None else hashed(keys - 1))
        return hidden_TD + self.mlp["Wo"](gated).to(hidden_TD.dtype)


class Angles(nn.Module):
    """Cosine and sine of the angles by which positions turn queries and keys."""

    def __init__(self, sizes: Sizes, base: float):
        super().__init__()
        width = sizes["hidden_size"] // sizes["heads"]
        # In fp32, whose rounding the weights were trained with, and once, so that a text has the same bits anywhere.
        speeds_E = 1.0 / (base ** (torch.arange(0, width, 2, dtype=torch.float32) / width))
        angles_LE = torch.arange(sizes["max_positions"], dtype=torch.float32)[:, None] * speeds_E
        self.table_L2E: Tensor
        self.register_buffer("table_L2E", torch.stack([angles_LE.cos(), angles_LE.sin()], 1), persistent=False)

    def forward(self, positions_T: Tensor) -> Tensor:
        """Return (T, 2, E)."""
        return self.table_L2E[positions_T]


def turned(packed_TC: Tensor, parts: int, count: int, heads: int, angles_T2E: Tensor) -> Tensor:
    """Return columns of `parts` parts with heads side by side, (T, C), the first `count` parts turned by the angles."""
    parts_TPHW = packed_TC.unflatten(1, (parts, heads, -1))
    cos_T11E, sin_T11E = angles_T2E[:, :, None, None].unbind(1)
    one, other = parts_TPHW[:, :count].float().chunk(2, dim=-1)
    both = torch.cat([one * cos_T11E - other * sin_T11E, other * cos_T11E + one * sin_T11E], dim=-1)
    return torch.cat([both.to(packed_TC.dtype), parts_TPHW[:, count:]], dim=1).flatten(1)


def norm_of(sizes: Sizes) -> nn.LayerNorm:
    """Return a norm over the vector of a token."""
    return nn.LayerNorm(sizes["hidden_size"], eps=sizes["layer_norm_eps"], bias=sizes["norm_bias"])


def is_global(sizes: Sizes, layer: int) -> bool:
    """Return whether a token sees its whole text in a layer."""
    return bool(layer % sizes["global_every"] == 0)


def reach_of(sizes: Sizes, layer: int) -> int | None:
    """Return how many places away a token may be to be seen in a layer; None: anywhere."""
    return None if is_global(sizes, layer) else sizes["local_attention"] // 2


def theta_of(sizes: Sizes, layer: int) -> str:
    """Return which base the angles of a layer have."""
    return "global_rope_theta" if is_global(sizes, layer) else "local_rope_theta"


def require_modern(source: Pretrained) -> None:
    """Raise CheckpointError if the configuration of the weights describes an encoder that computes something else."""
    config = source.config
    kind = str(config.get("model_type", "bert"))
    reasons = [f"model_type {kind}"] if kind not in (KIND, MODEL_TYPE) else strange_parts(config)
    for key in ("hidden_activation", "classifier_activation"):
        if (activation := config.get(key, "gelu")) not in ACTIVATIONS:
            reasons.append(f"{key} {activation}")
    if reasons:
        other = "bert" if kind in FAMILY else kind if kind in OTHERS and kind != KIND else "hf"
        raise CheckpointError(
            f"{source.key} is {source.reference!r}, whose configuration says {', '.join(reasons)}, which this encoder "
            f"({KIND}) cannot compute; set model={other}"
        )
