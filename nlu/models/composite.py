"""An encoder with several heads, each with a name. Axes: T tokens, N rows to be labelled, C outputs, D width."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn

from nlu.config.errors import UserError
from nlu.data.collate import Batch
from nlu.models.encoder import Encoded, Inside
from nlu.models.head import HasLearningRates, Wanted
from nlu.models.task_model import TaskModel

LAYOUT = "several"
"""stands for those of several heads"""


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
