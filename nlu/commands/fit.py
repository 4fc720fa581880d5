"""Train in this process on rows of a program, as `python -m nlu.train` does on files; see `nlu.fit`."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from hydra.types import RunMode
from hydra.utils import execution_whitelist
from omegaconf import DictConfig, OmegaConf, read_write

from nlu.commands.rows import kept_rows, write_rows
from nlu.config import stopping
from nlu.config.choices import RUN, conf_dir
from nlu.config.entry.app import checked_composition, find_plugins, hydra_of, run_composed, storage_problems
from nlu.config.entry.flags import read_command_line
from nlu.config.entry.guard import current_config, occupied_folder_problem, whitelist
from nlu.config.errors import UserError, keys_called
from nlu.config.placement import placement
from nlu.config.schema import num_repeats
from nlu.inference.loaded import Loaded
from nlu.runs import logs
from nlu.train import main

COMMAND = "python -m nlu.train"


def fit(overrides: Sequence[str], rows: dict[str, object]) -> Loaded:
    """Train on these rows by the name of their set, and load the run; see `nlu.fit`."""
    given = _with_rows(overrides, list(rows))
    with ExitStack() as held:
        held.enter_context(stopping.listening())
        held.enter_context(_on_full_disks())
        held.callback(logs.tear_down)
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="nlu-fit-")))
        written = {name: write_rows(of_set, name, folder) for name, of_set in rows.items()}
        find_plugins()
        line = read_command_line([*given, *(f"data.{name}='{path}'" for name, path in written.items())])
        hydra = held.enter_context(hydra_of(line, RUN, conf_dir()))
        held.enter_context(keys_called({str(path): name for name, path in written.items()}))
        config, of_hydra = checked_composition(hydra, "train", line.overrides)
        with current_config(config):
            if of_hydra.launched_dir is not None:
                raise UserError(f"hydra/launcher sends runs to other processes; leave it out, or use {COMMAND}")
            if found := list(_problems(config)):
                raise UserError(*found)
            run_dir = Path(str(config.hydra.run.dir)).absolute()
        if problem := occupied_folder_problem(config.resume, run_dir):
            raise UserError(problem)
        kept = held.enter_context(kept_rows(written, run_dir))
        _name(config, kept)
        held.enter_context(keys_called({str(path): name for name, path in kept.items()}))
        held.enter_context(execution_whitelist(whitelist(of_hydra.trusted)))
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
            return main(config)
        except Exception as error:
            # Hydra would print about an error that passes through it.
            return error


def _with_rows(overrides: Sequence[str], sets: Sequence[str]) -> list[str]:
    """Return the overrides with those that rows of these sets need. Raises UserError for what cannot be given."""
    if isinstance(overrides, str):
        raise UserError(f'overrides is {overrides!r}, but must be a list, such as ["model=bert_tiny", "seed=2"]')
    keys = [text.partition("=")[0].lstrip("+~") for text in overrides]
    found = [f"{text} is a flag of {COMMAND}; nlu.fit takes only overrides" for text in overrides if text[:1] == "-"]
    twice = [name for name in sets if f"data.{name}" in keys]
    found += [f"data.{name} is set twice, by {name}= and by an override; keep one" for name in twice]
    if sets and "data.format" in keys:
        found.append("data.format is set, but rows of a program are no file; leave it out")
    if found:
        raise UserError(*found)
    is_chosen = {"data", "experiment"} & {*keys} or "train" not in sets
    return [*([] if is_chosen else ["data=files"]), *overrides, *(["data.format=auto"] if sets else [])]


def _problems(config: DictConfig) -> Iterator[str]:
    """Yield what a valid configuration asks for that needs other processes, or gives no single model."""
    if config.hydra.mode == RunMode.MULTIRUN:
        yield f"hydra.mode is MULTIRUN, but nlu.fit is one run; leave it out, or use {COMMAND}"
    if (devices := config.trainer.devices) != 1:
        yield (
            f"trainer.devices is {devices}, but nlu.fit trains in this process, on one; set trainer.devices=1, or use "
            f"{COMMAND}"
        )
    place = placement()
    if place.world_size > 1 or place.asked:
        yield f"this process is one of several that {place.kind} started, but nlu.fit trains alone; use {COMMAND}"
    if (count := num_repeats(config)) > 1:
        yield (
            f"folds.count and seeds ask for {count} runs, but nlu.fit returns one; set seeds=1 and fold=0, or use "
            f"{COMMAND}"
        )
    if config.dry_run:
        yield f"dry_run is true, which trains nothing that could be returned; leave it out, or use {COMMAND}"


def _name(config: DictConfig, kept: dict[str, Path]) -> None:
    """Name the files of rows where they are kept, in the configuration and in the overrides that repeat it."""
    texts = list(config.hydra.overrides.task)
    for name, path in kept.items():
        OmegaConf.update(config, f"data.{name}", str(path))
        in_quotes = str(path).replace("'", r"\'")
        texts = [text for text in texts if not text.startswith(f"data.{name}=")] + [f"data.{name}='{in_quotes}'"]
    with read_write(config.hydra):
        config.hydra.overrides.task = texts


@contextmanager
def _on_full_disks() -> Iterator[None]:
    """Say of an error of the disk what the command says."""
    try:
        yield
    except OSError as error:
        if not (found := storage_problems(error)):
            raise
        raise UserError(*found) from error
