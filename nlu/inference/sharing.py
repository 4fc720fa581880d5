"""Let runs that were trained from the same weights hold them once."""

from collections.abc import Iterator
from dataclasses import asdict

import torch
from torch import nn

from nlu.config.errors import UserError
from nlu.inference.int8.precision import Int8
from nlu.inference.predictor import Predictor
from nlu.models.adapters.lora import OWN_MATRICES
from nlu.models.encoders.bert import Bert
from nlu.models.encoders.modern import ModernBert

ONLY_TRAINED = ("dropout", "attention_dropout", "initializer_range")
"""sizes of an encoder that change no prediction"""


def share_encoder(first_run: str, first: Predictor, run: str, one: Predictor) -> None:
    """Let a run hold the encoder's weights and the tokenizer of another one, which must be equal.

    Raises UserError with what differs, if they cannot be predicted together.
    """
    if (why := next(_differences(one, first), None)) is not None:
        raise UserError(
            f"run {run} cannot be served together with {first_run}: {why}; serve runs of adapter=lora that began with "
            "the same weights (model.pretrained), or each run by itself"
        )
    encoder = one.trained.model.get_submodule("backbone")
    for name, value in _shared(first).items():
        parent, _, last = name.rpartition(".")
        encoder.get_submodule(parent)._parameters[last] = value
    one.trained.tokenizer = first.trained.tokenizer


def _differences(one: Predictor, first: Predictor) -> Iterator[str]:
    """Yield a clause for each thing that differs and may not."""
    encoder, other = one.trained.model.backbone, first.trained.model.backbone
    if not isinstance(encoder, Bert | ModernBert) or type(encoder) is not type(other):
        yield f"their encoders are {type(encoder).__name__} and {type(other).__name__}, not both Bert or ModernBert"
        return
    assert isinstance(other, Bert | ModernBert)
    if not (one.trained.config.has_adapter and first.trained.config.has_adapter):
        yield "one of them has no adapter, and so an encoder of its own"
    if isinstance(one.precision, Int8):
        yield f"precision is {one.precision.name}, which merges the adapter into the weights"
    if (ours := one.trained.config.precision) != (theirs := first.trained.config.precision):
        yield f"it was trained with the precision {ours}, the other with {theirs} (set precision=fp32)"
    if one.trained.tokenizer.digest != first.trained.tokenizer.digest:
        yield "its tokenizer differs"
    sizes, others = ({**each.sizes, **asdict(each.after)} for each in (encoder, other))
    for name, value in sizes.items():
        if value != others[name] and name not in ONLY_TRAINED:
            yield f"the {name} of its encoder is {value}, that of the other {others[name]}"
    shared, known = _shared(one), _shared(first)
    if shared.keys() != known.keys():
        yield "they do not adapt the same layers (adapter.targets)"
    for name, value in shared.items():
        if not torch.equal(value, known[name]):
            yield f"{name} of its encoder differs"


def _shared(predictor: Predictor) -> dict[str, nn.Parameter]:
    """Return the weights of an encoder that no adapter trains."""
    named = predictor.trained.model.get_submodule("backbone").named_parameters()
    return {name: value for name, value in named if not name.endswith(OWN_MATRICES)}
