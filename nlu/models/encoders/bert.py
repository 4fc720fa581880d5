"""The BERT encoder over packed batches, also with narrow word vectors (ELECTRA) and with repeated layers (ALBERT).

Devlin et al. 2019 (https://arxiv.org/abs/1810.04805), section 3; Clark et al. 2020 (https://arxiv.org/abs/2003.10555),
appendix A, for the projected embeddings; Lan et al. 2020 (https://arxiv.org/abs/1909.11942), section 3.1, for repeated
layers. Parameter names are those of Hugging Face's BERT checkpoints, except that query, key and value are one matrix,
`attention.self.qkv`; `nlu.models.formats.bert_family` converts those of other architectures.

Axes: T tokens of all sequences, S sequences, D width.
"""

from collections.abc import Callable
from dataclasses import asdict
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from nlu.config.errors import CheckpointError
from nlu.config.keys import takes
from nlu.data.collate import Batch, Filling
from nlu.models import keys as schemas
from nlu.models.encoder import Encoded, Inside, layers_asked
from nlu.models.encoders.bert_layers import CONFIG_KEYS, Embeddings, Layer, looked_up, resolve_sizes
from nlu.models.formats.bert_family import FAMILY, bert_tensors, strange_parts
from nlu.models.formats.pretrained import Pretrained
from nlu.models.formats.sentence_folder import KEY, after_encoder, finished, require_computed
from nlu.models.formats.smaller_weights import PRUNED_HEADS, as_written, kept_heads
from nlu.models.formats.weights_config import bert_config
from nlu.models.layers.attention import attention_over, attention_weights
from nlu.models.layers.dropout import layer_keys, recomputed
from nlu.models.layers.exact_linear import ACTIVATIONS, Linear, padding_rows, with_rows
from nlu.models.layers.filled_attention import FilledAttention
from nlu.models.layers.pooling import pooled_by, pooling_module

MODEL_TYPE = "nlu-bert"
"""model_type of a checkpoint, so that transformers does not load it: the names of parameters differ"""
OTHERS = ("textcnn", "lstm", "static", "modernbert")
"""the model_types of our other encoders, which are the names of their choices"""


