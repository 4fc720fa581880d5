"""The heads of transformers' own models, run over the vectors of packed rows, for every architecture that it has.

Each is a model of transformers whose encoder is replaced by one that returns given vectors as those of texts of one
token. So names of tensors, activations, norms, and the places of dropout are those of transformers, and a folder of
transformers is read and written tensor by tensor.

Axes: N rows (examples or units), S sequences, C outputs, D width.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from nlu.config.errors import UserError
from nlu.config.keys import takes
from nlu.config.types import ConfigLike
from nlu.data.collate import Batch
from nlu.models import keys as schemas
from nlu.models.encoder import Encoded, Encoder
from nlu.models.head import HeadTarget, Wanted, vectors_of, wanted_by
from nlu.models.heads.linear import INITIAL_SPREAD
from nlu.models.layers.dropout import Dropout
from nlu.models.layers.exact_linear import Linear, Tied

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

What = Literal["SequenceClassification", "TokenClassification", "MaskedLM"]
POOLINGS = {"first": "cls", "mean": "mean"}
"""`classifier_pooling` of a configuration of transformers by `model.pooling`"""


@takes(schemas.TransformersHead)
class TransformersHead(nn.Module):
    """The classifier or tagger that transformers has for the architecture of the encoder.

    Its dropouts have the rate of `model.head_dropout`. That of a tagger is applied to the vectors of tokens. With a
    number as target, and weights of a cross-encoder that say so, the number is the sigmoid of the logit.
    """

    def __init__(self, width: int, target: HeadTarget, encoder: Encoder):
        """Raises UserError if transformers has no such model that reads the vectors of the encoder."""
        super().__init__()
        self.wants: Wanted | tuple[Wanted, ...] = wanted_by(target)
        self.drops = self.wants == "pooled"
        what: What = "SequenceClassification" if self.drops else "TokenClassification"
        names = list(target.names) or [f"LABEL_{number}" for number in range(target.num_outputs)]
        found = module_of(what, encoder, names)
        if found is None:
            raise UserError(
                f"head is transformers, which has no model for {what} that reads what this encoder gives; set "
                "head=linear, or model=hf model.pooling=first head=transformers"
            )
        self.theirs = found
        for name, module in list(found.named_modules()):
            if isinstance(module, nn.Dropout):
                found.set_submodule(name, Dropout(encoder.head_dropout if self.drops else 0.0))
        self.last = f"theirs.{last_layer(found, len(names))}"
        """the layer with a row for each output"""
        given: Any = target
        config: Any = found.config
        # Numbers from 0 to 1 have such a mean and deviation (Popoviciu's inequality).
        in_range = target.kind == "number" and 0 <= given.mean <= 1 and given.sd <= 0.5
        self.is_sigmoid = in_range and ends_in_sigmoid(config.to_dict())
        has_scale = self.is_sigmoid or (
            target.kind == "number" and found.get_submodule(self.last.removeprefix("theirs.")).bias is None
        )
        self.scale: tuple[float, float] | None = (given.mean, given.sd) if has_scale else None
        """the mean and the deviation of a number that the layer gives as it is, since it could not scale it"""

    def forward(self, encoded: Encoded, batch: Batch) -> Tensor:
        """Return logits (N, C), float32."""
        if not self.drops:
            return scores_of(self.theirs, vectors_of(encoded, batch, "units"))
        assert encoded.pooled_SD is not None
        # Dropout draws in the order of sequences.
        logits_SC = scores_of(self.theirs, encoded.pooled_SD)
        logits_SC = logits_SC.sigmoid() if self.is_sigmoid else logits_SC
        if self.scale is not None:
            logits_SC = (logits_SC - self.scale[0]) / self.scale[1]
        return vectors_of(Encoded(pooled_SD=logits_SC), batch, "pooled")

    def tensors_of(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors of this head in a checkpoint of transformers, by the names of its parameters."""
        return {f"theirs.{name}": value for name, value in tensors_for(self.theirs, tensors).items()}


class Given(nn.Module):
    """Stands for the encoder: returns the vectors that it is given, and what its pooler makes of the first of them."""

    def __init__(self, base: nn.Module | None):
        """`base`: the encoder whose pooler is used; None for none."""
        super().__init__()
        self.pooler = getattr(base, "pooler", None)
        # ALBERT's pooler is a linear layer, and its function is beside it.
        self.activation = getattr(base, "pooler_activation", None)

    def forward(self, *given: object, inputs_embeds: Tensor, **more: object) -> object:
        from transformers.modeling_outputs import BaseModelOutputWithPooling

        pooled = None
        if isinstance(self.pooler, nn.Linear):
            assert self.activation is not None, "as in ALBERT"
            pooled = self.activation(self.pooler(inputs_embeds[:, 0]))
        elif self.pooler is not None:
            pooled = self.pooler(inputs_embeds)
        output: Any = BaseModelOutputWithPooling(last_hidden_state=inputs_embeds, pooler_output=pooled)
        # Decoders pass it on.
        output.cache = None
        return output


def scores_of(module: nn.Module, vectors_ND: Tensor) -> Tensor:
    """Return the logits of a `module_of`, (N, C), float32."""
    logits: Tensor = module(inputs_embeds=vectors_ND[:, None]).logits
    return (logits[:, 0] if logits.dim() == 3 else logits).float()


def config_of(encoder: object) -> "PreTrainedConfig | None":
    """Return the configuration of an encoder of transformers; None for others."""
    return getattr(getattr(encoder, "inner", None), "config", None)


