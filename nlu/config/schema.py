"""The keys that every run has: top level and `trainer`. Groups with a `_target_` have their constructor as schema.

This module imports nothing heavy: it is read before anything else of a run is built.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from nlu.config.types import Duration, FoldCount, Interval, NonNegativeFloat, NonNegativeInt, PositiveInt, Probability


@dataclass(kw_only=True)
class Trainer:
    """How a run is driven; the clock of record is examples seen."""

    batch_size: PositiveInt = 32
    """Examples per micro-batch, over all devices together."""
    accumulation: PositiveInt = 1
    """Micro-batches per optimizer step; a step sees batch_size * accumulation examples."""
    max_duration: Duration = "1.5ep"
    """Length of the run."""
    eval_interval: Interval = "250st"
    """How often the evaluation sets are scored; 0 = only at the end."""
    save_interval: Interval = "500st"
    """How often checkpoints/last is replaced, besides each evaluation; 0 = only then."""
    log_interval: Duration = "10st"
    """How often a row is added to train.tsv."""
    eval_batch_size: PositiveInt | None = None
    """Examples per evaluation batch, over all devices; null = twice batch_size."""
    major_metric: str | None = None
    """The metric, on the first evaluation set, that decides which checkpoint is best; null = the task's own."""
    patience: Duration | None = None
    """Stop when the major metric has not improved for this long; null = off."""
    keep_best: PositiveInt = 1
    """How many best checkpoints are kept, as checkpoints/best-1, best-2, ..."""
    clip_norm: NonNegativeFloat = 1.0
    """Largest gradient norm of a step, over all parameters; 0 = no clipping."""
    ema_decay: Probability = 0.99
    """Decay of the moving average of the weights, which is what is scored and kept as best; 0 = off."""
    bucket_batches: PositiveInt = 64
    """Batches whose examples are sorted by length together; 1 = no length bucketing."""
    devices: PositiveInt = 1
    """Processes on this machine, one per device; under torchrun its own count stands."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto = cuda where there is one."""


@dataclass(kw_only=True)
class Folds:
    """Cross validation: the training rows in equal parts, each held out of training once and scored as `dev`."""

    count: FoldCount | None = None
    """Number of folds; null = none, a run trains on all training rows and scores the dev set."""
    group_by: str | int | None = None
    """Column of the training rows, by name or number from 0, whose equal values are never torn apart; null = none."""


@dataclass(kw_only=True)
class Run:
    """The composed configuration of one run."""

    seed: NonNegativeInt = 1
    """Seeds initialisation, order, dropout and folds, each through its own stable hash."""
    seeds: PositiveInt = 1
    """Repeats with seed, seed + 1, ...; the result is their mean and standard deviation."""
    fold: NonNegativeInt | None = None
    """The only fold to run, counted from 0; null = each in its turn."""
    resume: str = "never"
    """never | auto (continue this run folder if it holds a run, start it otherwise) | PATH of a run or checkpoint."""
    dry_run: bool = False
    """Print the resolved configuration and the verdict on it, then stop."""
    trusted_packages: list[str] = field(default_factory=list)
    """Your own packages whose classes a `_target_` may name."""
    trial: dict[str, Any] | None = None
    """Set by a search, never by hand: where its trial is reported, as {storage, study, number, attempt}."""
    task: Any
    model: Any
    data: Any
    tokenizer: Any
    loss: Any
    optimizer: Any
    scheduler: Any
    precision: Any
    trainer: Any
    folds: dict[str, Any]
