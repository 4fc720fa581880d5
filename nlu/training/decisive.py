"""Which metric of which set decides which evaluation is best, and by what a set's threshold is decided."""

from collections.abc import Mapping
from dataclasses import dataclass

from nlu.config.members import MEAN
from nlu.data.opening import Store
from nlu.tasks.composite import Composite
from nlu.tasks.task import Task

SUMMARY = "dev"
"""the name under which the metrics of all heads together are recorded"""
Metrics = Mapping[str, Mapping[str, float]]
"""by set, by name"""


@dataclass(frozen=True)
class Decisive:
    """A metric of a set."""

    set_name: str
    metric: str


def decisive(task: Task, major_metric: str | None, store: Store) -> Decisive:
    """Return what decides: the metric on the first evaluation set, of several heads their mean or one head's."""
    metric = major_metric or task.default_metric
    if not isinstance(task, Composite):
        return Decisive(first_sets(store)[""], metric)
    if metric == MEAN:
        return Decisive(SUMMARY, MEAN)
    member, _, own = metric.partition("/")
    return Decisive(first_sets(store)[member], own)


def first_sets(store: Store) -> dict[str, str]:
    """Return the first evaluation set of each set of a mixture; without one, of the empty name."""
    found: dict[str, str] = {}
    for name, part in store.of_role("dev").items():
        found.setdefault(part.member, name)
    return found


def decided_for(store: Store, name: str, metrics: Metrics) -> Mapping[str, float]:
    """Return the metrics from which a set takes its threshold, {} for the set that has them decided."""
    return metrics.get(first_sets(store)[store.sets[name].member], {})


def with_summary(task: Task, store: Store, metrics: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return the metrics of an evaluation with those of all heads together, which come first."""
    if not isinstance(task, Composite):
        return metrics
    own = task.summary({member: metrics[name] for member, name in first_sets(store).items()})
    return {SUMMARY: own, **metrics} if own else metrics
