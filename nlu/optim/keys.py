"""The keys of optimizers and schedules; see `nlu.config.keys`."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from nlu.config.types import ConfigLike, Duration, Fraction, NonNegativeFloat, PositiveFloat, TwoRates, Warmup


@dataclass(kw_only=True)
class AdamW:
    """Adam with decoupled weight decay. The default rate suits small models with trained weights."""

    rules_of_config: ClassVar[str] = "nlu.optim.keys.rate_problems"
    lr: PositiveFloat = 2e-4
    """Peak learning rate, which the schedule multiplies."""
    betas: TwoRates = field(default_factory=lambda: [0.9, 0.999])
    """Decay per step of the moving averages of the gradient and of its square."""
    eps: PositiveFloat = 1e-6
    """Value added to the denominator of an update."""
    weight_decay: NonNegativeFloat = 0.01
    """Decay of a weight per step, times its rate; not for biases, norms and one-dimensional weights; 0 = off."""
    layer_lr_decay: Fraction = 1.0
    """Rate of a layer as a multiple of that of the layer above it; embeddings have the smallest; 1 = off."""
    top_lr_ratio: PositiveFloat = 1.0
    """Rate of pooler and head as a multiple of lr; 1 = off."""
    freeze: list[str] = field(default_factory=list)
    """Shell patterns of parameters that are not trained, such as "backbone.embeddings.*"; [] = none."""
    lr_by_name: dict[str, NonNegativeFloat] | None = None
    """Peak rates in place of lr by shell pattern, such as {head.*: 1e-3}; the last match counts; null = none."""
    weight_decay_by_name: dict[str, NonNegativeFloat] | None = None
    """Decays in place of weight_decay by shell pattern; the last match counts; null = none."""


def rate_problems(config: ConfigLike, constants: ConfigLike) -> Iterator[str]:
    """Yield the patterns of names with a rate of 0."""
    for pattern, rate in (config["optimizer"].get("lr_by_name") or {}).items():
        if not rate:
            yield f'optimizer.lr_by_name.{pattern} is 0; leave it out, and set optimizer.freeze=["{pattern}"]'


@dataclass(kw_only=True)
class OneCycle:
    """From lr / div_factor up to lr, then down to lr / div_factor at the last step."""

    warmup: Warmup = 0.1
    """Length of the rise to lr: a ratio of the run or a duration; 0 = begin at lr."""
    anneal: Literal["linear", "cosine", "polynomial"] = "linear"
    """Shape of the rise and of the fall."""
    power: PositiveFloat = 1.0
    """Exponent of anneal=polynomial; the others ignore it; 1 = linear."""
    div_factor: PositiveFloat = 600.0
    """The rise begins and the fall ends at lr / div_factor."""


@dataclass(kw_only=True)
class Constant:
    """The base rate, after a linear rise from lr / div_factor."""

    warmup: Warmup = 0.0
    """Length of the rise to lr: a ratio of the run or a duration; 0 = none."""
    div_factor: PositiveFloat = 25.0
    """The rise begins at lr / div_factor."""


@dataclass(kw_only=True)
class Exponential(Constant):
    """After the rise, the rate is multiplied by decay_rate every decay_every, as a staircase."""

    decay_rate: PositiveFloat = 0.95
    """Factor of the rate at each decay_every after the rise; 1 = off."""
    decay_every: Duration = "1000st"
    """Interval between two decays."""
