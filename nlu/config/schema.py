"""The keys of a run: top level, `trainer` and `folds`. Those of a node with a `_target_` are in `nlu.config.keys`.

This module imports nothing heavy, because every command imports it before it builds anything.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Annotated, Literal, Self

from nlu.config.choices import RUN, target_of, with_defaults
from nlu.config.mixtures import member_of, names_of
from nlu.config.targets import TARGET, modules_of, trust
from nlu.config.types import (
    Config,
    ConfigLike,
    Duration,
    FoldCount,
    Interval,
    Naming,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Probability,
)

Node = Annotated[Config, Naming("a choice of its group, such as GROUP=NAME")]
"""A choice of a group: `_target_` and the keyword arguments of its constructor."""


@dataclass(kw_only=True)
class Trainer:
    """Length, batches, evaluations and checkpoints of a run; its progress is counted in examples seen."""

    batch_size: PositiveInt | Literal["auto"] = 32
    """Examples of a micro-batch, over all devices together; auto = the most that fit into memory, found before the
    first step. With task=rerank, a loss over queries (listwise, pairwise, margin_mse) or rows with lists of texts, it
    counts queries with all of their rows, as durations do."""
    batch_tokens: PositiveInt | None = None
    """A micro-batch has as many examples as fit into this many tokens, over all devices together, instead of
    batch_size; null = off."""
    accumulation: PositiveInt = 1
    """Micro-batches of an optimizer step, which sees batch_size * accumulation examples; 1 = off."""
    max_duration: Duration = "1.5ep"
    """Length of the run; this default takes at least 60 steps, unless a search compares lengths."""
    stop_after: Duration | None = None
    """End the command after this much training, counted from the start of the run, to continue it later; null = off."""
    eval_interval: Interval = "250st"
    """Interval of evaluations; 0 = only at the end."""
    eval_warmup: Duration | None = None
    """Until this much training, evaluations happen 10 times less often; null = off."""
    eval_rows: PositiveInt | None = None
    """Rows of each evaluation set that are scored while training, a fixed sample; null = all rows."""
    save_interval: Interval = "500st"
    """Interval of saves of checkpoints/last, from which a run continues; it is also saved at a new best, an error and
    the end; 0 = at each evaluation."""
    log_interval: Duration = "10st"
    """Interval of rows in train.tsv."""
    eval_batch_size: PositiveInt | None = None
    """Examples of an evaluation batch, over all devices together; null = 2 * batch_size."""
    major_metric: str | None = None
    """Metric of the first evaluation set that decides which checkpoint is best; null = the task's own."""
    patience: Duration | None = None
    """Stop if the major metric has not improved for this long; null = off."""
    min_duration: Duration | None = None
    """Patience counts from here on; null = from the start."""
    keep_best: PositiveInt = 1
    """Number of best checkpoints to keep: checkpoints/best-1, best-2, ..."""
    save: bool = True
    """false = no checkpoints, so the run can neither be continued nor predict; scores and tables are written."""
    save_above: float | None = None
    """Best checkpoints stay if the best value of the major metric is above this, or below it if lower is better; null =
    always."""
    clip_norm: NonNegativeFloat = 1.0
    """Largest gradient norm of a step, over all parameters; 0 = no clipping."""
    max_loss: PositiveFloat | None = None
    """A step with a larger loss ends the run with an error, before its update; null = off."""
    detect_anomaly: bool = False
    """End the run at the first operation whose gradient is NaN, and name the call that ran it; several times slower."""
    ema_decay: Probability = 0.99
    """Decay per step of the moving average of the weights, which is scored and kept as best; 0 = off."""
    bucket_batches: PositiveInt = 64
    """Micro-batches whose examples are sorted by length together; 1 = no sorting."""
    window_rows: PositiveInt | None = None
    """Examples are shuffled in windows of this many neighboring rows, and the windows among each other; null = one
    window, the whole set."""
    devices: PositiveInt = 1
    """Processes on this machine, one for each device; under torchrun, torchrun's number counts: docs/devices.md."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Kind of device; auto = cuda if available, else cpu."""
    compile: bool = False
    """Compute steps and scores by torch.compile over batches of few shapes, on CUDA; decides the last bits:
    docs/devices.md."""
    timeout_min: PositiveFloat = 120.0
    """A rank that does not answer the others for this many minutes, also in a debugger, ends the run with an error."""

    @property
    def batch_rows(self) -> int:
        """`batch_size` as a number, which has been found if it was auto."""
        assert not isinstance(self.batch_size, str), "found before the first step"
        return self.batch_size

    @property
    def rows_to_score(self) -> int:
        """Examples per evaluation batch, over all devices."""
        # A command that only scores has not found a number.
        return self.eval_batch_size or 2 * (32 if self.batch_size == "auto" else self.batch_size)


