"""The first trial of a search with `hydra.sweeper.use_defaults`: the values that the swept keys have without it."""

from collections.abc import Callable

from optuna.distributions import BaseDistribution

from nlu.config.errors import UserError
from nlu.search.space import Space, value_within, written

KEY = "hydra.sweeper.use_defaults"


def defaults(space: Space, composed: Callable[[str], str | None]) -> dict[str, object]:
    """Return a value of each key that is drawn beside the others: its prior, or what it has without the search.

    `composed` returns the value of a key without the search. Raises UserError with all problems.
    """
    problems: list[str] = []

    def default(name: str, distribution: BaseDistribution) -> object:
        # A prior may be that of another condition.
        value = space.priors[name] if name in space.priors else composed(name)
        try:
            return value_within(distribution, value)
        except ValueError as error:
            problems.append(
                f"{KEY} is true, but {name} is {written(value)} without the search, {error}; give it a prior, "
                f"{name}=tag(..., prior=VALUE), or let its sweep contain the default"
            )
            return None

    found = space.draw(default, composed)
    if problems:
        raise UserError(*problems)
    return found
