"""Run folders as records, read without torch and without changing the folders."""

import json
import math
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from nlu.config.choices import RUN, target_of, targets_of, with_defaults
from nlu.config.errors import DataError, UserError
from nlu.config.keys import facts_of
from nlu.config.mixtures import own_name
from nlu.config.schema import flat
from nlu.config.targets import TARGET
from nlu.runs.logs import LOG, End, end_of
from nlu.runs.records import Cell, read_rows
from nlu.storage.locks import is_locked

State = Literal["complete", "pruned", "running", "stopped", "failed", "unfinished"]
STATES: tuple[State, ...] = ("complete", "pruned", "running", "stopped", "failed", "unfinished")
"""the best first; an unfinished run was killed, so its log has no reason"""
CONFIG, RESULT, LOCK = "config.yaml", "result.json", ".lock"
TRAIN, VALID = "train.tsv", "valid.tsv"
TRAIN_COLUMNS, VALID_COLUMNS = ("examples", "examples_per_s"), ("step", "examples", "set", "metric", "value")
"""the columns that reports read"""
INNER = frozenset({"checkpoints", "plots", "predictions"})
"""folders of a run that contain no other runs"""
CHILD = re.compile(r"(seed-\d+)?-?(fold-\d+)?")
"""names of the parts of a run with folds or seeds"""
CHOICES = "choices."
"""before the keys of `RunRecord.config` that hold the name of a group's choice"""
RUN_KEYS = frozenset({"task", "model", "data", "trainer"})
Metrics = dict[str, dict[str, float | None]]


@dataclass(frozen=True)
class RunRecord:
    """One run: its settings, its progress and its results."""

    folder: Path
    state: State
    config: dict[str, Any]
    """the configuration, by dotted key"""
    overrides: dict[str, str]
    """the overrides on its command line, in order"""
    metric: str | None
    """the metric that decides which checkpoint is best; None if that is not known"""
    set_name: str | None
    """the set on which it decides"""
    metrics: Metrics = field(default_factory=dict)
    """by set and name, at the best evaluation so far"""
    best_step: int | None = None
    examples: int | None = None
    """seen so far"""
    examples_per_s: float | None = None
    reason: str | None = None
    """why a failed or stopped run ended"""

    @property
    def seed(self) -> int | None:
        return self.config.get("seed")

    @property
    def fold(self) -> int | None:
        return self.config.get("fold")

    @property
    def folds(self) -> int | None:
        """The number of folds."""
        return self.config.get("folds.count")

    @property
    def note(self) -> str | None:
        """The remark that the user gave with `note`."""
        return self.config.get("note")

    def value(self, set_name: str | None, metric: str | None) -> float | None:
        """Return a metric of a set at the best evaluation, or None."""
        return self.metrics.get(set_name or "", {}).get(metric or "")


def find_runs(folders: Iterable[Path]) -> tuple[list[RunRecord], list[str]]:
    """Return the runs in and below the folders, each once, by path, and a sentence for each that cannot be read.

    The latter are damaged runs and jobs that failed before they wrote more than a log. A run with folds or seeds is
    represented by its parts. Raises UserError for a folder that does not exist.
    """
    folders = list(folders)
    absent = [
        f"{folder} is not a folder; give folders of runs, or folders that contain such"
        for folder in folders
        if not folder.is_dir()
    ]
    if absent:
        raise UserError(*absent)
    found: dict[Path, RunRecord] = {}
    unread: list[str] = []
    seen: set[Path] = set()
    for folder in folders:
        for path in _job_folders(folder, unread):
            # A folder may be named twice, or lie within another named one, or be reached by a link.
            resolved = path.resolve()
            if resolved in seen:
                continue
            seen.add(resolved)
            try:
                if is_run(path):
                    found[resolved] = read_run(path)
                elif (end := _end_of(path)) and end.state == "failed":
                    unread.append(f"{path} failed before it began: {end.reason}")
            except DataError as error:
                unread += error.problems
            except OSError as error:
                unread.append(_unreadable(error, path))
    return list(found.values()), unread


def _unreadable(error: OSError, path: Path) -> str:
    return f"{error.filename or path} cannot be read ({error.strerror or error}); it is left out"


def _job_folders(folder: Path, unread: list[str]) -> Iterator[Path]:
    """Yield the folders of runs and those with only a log; a sentence is added for each that cannot be listed."""

    def left_out(error: OSError) -> None:
        unread.append(_unreadable(error, folder))

    for here, subfolders, files in os.walk(folder, onerror=left_out):
        subfolders[:] = sorted((name for name in subfolders if not name.startswith(".")), key=_numerically)
        path = Path(here)
        if CONFIG in files and is_run(path):
            # Assigned in place: os.walk then does not enter the others, which may hold thousands of files.
            subfolders[:] = [name for name in subfolders if name not in INNER]
            try:
                has_parts = bool(parts(path))
            except OSError as error:
                left_out(error)
                has_parts = True
            if not has_parts:
                yield path
            elif sentence := _end_between_parts(path):
                unread.append(sentence)
        elif LOG in files:
            yield path


