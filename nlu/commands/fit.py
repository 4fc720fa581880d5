"""Train in this process on rows of a program, as `python -m nlu.train` does on files; see `nlu.fit`."""

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from hydra.types import RunMode
from hydra.utils import execution_whitelist
from omegaconf import DictConfig, OmegaConf, read_write

from nlu.commands.rows import kept_rows, write_rows
from nlu.config import stopping
from nlu.config.choices import RUN, conf_dir
from nlu.config.entry.app import checked_composition, hydra_of, run_composed, storage_problems
from nlu.config.entry.flags import read_command_line
from nlu.config.entry.guard import current_config, is_sent, occupied_folder_problem, whitelist
from nlu.config.errors import UserError, keys_called
from nlu.config.placement import placement
from nlu.config.plugins import find_plugins
from nlu.config.resolving import as_given
from nlu.config.schema import num_repeats
from nlu.inference.loaded import Loaded
from nlu.runs import logs


def fit(overrides: Sequence[str], rows: dict[str, object]) -> Loaded:
    """Train on these rows by the name of their set, and load the run; see `nlu.fit`."""
    given = _with_rows(overrides, list(rows))
    with ExitStack() as held:
        held.enter_context(stopping.listening())
        held.callback(logs.tear_down)
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="nlu-fit-")))
        written = {name: write_rows(of_set, name, folder) for name, of_set in rows.items()}
        find_plugins()
        line = read_command_line([*given, *(f"data.{name}='{path}'" for name, path in written.items())])
        hydra = held.enter_context(hydra_of(line, RUN, conf_dir()))
        held.enter_context(keys_called({str(path): name for name, path in written.items()}))
        config = checked_composition(hydra, "train", line.overrides)
        _require_one_run(config)
        with current_config(config):
            run_dir = Path(str(config.hydra.run.dir)).absolute()
        if problem := occupied_folder_problem(config.resume, run_dir):
            raise UserError(problem)
        kept = held.enter_context(kept_rows(written, run_dir))
        _name(config, kept)
        held.enter_context(keys_called({str(path): name for name, path in kept.items()}))
        held.enter_context(execution_whitelist(whitelist()))
        outcome = run_composed(hydra, config, _train)
        if isinstance(outcome, Exception):
            raise outcome
        if outcome:
            raise stopping.Stopped(stopping.received() or stopping.signal.SIGINT)
        return Loaded.of(run_dir, device=config.trainer.device)


def _train(config: DictConfig) -> int | Exception:
    # The whitelist is for Hydra's own keys; `trusted_packages` names the others.
    with execution_whitelist(None, reset=True):
        try:
            # Imported late: `python -m nlu.train` runs a module that must not be imported before.
            from nlu.train import main

            return main(config)
        except Exception as error:
            # Hydra would print about an error that passes through it.
            return UserError(*found) if (found := storage_problems(error)) else error


def _with_rows(overrides: Sequence[str], sets: Sequence[str]) -> list[str]:
    """Return the overrides with those that rows of these sets need. Raises UserError for what cannot be given."""
    if isinstance(overrides, str | Mapping):
        raise UserError(f'overrides is {overrides!r}, but must be a list, such as ["model=bert_tiny", "seed=2"]')
    keys = [text.partition("=")[0].lstrip("+~") for text in overrides]
    found = [f"{text} is a flag; nlu.fit takes only overrides" for text in overrides if text[:1] == "-"]
    if sets and "train" not in sets and not any(key.startswith("data") for key in keys):
        found.append(f"train is None, but {sets[0]} is given; give the rows to train on")
    twice = [name for name in (*sets, *(["format"] if sets else [])) if f"data.{name}" in keys]
    found += [f"data.{name} is set, but rows are given as {sets[0]}=; leave one of them out" for name in twice]
    if found:
        raise UserError(*found)
    is_chosen = {"data", "experiment"} & {*keys} or "train" not in sets
    return [*([] if is_chosen else ["data=files"]), *overrides, *(["data.format=auto"] if sets else [])]


def _require_one_run(config: DictConfig) -> None:
    """Raise UserError for what needs other processes, or gives no single model."""
    place = placement()
    asked = {
        "hydra/launcher": is_sent(config),
        "hydra.mode=MULTIRUN": config.hydra.mode == RunMode.MULTIRUN,
        f"trainer.devices={config.trainer.devices}": config.trainer.devices != 1,
        f"a process that {place.kind} started": place.world_size > 1 or place.asked,
        f"folds.count and seeds, {num_repeats(config)} runs": num_repeats(config) > 1,
        "dry_run=true": config.dry_run,
    }
    remedy = "nlu.fit trains one run in this process; leave it out, or use python -m nlu.train"
    if found := [f"{what}: {remedy}" for what, is_asked in asked.items() if is_asked]:
        raise UserError(*found)


def _name(config: DictConfig, kept: dict[str, Path]) -> None:
    """Name the files of rows where they are kept, in the configuration and in the overrides that repeat it."""
    texts = as_given(config.hydra.overrides.task)
    for name, path in kept.items():
        OmegaConf.update(config, f"data.{name}", str(path))
        in_quotes = str(path).replace("'", r"\'")
        texts = [text for text in texts if not text.startswith(f"data.{name}=")] + [f"data.{name}='{in_quotes}'"]
    with read_write(config.hydra):
        config.hydra.overrides.task = texts
