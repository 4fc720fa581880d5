"""The keys of a search, `hydra.sweeper`. Hydra reads them at every start, so nothing heavy is imported here."""

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING


@dataclass
class SearchKeys:
    """Search by optuna's samplers, pruned while it runs."""

    _target_: str = "hydra_plugins.hyperband_sweeper.hyperband_sweeper.HyperbandSweeper"
    defaults: list[Any] = field(default_factory=lambda: [{"sampler": "tpe"}])
    sampler: Any = MISSING
    """hydra/sweeper/sampler=tpe|random|grid|gp; sampler.seed null = the run's seed"""
    n_trials: int = 30
    """Finished trials in all, over every continuation of the search; failed ones count."""
    n_jobs: int = 1
    """Trials in flight."""
    direction: str | None = None
    """maximize | minimize; null = what the metric asks for"""
    objectives: list[Any] | None = None
    """What is improved besides the metric, [latency_ms, parameters], also metrics of the dev set; the result is
    the Pareto front; null = only the metric"""
    constraints: list[Any] | None = None
    """Bounds of such quantities, ["latency_ms<=5", "parameters<=10e6"]; a trial that breaks one is never the best;
    null = none"""
    storage: str | None = None
    """null (a journal in the sweep folder), a path, postgresql://, s3://, oss://"""
    study_name: str | None = None
    """null = the name of the sweep folder"""
    pruner: Any = "hyperband"
    """hyperband | asha | freeze_thaw | none"""
    min_resource: str | None = None
    """Examples seen before the first decision, a duration, at least trainer.eval_interval; null = three times that, or
    less if it is more than a fifth of a trial"""
    max_resource: str | None = None
    """Examples seen by a trial that is not stopped, a duration; null = trainer.max_duration"""
    max_examples: str | None = None
    """Examples seen by all trials together, a duration, with asha and freeze_thaw; null = no limit, with freeze_thaw
    n_trials / reduction_factor whole trials"""
    reduction_factor: int = 3
    """One trial in so many passes a rung."""
    keep: str = "all"
    """Checkpoints that stay: all, or best (those of the best trial; at the end of the search paused trials end too)"""
    on_failure: str = "continue"
    """continue | stop"""
    retries: int = 0
    """How often a failed trial is started again, from its checkpoint."""
    stop_after_same_failures: int = 3
    """Stop when so many trials in a row fail with the same error; 0 = never."""
    params: dict[str, Any] | None = None
    """The space, as on the command line: {optimizer.lr: "tag(log, interval(1e-5, 5e-4))"}"""
    when: dict[str, Any] | None = None
    """Parameters that are drawn only under a condition: {method=rdrop: {method.alpha: "interval(0.5, 5)"}}"""