def _end_between_parts(run_dir: Path) -> str | None:
    """Return how a run ended of which all parts that have begun are complete, as a sentence; None for any other."""
    if is_locked(run_dir / LOCK) or not all((path / RESULT).is_file() for path in parts(run_dir)):
        return None
    end = None if (run_dir / RESULT).is_file() else _end_of(run_dir)
    return f"{run_dir} {end.state}: {end.reason}" if end else None


def parts(run_dir: Path) -> list[Path]:
    """Return the folders of the folds and seeds of a run; none for a run without them."""
    inside = [path for path in run_dir.iterdir() if path.is_dir() and CHILD.fullmatch(path.name) and is_run(path)]
    return sorted(inside, key=lambda path: _numerically(path.name))


def _numerically(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def is_run(folder: Path) -> bool:
    """Return whether the folder holds the config.yaml of a run; True if the file cannot be read, False without one."""
    try:
        # The loader in C is several times as fast, which counts for a search of thousands of runs.
        content = yaml.load((folder / CONFIG).read_text(encoding="utf-8"), yaml.CSafeLoader)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return False
    except OSError:
        return True
    except (ValueError, yaml.YAMLError):
        content = None
    if isinstance(content, dict):
        return RUN_KEYS <= content.keys()
    # A damaged file beside the tables of a run must be reported.
    return os.path.exists(folder / TRAIN) or os.path.exists(folder / RESULT)


def read_run(folder: Path) -> RunRecord:
    """Read one run. Raises DataError if one of its files is damaged or cannot be read."""
    config = flat(_read(folder / CONFIG, lambda text: yaml.load(text, yaml.CSafeLoader)))
    known: dict[str, Any] = {"folder": folder, "config": config, "overrides": read_overrides(folder)}
    if (folder / RESULT).is_file():
        result = _read(folder / RESULT, json.loads)
        best, metrics = result.get("best") or {}, result.get("metrics") or {}
        if not isinstance(best, dict) or not isinstance(metrics, dict) or not all(map(_are_values, metrics.values())):
            raise DataError(f"{folder / RESULT} is not what a run writes; the run is left out")
        return RunRecord(
            **known,
            state="pruned" if result.get("pruned") else "complete",
            metric=best.get("metric"),
            set_name=best.get("set"),
            metrics=metrics,
            best_step=best.get("step"),
            examples=result.get("examples"),
            examples_per_s=result.get("examples_per_s"),
        )
    state, reason = _open_state(folder)
    return RunRecord(**known, state=state, reason=reason, **_progress(folder, config))


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
    """Turn errors of reading a file into a DataError with its name."""
    try:
        yield
    except (OSError, ValueError, yaml.YAMLError) as error:
        what = error.strerror if isinstance(error, OSError) else None
        raise DataError(
            f"{path} cannot be read ({what or str(error).partition(chr(10))[0]}); the run is left out"
        ) from error


def saved_config(run_dir: Path) -> dict[str, Any]:
    """Return the saved configuration of a run, with all keys. Raises DataError if it is damaged."""
    path = run_dir / CONFIG
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        _leave_out_earlier(content)
        return with_defaults(content, RUN)
    except (yaml.YAMLError, UnicodeDecodeError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is not the configuration of a run ({_reason(error)}); give another run") from error


def _leave_out_earlier(content: dict[str, Any]) -> None:
    """Take away what earlier versions wrote, and what does not decide what the weights compute."""
    data, trainer = content.get("data", {}), content.get("trainer", {})
    for node in (data, *data.get("sets", {}).values()):
        for key in ("part", "parts", *(["stream"] if node.get(TARGET) != target_of("data", "corpus") else [])):
            node.pop(key, None)
    for key in ("replay", "watch", "parallel"):
        content.pop(key, None)
    content["inspect"] = bool(content.get("inspect"))
    trainer.pop("kernels", None)
    content.get("precision", {}).pop("master_weights", None)
    content.get("optimizer", {}).pop("kernel", None)
    if content.get("task", {}).pop("score_queries", False):
        # It needed the column of queries even where no fold did, and had metrics of its own.
        if data.get("dev") is not None and content["folds"]["count"] is None:
            content["folds"]["group_by"] = None
        if str(trainer.get("major_metric")).startswith("query_"):
            trainer["major_metric"] = None
    if trainer.get("devices") == "auto":
        trainer["devices"] = 1


def _reason(error: Exception) -> str:
    """Return why a file of YAML cannot be read, on one line."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return " ".join(str(error).split())


def read_overrides(folder: Path) -> dict[str, str]:
    """Return key and value of each override that the run was started with, without flags and deletions.

    Raises DataError if the file is damaged.
    """
    path = folder / "overrides"
    if not path.is_file():
        return {}
    with _named(path):
        words = shlex.split(path.read_text(encoding="utf-8"))
    pairs = (text.lstrip("+").partition("=") for text in words)
    return {key: value for key, equals, value in pairs if equals and not key.startswith(("-", "~", "hydra"))}


def _with_whole(folder: Path) -> list[Path]:
    """Return the folder of a run and, for a fold or seed, the folder of the whole run."""
    return [folder, folder.parent] if CHILD.fullmatch(folder.name) and is_run(folder.parent) else [folder]


def _open_state(folder: Path) -> tuple[State, str | None]:
    """Return the state of a run without a result: running if a process holds it, else as its log ends."""
    # The lock ends with its process, so a run that was killed does not count as running.
    if any(is_locked(path / LOCK) for path in _with_whole(folder)):
        return "running", None
    end = next((end for path in _with_whole(folder) if (end := _end_of(path))), None)
    return (end.state, end.reason) if end else ("unfinished", None)


def _end_of(folder: Path) -> End | None:
    """Return how a job ended. Raises DataError if its log cannot be read."""
    with _named(folder / LOG):
        return end_of(folder)


def _progress(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Return the best evaluation of an unfinished run and the examples it has seen, from its tables."""
    train, valid = _rows(folder / TRAIN, TRAIN_COLUMNS), _rows(folder / VALID, VALID_COLUMNS)
    metric, lower_is_better = metric_of(config)
    set_name = str(valid[0]["set"]) if valid else None
    if metric and metric != own_name(metric):
        # The first evaluation set of the head that decides.
        head, metric = metric.split("/", 1)
        set_name = next((str(row["set"]) for row in valid if str(row["set"]).endswith(f"-{head}")), set_name)
    decisive = [row for row in valid if row["set"] == set_name and row["metric"] == metric]
    values = [(value, _number(row["step"]) or 0) for row in decisive if (value := _number(row["value"])) is not None]
    known: dict[str, Any] = {"metric": metric, "set_name": set_name}
    if values:
        sign = 1 if lower_is_better else -1
        # Of equal values the earliest step, as the run itself chooses.
        best_step = min(values, key=lambda pair: (sign * pair[0], pair[1]))[1]
        metrics: Metrics = {}
        for row in valid:
            if row["step"] == best_step:
                metrics.setdefault(str(row["set"]), {})[str(row["metric"])] = _number(row["value"])
        known |= {"metrics": metrics, "best_step": int(best_step)}
    if train or valid:
        # An evaluation may be later than the last row of train.tsv, which is written at intervals.
        known["examples"] = max(_number(row["examples"]) or 0 for row in (*train[-1:], *valid[-1:]))
    if saved := _saved_examples(folder, train):
        known["examples"] = max(saved, known.get("examples", 0))
    speeds = [speed for row in train if (speed := _number(row["examples_per_s"])) is not None]
    if speeds:
        # The median: the first steps of a run are slow.
        known["examples_per_s"] = sorted(speeds)[len(speeds) // 2]
    return known


def _saved_examples(folder: Path, train: Sequence[dict[str, Cell]]) -> int | None:
    """Return the examples seen at the saved state: those up to the last row of train.tsv before it, and those since."""
    path = folder / "checkpoints" / "last" / "state.json"
    try:
        state = json.loads(path.read_text(encoding="utf-8"))["state"]
        step, since = int(state["step"]), int(state["window"]["examples"])
    except (OSError, ValueError, LookupError, TypeError):
        # A report needs only the tables; a command that continues the run explains what is wrong.
        return None
    rows = [row for row in train if (_number(row["step"]) or 0) <= step]
    return since + int(_number(rows[-1]["examples"]) or 0) if rows else since


def _rows(path: Path, columns: Sequence[str]) -> list[dict[str, Cell]]:
    with _named(path):
        rows = read_rows(path) if path.is_file() else []
    if rows and (lacking := [name for name in columns if name not in rows[0]]):
        raise DataError(f"{path}:1 lacks the columns {', '.join(lacking)}; the run is left out")
    return rows


def _number(value: Cell) -> float | None:
    """Return the finite number in a cell; None for anything else."""
    return value if isinstance(value, (int, float)) and math.isfinite(value) else None


def metric_of(config: dict[str, Any]) -> tuple[str | None, bool]:
    """Return the metric that decides in a run with this configuration, and whether lower values are better."""
    constants = task_constants(config)
    metric = config.get("trainer.major_metric") or constants.get("default_metric")
    return metric, own_name(metric or "") in constants.get("lower_is_better", ())


def task_constants(config: dict[str, Any]) -> Mapping[str, Any]:
    """Return the constants of the class of the run's task.

    A class of a user's own is not imported here: of its metrics those are better if lower that are so in nlu's tasks.
    """
    target = config.get("task._target_") or ""
    if found := facts_of(target):
        return found
    of_tasks = (facts_of(each).get("lower_is_better", ()) for each in targets_of("task").values())
    return {"lower_is_better": {name for names in of_tasks for name in names}}
