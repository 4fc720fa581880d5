"""Rows of a program, written into files that the readers of data read, and kept in the folder of a run.

Train in this process on rows of a program, as `python -m nlu.train` does on files; see `nlu.fit`.
"""

import filecmp
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from math import isnan
from pathlib import Path
from typing import Any

from hydra.types import RunMode
from hydra.utils import execution_whitelist
from omegaconf import DictConfig, OmegaConf, read_write

from nlu.config import stopping
from nlu.config.choices import RUN, conf_dir, find_plugins
from nlu.config.command_line import read_command_line
from nlu.config.entry.app import checked_composition, hydra_of, run_composed, storage_problems
from nlu.config.entry.hydra_keys import current_config, is_sent, occupied_folder_problem, whitelist
from nlu.config.errors import DataError, UserError, keys_called
from nlu.config.resolving import as_given
from nlu.config.schema import num_repeats
from nlu.config.sentences import listed, shortened
from nlu.data.readers import class_names, with_names
from nlu.inference.loaded import Loaded
from nlu.jobs.placement import placement
from nlu.runs import logs
from nlu.runs.folder import CONFIG, FOLDER_KEY, ROWS

ROWS_AT_ONCE = 1000
KINDS = "a DataFrame, a list of dicts or a datasets.Dataset"


def write_rows(rows: object, name: str, folder: Path) -> Path:
    """Write the rows of a set into FOLDER/NAME.jsonl and return it.

    `rows` are a DataFrame of pandas, a list of mappings, or a datasets.Dataset, whose numbers of a ClassLabel become
    names. What JSON lacks becomes a text; NaN becomes null. Raises DataError for anything else, and for no rows.
    """
    path, line, count = folder / f"{name}.jsonl", "", 0
    # A lone surrogate, which UTF-8 lacks, becomes what JSON writes for it, and the reader says in which row it is.
    with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
        for row in _records(rows, name):
            nan = {key for key, value in row.items() if isinstance(value, float) and isnan(value)}
            plain = {str(key): None if key in nan else value for key, value in row.items()}
            line = json.dumps(plain, ensure_ascii=False, default=_plain)
            file.write(f"{line}\n")
            count += 1
    if not count:
        raise DataError(f"{name} is empty; give it at least one row")
    if count == 1:
        # An object alone in a file may be a document that has the rows within.
        path.write_text(f"[{line}]\n", encoding="utf-8", errors="backslashreplace")
    return path


@contextmanager
def kept_rows(written: Mapping[str, Path], run_dir: Path) -> Iterator[dict[str, Path]]:
    """Move the files of sets into RUN/rows and yield where they are; without a run at the end, they are removed.

    A run that is continued has these files already. Raises UserError if its rows are others.
    """
    kept = {name: run_dir / ROWS / path.name for name, path in written.items()}
    new = [name for name, path in kept.items() if not path.is_file()]
    differing = [name for name, path in kept.items() if name not in new and not filecmp.cmp(path, written[name], False)]
    if strange := differing + (new if (run_dir / CONFIG).is_file() else []):
        raise UserError(
            f"{run_dir} holds other rows of {listed(strange)}; give the same rows to continue its run, or choose "
            f"another {FOLDER_KEY}"
        )
    if new:
        (run_dir / ROWS).mkdir(parents=True, exist_ok=True)
    try:
        for name in new:
            shutil.move(written[name], kept[name])
        yield kept
    finally:
        if not (run_dir / CONFIG).is_file():
            for name in new:
                kept[name].unlink(missing_ok=True)
            for folder in (run_dir / ROWS, run_dir):
                if folder.is_dir() and not any(folder.iterdir()):
                    folder.rmdir()


def _records(rows: Any, name: str) -> Iterator[Mapping[Any, Any]]:
    if hasattr(rows, "with_format") and hasattr(rows, "features"):
        named = class_names(rows.features.to_dict())
        # As Arrow, since images and sounds would be decoded otherwise.
        for table in rows.with_format("arrow").iter(ROWS_AT_ONCE):
            for record in table.to_pylist():
                yield {key: with_names(value, named[key]) if key in named else value for key, value in record.items()}
    elif hasattr(rows, "iloc") and hasattr(rows, "columns"):
        for first in range(0, len(rows), ROWS_AT_ONCE):
            part = rows.iloc[first : first + ROWS_AT_ONCE]
            yield from part.astype(object).where(part.notna(), None).to_dict("records")
    elif isinstance(rows, list | tuple):
        if wrong := [row for row in rows if not isinstance(row, Mapping)]:
            raise DataError(f"{name} has the row {shortened(repr(wrong[0]))}; make it a dict")
        yield from rows
    else:
        remedy = f"; for a file, give the override data.{name}={rows}" if isinstance(rows, str | Path) else ""
        raise DataError(f"{name} is a {type(rows).__name__}, but must be {KINDS}{remedy}")


def _plain(value: Any) -> object:
    """Return what JSON can hold for a value of numpy, torch or another library."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


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
            from nlu.commands.train import main

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
