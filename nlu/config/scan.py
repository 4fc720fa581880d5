"""The keys of `nlu.scan`. This module imports nothing heavy, as `nlu.config.schema` does not."""

from dataclasses import dataclass, field
from typing import Literal, Self

from nlu.config.schema import Run
from nlu.config.types import ConfigLike, NewFolder, PositiveFloat, PositiveInt, Probability


@dataclass(kw_only=True)
class Scan(Run):
    """The validated configuration of `nlu.scan`: that of a run, and what to vary."""

    # Without `field()`, the function `Run.of` would be its default.
    of: Literal["lr", "batch_size"] = field()  # type: ignore[assignment]
    """What is varied: the learning rate (range test) or the size of micro-batches."""
    steps: PositiveInt | None = None
    """of=lr: steps, each at a higher rate, from 10; of=batch_size: measured steps of each size; null = 100 and 10."""
    min_lr: PositiveFloat = 1e-7
    """of=lr: optimizer.lr of the first step."""
    max_lr: PositiveFloat = 1e-2
    """of=lr: optimizer.lr of the last step, unless the loss diverges before."""
    smoothing: Probability = 0.9
    """of=lr: decay per step of the moving average of the loss; 0 = off."""
    max_batch_size: PositiveInt | None = None
    """of=batch_size: largest number of examples; null = as long as larger ones are faster."""
    out: NewFolder | None = None
    """New folder for the table (tsv), scan.json and, of rates, a figure (png); null = only print."""

    @classmethod
    def read(cls, config: ConfigLike) -> Self:
        """Build from a validated configuration with all of its keys, as `Run.of` does."""
        return super().of(config)

    @property
    def num_steps(self) -> int:
        """`steps`, or what null stands for."""
        return self.steps or (100 if self.of == "lr" else 10)