@takes(schemas.Bert)
class Bert(nn.Module):
    """BERT of any size and its family, over packed batches without padding."""

    def __init__(self, vocab_size: int, source: Pretrained | None, keys: schemas.Bert):
        """`source` has gone through `nlu.models.formats.smaller_weights` with `keep_layers`, and its tokenizer
        through `nlu.data.trimming` with `trim_vocab`."""
        super().__init__()
        if source is not None:
            require_bert(source)
        self._config = source.config if source else {}
        sizes = self.sizes = resolve_sizes(asdict(keys), bert_config(source.config) if source else None)
        self.width: int = sizes["hidden_size"]
        self.max_positions: int | None = sizes["max_positions"]
        # Until TaskModel sets it, and `assemble` by the tokenizer.
        self.layout, self.has_segments = "single", True
        self.head_dropout, self.gradient_checkpointing = keys.head_dropout, keys.gradient_checkpointing
        self.after = after_encoder(source, keys.pooling, keys.pooled_layers)
        self.pooling, self.pooled_layers = self.after.pooling, self.after.pooled_layers or []
        self.pads = False
        self.embeddings = Embeddings(vocab_size, sizes)
        embedding_size = sizes["embedding_size"] or self.width
        self.embeddings_project = Linear(embedding_size, self.width) if embedding_size != self.width else None
        self._groups = sizes["layer_groups"] or sizes["layers"]
        pruned, whole = sizes["pruned_heads"], sizes["heads"]
        self._heads = [len(kept_heads(pruned, layer, whole)) for layer in range(sizes["layers"])]
        weights = [Layer(sizes, self.heads_of(number)) for number in range(self._groups)]
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(weights)})
        self.pooler = nn.ModuleDict({"dense": Linear(self.width, self.width)}) if self.pooling == "pooler" else None
        self.apply(self._initialize)
        # After all others, so that their random weights do not depend on it.
        sd = sizes["initializer_range"]
        self.pooling_module = pooling_module(self.pooling, self.after.pooled_layers, self.width, sizes["layers"], sd)

    def settings(self) -> dict[str, object]:
        """Return the content of a checkpoint's config.json."""
        pruned = as_written(self.sizes["pruned_heads"])
        return {
            "model_type": MODEL_TYPE,
            **{theirs: self.sizes[ours] for ours, theirs in CONFIG_KEYS.items()},
            **({PRUNED_HEADS: pruned} if pruned else {}),
            KEY: asdict(self.after),
        }

    def width_of(self, layout: str) -> int:
        """Return the width of the vectors, which is the same for every layout.

        Raises UserError for vectors of texts that only model=hf computes (`nlu.models.formats.sentence_folder`).
        """
        if layout != "units":
            require_computed(self.after, by="bert")
        return self.width

    def group_of(self, layer: int) -> int:
        """Return the number of the weights, in `encoder.layer`, that a layer uses."""
        return layer * self._groups // self.sizes["layers"]

    def heads_of(self, layer: int) -> int:
        """Return the number of attention heads of a layer, which may lack some (`smaller_weights`)."""
        return self._heads[layer]

    def weights_of(self, layer: int, query_TD: Tensor, key_TD: Tensor, lengths: list[int]) -> list[Tensor]:
        """Return the attention weights of a layer for its queries and keys, as in `Encoded`."""
        return attention_weights(query_TD, key_TD, lengths, self.heads_of(layer))

    def embed(self, batch: Batch) -> Tensor:
        """Return the word vector of each token, before position, segment, norm and dropout; (T, D)."""
        return looked_up(self.embeddings.word_embeddings, batch.tokens_T, batch)

    @property
    def words(self) -> nn.Embedding:
        """The table of word vectors."""
        return self.embeddings.word_embeddings

    def encode(
        self, x_TD: Tensor, batch: Batch, *, tokens: bool = False, pooled: bool = False, inside: Inside | None = None
    ) -> Encoded:
        """Return the requested vectors of tokens and sequences, and the requested parts of the layers.

        If only sequences are requested and pooling uses the first token, the last layer computes only what first tokens
        need; the result is the same.
        """
        if inside is None and not tokens and not (pooled and self.pooling not in ("first", "pooler")):
            if not pooled:
                return Encoded()
            first_SD = self._pool_first(self._hidden(x_TD, batch, first_only=True))
            return Encoded(None, finished(first_SD, self.after, self.layout))
        seen = None
        if inside is not None or pooled and self.pooling == "layers":
            seen = Seen(inside or Inside(), batch.lengths, self.sizes["layers"], self.weights_of)
        hidden_TD = self._hidden(x_TD, batch, first_only=False, seen=seen)
        found = Encoded() if seen is None else seen.encoded()
        if tokens:
            found.tokens_TD = hidden_TD
        if pooled:
            pooled_SD = self._pool(hidden_TD, batch, [] if seen is None else seen.hidden)
            found.pooled_SD = finished(pooled_SD, self.after, self.layout)
        return found

    def depth_of(self, name: str) -> int:
        """Return the layer of a parameter: 0 = embeddings, 1 = first layer, ..., the last one = above all layers.

        Layers with the same weights count as one.
        """
        if name.startswith("embeddings"):
            return 0
        if name.startswith("encoder.layer."):
            return int(name.split(".")[2]) + 1
        return self.depth

    @property
    def depth(self) -> int:
        return self._groups + 1

    def checkpoint_names(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Convert a checkpoint of BERT or of its family to the tensors of this module; query, key and value become one
        matrix."""
        return bert_tensors(tensors, self._config)

    def _pool(self, hidden_TD: Tensor, batch: Batch, hidden: list[Tensor]) -> Tensor:
        """Return the vector of each sequence, (S, D); `hidden` as in `Encoded`, if layers are pooled."""
        asked = layers_asked(tuple(self.pooled_layers), self.sizes["layers"]).values()
        of_layers = [hidden[number + 1] for number in asked]
        return self._pool_first(pooled_by(self.pooling, self.pooling_module, hidden_TD, batch, of_layers))

    def _pool_first(self, first_SD: Tensor) -> Tensor:
        return first_SD if self.pooler is None else torch.tanh(self.pooler["dense"](first_SD))

    def _hidden(self, x_TD: Tensor, batch: Batch, *, first_only: bool, seen: "Seen | None" = None) -> Tensor:
        """Return the last layer's vectors of all tokens, (T, D), or only of first tokens, (S, D)."""
        hidden_TD = self.embeddings(x_TD, batch, self.has_segments)
        if self.embeddings_project is not None:
            # Under autocast the projection returns bf16, and so would all residual sums after it.
            hidden_TD = self.embeddings_project(hidden_TD).to(hidden_TD.dtype)
        if batch.filling is not None:
            return self._filled(hidden_TD, batch, batch.filling, first_only)
        # Rows of zeros are added once for all layers; attention ignores them, and they are cut off at the end.
        tokens = len(hidden_TD)
        hidden_TD = with_rows(hidden_TD, tokens + padding_rows(tokens, hidden_TD.device))
        weights: list[Any] = list(self.encoder["layer"].children())
        layers = [weights[self.group_of(number)] for number in range(self.sizes["layers"])]
        # One for each number of heads: layers may differ, but most do not.
        attention_of = cache(partial(attention_over, batch.lengths, device=hidden_TD.device))
        recomputes = self.gradient_checkpointing and self.training and torch.is_grad_enabled()
        for number, layer in enumerate(layers):
            heads = self.heads_of(number)
            starts_S = batch.starts_S if first_only and number + 1 == len(layers) else None
            see, attention = None, attention_of(heads)
            if seen is not None:
                seen.hidden.append(hidden_TD[:tokens])
                see = partial(seen.project, number)
            inputs = hidden_TD, attention, starts_S, see
            hidden_TD = recomputed(layer, *inputs) if recomputes else layer(*inputs)
        if seen is not None:
            seen.hidden.append(hidden_TD[:tokens])
        # With first_only there are at most `tokens` rows.
        return hidden_TD[:tokens]

    def _filled(self, hidden_TD: Tensor, batch: Batch, filling: Filling, first_only: bool) -> Tensor:
        """Return the result of `_hidden` for a batch with filling, layer by layer in regions that are compiled once."""
        layers = list(self.encoder["layer"].children())
        for number in range(self.sizes["layers"]):
            # Before the first layer stands the dropout of embeddings.
            keys_T = layer_keys(batch, number + 1, self.training)
            at_S = batch.starts_S if first_only and number + 1 == self.sizes["layers"] else None
            hidden_TD = _filled_layer(
                layers[self.group_of(number)], self.heads_of(number), hidden_TD, filling.slots_SL, filling.lengths_S,
                filling.slot_T, at_S, keys_T,
            )  # fmt: skip
        return hidden_TD

    def _initialize(self, module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=self.sizes["initializer_range"])
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)


