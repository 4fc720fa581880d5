"""Constrained types of keys. pydantic checks them, and `nlu.config.checks.validate` says them in words.

This module imports nothing heavy. At run time the types are plain `int`, `float`, `str` and `dict`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le, Len, Lt, Predicate

from nlu.config.durations import is_duration, is_interval, is_warmup

TARGET = "_target_"
Config = dict[str, Any]
"""A configuration, or a part of it, as plain containers."""
ConfigLike = Mapping[str, Any]
"""The same, only to be read."""


@dataclass(frozen=True)
class Naming:
    """What a text names (`what`); whether that exists is not checked here."""

    what: str


def is_odd(value: int) -> bool:
    """Return whether a number is odd."""
    return value % 2 == 1


def is_node(value: Any) -> bool:
    """Return whether a value is a mapping with a `_target_`, from which a constructor's argument is built."""
    return isinstance(value, dict) and TARGET in value


Name = Any
"""A class or label as the key of a mapping: a command line and YAML yield a name such as 1 as a number."""
PositiveInt = Annotated[int, Ge(1)]
OddPositiveInt = Annotated[int, Ge(1), Predicate(is_odd)]
FoldCount = Annotated[int, Ge(2)]
RowLength = Annotated[int, Ge(8)]
"""Most tokens of a row; fewer would leave no room for text beside the special tokens."""
NonNegativeInt = Annotated[int, Ge(0)]
PositiveFloat = Annotated[float, Gt(0)]
NonNegativeFloat = Annotated[float, Ge(0)]
Port = Annotated[int, Ge(0), Le(65535)]
Probability = Annotated[float, Ge(0), Lt(1)]
"""A dropout rate or similar: 0 is off, 1 would leave nothing."""
Fraction = Annotated[float, Ge(0), Le(1)]
RankRange = Annotated[list[NonNegativeInt], Len(2, 2)]
TwoRates = Annotated[list[Probability], Len(2, 2)]
Duration = Annotated[str, Predicate(is_duration)]
"""`3ep` epochs, `500st` optimizer steps, `32000ex` examples seen; more than 0."""
Interval = Annotated[str | int, Predicate(is_interval)]
"""A duration, or 0 for "only at the end"."""
Warmup = Annotated[str | float, Predicate(is_warmup)]
"""A ratio of the whole run in [0, 1], or a duration."""
Weights = Annotated[str, Naming("a folder in Hugging Face layout, hf://NAME or RUN/best")]
TrainedRun = Annotated[str, Naming("a run, RUN/best-2, RUN/last, a checkpoint's folder or a search")]
InputFile = Annotated[str, Naming("a file, a URL or - for standard input")]
OutputFile = Annotated[str, Naming("a file, an address of a store or - for standard output")]
NewFolder = Annotated[str, Naming("a new folder")]
_Node = Annotated[Any, Predicate(is_node)]
MethodNode = Annotated[_Node, Naming("a mapping such as {_target_: nlu.methods.rdrop.RDrop, alpha: 1}")]
"""A method inside another method."""
DataNode = Annotated[_Node, Naming("a mapping such as {_target_: nlu.data.dataset.Files, train: my.csv}")]
"""One of several data sets."""
ReaderNode = Annotated[_Node, Naming("a mapping such as {_target_: mypkg.xml.Items, tag: item}")]
LayoutNode = Annotated[_Node, Naming("a mapping such as {_target_: mypkg.ends.Ends, head: 64}")]
TaskNode = Annotated[_Node, Naming("a mapping such as {_target_: nlu.tasks.classify.Classify}")]
LossNode = Annotated[_Node, Naming("a mapping such as {_target_: nlu.losses.focal.Focal, gamma: 2}")]
HeadNode = Annotated[_Node, Naming("a mapping such as {_target_: nlu.models.heads.crf.CrfHead}")]
"""Task, loss and head of one of several data sets."""
