"""Read overrides one by one, and say of what cannot be read what Hydra says of it and what to write instead."""

import os
from collections.abc import Sequence

import yaml
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from nlu.config.checks.quoting import quoted
from nlu.config.checks.resolve import first_line
from nlu.config.elsewhere import function_elsewhere
from nlu.config.errors import UserError

USER_MISTAKES = (HydraException, OmegaConfBaseException, ValueError, yaml.YAMLError)
"""What Hydra raises, before a task starts, for a command line or configuration file that it cannot use."""


def read_override(override: str) -> Override:
    """Return an override as Hydra reads it. Raises UserError with what Hydra says of it and what to write instead."""
    key, equals, value = override.partition("=")
    if not equals and not override.startswith("~"):
        if os.path.isfile(os.path.expanduser(override)):
            raise UserError(
                f"{override} is a file, but its key is missing; write input={override} for rows to predict, "
                f"data.test={override} for rows to score, or data.train={override} for rows to train on"
            )
        if override.startswith(("/", "./", "../", "~/")) or "://" in override or os.path.isdir(override):
            raise UserError(
                f"{override}: the key is missing; write KEY={override}, as run={override} where a run is meant"
            )
        # A group may have a slash as well.
        run = f", or run={override} where a run is meant" if "/" in override else ""
        raise UserError(f"{override}: the value is missing; write {override}=VALUE{run}")
    is_searchable = GlobalHydra.instance().is_initialized()
    try:
        # The loader is what glob(*) asks for the choices of a group; parse_overrides alone hands it on.
        loader = GlobalHydra.instance().config_loader() if is_searchable else None
        return OverridesParser.create(loader).parse_overrides([override])[0]
    except HydraException as error:
        raise UserError(grammar_problem(override, error)) from error


def grammar_problem(override: str, error: Exception) -> str:
    """Return what cannot be read in an override, and what to write instead."""
    key, _, value = override.partition("=")
    try:
        # The error of the whole command line repeats all of it; that of one override is a sentence.
        OverridesParser.create().parse_override(override)
    except HydraException as of_this_one:
        error = of_this_one
    if (example := function_elsewhere(value)) is not None:
        return f"{override}: Hydra has no function {value.partition('(')[0]}; write it as in '{key}={example}'"
    if value.rstrip().endswith(","):
        return (
            f"{override} ends in a comma; leave the comma out, give the next value too ({override}VALUE), or quote a "
            f"text that ends so: '{key}=\"{value}\"'"
        )
    if not _is_closed(value):
        remedy = "close its brackets, and quote the whole for the shell"
    elif value.startswith(("{", "[")):
        example = '{name: "a=b"}' if value.startswith("{") else '["a=b"]'
        remedy = (
            "put what holds special characters inside the brackets in quotation marks, and the whole in others for the "
            f"shell, as in '{key}={example}'; in a key write \\= for ="
        )
    elif value.endswith(")"):
        remedy = f"correct it or, if a text is meant, quote it for the shell and for Hydra: '{key}=\"{value}\"'"
    else:
        remedy = f"quote the value for the shell and for Hydra: '{key}=\"{value}\"'"
    # Hydra's parser ends with the names of all symbols that it would have taken.
    said = said_of(error).partition(" expecting ")[0]
    return f"{override} cannot be read: {said}; {remedy}"


def rejoined(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Put together again what a shell tore at spaces, and return one problem for each that was torn."""
    whole: list[str] = []
    torn: dict[int, str] = {}
    for override in overrides:
        if whole and not _is_closed(whole[-1]) and "=" not in override:
            torn[len(whole) - 1] = whole[-1] = f"{whole[-1]} {override}"
        else:
            whole.append(override)
    problems = [
        f"{text} came in pieces, since shells part words at spaces; quote it: '{text}'" for text in torn.values()
    ]
    return whole, problems


def _is_closed(text: str) -> bool:
    return all(text.count(opening) <= text.count(closing) for opening, closing in ("{}", "[]", "()"))


def first_values(overrides: Sequence[str]) -> list[str]:
    """Return the overrides of a sweep's first job; what only a search can draw is left out."""
    loader = GlobalHydra.instance().config_loader()
    first = []
    for override in OverridesParser.create(loader).parse_overrides(list(overrides)):
        if not override.is_sweep_override():
            first.append(str(override.input_line))
        elif override.is_discrete_sweep():
            first += overrides_of_sweep(override)[:1]
    return first


def overrides_of_sweep(override: Override) -> list[str]:
    """Return the overrides, one for each value, that an override of several values stands for."""
    key = override.get_key_element()
    return [quoted(f"{key}={value}") for value in override.sweep_string_iterator()]


def sweep_problem(override: str, key: str) -> str:
    value = override.partition("=")[2]
    return (
        f"{override}: several values need --multirun; for a list write '{key}=[{value}]', "
        f"for one text quote it for Hydra as well: '{key}=\"{value}\"'"
    )


def interval_problem(override: str) -> str:
    """Return why a grid cannot do with an override that only a search can draw from."""
    return (
        f"{override}: a grid cannot draw from an interval; for a search set hydra/sweeper=hyperband, for a grid list "
        f"the values: {override.partition('=')[0]}=VALUE,VALUE"
    )


def said_of(error: BaseException) -> str:
    """Return what Hydra, and what it calls, says of an error, on one line."""
    said = " ".join(str(error).split()).rstrip(".")
    reason = first_line(error.__cause__) if isinstance(error.__cause__, OmegaConfBaseException) else ""
    return said if not reason or reason.lower() in said.lower() else f"{said}: {reason}"
