"""An encoder with the head of a task, or with several heads that have names; and the contract of adapters.

Axes: T tokens, S sequences, U units, N rows to be labelled (examples or units), C outputs, D width.
"""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn

from nlu.config.errors import UserError
from nlu.data.collate import Batch
from nlu.models.encoder import Encoded, Encoder, Inside
from nlu.models.head import HasLearningRates, Head, Wanted
from nlu.models.layers.dropout import Dropout, active, layer_keys
from nlu.models.layers.filled_attention import rows_at

ABOVE_LAYERS = -1
"""the number of a layer that stands for dropout between the encoder and the head"""
LAYOUT = "several"
"""stands for those of several heads"""


class TaskModel(nn.Module):
    """`backbone`, dropout, `head`."""

    backbone: Encoder
    head: Head

    def __init__(self, backbone: Encoder, head: Head, layout: str):
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.layout = layout
        # Set once, because a batch does not show whether it has pairs.
        backbone.layout = layout
        self.dropout = Dropout(backbone.head_dropout)
        self.wants = (head.wants,) if isinstance(head.wants, str) else head.wants
        self._inside: Inside | None = None
        self._seen: list[Encoded] = []
        self._given: Encoded | None = None

    @contextmanager
    def watching(self, inside: Inside) -> Iterator[list[Encoded]]:
        """Make the encoder also return `inside` in every forward pass of the block.

        Yields a list, to which each pass appends its result. For methods, whose passes are run by the task. Raises
        UserError for an encoder without attention layers.
        """
        if "inside" not in inspect.signature(self.backbone.encode).parameters:
            raise UserError(
                f"model is {type(self.backbone).__name__}, which has no attention layers, but the method needs "
                "hidden states or attention; choose a model that has them, such as bert or hf, or another method"
            )
        before = self._inside, self._seen
        self._inside, self._seen = inside, []
        try:
            yield self._seen
        finally:
            self._inside, self._seen = before

    @contextmanager
    def given(self, encoded: Encoded) -> Iterator[None]:
        """Take these vectors of tokens and sequences, which were computed before, for those of the encoder."""
        self._given = encoded
        try:
            yield
        finally:
            self._given = None

    def encode(self, batch: Batch, x_TD: Tensor | None = None) -> Encoded:
        """Return the float32 vectors that the head uses, after dropout; `x_TD` replaces the word vectors."""
        found = self._given or self._encoded(batch, x_TD)
        read = Encoded()
        keys_T = layer_keys(batch, ABOVE_LAYERS, self.training)
        if found.pooled_SD is not None:
            pooled_SD = found.pooled_SD.float()
            if not getattr(self.head, "drops", False):
                pooled_SD = self.dropout(pooled_SD, keys=None if keys_T is None else keys_T[batch.starts_S])
            read.pooled_SD = pooled_SD
        if found.tokens_TD is not None:
            # Dropout after the selection draws no random numbers for tokens that the head does not read.
            read.units_UD = self._selected(found.tokens_TD, batch, keys_T)
        return read

    def _encoded(self, batch: Batch, x_TD: Tensor | None) -> Encoded:
        x_TD = self.backbone.embed(batch) if x_TD is None else x_TD
        encode = partial(self.backbone.encode, x_TD, batch, tokens="units" in self.wants, pooled="pooled" in self.wants)
        # Not passed as None: an encoder without attention layers lacks the parameter.
        found = encode() if self._inside is None else encode(inside=self._inside)
        if self._inside is not None:
            self._seen.append(found)
        return found

    def _selected(self, tokens_TD: Tensor, batch: Batch, keys_T: Tensor | None) -> Tensor:
        streams, units_U = active(), batch.units_U
        assert units_U is not None, "the target selects units"
        if keys_T is not None:
            return self.dropout(rows_at(tokens_TD, units_U).float(), keys=keys_T[units_U])
        if streams is None or batch.windows_B is None:
            rows = streams.rows_at(units_U) if streams else None
            return self.dropout(tokens_TD.index_select(0, units_U).float(), rows)
        # Streams need ascending places. Units stand in the order of the text, its windows in the order of lengths.
        ascending_U, order_U = units_U.sort()
        selected_UD = self.dropout(tokens_TD.index_select(0, ascending_U).float(), streams.rows_at(ascending_U))
        return selected_UD.index_select(0, order_U.argsort())

    def forward(self, batch: Batch, x_TD: Tensor | None = None) -> Tensor:
        """Return logits (N, C), float32: a row for each example, or for each unit of a batch that has units.

        The head computes in fp32 also under autocast: a bf16 logit has 8 bits, so that many examples would tie, and the
        head is too small to save time.
        """
        encoded = self.encode(batch, x_TD)
        with torch.autocast(batch.tokens_T.device.type, enabled=False):
            return self.head(encoded, batch)


