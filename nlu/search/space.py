"""The search space: sweep overrides as distributions of Optuna, some of them conditional.

The grammar is that of Hydra, read by hydra-optuna-sweeper: `choice(a,b)`, `range(1,10)`, `interval(0,1)`,
`tag(log, interval(1e-5, 1e-3))`. Only here, a sweep may have a prior, the value that the user believes to be good:
`tag(interval(0,1), prior=0.3)`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, RangeSweep, Transformer
from hydra.errors import HydraException, OverrideParseException

# A private module, but the one that the configurations of its samplers name.
from hydra_plugins.hydra_optuna_sweeper._impl import create_optuna_distribution_from_override
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    check_distribution_compatibility,
)

from nlu.config.command_line import PRIOR, grammar_problem, quoted
from nlu.search.schedulers.encoding import contains


def distribution_of(override: Override) -> BaseDistribution:
    """Return the distribution of the sweep in an override.

    `choice`, and a range that is shuffled or cast, become a list of choices. `range` becomes its steps without its end,
    as in Hydra. `interval` becomes all numbers between its ends, or all integers if both ends are integers, and with
    `tag(log, ...)` is logarithmic. Raises ValueError for an empty sweep.
    """
    if isinstance(override.value(), Glob):
        return CategoricalDistribution(list[Any](override.sweep_iterator(transformer=Transformer.encode)))
    found: BaseDistribution = create_optuna_distribution_from_override(override)
    return found


def values_of(distribution: BaseDistribution) -> Sequence[object] | None:
    """Return every value of a distribution, in order; None for a continuous interval."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices
    assert isinstance(distribution, FloatDistribution | IntDistribution), "there are three kinds of distribution"
    low, step = distribution.low, distribution.step
    if step is None:
        return None
    # In steps of 0.1 the third is 0.3, not 0.30000000000000004.
    return [round(low + count * step, 12) for count in range(1 + round((distribution.high - low) / step))]


PARAMS = "hydra.sweeper.params"
WHEN = "hydra.sweeper.when"


@dataclass(frozen=True)
class Branch:
    """Parameters that are drawn only if a key has a value."""

    key: str
    value: str
    params: dict[str, BaseDistribution]

    def __str__(self) -> str:
        return f"{self.key}={self.value}"


@dataclass
class Space:
    """The parameters of each trial, and the overrides that all trials share."""

    params: dict[str, BaseDistribution] = field(default_factory=dict)
    branches: list[Branch] = field(default_factory=list)
    fixed: list[str] = field(default_factory=list)
    """overrides, in the order given"""
    priors: dict[str, object] = field(default_factory=dict)
    """the values that the user believes to be good, of parameters that have one"""
    parser: OverridesParser = field(default_factory=OverridesParser.create, repr=False, compare=False)

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys([*self.params, *(name for branch in self.branches for name in branch.params)]))

    def draw(
        self, suggest: Callable[[str, BaseDistribution], object], composed: Callable[[str], str | None]
    ) -> dict[str, object]:
        """Return a value for each parameter of one trial. `composed(key)` is the value of a key that is not drawn."""
        values = {name: suggest(name, distribution) for name, distribution in self.params.items()}
        waiting = list(self.branches)
        # In rounds, because the key of a branch may be drawn by another one; if none draws it, it is composed. Branches
        # that wait for each other are never drawn.
        while ready := [
            branch for branch in waiting
            if branch.key in values or not any(branch.key in other.params for other in waiting)
        ]:  # fmt: skip
            for branch in ready:
                waiting.remove(branch)
                held = written(values[branch.key]) if branch.key in values else composed(branch.key)
                if held is not None and bare(held) == bare(branch.value):
                    for name, distribution in branch.params.items():
                        if name not in values:
                            values[name] = suggest(name, distribution)
        return values

    def distributions(self, name: str) -> list[BaseDistribution]:
        """Return the distributions of a parameter: several if they depend on conditions."""
        places = (self.params, *(branch.params for branch in self.branches))
        return [params[name] for params in places if name in params]

    def described(self) -> dict[str, str]:
        """Return the space as text, to compare it with another."""
        plain = {name: shown(distribution) for name, distribution in self.params.items()}
        for branch in self.branches:
            plain |= {f"{name} where {branch}": shown(distribution) for name, distribution in branch.params.items()}
        return plain


