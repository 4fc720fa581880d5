"""Encoders of the transformers library (extra `hf`), which are padded inside.

Axes: T tokens of all sequences, S sequences, L the longest, D width.
"""

import inspect
import json
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from nlu.config.errors import CheckpointError, UserError
from nlu.config.types import Probability, Weights
from nlu.data.arrays import ranges
from nlu.data.collate import Batch, to_device
from nlu.data.tokenizing import load_tokenizer
from nlu.models.encoder import Encoded, Inside, layers_asked
from nlu.models.encoders.projections import projections_of
from nlu.models.formats.pretrained import Pretrained
from nlu.models.layers.pooling import OVER_TOKENS, LayerPooling, pooling_module
from nlu.models.layers.recomputing import Modes, contexts, padded_modes, recompute_layers

MODEL_TYPE = "nlu-huggingface"
"""model_type of a checkpoint, so that transformers does not load it; `inner` has the configuration of the
architecture"""


class HuggingFace(nn.Module):
    """A transformers AutoModel with the configuration of `pretrained`; `random_weights` does not load its weights."""

    inner: Any
    """the model, whose class and methods depend on the architecture"""
    rules_of_config = "nlu.models.rules.encoder_problems"

    def __init__(
        self,
        vocab_size: int,
        source: Pretrained | None,
        *,
        pretrained: Weights,
        random_weights: bool = False,
        head_dropout: Probability = 0.1,
        pooling: Literal["first", "mean", "max", "attention", "layers"] = "first",
        pooled_layers: list[int] | None = None,
        gradient_checkpointing: bool = False,
    ):
        """`pretrained`: a folder in Hugging Face layout, hf://name, or a former run, with the architecture.

        `pooling` computes the vector of a text: its first token (in XLNet the last, which is trained to represent the
        text), the mean or the largest values of its tokens, a mean with trained weights, or a tanh layer over that
        token's vectors after `pooled_layers` (0 = the first layer, -1 = the last one). `head_dropout` is applied to the
        input of the head. `gradient_checkpointing` computes each layer again in the backward pass
        (`nlu.models.layers.recomputing`), with the same gradient; raises UserError if the architecture cannot do that.
        """
        super().__init__()
        assert source is not None, "pretrained is required"
        config = _architecture(source)
        if getattr(config, "attention_type", None) == "block_sparse":
            # BigBird switches to full attention at the first short batch and keeps it; so it must use it from the
            # start.
            config.attention_type = "original_full"
        if random_weights:
            _fit_vocabulary(config, vocab_size)
        else:
            _require_vocabulary(config, vocab_size - source.new_tokens, source)
            config.vocab_size = max(config.vocab_size, vocab_size)
        self.random_weights = random_weights
        self.inner = _random_model(config, source)
        # Through JSON, because the configuration may hold types of torch.
        self._settings = {"model_type": MODEL_TYPE, "inner": json.loads(config.to_json_string())}
        self.width: int = config.hidden_size
        self.is_causal = _is_causal(self.inner, source)
        self.max_positions: int | None = _max_positions(self.inner)
        self._numbers_segments = (getattr(config, "type_vocab_size", 0) or 0) > 1
        self.layout, self.has_segments = "single", True
        self.token_of_text_is_last = getattr(config, "summary_type", None) == "last"
        self._above_layers = _names_above_layers([name for name, _ in self.named_parameters()])
        self.head_dropout = head_dropout
        self.pooling, self.pooled_layers = pooling, pooled_layers or []
        layers, sd = getattr(config, "num_hidden_layers", 0), getattr(config, "initializer_range", 0.02)
        self.pooling_module = pooling_module(pooling, pooled_layers, self.width, layers, sd)
        self.pads = True
        self._modes: Modes = nullcontext
        """of the pass that is running"""
        if gradient_checkpointing:
            recompute_layers(self.inner, self._contexts)

    def settings(self) -> dict[str, object]:
        """What config.json of a checkpoint holds."""
        return self._settings

    def width_of(self, layout: str) -> int:
        """Return the width of the vectors, which is the same for every layout.

        Raises UserError for a pooling by the first token if it does not see the text.
        """
        by_first = self.pooling in ("first", "layers")
        if layout != "units" and by_first and self.is_causal and not self.token_of_text_is_last:
            raise UserError(
                f"model.pooling is {self.pooling}, but in {self._settings['inner']['model_type']} each token sees only "
                "those before it, so that the first one has the same vector in every text; set model.pooling=mean"
            )
        return self.width

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
        self._modes = partial(padded_modes, longest)
        with self._modes():
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
        return found

    def _contexts(self) -> tuple[AbstractContextManager[object], AbstractContextManager[object]]:
        return contexts(self._modes)

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
        if not self.token_of_text_is_last:
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
        """Convert a checkpoint's names, with or without the prefix of its base model, to those of this module."""
        prefix = f"{self.inner.base_model_prefix}."
        ours = {}
        for name, value in tensors.items():
            name = name if name.startswith("inner.") else "inner." + name.removeprefix(prefix)
            name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
            ours[name] = value
        return ours

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
        self, inside: Inside, inputs: dict[str, Tensor], found: Encoded, place_T: Tensor, lengths: list[int],
        of_layers: bool,
    ) -> Any:  # fmt: skip
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


