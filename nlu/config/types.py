"""Constrained types for constructor signatures, which are the schema of configuration groups.

`nlu.config.signature` reads a signature such as `hidden_size: PositiveInt = 768` from source, and
`nlu.config.checks.values` checks values against it before anything heavy is imported. At run time these types are plain
`int`, `float` and `str`.
"""

from dataclasses import dataclass
from typing import Annotated, Any


@dataclass(frozen=True)
class Range:
    """A numeric range that includes its ends, unless `open_min` or `open_max`; None = unbounded; `odd` = only odd."""

    min: float | None = None
    max: float | None = None
    open_min: bool = False
    open_max: bool = False
    odd: bool = False


@dataclass(frozen=True)
class Written:
    """A text with a syntax; `kind` names its parser."""

    kind: str


@dataclass(frozen=True)
class Naming:
    """A text that names something (`what`); whether that exists is not checked here."""

    what: str


@dataclass(frozen=True)
class Nested:
    """A mapping with a `_target_`; the constructor gets the object that it builds. `what` describes valid mappings."""

    what: str


PositiveInt = Annotated[int, Range(min=1)]
OddPositiveInt = Annotated[int, Range(min=1, odd=True)]
FoldCount = Annotated[int, Range(min=2)]
RowLength = Annotated[int, Range(min=8)]
"""Most tokens of a row; fewer would leave no room for text beside the special tokens."""
NonNegativeInt = Annotated[int, Range(min=0)]
PositiveFloat = Annotated[float, Range(min=0, open_min=True)]
NonNegativeFloat = Annotated[float, Range(min=0)]
Port = Annotated[int, Range(min=0, max=65535)]
Probability = Annotated[float, Range(min=0, max=1, open_max=True)]
"""A dropout rate or similar: 0 is off, 1 would leave nothing."""
Fraction = Annotated[float, Range(min=0, max=1)]
Duration = Annotated[str, Written("duration")]
"""`3ep` epochs, `500st` optimizer steps, `32000ex` examples seen; more than 0."""
Interval = Annotated[str | int, Written("interval")]
"""A duration, or 0 for "only at the end"."""
Warmup = Annotated[str | float, Written("warmup")]
"""A ratio of the whole run in [0, 1], or a duration."""
Weights = Annotated[str, Naming("a folder in Hugging Face layout, hf://NAME or RUN/best")]
TrainedRun = Annotated[str, Naming("a run, RUN/best-2, RUN/last, a checkpoint's folder or a search")]
InputFile = Annotated[str, Naming("a file, a URL or - for standard input")]
OutputFile = Annotated[str, Naming("a file, an address of a store or - for standard output")]
NewFolder = Annotated[str, Naming("a new folder")]
MethodNode = Annotated[Any, Nested("a mapping such as {_target_: nlu.methods.rdrop.RDrop, alpha: 1}")]
"""A method inside another method."""
DataNode = Annotated[Any, Nested("a mapping such as {_target_: nlu.data.dataset.Files, train: my.csv}")]
"""One of several data sets."""
ReaderNode = Annotated[Any, Nested("a mapping such as {_target_: mypkg.xml.Items, tag: item}")]
LayoutNode = Annotated[Any, Nested("a mapping such as {_target_: mypkg.ends.Ends, head: 64}")]
TaskNode = Annotated[Any, Nested("a mapping such as {_target_: nlu.tasks.classify.Classify}")]
LossNode = Annotated[Any, Nested("a mapping such as {_target_: nlu.losses.focal.Focal, gamma: 2}")]
HeadNode = Annotated[Any, Nested("a mapping such as {_target_: nlu.models.heads.crf.CrfHead}")]
"""Task, loss and head of one of several data sets."""
