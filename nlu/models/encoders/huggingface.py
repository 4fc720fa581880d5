"""Encoders of the transformers library (extra `hf`), which are padded inside.

Axes: T tokens of all sequences, S sequences, L the longest, D width.
"""

import json
from copy import deepcopy
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nlu.config.errors import CheckpointError, UserError
from nlu.config.keys import takes
from nlu.data.arrays import ranges
from nlu.data.collate import Batch, to_device
from nlu.data.tokenizing import load_tokenizer
from nlu.models import keys as schemas
from nlu.models.encoder import Encoded, Inside, layers_asked
from nlu.models.encoders.probing import MODEL_TYPE, architecture, converted, max_positions, projections_of, random_model
from nlu.models.formats.pretrained import Pretrained
from nlu.models.formats.sentence_folder import (
    KEY,
    after_encoder,
    dense_layers,
    dense_tensors,
    finished,
    require_computed,
)
from nlu.models.layers.attention import repeatable_attention
from nlu.models.layers.dropout import contexts, recompute_layers
from nlu.models.layers.pooling import OVER_TOKENS, LayerPooling, pooling_module


@takes(schemas.HuggingFace)
class HuggingFace(nn.Module):
    """A transformers AutoModel with the configuration of `pretrained`; `random_weights` does not load its weights."""

    inner: Any
    """the model, whose class and methods depend on the architecture"""

    def __init__(self, vocab_size: int, source: Pretrained | None, keys: schemas.HuggingFace):
        """Raises UserError for `gradient_checkpointing` of an architecture that cannot do that."""
        super().__init__()
        assert source is not None, "pretrained is required"
        config = architecture(source)
        self._config_of_weights = deepcopy(config)
        if getattr(config, "attention_type", None) == "block_sparse":
            # BigBird switches to full attention at the first short batch and keeps it; so it must use it from the
            # start.
            config.attention_type = "original_full"
        if keys.random_weights:
            _fit_vocabulary(config, vocab_size)
        else:
            _require_vocabulary(config, vocab_size - source.new_tokens, source)
            config.vocab_size = max(config.vocab_size, vocab_size)
        self.random_weights = keys.random_weights
        self.after = after_encoder(None if keys.random_weights else source, keys.pooling, keys.pooled_layers)
        self._source = source
        self.inner, self.is_causal = random_model(config, source)
        # Through JSON, because the configuration may hold types of torch.
        inner = json.loads(config.to_json_string())
        self._settings = {"model_type": MODEL_TYPE, "inner": inner, KEY: asdict(self.after)}
        self.width: int = config.hidden_size
        self.max_positions: int | None = max_positions(self.inner)
        self._numbers_segments = (getattr(config, "type_vocab_size", 0) or 0) > 1
        self.layout, self.has_segments = "single", True
        self.token_of_text_is_last = getattr(config, "summary_type", None) == "last"
        self._above_layers = _names_above_layers([name for name, _ in self.named_parameters()])
        self.head_dropout = keys.head_dropout
        self.pooling, self.pooled_layers = self.after.pooling, self.after.pooled_layers or []
        self.reads_last = self.token_of_text_is_last or self.pooling == "last"
        layers, sd = getattr(config, "num_hidden_layers", 0), getattr(config, "initializer_range", 0.02)
        self.pooling_module = pooling_module(self.pooling, self.after.pooled_layers, self.width, layers, sd)
        self.dense = dense_layers(self.after)
        self.pads = True
        """of the pass that is running"""
        if keys.gradient_checkpointing:
            recompute_layers(self.inner, partial(contexts, repeatable_attention))

    def settings(self) -> dict[str, object]:
        """What config.json of a checkpoint holds."""
        return self._settings

    def width_of(self, layout: str) -> int:
        """Return the width of the vectors of texts or units.

        Raises UserError for a pooling by the first token if it does not see the text, and for modules of
        sentence-transformers that are not computed here.
        """
        if layout == "units":
            return self.width
        require_computed(self.after)
        by_first = self.pooling in ("first", "layers")
        if by_first and self.is_causal and not self.token_of_text_is_last:
            raise UserError(
                f"model.pooling is {self.pooling}, but in {self._settings['inner']['model_type']} each token sees only "
                "those before it, so that the first one has the same vector in every text; set model.pooling=mean or "
                "model.pooling=last"
            )
        width: int = self.after.dense[-1]["out_features"] if self.after.dense else self.width
        return width

    def embed(self, batch: Batch) -> Tensor:
        """Return the word vector of each token; (T, D)."""
        return self.words(batch.tokens_T)

    @property
    def words(self) -> nn.Embedding:
        """The table of word vectors."""
        words: nn.Embedding = self.inner.get_input_embeddings()
        return words

    def encode(
        self, x_TD: Tensor, batch: Batch, *, tokens: bool = False, pooled: bool = False, inside: Inside | None = None
    ) -> Encoded:
        """Return the requested vectors of tokens and of sequences.

        Hidden states and attention weights are those that transformers returns; during training it applies dropout to
        the weights. Raises UserError for parts of layers that the architecture does not return.
        """
        if not tokens and not pooled and inside is None:
            return Encoded()
        lengths_S, longest = np.array(batch.lengths, dtype=np.int64), max(batch.lengths)
        # Computed on the host, so that nothing here waits for the device.
        place_T = to_device(torch.from_numpy(ranges(np.arange(len(lengths_S)) * longest, lengths_S)), x_TD.device)
        real_SL = to_device(torch.from_numpy(np.arange(longest) < lengths_S[:, None]), x_TD.device)
        inputs = self._inputs(x_TD, batch, real_SL, place_T)
        found = Encoded()
        of_layers = pooled and self.pooling == "layers"
        with repeatable_attention():
            if inside is None:
                output = self.inner(**inputs, **({"output_hidden_states": True} if of_layers else {}))
            else:
                output = self._look_inside(inside, inputs, found, place_T, batch.lengths, of_layers)
        hidden_SLD = output.last_hidden_state
        if tokens:
            found.tokens_TD = hidden_SLD.flatten(0, 1).index_select(0, place_T)
        if not pooled:
            return found
        if self.pooling == "mean":
            found.pooled_SD = _mean(hidden_SLD, real_SL)
        elif isinstance(self.pooling_module, OVER_TOKENS):
            tokens_TD = hidden_SLD.flatten(0, 1).index_select(0, place_T)
            found.pooled_SD = self.pooling_module(tokens_TD, batch.lengths)
        elif isinstance(self.pooling_module, LayerPooling):
            found.pooled_SD = self.pooling_module([self._first(one, lengths_S) for one in self._of_layers(output)])
        else:
            found.pooled_SD = self._first(hidden_SLD, lengths_S)
        if self.dense is not None:
            found.pooled_SD = self.dense(found.pooled_SD)
        found.pooled_SD = finished(found.pooled_SD, self.after, self.layout)
        return found

    def _of_layers(self, output: Any) -> list[Tensor]:
        """Return the vectors of tokens after each layer of `pooled_layers`, (S, L, D) each."""
        # Some architectures have a norm after the last layer.
        after = [*output.hidden_states[1:-1], output.last_hidden_state]
        count = self.inner.config.num_hidden_layers
        if len(after) != count:
            raise self._not_shown("layers")
        return [after[number] for number in layers_asked(tuple(self.pooled_layers), count).values()]

    def _first(self, hidden_SLD: Tensor, lengths_S: np.ndarray) -> Tensor:
        """Return the vector of the token that stands for a text; (S, D)."""
        if not self.reads_last:
            return hidden_SLD[:, 0]
        last_S = torch.from_numpy(np.arange(len(lengths_S)) * hidden_SLD.shape[1] + lengths_S - 1)
        return hidden_SLD.flatten(0, 1).index_select(0, to_device(last_S, hidden_SLD.device))

    def depth_of(self, name: str) -> int:
        """Return the layer of a parameter; a norm after the last layer is part of it."""
        numbers = [int(part) for part in name.split(".") if part.isdigit()]
        if not name.startswith("inner."):
            return self.depth
        if name in self._above_layers:
            return self.depth - 1
        return numbers[0] + 1 if numbers else 0

    @property
    def depth(self) -> int:
        inner = (name for name, _ in self.named_parameters() if name.startswith("inner."))
        numbered = (self.depth_of(name) for name in inner if name not in self._above_layers)
        return max(numbered) + 1

    def checkpoint_names(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Convert a checkpoint's tensors to those of this module, as transformers does."""
        found = converted(self.inner, self._config_of_weights, tensors)
        dense = {} if self._source is None else dense_tensors(self._source, self.after)
        named = {f"inner.{name}": value for name, value in found.items()}
        return named | {f"dense.{name}": value for name, value in dense.items()}

    def _inputs(self, x_TD: Tensor, batch: Batch, real_SL: Tensor, place_T: Tensor) -> dict[str, Tensor]:
        """Return the arguments of the transformers model, padded to the longest sequence."""
        count, longest = real_SL.shape
        x_SLD = x_TD.new_zeros(count * longest, x_TD.shape[1]).index_copy(0, place_T, x_TD).view(count, longest, -1)
        inputs = {"inputs_embeds": x_SLD, "attention_mask": real_SL.long()}
        if self._numbers_segments and self.has_segments:
            segments = batch.segments_T.new_zeros(count * longest).index_copy(0, place_T, batch.segments_T)
            inputs["token_type_ids"] = segments.view(count, longest)
        return inputs

    def _look_inside(
        self,
        inside: Inside,
        inputs: dict[str, Tensor],
        found: Encoded,
        place_T: Tensor,
        lengths: list[int],
        of_layers: bool,
    ) -> Any:
        """Run the model, set the requested parts of `found`, and return its output, also with those `of_layers`."""
        inner = self.inner
        shape_SL = inputs["attention_mask"].shape
        implementation = inner.config._attn_implementation
        with projections_of(inner if inside.projections else None) as projected:
            try:
                if inside.attention:
                    # Other implementations do not compute all weights at once.
                    inner.set_attn_implementation("eager")
                hidden = inside.hidden or of_layers
                output = inner(**inputs, output_hidden_states=hidden, output_attentions=bool(inside.attention))
            finally:
                if inside.attention:
                    inner.set_attn_implementation(implementation)
        count = inner.config.num_hidden_layers

        def packed(padded_SLD: Tensor) -> Tensor:
            return padded_SLD.flatten(0, 1).index_select(0, place_T)

        if inside.hidden:
            found.hidden = [packed(hidden_SLD) for hidden_SLD in output.hidden_states]
        for asked, number in layers_asked(inside.projections, count).items():
            parts = [outputs[number] for outputs in projected if len(outputs) == count]
            if len(parts) != 3 or any(part.shape[:2] != shape_SL for part in parts):
                raise self._not_shown("queries, keys and values")
            found.projections[asked] = packed(parts[0]), packed(parts[1]), packed(parts[2])
        for asked, number in layers_asked(inside.attention, count).items():
            weights_SHLL = (output.attentions or [None] * count)[number]
            if weights_SHLL is None or weights_SHLL.shape[2:] != (shape_SL[1], shape_SL[1]):
                raise self._not_shown("attention weights")
            found.attention[asked] = [
                weights_HLL[:, :length, :length].float()
                for weights_HLL, length in zip(weights_SHLL, lengths, strict=True)
            ]
        return output

    def _not_shown(self, what: str) -> UserError:
        kind = self._settings["inner"]["model_type"]
        return UserError(
            f"model.pretrained is of the architecture {kind}, whose {what} cannot be read, but the method needs them; "
            "choose another method, or weights of another architecture, such as BERT"
        )


def _mean(hidden_SLD: Tensor, real_SL: Tensor) -> Tensor:
    """Return the mean of each sequence's tokens; (S, D). In fp32, because bf16's 8 bits are too few for long sums."""
    real_SL1 = real_SL[:, :, None].float()
    return (hidden_SLD.float() * real_SL1).sum(1) / real_SL1.sum(1)


def _names_above_layers(names: list[str]) -> set[str]:
    """Return the parameters after all numbered layers, such as a final norm.

    Embeddings after the layers (DeBERTa's relative positions) and the parameters beside them are not among these.
    """
    numbered = [place for place, name in enumerate(names) if any(part.isdigit() for part in name.split("."))]
    after = names[numbered[-1] + 1 :] if numbered else []
    of_embeddings = {name.rpartition(".")[0].rpartition(".")[0] for name in after if "embed" in name}
    return {
        name
        for name in after
        if "embed" not in name and name.rpartition(".")[0].rpartition(".")[0] not in of_embeddings
    }


def _fit_vocabulary(config: Any, vocab_size: int) -> None:
    """Set the vocabulary size of an architecture that is trained from scratch to that of the tokenizer."""
    if config.vocab_size != vocab_size:
        config.vocab_size = vocab_size
        # transformers rejects an index of padding outside of the table. Padding is masked, so the entry does not
        # matter.
        config.pad_token_id = 0


def _require_vocabulary(config: Any, vocab_size: int, source: Pretrained) -> None:
    """Raise CheckpointError if the tokenizer is not that of the weights.

    The embedding may have more rows than the tokenizer has tokens.
    """
    if vocab_size == config.vocab_size:
        return
    theirs = load_tokenizer(source.folder, None)
    if theirs is None or theirs.vocab_size != vocab_size or vocab_size > config.vocab_size:
        raise CheckpointError(
            f"the tokenizer has {vocab_size} tokens, but the weights of {source.reference} have {config.vocab_size} "
            f"rows and {f'a tokenizer of {theirs.vocab_size}' if theirs else 'no tokenizer.json or vocab.txt'}; "
            "set tokenizer.vocab=null and give a folder that holds the weights' own tokenizer"
        )