@dataclass(kw_only=True)
class Folds:
    """Cross validation: the training rows in equal parts, each held out of training once and scored as `dev`."""

    count: FoldCount | None = None
    """Number of folds, each held out once and scored as dev; written short: folds=5; null = none."""
    group_by: str | int | None = None
    """Column of the training rows, by name or number from 0, whose equal values stay together in the folds and in the
    split of data.dev_fraction; null = none."""


WITHOUT_EFFECT = (
    "resume", "dry_run", "trial", "choices", "tracker", "mirror", "take", "stores", "note", "trainer.stop_after",
    "inspect", "plugins", "trainer.detect_anomaly", "trainer.timeout_min",
)  # fmt: skip
"""Keys that do not change what a run computes, so comparisons of runs leave them out."""


def _none(group: str) -> Node:
    """Return the choice `none` of a group, for the configuration of a run that is older than the group."""
    return {TARGET: target_of(group, "none")}


@dataclass(kw_only=True)
class Run:
    """The validated configuration of one run, or of several: its folds and seeds."""

    seed: NonNegativeInt = 1
    """Determines initial weights, order of examples, dropout and folds, each through a stable hash of its own."""
    seeds: PositiveInt = 1
    """Number of runs, with seed, seed + 1, ...; the result is their mean and standard deviation; 1 = one run."""
    fold: NonNegativeInt | None = None
    """Number of the only fold to run, from 0; null = all, one after another."""
    resume: str = "never"
    """never = only start; auto = continue the run of this folder, or start; PATH of a run or checkpoint to start
    from."""
    mirror: str | None = None
    """Folder of a bucket, s3://BUCKET/FOLDER or oss://..., that keeps a copy of the run, sent after each save:
    docs/mirrors.md; null = none."""
    take: bool = False
    """Continue the run of the mirror although its last process has not released it, and keep that process out; written
    short --take."""
    stores: str | None = None
    """Folder of a bucket, s3://BUCKET/FOLDER or oss://..., with data stores that machines share: docs/paths.md; null =
    each builds its own."""
    dry_run: bool = False
    """Print the configuration and every problem with it, and stop."""
    inspect: bool = False
    """Record norms of gradients, weights and updates of each module in inspect.tsv: docs/troubleshooting.md."""
    note: str | None = None
    """A remark about the run, which reports and figures show; a run that is continued or ended takes the new one; null
    = none."""
    plugins: list[str] = field(default_factory=list)
    """Folders and modules (mine.py) of yours whose classes a `_target_` may name; [] = none."""
    trusted_packages: list[str] = field(default_factory=list)
    """Your own packages whose classes a `_target_` may name; [] = none."""
    trial: Config | None = None
    """Where a trial reports, as {storage, study, number, attempt}; set by a search, not by you; null = not a trial."""
    task: Node
    """What is predicted and how it is scored: docs/tasks.md; a named data set sets its own."""
    model: Node
    """Encoder and its weights: docs/models.md."""
    head: Node
    """Layer on top of the encoder; auto = the task's own."""
    data: Node
    """Rows to train on and to score; files = your own files."""
    tokenizer: Node
    """How text becomes tokens."""
    loss: Node
    """What a step minimizes: docs/losses.md."""
    method: Node
    """Forward and backward passes of a micro-batch: docs/methods.md."""
    optimizer: Node
    """How gradients change the weights."""
    scheduler: Node
    """Course of the learning rate."""
    precision: Node
    """Number format of matrix products; auto = by the hardware: docs/devices.md."""
    trainer: Annotated[Trainer, Naming("keys, such as trainer.batch_size=16")]
    """Length of the run, its batches, evaluations and checkpoints."""
    folds: Annotated[Folds, Naming("keys, such as folds.count=5")]
    adapter: Node = field(default_factory=lambda: _none("adapter"))
    """Small modules that are trained instead of the encoder's weights; none = train all weights."""
    tracker: Node = field(default_factory=lambda: _none("tracker"))
    """Another tool that shows the numbers of the run: docs/tracking.md."""
    choices: dict[str, str] = field(default_factory=dict, init=False)
    """The chosen name of each group, for the run's records."""

    @classmethod
    def of(cls, config: ConfigLike, choices: Mapping[str, str] | None = None) -> Self:
        """Build from a validated configuration with all of its keys, as `nlu.config.entry.app.prepare` returns it."""
        # A process that was started for this run trusts what its configuration does.
        trust(config)
        known = {item.name: config[item.name] for item in fields(cls) if item.init and item.name in config}
        run = cls(**known | {"trainer": Trainer(**config["trainer"]), "folds": Folds(**config["folds"])})
        run.choices = dict(choices or config.get("choices") or {})
        return run

    @property
    def own_packages(self) -> list[str]:
        """The packages and modules of the user's own, of which the run keeps a copy."""
        return [*self.trusted_packages, *modules_of(self.plugins)]

    def to_config(self) -> Config:
        """Return plain containers, as config.yaml holds them, without the keys of `nlu.preprocess`."""
        return asdict(self)

    @property
    def has_adapter(self) -> bool:
        """Whether an adapter is trained instead of the encoder's weights."""
        return self.adapter[TARGET] != target_of("adapter", "none")

    @property
    def is_standalone(self) -> bool:
        """Whether the run may use the console, which a trial of a search may not."""
        return self.trial is None

    @property
    def folds_to_run(self) -> list[int | None]:
        """The folds that this configuration runs; [None] without folds."""
        return list(range(self.folds.count)) if self.folds.count is not None and self.fold is None else [self.fold]

    @property
    def num_repeats(self) -> int:
        """Number of runs: folds times seeds."""
        return self.seeds * len(self.folds_to_run)

    @property
    def members(self) -> "dict[str, Run]":
        """The configuration of each set of a mixture, as that of a run of this set only; {} without a mixture."""
        if not (names := names_of({"data": self.data})):
            return {}
        config = self.to_config()
        return {name: Run.of(with_defaults(member_of(config, name), RUN)) for name in names}

    def with_choice(self, group: str, node: Node, choice: str | None = None) -> Self:
        """Return the configuration with other keys of a group; `choice`: the new name of its choice, if it changes."""
        changed: Config = {group: node}
        other = replace(self, **changed)
        other.choices = {**self.choices, **({group: choice} if choice else {})}
        return other

    def repeat(self, *, seed: int, fold: int | None) -> Self:
        """Return the configuration of one of these runs."""
        single = replace(self, seed=seed, seeds=1, fold=fold)
        # `replace` calls the constructor, which does not take `choices`.
        single.choices = self.choices
        return single


