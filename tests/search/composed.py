"""The part of a composed run that a search asks for before its first trial, and its space."""

from typing import Any

from nlu.config.errors import UserError
from nlu.search.space import Space, space_of


def config(batch_size: int = 10, folds: int | None = None, seeds: int = 1, **trainer: Any) -> dict[str, Any]:
    trainer = {"max_duration": "2ep", "eval_interval": "0.5ep", "accumulation": 1, "major_metric": None, **trainer}
    return {
        "trainer": {**trainer, "batch_size": batch_size}, "folds": {"count": folds}, "fold": None, "seeds": seeds,
        "task": {"_target_": "nlu.tasks.classify.Classify"},
    }  # fmt: skip


def read_space(params: Any, when: Any, arguments: Any, loader: Any = None) -> Space:
    """Return a space. Raises UserError with every problem, as a search does."""
    space, problems = space_of(params, when, arguments, loader)
    if problems:
        raise UserError(*problems)
    return space