# Pruned layers may each have another number of heads.
@torch.compiler.nested_compile_region(max_reuse_entries=1000)
def _filled_layer(
    layer: nn.Module, heads: int, hidden_TD: Tensor, slots_SL: Tensor, lengths_S: Tensor, slot_T: Tensor,
    starts_S: Tensor | None, keys_T: Tensor | None,
) -> Tensor:  # fmt: skip
    """Return what a layer makes of a batch with filling; all layers of the same sizes are compiled once."""
    attention = FilledAttention(slots_SL, lengths_S, slot_T, heads, keys_T)
    computed: Tensor = layer(hidden_TD, attention, starts_S, None, keys_T)
    return computed


def require_bert(source: Pretrained) -> None:
    """Raise CheckpointError if the configuration of the weights describes an encoder that computes something else.

    Other model families have the same names of tensors, so they would load and compute wrong results.
    """
    config = source.config
    reasons = []
    if (kind := config.get("model_type", "bert")) not in (*FAMILY, MODEL_TYPE):
        reasons.append(f"model_type {kind}")
    if (positions := config.get("position_embedding_type", "absolute")) != "absolute":
        reasons.append(f"position_embedding_type {positions}")
    if (activation := bert_config(config).get("hidden_act", "gelu")) not in ACTIVATIONS:
        reasons.append(f"hidden_act {activation}")
    reasons += strange_parts(config)
    if reasons:
        ours = kind.removeprefix("nlu-")
        other = f"set model={ours if ours in OTHERS else 'hf'}"
        # transformers ignores such positions since version 5, so model=hf refuses them too.
        is_for_none = positions.startswith("relative_key") or source.key != "model.pretrained"
        raise CheckpointError(
            f"{source.key} is {source.reference!r}, whose configuration says {', '.join(reasons)}, which this "
            f"encoder ({', '.join(FAMILY)}; {', '.join(ACTIVATIONS)}) cannot compute; "
            f"{'give other weights' if is_for_none else other}"
        )


class Seen:
    """Collects the parts that `Inside` requests while the layers run."""

    def __init__(self, inside: Inside, lengths: list[int], layers: int, weights_of: Callable[..., list[Tensor]]):
        """`layers`: their number; `weights_of` as in `Bert`."""
        self.hidden: list[Tensor] = []
        self._inside, self._lengths, self._weights_of = inside, lengths, weights_of
        self._projected = layers_asked(inside.projections, layers)
        self._attention = layers_asked(inside.attention, layers)
        self._wanted = {*self._projected.values(), *self._attention.values()}
        self._parts: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

    def project(self, number: int, qkv_T3D: Tensor) -> None:
        """Keep query, key and value of a layer if they are requested."""
        # A layer that is computed again has them already.
        if number in self._wanted and number not in self._parts:
            query_TD, key_TD, value_TD = qkv_T3D[: sum(self._lengths)].chunk(3, dim=1)
            self._parts[number] = query_TD, key_TD, value_TD

    def encoded(self) -> Encoded:
        return Encoded(
            hidden=self.hidden if self._inside.hidden else [],
            projections={asked: self._parts[number] for asked, number in self._projected.items()},
            attention={
                asked: self._weights_of(number, *self._parts[number][:2], self._lengths)
                for asked, number in self._attention.items()
            },
        )