def num_repeats(config: ConfigLike) -> int:
    """Return the number of runs of a plain configuration: folds times seeds."""
    count, fold = config["folds"]["count"], config["fold"]
    return config["seeds"] * (count if count is not None and fold is None else 1)


def flat(config: Config) -> dict[str, object]:
    """Return `{dotted key: value}`, in which two configurations are compared; lists and empty mappings are values."""
    return dict(_items(config, ""))


def has_effect(key: str) -> bool:
    """Return whether a dotted key may change what a run computes."""
    return key not in WITHOUT_EFFECT and key.partition(".")[0] not in WITHOUT_EFFECT


def _items(config: object, prefix: str) -> Iterator[tuple[str, object]]:
    # An empty mapping is a value, since {} differs from a missing key. The whole configuration has no key to report.
    if isinstance(config, dict) and (config or not prefix):
        for key, value in config.items():
            yield from _items(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, list(config) if isinstance(config, tuple) else config


@dataclass(kw_only=True)
class Preprocess(Run):
    """The validated configuration of `nlu.preprocess`: that of a run, and what to print."""

    show: NonNegativeInt = 0
    """Print this many first rows of each set as the model gets them (pieces, ids, segments, target), and build no store
    unless the vocabulary comes from its rows; 0 = build the store and print its content."""