def _architecture(source: Pretrained) -> Any:
    """Return the transformers configuration in the weights' folder."""
    try:
        from transformers import AutoConfig
    except ImportError:
        raise UserError("model=hf needs the transformers library; pip install 'nlu[hf]'") from None
    try:
        if source.config.get("model_type") == MODEL_TYPE:
            inner = source.config["inner"]
            config = type(AutoConfig.for_model(inner["model_type"])).from_dict(inner)
        else:
            config = AutoConfig.from_pretrained(source.folder, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise _not_usable(source, error) from error
    # Configurations of images or audio, and nested ones of several models.
    if not hasattr(config, "vocab_size") or not hasattr(config, "hidden_size"):
        raise _not_usable(source, "it has no vocabulary or no width")
    return config


def _random_model(config: Any, source: Pretrained) -> nn.Module:
    """Return the encoder with random weights, in fp32 and with the attention that transformers chooses for it."""
    from transformers import AutoModel

    try:
        inner = AutoModel.from_config(config, dtype=torch.float32, trust_remote_code=False)
    except (ValueError, ImportError) as error:
        raise _not_usable(source, error) from error
    if getattr(config, "is_encoder_decoder", False):
        raise _not_usable(source, "it is an encoder with a decoder, which also needs a text to continue")
    if "inputs_embeds" not in inspect.signature(inner.forward).parameters:
        raise _not_usable(source, "it cannot be given word vectors (inputs_embeds)")
    # Its weights would never get a gradient: the head reads tokens and their mean.
    if getattr(inner, "pooler", None) is not None:
        inner.pooler = None
    return inner


def _is_causal(inner: Any, source: Pretrained) -> bool:
    """Return whether tokens see only those before them, by a test, because not all configurations say it.

    Raises CheckpointError if the model cannot encode a text.
    """
    width = inner.get_input_embeddings().weight.shape[1]
    trains = inner.training
    # The test must not change the run's random numbers, and must not depend on dropout.
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        first_D, second_D, other_D = torch.randn(3, width)
        pairs = (first_D, second_D), (first_D, other_D), (other_D, second_D)
        x_SLD = torch.stack([torch.stack(pair) for pair in pairs])
        try:
            found = inner.eval()(inputs_embeds=x_SLD, attention_mask=torch.ones(x_SLD.shape[:2], dtype=torch.long))
            hidden_SLD = found.last_hidden_state
        except Exception as error:
            raise _not_usable(source, f"it cannot encode a single text ({error})") from error
        finally:
            inner.train(trains)
    # Rounding may differ between rows of a batch; a token that is seen changes the vector by much more.
    scale = 1e-6 * float(hidden_SLD.abs().max())
    first_sees_second = float((hidden_SLD[0, 0] - hidden_SLD[1, 0]).abs().max()) > scale
    second_sees_first = float((hidden_SLD[0, 1] - hidden_SLD[2, 1]).abs().max()) > scale
    # Models in which no token sees another one at all, or all see each other, are not causal.
    return second_sees_first and not first_sees_second


def _not_usable(source: Pretrained, error: Exception | str) -> CheckpointError:
    reason = str(error).partition("\n")[0]
    return CheckpointError(
        f"model.pretrained is {source.reference!r}, but transformers cannot build an encoder from the configuration in "
        f"{source.folder}: {reason}; give a folder with its config.json, or the model group that wrote it"
    )


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


def _max_positions(inner: Any) -> int | None:
    """Return the length of the longest sequence; models like RoBERTa do not use positions up to the padding's index."""
    limit: int | None = getattr(inner.config, "max_position_embeddings", None)
    for name, table in inner.named_modules():
        if name.endswith("position_embeddings") and isinstance(table, nn.Embedding) and table.padding_idx is not None:
            return table.num_embeddings - table.padding_idx - 1
    return limit