def head_of_transformers(width: int, target: HeadTarget, encoder: Encoder) -> TransformersHead | None:
    """Return the head that transformers has for this encoder and target; None if it has none."""
    try:
        return TransformersHead(width, target, encoder)
    except UserError:
        return None


def ends_in_sigmoid(config: ConfigLike) -> bool:
    """Return whether the configuration of a cross-encoder of sentence-transformers says that its score is a sigmoid."""
    says = config.get("sentence_transformers") or {}
    activation = says.get("activation_fn") or config.get("sbert_ce_default_activation_function")
    return str(activation).endswith("Sigmoid")


def module_of(what: What, encoder: Encoder, names: Sequence[str] = ()) -> nn.Module | None:
    """Return a model of transformers with `Given` for its encoder and random weights; None if there is none that reads
    the vectors of the encoder.

    `names`: those of its outputs. A product with the table of word vectors is `Tied` to that of the encoder.
    """
    config: Any = deepcopy(config_of(encoder))
    if config is None:
        return None
    if names:
        config.id2label, config.label2id = dict(enumerate(names)), {name: row for row, name in enumerate(names)}
    if hasattr(config, "classifier_pooling"):
        config.classifier_pooling = POOLINGS.get(getattr(encoder, "pooling", ""), config.classifier_pooling)
    shape = 2, len(names) or encoder.words.num_embeddings
    for has_pooler in (False, True):
        # Architectures differ in more than what can be asked of their classes: what fails on some vectors does not fit.
        with suppress(Exception), torch.no_grad():
            found = _made(what, config, encoder.words, has_pooler)
            # Two texts of three tokens.
            x_NTD = torch.arange(6.0 * encoder.width_of("units")).sin().view(2, 3, -1)
            fits = scores_of(found, x_NTD[:, 0]).shape == shape and not list(found.buffers())
            if fits and (what != "SequenceClassification" or _reads_pooled(found, x_NTD, encoder)):
                return found
    return None


def _reads_pooled(found: nn.Module, x_NTD: Tensor, encoder: Any) -> bool:
    """Return whether the logits of whole texts are those of the vectors that `model.pooling` gives."""
    first_ND = x_NTD[:, -1 if encoder.token_of_text_is_last else 0]
    pooled_ND = {"first": first_ND, "last": x_NTD[:, -1], "mean": x_NTD.mean(1)}.get(encoder.pooling)
    if pooled_ND is None or encoder.dense is not None:
        return False
    expected_NC = found(inputs_embeds=x_NTD).logits
    return bool((scores_of(found, pooled_ND) - expected_NC).abs().max() <= 1e-4 * expected_NC.abs().max())


def _made(what: What, config: Any, words: nn.Embedding, has_pooler: bool) -> nn.Module:
    # On meta, because the encoder would be as large as the real one.
    with torch.device("meta"):
        found: Any = model_class(what).from_config(config, dtype=torch.float32)
    setattr(found, found.base_model_prefix, Given(found.base_model if has_pooler else None))
    _initialize(found.to_empty(device="cpu"))
    _tie(found, words)
    for module in found.modules():
        if type(module) is nn.Linear:
            # So that no row depends on the others.
            module.__class__ = Linear
    made: nn.Module = found.eval()
    return made


def model_class(what: What) -> Any:
    """Return the class of transformers that chooses a model by its configuration."""
    import transformers

    return getattr(transformers, f"AutoModelFor{what}")


def last_layer(module: nn.Module, outputs: int) -> str:
    """Return the name of the layer that gives the logits."""
    return [name for name, one in module.named_modules() if isinstance(one, nn.Linear) and one.out_features == outputs][
        -1
    ]


def aliases(module: nn.Module) -> dict[str, str]:
    """Return other names of tensors of a `module_of` by theirs, such as that of a bias of which BERT has two names."""
    tied = getattr(module, "_tied_weights_keys", None) or {}
    own = module.state_dict()
    return {name: source for name, source in tied.items() if name in own}


def tensors_for(module: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint of transformers that a `module_of` has, by its names."""
    theirs = {re.sub(r"gamma$", "weight", re.sub(r"beta$", "bias", name)): value for name, value in tensors.items()}
    prefix = f"{module.base_model_prefix}."
    other, found = aliases(module), {}
    for name in module.state_dict():
        # A checkpoint of only the encoder has its pooler without a prefix.
        for known in (name, other.get(name, name), name.removeprefix(prefix)):
            if known in theirs:
                found[name] = theirs[known]
                break
    return found


def _initialize(module: nn.Module) -> None:
    for one in module.modules():
        if isinstance(one, nn.Linear):
            nn.init.normal_(one.weight, std=INITIAL_SPREAD)
            if one.bias is not None:
                nn.init.zeros_(one.bias)
            continue
        for name, value in one.named_parameters(recurse=False):
            # The others are scales of norms and biases.
            nn.init.constant_(value, 1.0 if name == "weight" else 0.0)


def _tie(found: Any, words: nn.Embedding) -> None:
    """Make products with word vectors those of the encoder, and leave out second names of biases."""
    for name, source in (found._tied_weights_keys or {}).items():
        place, _, leaf = name.rpartition(".")
        if source.startswith(f"{found.base_model_prefix}."):
            if found.config.tie_word_embeddings:
                tied, before = Tied(words), found.get_submodule(place)
                tied.bias = before.bias
                found.set_submodule(place, tied)
        else:
            assert leaf == "bias", "only a bias has two names"
            parent, _, own = source.rpartition(".")
            delattr(found.get_submodule(parent), own)
