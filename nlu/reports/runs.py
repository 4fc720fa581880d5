"""Run folders as records, read without torch and without changing anything in them."""

import json
import math
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from nlu.config.defaults import with_defaults
from nlu.config.errors import DataError, UserError
from nlu.config.flat import flat
from nlu.config.schemas import RUN
from nlu.config.signature import read_constants
from nlu.runs.records import Cell, read_rows
from nlu.storage.locks import is_locked

State = Literal["complete", "pruned", "running", "failed", "unfinished"]
STATES: tuple[State, ...] = ("complete", "pruned", "running", "failed", "unfinished")
"""Of the worth of their values, best first."""
CONFIG, RESULT, LOCK, LOG = "config.yaml", "result.json", ".lock", "log.txt"
TRAIN, VALID = "train.tsv", "valid.tsv"
TRAIN_COLUMNS, VALID_COLUMNS = ("examples", "examples_per_s"), ("step", "examples", "set", "metric", "value")
"""those that are read"""
INNER = frozenset({"checkpoints", "plots", "predictions"})
"""Folders of a run in which no other run lies."""
CHILD = re.compile(r"(seed-\d+)?-?(fold-\d+)?")
"""Names of the runs that one command with folds or seeds is made of."""
RUN_KEYS = frozenset({"task", "model", "data", "trainer"})
LOG_LINE = re.compile(r"\d{4}-\d\d-\d\dT\S+ (?P<level>[A-Z]+) (?P<message>.*)")
Metrics = dict[str, dict[str, float | None]]


@dataclass(frozen=True)
class Run:
    """One run: what it was asked, how far it came and what came out."""

    folder: Path
    state: State
    config: dict[str, Any]
    """the configuration by dotted keys"""
    overrides: dict[str, str]
    """what its command line said, in its order"""
    metric: str | None
    """the metric that decides which checkpoint is best; None where nothing tells"""
    set_name: str | None
    """the set on which it decides"""
    metrics: Metrics = field(default_factory=dict)
    """by set and name, at the best evaluation so far"""
    best_step: int | None = None
    examples: int | None = None
    """seen in all"""
    examples_per_s: float | None = None
    error: str | None = None
    """the last words of a failed run"""

    @property
    def seed(self) -> Any:
        return self.config.get("seed")

    @property
    def fold(self) -> Any:
        return self.config.get("fold")

    @property
    def folds(self) -> int | None:
        """In how many folds the rows were cut."""
        return self.config.get("folds.count")

    def value(self, set_name: str | None, metric: str | None) -> float | None:
        """Return a metric of a set at the best evaluation, or None."""
        return self.metrics.get(set_name or "", {}).get(metric or "")