class Adapter(Protocol):
    """Changes a model after its pretrained weights were loaded, so that few parameters are trained.

    The constructor takes the options by keyword. A run applies the adapter once, before the optimizer is built. When a
    checkpoint of the run is loaded, the adapter is applied before the weights are. So checkpoints, the moving average
    and the optimizer's state contain the adapter's parameters like all others.
    """

    def apply(self, model: TaskModel) -> None:
        """Change the model in place: add modules, and freeze other parameters by `requires_grad_(False)`.

        The names of parameters must be the same in each process. New weights are drawn from torch's generator, which
        has the run's seed. Raises UserError if an option does not fit the model.
        """

    def merged(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return equivalent weights of the model without the adapter; both are by name in TaskModel.

        They are used by exports and by runs that start from this run's weights. Raises UserError if such weights do not
        exist.
        """


class Heads(nn.ModuleDict):
    """The heads by name; the parameters of each are called after it."""

    wants: Wanted | tuple[Wanted, ...] = ()
    """each reads for itself"""

    def __init__(self, heads: Mapping[str, nn.Module]):
        super().__init__()
        for name, head in heads.items():
            # ModuleDict refuses such names only with a KeyError.
            if hasattr(self, name):
                raise UserError(
                    f"task.tasks.{name}: {name} is a name that torch's modules keep for themselves; "
                    "choose another name for the set"
                )
            self[name] = head

    @property
    def learning_rates(self) -> dict[str, float]:
        """The rates that heads bring, by name of a parameter here."""
        return {
            f"{name}.{parameter}": rate
            for name, head in self.items()
            if isinstance(head, HasLearningRates)
            for parameter, rate in head.learning_rates.items()
        }


class CompositeModel(TaskModel):
    """One encoder and, as `head`, all heads; a batch is read by the head of its set.

    `of` returns a model of one head and the encoder, which shares the modules of this one.
    """

    def __init__(self, members: Mapping[str, TaskModel]):
        """`members`: models over one and the same encoder, by the name of their head."""
        # Not `TaskModel.__init__`, which would register one head with the encoder.
        nn.Module.__init__(self)
        first = next(iter(members.values()))
        self.backbone = first.backbone
        self.head = Heads({name: model.get_submodule("head") for name, model in members.items()})
        # Nothing of a head's model is registered here but its head.
        self._members = dict(members)
        self.layout, self.dropout = LAYOUT, first.dropout
        # One module, so that `train()` and `eval()` of this model, which does not register the others, reach it.
        for model in members.values():
            model.dropout = self.dropout

    def of(self, name: str) -> TaskModel:
        """Return the model of one head, ready to run."""
        model = self._members[name]
        # The heads share the encoder, and a batch does not show whether it has pairs, so the layout follows the head in
        # use.
        self.backbone.layout = model.layout
        return model

    @contextmanager
    def watching(self, inside: Inside) -> Iterator[list[Encoded]]:
        first, *others = self._members.values()
        with first.watching(inside) as seen:
            # The passes of a step run in the model of the head of its set, so all of them collect into the same list.
            before = [(model._inside, model._seen) for model in others]
            for model in others:
                model._inside, model._seen = inside, seen
            try:
                yield seen
            finally:
                for model, (own_inside, own_seen) in zip(others, before, strict=True):
                    model._inside, model._seen = own_inside, own_seen

    def encode(self, batch: Batch, x_TD: Tensor | None = None) -> Encoded:
        return self.of(batch.member).encode(batch, x_TD)

    def forward(self, batch: Batch, x_TD: Tensor | None = None) -> Tensor:
        return self.of(batch.member)(batch, x_TD)


def model_of(model: TaskModel, member: str) -> TaskModel:
    """Return what a set of this name is predicted with: its head's model, or the only one."""
    return model.of(member) if isinstance(model, CompositeModel) else model


def of_head(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """Return the tensors of a model with several heads that one head's model by itself has, under its names."""
    own = f"head.{name}."
    return {
        f"head.{key.removeprefix(own)}" if key.startswith(own) else key: value
        for key, value in tensors.items()
        if key.startswith(own) or not key.startswith("head.")
    }