def overrides_of(values: Mapping[str, object]) -> list[str]:
    """Return drawn values as overrides."""
    return [quoted(f"{name}={written(value)}") for name, value in values.items()]


def written(value: object) -> str:
    """Return a value in the override grammar; text already is in it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else repr(value)


def bare(text: str) -> str:
    """Return a text without quotes of the override grammar."""
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def shown(distribution: BaseDistribution) -> str:
    """Return a distribution as the user would write it."""
    if isinstance(distribution, CategoricalDistribution):
        return f"choice({', '.join(written(choice) for choice in distribution.choices)})"
    assert isinstance(distribution, FloatDistribution | IntDistribution), "there are three kinds of distribution"
    low, high, step = distribution.low, distribution.high, distribution.step
    text = f"interval({low}, {high})"
    if distribution.log:
        return f"tag(log, {text})"
    return text if step in (None, 1) else f"range({low}, {high}, step={step}), both ends included"


def space_of(
    params: Mapping[str, object] | None,
    when: Mapping[str, object] | None,
    arguments: Sequence[str],
    loader: ConfigLoader | None = None,
) -> tuple[Space, list[str]]:
    """Return the space of a search, `params` and `when` of its configuration, overridden by the command line.

    `loader` finds the choices of a group for `glob(*)`. Also returns every problem; the space lacks what has one.
    """
    problems: list[str] = []
    space = Space(parser=OverridesParser.create(config_loader=loader))
    for name, value in (params or {}).items():
        _add(space, f"{name}={written(value)}", problems, f"{PARAMS}.{name}")
    for condition, branch in (when or {}).items():
        _add_branch(space, str(condition), branch, problems)
    for argument in arguments:
        _add(space, argument, problems)
    _check_branches(space, problems)
    return space, problems


def _add(space: Space, text: str, problems: list[str], where: str | None = None) -> None:
    # Overrides of the command line are already quoted, which changes nothing here.
    text = quoted(text)
    try:
        override = space.parser.parse_overrides([text])[0]
    except OverrideParseException as error:
        problems.append(f"{where}: {grammar_problem(text, error)}" if where else grammar_problem(text, error))
        return
    if override.is_delete():
        space.fixed.append(text)
        return
    name = override.get_key_element()
    # A later override replaces all earlier ones of the same key.
    space.params.pop(name, None)
    space.fixed = [fixed for fixed in space.fixed if fixed.partition("=")[0] != name]
    space.branches = [
        Branch(branch.key, branch.value, {key: held for key, held in branch.params.items() if key != name})
        for branch in space.branches
    ]
    space.priors.pop(name, None)
    if override.is_sweep_override():
        if (distribution := _distribution(override, where or text, problems)) is not None:
            space.params[name] = distribution
            _add_prior(space, override, distribution, problems, where or name)
    else:
        space.fixed.append(text)


def _distribution(override: Override, where: str, problems: list[str]) -> BaseDistribution | None:
    value = override.value()
    if isinstance(value, RangeSweep) and "log" in value.tags:
        problems.append(f"{where}: a range is never logarithmic; write tag(log,int(interval(a,b)))")
        return None
    try:
        return distribution_of(override)
    except (ValueError, HydraException) as error:
        reason = str(error).removesuffix(".")
        problems.append(f"{where}: {reason}; write choice(a,b), range(a,b), interval(a,b) or tag(log, interval(a,b))")
        return None


def _add_prior(
    space: Space, override: Override, distribution: BaseDistribution, problems: list[str], where: str
) -> None:
    tags: set[str] = getattr(override.value(), "tags", set())
    for tag in tags:
        if tag.startswith(PRIOR):
            text = tag.removeprefix(PRIOR)
            try:
                space.priors[override.get_key_element()] = value_within(distribution, text)
            except ValueError as error:
                problems.append(f"{where}: its prior is {text}, {error}; write a prior that can be drawn")


def value_within(distribution: BaseDistribution, value: object) -> Any:
    """Return a value, perhaps a text, as the distribution would draw it. Raises ValueError if it never would."""
    text = bare(written(value))
    number = _number(text)
    if isinstance(distribution, CategoricalDistribution):
        same = [choice for choice in distribution.choices if bare(written(choice)) == text]
        # 1e-4 and 0.0001 are one number.
        same += [choice for choice in distribution.choices if number is not None and _number(choice) == number]
        if same:
            return same[0]
    elif number is not None and contains(distribution, number):
        return int(number) if isinstance(distribution, IntDistribution) else number
    raise ValueError(f"which is not in {shown(distribution)}")


def _number(value: object) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        return float(str(value))
    except ValueError:
        return None


def _add_branch(space: Space, condition: str, branch: object, problems: list[str]) -> None:
    key, equals, value = condition.partition("=")
    where = f"{WHEN}.'{condition}'"
    if not equals or not key or not value:
        problems.append(f"{where} is not a condition; write KEY=VALUE, such as optimizer=adamw")
        return
    if not isinstance(branch, Mapping) or not branch:
        problems.append(f"{where} is {branch!r}, but must map keys to sweeps, such as interval(0, 1)")
        return
    inner = Space(parser=space.parser)
    for name, text in branch.items():
        _add(inner, f"{name}={written(text)}", problems, f"{where}.{name}")
    problems += [
        f"{where}: {fixed} is not a sweep; write choice(...), range(...) or interval(...)" for fixed in inner.fixed
    ]
    space.branches.append(Branch(key, value, inner.params))
    space.priors |= inner.priors


def _check_branches(space: Space, problems: list[str]) -> None:
    known: dict[str, BaseDistribution] = {}
    for branch in space.branches:
        held = space.params.get(branch.key)
        if isinstance(held, CategoricalDistribution):
            choices = [written(choice) for choice in held.choices]
            if bare(branch.value) not in map(bare, choices):
                problems.append(f"{WHEN}.'{branch}': {branch.key} is only drawn from {', '.join(choices)}")
        for name, distribution in branch.params.items():
            if name in space.params:
                problems.append(f"{WHEN}.'{branch}'.{name} is also drawn without a condition; remove one of the two")
            try:
                # Optuna refuses a study in which one name has distributions of different kinds.
                check_distribution_compatibility(known.setdefault(name, distribution), distribution)
            except ValueError:
                problems.append(
                    f"{WHEN}.'{branch}'.{name} is {shown(distribution)}, elsewhere {shown(known[name])}; "
                    "all sweeps of one key must be of one kind, with the same choices"
                )


def grid_problems(space: Space) -> list[str]:
    """Return why a space is not a grid: intervals, conditions and priors."""
    problems = []
    if space.branches:
        problems.append(f"{WHEN} needs hydra/sweeper/sampler=random or tpe; choose one, or run a grid for each branch")
    problems += [f"{name} has a prior, but a grid tries every combination; leave prior= out" for name in space.priors]
    return problems + [
        f"{name} is {shown(distribution)}, but a grid needs a list of values; write choice(...) or range(...), or "
        "choose hydra/sweeper/sampler=random or tpe"
        for name, distribution in space.params.items()
        if values_of(distribution) is None
    ]


def grid_values(space: Space) -> dict[str, Sequence[object]]:
    """Return the values of each parameter of a space without `grid_problems`."""
    return {name: values_of(distribution) or () for name, distribution in space.params.items()}


def identity(values: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    """Return the same for equal configurations; numbers that differ in the last digits only are equal."""
    texts = {name: f"{each:.12g}" if isinstance(each, float) else bare(written(each)) for name, each in values.items()}
    return tuple(sorted(texts.items()))


def space_differences(
    before: Mapping[str, object], now: Mapping[str, object], *, absent: str = "not drawn"
) -> list[str]:
    """Return the differences between two results of `described`, or two flat configurations, one line for each key."""
    return [
        f"{name}: {before.get(name, absent)} there, {now.get(name, absent)} here"
        for name in dict.fromkeys([*before, *now])
        if before.get(name) != now.get(name)
    ]