def find_runs(folders: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """Return the runs in and below the folders, each once, by path, and a sentence for each that left no record.

    Those are damaged ones, and jobs that failed before they wrote anything but their log. Of a command with folds or
    seeds its parts are the runs. Raises UserError for a folder that does not exist.
    """
    folders = list(folders)
    absent = [f"{folder} is no folder; give folders of runs, or folders that hold such" for folder in folders
              if not folder.is_dir()]  # fmt: skip
    if absent:
        raise UserError(*absent)
    found: dict[Path, Run] = {}
    unread: list[str] = []
    seen: set[Path] = set()
    for folder in folders:
        for path in _job_folders(folder, unread):
            resolved = path.resolve()
            if resolved in seen:
                continue
            seen.add(resolved)
            try:
                if is_run(path):
                    found[resolved] = read_run(path)
                elif error := last_error(path):
                    unread.append(f"{path} failed before it began: {error}")
            except DataError as error:
                unread += error.problems
            except OSError as error:
                unread.append(_unreadable(error, path))
    return list(found.values()), unread


def _unreadable(error: OSError, path: Path) -> str:
    return f"{error.filename or path} cannot be read ({error.strerror or error}); it is left out"


def _job_folders(folder: Path, unread: list[str]) -> Iterator[Path]:
    """Folders of runs, and those that hold a log alone; a sentence is added for each that cannot be listed."""

    def left_out(error: OSError) -> None:
        unread.append(_unreadable(error, folder))

    for here, subfolders, files in os.walk(folder, onerror=left_out):
        subfolders[:] = sorted((name for name in subfolders if not name.startswith(".")), key=_numerically)
        path = Path(here)
        if CONFIG in files and is_run(path):
            subfolders[:] = [name for name in subfolders if name not in INNER]
            try:
                has_parts = bool(parts(path))
            except OSError as error:
                left_out(error)
                has_parts = True
            if not has_parts:
                yield path
        elif LOG in files:
            yield path


def parts(run_dir: Path) -> list[Path]:
    """Return the folders of the folds and seeds that a run consists of; none for a plain run."""
    inside = [path for path in run_dir.iterdir() if path.is_dir() and CHILD.fullmatch(path.name) and is_run(path)]
    return sorted(inside, key=lambda path: _numerically(path.name))


def _numerically(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def is_run(folder: Path) -> bool:
    """Whether config.yaml of the folder is that of a run; False where there is none, true where it cannot be read."""
    try:
        content = yaml.load((folder / CONFIG).read_text(encoding="utf-8"), yaml.CSafeLoader)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return False
    except OSError:
        return True
    except (ValueError, yaml.YAMLError):
        content = None
    if isinstance(content, dict):
        return RUN_KEYS <= content.keys()
    # A damaged one beside the records of a run must be reported, not overlooked.
    return os.path.exists(folder / TRAIN) or os.path.exists(folder / RESULT)


def read_run(folder: Path) -> Run:
    """Read one run. Raises DataError where a file of it is damaged or cannot be read."""
    config = flat(_read(folder / CONFIG, lambda text: yaml.load(text, yaml.CSafeLoader)))
    known: dict[str, Any] = {"folder": folder, "config": config, "overrides": read_overrides(folder)}
    if (folder / RESULT).is_file():
        result = _read(folder / RESULT, json.loads)
        best, metrics = result.get("best") or {}, result.get("metrics") or {}
        if not isinstance(best, dict) or not isinstance(metrics, dict) or not all(map(_are_values, metrics.values())):
            raise DataError(f"{folder / RESULT} is not what a run writes; the run is left out")
        return Run(
            **known, state="pruned" if result.get("pruned") else "complete", metric=best.get("metric"),
            set_name=best.get("set"), metrics=metrics, best_step=best.get("step"),
            examples=result.get("examples"), examples_per_s=result.get("examples_per_s"),
        )  # fmt: skip
    state, error = _open_state(folder)
    return Run(**known, state=state, error=error, **_progress(folder, config))


def _are_values(metrics: object) -> bool:
    return isinstance(metrics, dict) and all(
        value is None or isinstance(value, (int, float)) for value in metrics.values()
    )


def _read(path: Path, parse: Callable[[str], object]) -> dict[str, Any]:
    with _named(path):
        content = parse(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise DataError(f"{path} holds a {type(content).__name__}, not keys and values; the run is left out")
    return content


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Turn what is wrong with a file into a DataError with its name."""
    try:
        yield
    except (OSError, ValueError, yaml.YAMLError) as error:
        what = error.strerror if isinstance(error, OSError) else None
        raise DataError(
            f"{path} cannot be read ({what or str(error).partition(chr(10))[0]}); the run is left out"
        ) from error


def saved_config(run_dir: Path) -> dict[str, Any]:
    """Return the configuration of a run as it was saved, with all keys. Raises DataError where it is damaged."""
    path = run_dir / CONFIG
    try:
        return with_defaults(yaml.safe_load(path.read_text(encoding="utf-8")), RUN)
    except (yaml.YAMLError, UnicodeDecodeError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is no configuration of a run ({error}); give another run") from error


def read_overrides(folder: Path) -> dict[str, str]:
    """Return key and value of each override that the run was started with; flags and deletions are left out.

    Raises DataError where the file is damaged.
    """
    path = folder / "overrides"
    if not path.is_file():
        return {}
    with _named(path):
        words = shlex.split(path.read_text(encoding="utf-8"))
    pairs = (text.lstrip("+").partition("=") for text in words)
    return {key: value for key, equals, value in pairs if equals and not key.startswith(("-", "~", "hydra"))}


def is_held(folder: Path) -> bool:
    """Whether another process writes to the run, or to the one that it is a part of. Changes nothing."""
    return any(is_locked(path / LOCK) for path in _with_whole(folder))


def _with_whole(folder: Path) -> list[Path]:
    """The folder of a run and, where it is a fold or seed of a command, that of the command."""
    return [folder, folder.parent] if CHILD.fullmatch(folder.name) and is_run(folder.parent) else [folder]


def _open_state(folder: Path) -> tuple[State, str | None]:
    """Of a run without a result: a run that is held goes on, one whose last words are an error has failed."""
    if is_held(folder):
        return "running", None
    error = next((error for path in _with_whole(folder) if (error := last_error(path))), None)
    return ("failed", error) if error else ("unfinished", None)


def last_error(folder: Path) -> str | None:
    """Return what the log of a job ends with, if that is an error: of a traceback its last line.

    Raises DataError where the log cannot be read.
    """
    log = folder / LOG
    with _named(log):
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    records = [(place, match) for place, line in enumerate(lines) if (match := LOG_LINE.fullmatch(line))]
    if not records or records[-1][1]["level"] not in ("ERROR", "CRITICAL"):
        return None
    place, record = records[-1]
    last = next((line.strip() for line in reversed(lines[place:]) if line.strip()), "")
    return last if record["message"].startswith("Traceback") else record["message"]


def _progress(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """What the tables of a run that is not finished tell: its best evaluation and the examples seen."""
    train, valid = _rows(folder / TRAIN, TRAIN_COLUMNS), _rows(folder / VALID, VALID_COLUMNS)
    metric, lower_is_better = metric_of(config)
    set_name = str(valid[0]["set"]) if valid else None
    values = [
        (row["value"], row["step"]) for row in valid
        if row["set"] == set_name and row["metric"] == metric and _is_finite(row["value"])
    ]  # fmt: skip
    known: dict[str, Any] = {"metric": metric, "set_name": set_name}
    if values:
        sign = 1 if lower_is_better else -1
        best_step = min(values, key=lambda pair: (sign * pair[0], pair[1]))[1]  # type: ignore[operator]
        metrics: Metrics = {}
        for row in valid:
            if row["step"] == best_step:
                metrics.setdefault(str(row["set"]), {})[str(row["metric"])] = row["value"]  # type: ignore[assignment]
        known |= {"metrics": metrics, "best_step": best_step}
    if train or valid:
        known["examples"] = max(row["examples"] for row in (*train[-1:], *valid[-1:]))  # type: ignore[type-var]
    speeds = [row["examples_per_s"] for row in train if _is_finite(row["examples_per_s"])]
    if speeds:
        known["examples_per_s"] = sorted(speeds)[len(speeds) // 2]  # type: ignore[type-var]
    return known


def _rows(path: Path, columns: Sequence[str]) -> list[dict[str, Cell]]:
    with _named(path):
        rows = read_rows(path) if path.is_file() else []
    if rows and (lacking := [name for name in columns if name not in rows[0]]):
        raise DataError(f"{path}:1 lacks the columns {', '.join(lacking)}; the run is left out")
    return rows


def _is_finite(value: Cell) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def metric_of(config: dict[str, Any]) -> tuple[str | None, bool]:
    """Return the metric that decides in a run with this configuration, and whether lower is better."""
    constants = task_constants(config)
    metric = config.get("trainer.major_metric") or constants.get("default_metric")
    return metric, metric in constants.get("lower_is_better", ())


def task_constants(config: dict[str, Any]) -> dict[str, Any]:
    """Return what the class of the run's task says of its metrics; nothing where it is not to be found here."""
    try:
        return read_constants(config.get("task._target_") or "")
    except (UserError, ValueError):
        return {}
