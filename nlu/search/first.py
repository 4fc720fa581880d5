"""Which configurations a search tries first: its defaults, those that the user gives, the best ones of former searches.

A configuration may lack parameters; the sampler draws these.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from optuna.trial import TrialState

from nlu.config.errors import UserError
from nlu.config.nearest import hint
from nlu.search.goals import is_infeasible
from nlu.search.space import Branch, Space, bare, value_within, written
from nlu.search.storage.opening import study_in

FIRST = "first"
"""user attribute of a study: the configurations that it tries first"""
WARM_TRIALS = 3
"""the best trials of each former search"""
SWEEPER = "hydra.sweeper"


def first_keys(settings: Mapping[str, Any]) -> list[str]:
    """Return the keys of the sweeper that are set and give first trials."""
    return [key for key in ("use_defaults", "enqueue", "warm_start") if settings[key]]


def first_trials(
    settings: Mapping[str, Any],
    space: Space,
    composed: Callable[[str], str | None],
    warn: Callable[[str], None],
    has_begun: bool,
) -> list[dict[str, object]]:
    """Return the configurations, each once.

    `composed` returns the value that a key has without the search. A search that has begun keeps what it took from
    former ones, so their folders are not read again. Raises UserError with all problems.
    """
    found: list[dict[str, object]] = []
    problems: list[str] = []
    if settings["use_defaults"]:
        found.append(_defaults(space, composed, problems))
    for number, given in enumerate(settings["enqueue"] or []):
        found.append(_given(given, space, composed, f"{SWEEPER}.enqueue[{number}]", problems))
    for folder in [] if has_begun else settings["warm_start"] or []:
        try:
            found += _former(Path(str(folder)), space, warn)
        except UserError as error:
            problems += (f"{SWEEPER}.warm_start: {problem}" for problem in error.problems)
    if problems:
        raise UserError(*problems)
    return [values for at, values in enumerate(found) if values and values not in found[:at]]


def centers(settings: Mapping[str, Any], space: Space, composed: Callable[[str], str | None]) -> dict[str, object]:
    """Return the values of the prior: those written in the space and, with use_defaults, the defaults of the rest."""
    return {**(_defaults(space, composed, []) if settings["use_defaults"] else {}), **space.priors}


def _defaults(space: Space, composed: Callable[[str], str | None], problems: list[str]) -> dict[str, object]:
    def suggest(name: str, distribution: Any) -> object:
        if name in space.priors:
            return space.priors[name]
        if (text := composed(name)) is None:
            problems.append(
                f"{SWEEPER}.use_defaults is true, but {name} has no value without the search; {_remedy(name)}"
            )
            return None
        try:
            return value_within(distribution, text)
        except ValueError as error:
            problems.append(
                f"{SWEEPER}.use_defaults is true, but {name} is {text} without the search, {error}; {_remedy(name)}"
            )
            return None

    return space.draw(suggest, composed)


def _remedy(name: str) -> str:
    return f"give it a prior, {name}=tag(..., prior=VALUE), or let its sweep contain the default"


def _holds(branch: Branch, given: Mapping[Any, object], space: Space, composed: Callable[[str], str | None]) -> bool:
    """Whether the condition of a branch holds in an entry, or, for a key that is not drawn, without the search."""
    if branch.key in given:
        text: str | None = written(given[branch.key])
    else:
        text = None if branch.key in space.names else composed(branch.key)
    return text is not None and bare(text) == bare(branch.value)


def _given(
    given: object, space: Space, composed: Callable[[str], str | None], where: str, problems: list[str]
) -> dict[str, object]:
    if not isinstance(given, Mapping):
        problems.append(f"{where} is {given!r}, but must map drawn keys to values, such as {{optimizer.lr: 1e-4}}")
        return {}
    found: dict[str, object] = {}
    for name, value in given.items():
        if not (distributions := space.distributions(str(name))):
            problems.append(f"{where}: {name} is not drawn; {hint(str(name), space.names)}")
            continue
        if str(name) not in space.params:
            active = [branch for branch in space.branches if str(name) in branch.params]
            conditions = " or ".join(map(str, active))
            active = [branch for branch in active if _holds(branch, given, space, composed)]
            if not active:
                problems.append(f"{where}: {name} is only drawn where {conditions}; add that to the entry")
                continue
            distributions = [branch.params[str(name)] for branch in active]
        try:
            found[str(name)] = _within(distributions, value)
        except ValueError as error:
            problems.append(f"{where}: {name} is {written(value)}, {error}; write a value that can be drawn")
    return found


def _within(distributions: Iterable[Any], value: object) -> object:
    """Return a value as one of the distributions would draw it."""
    refused = None
    for distribution in distributions:
        try:
            return value_within(distribution, value)
        except ValueError as error:
            refused = error
    assert refused is not None, "there is a distribution"
    raise refused


def _former(folder: Path, space: Space, warn: Callable[[str], None]) -> list[dict[str, object]]:
    """Return the parameters of the best trials of a former search that this space contains."""
    # The user waits for the answer: what is away now is reported at once.
    study = study_in(folder, patience_s=0.0)
    complete = [
        trial for trial in study.get_trials(deepcopy=False)
        if trial.state == TrialState.COMPLETE and not is_infeasible(trial)
    ]  # fmt: skip
    sign = -1.0 if study.directions[0].name == "MAXIMIZE" else 1.0
    found: list[dict[str, object]] = []
    for trial in sorted(complete, key=lambda trial: (sign * trial.values[0], trial.number)):
        values = {}
        for name in space.names:
            if name not in trial.params:
                continue
            try:
                values[name] = _within(space.distributions(name), trial.params[name])
            except ValueError as error:
                had = bare(written(trial.params[name]))
                warn(f"{SWEEPER}.warm_start: {folder}: trial {trial.number} had {name}={had}, {error}; it is drawn")
        if values and values not in found:
            found.append(values)
        if len(found) == WARM_TRIALS:
            break
    if not found:
        raise UserError(f"{folder} has no complete trial with a parameter that is drawn here; leave it out")
    return found
