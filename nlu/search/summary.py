"""The summary of a search: a table, the best trial as an experiment, figures, and an HTML page.

The experiment contains everything that the command line of the trial set.
"""

import json
import math
import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, QuotedString
from optuna.trial import FrozenTrial

from nlu.config.checks.reading import quoted
from nlu.config.choices import conf_dir
from nlu.config.words import path_text
from nlu.display.tables import metric_text, print_table
from nlu.search.channel import OUTCOME, worked_s
from nlu.search.decisions import decision_rows, write_decisions
from nlu.search.figures import draw_figures, write_figures, write_search_page
from nlu.search.goals import MEASURED, Goals, best_trials
from nlu.search.steps import PART_ENDS, is_paused, value_at_end
from nlu.search.trials import (
    Summary,
    TrialRow,
    print_trials,
    quantity_text,
    write_trials,
    written,
)
from nlu.storage.files import write_text

TRIALS, DECISIONS, PAGE, BEST = "trials.tsv", "decisions.tsv", "index.html", Path("experiment") / "best.yaml"
FOLDER = "summary"
STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running", "WAITING": "waiting"}
"""our words for optuna's states"""
ATTRIBUTE = "folder"
"""user attribute of a study: the folder of its search"""
NOT_KEPT = ("trial", "resume", "dry_run", "mirror", "take", "note", "hydra")
"""keys of the run, not of the experiment"""


def write_summary(study: optuna.Study, folder: Path) -> None:
    """Print the trials of a study, best first, and write its summary into the folder of the search.

    `summary/trials.tsv` has a row for each trial, `summary/decisions.tsv` one for each decision about a trial,
    `summary/*.png` are figures, `summary/index.html` is a page that needs no other file, and `experiment/best.yaml` is
    the best trial as an experiment (`--config-dir FOLDER experiment=best`). A figure without content is left out. The
    files of an earlier call are replaced; without a complete trial, best.yaml is removed.
    """
    summary = read_summary(study)
    decisions = decision_rows(study.get_trials(deepcopy=False))
    command = best_command(folder, summary) if write_best(summary, folder / BEST) else None
    figures = draw_figures(study, summary)
    write_trials(folder / FOLDER / TRIALS, summary, folder)
    write_decisions(folder / FOLDER / DECISIONS, decisions)
    pictures = write_figures(folder / FOLDER, figures)
    write_search_page(folder / FOLDER / PAGE, summary, figures, command)
    print_trials(summary)
    tables = [folder / FOLDER / TRIALS, *([folder / FOLDER / DECISIONS] if decisions else [])]
    for path in [*pictures, *tables, folder / FOLDER / PAGE]:
        print_table(path_text(path))
    if command:
        print_table("", f"the best trial again: {command}")
    for trial in summary.trials if summary.front[1:] else ():
        if trial.number in summary.front:
            name = f"trial_{trial.number}"
            print_table(f"trial {trial.number} of the front: {best_command(folder, summary, name, trial)}")


def read_summary(study: optuna.Study) -> Summary:
    """Read all trials of a study."""
    trials = study.get_trials(deepcopy=False)
    maximize = study.directions[0].name == "MAXIMIZE"
    place = study.user_attrs.get(ATTRIBUTE)
    goals = Goals.of(study.user_attrs)
    has_several = len(study.directions) > 1
    rows = [_row(trial, maximize, goals) for trial in trials]
    rows = [replace(row, folder=_folder_here(row, place)) for row in rows]
    return Summary(
        study.study_name,
        _metric_of(rows) or "value",
        maximize=maximize,
        trials=rows,
        params=list(dict.fromkeys(name for trial in trials for name in trial.distributions)),
        objectives=dict(goals.objectives) if has_several else {},
        constraints=[each.text for each in goals.constraints],
        front=[trial.number for trial in best_trials(study)] if has_several else [],
    )


def _folder_here(row: TrialRow, place: str | None) -> str | None:
    """Return the folder of a trial's run: that in the folder of the search if the trial is open, or was copied back."""
    known = row.folder and Path(row.folder).is_dir()
    if place and not known and (own := Path(place) / str(row.number)).is_dir():
        return str(own)
    return row.folder


def _metric_of(rows: list[TrialRow]) -> str | None:
    """Return the metric of the trials, from the first result that can be read here; None if none can."""
    for row in rows:
        path = Path(row.folder or "") / "result.json"
        if row.folder and path.is_file():
            best = json.loads(path.read_text(encoding="utf-8")).get("best") or {}
            if "metric" in best:
                return f"{best['set']}/{best['metric']}" if best.get("set") else best["metric"]
    return None


def _row(trial: FrozenTrial, maximize: bool, goals: Goals) -> TrialRow:
    outcome: dict[str, Any] = trial.user_attrs.get(OUTCOME) or {}
    reports = {at: value for at, value in trial.intermediate_values.items() if math.isfinite(value)}
    state = "paused" if is_paused(trial) else STATES[trial.state.name]
    value = trial.values[0] if state == "complete" and trial.values else None
    if value is None and state != "failed":
        # The job wrote it, unless it still runs.
        best = (max if maximize else min)(reports.values(), default=None)
        ends = trial.user_attrs.get(PART_ENDS)
        # Of a trial whose folds have ended in part, their mean, by which the search compares it too.
        value = outcome.get("value", value_at_end(trial, ends[-1]) if ends else best)
    wall_s = outcome.get("wall_s") or worked_s(trial) or (trial.duration.total_seconds() if trial.duration else None)
    return TrialRow(
        number=trial.number,
        state=state,
        value=value,
        sd=outcome.get("sd"),
        examples=outcome.get("examples") or max(reports, default=None),
        wall_s=wall_s,
        params=dict(trial.params),
        folder=outcome.get("folder"),
        error=outcome.get("error") or "",
        measured=dict(measured := trial.user_attrs.get(MEASURED, {})),
        broken=[text for text, violation in goals.violations(measured).items() if violation > 0],
    )


def write_best(summary: Summary, path: Path) -> bool:
    """Write the best trial as an experiment, FOLDER/experiment/NAME.yaml; returns whether there is one.

    The first lines contain the command that runs it. A copy, trial_NUMBER.yaml, stays when another trial becomes the
    best; with several objectives, each trial of the front has one. Without a best trial, an existing file is removed.
    """
    trial = summary.best
    if trial is None:
        path.unlink(missing_ok=True)
        return False
    _write_experiment(summary, trial, path)
    for other in summary.trials:
        if other.number in summary.front or other == trial:
            _write_experiment(summary, other, path.with_stem(f"trial_{other.number}"))
    return True


def _write_experiment(summary: Summary, trial: TrialRow, path: Path) -> None:
    flags, overrides = _arguments(trial)
    is_group, late = _group_test(flags), _later_groups()
    added: list[object] = []
    overridden: list[dict[str, object]] = []
    late_choices: list[dict[str, object]] = []
    body: dict[str, Any] = {}
    for override in overrides:
        key = str(override.key_or_group)
        if key == "experiment":
            # The choices of an experiment come first: the command line overrides them.
            added.insert(0, str(override.value()))
        elif not override.is_delete() and is_group(key) and isinstance(override.value(), (str, QuotedString)):
            # A choice of these groups cannot be an entry of `defaults`, so its content is written out.
            group = override.get_key_element().lstrip("+")
            if group in late:
                choices, content = _content(group, str(_plain(override.value())))
                body, late_choices = _merged(content, body), [*late_choices, *choices]
            elif override.is_add():
                added.append({f"/{group}": _plain(override.value())})
            else:
                overridden.append({f"override /{group}": _plain(override.value())})
        elif not override.is_delete():
            _put(body, key, _plain(override.value()))
    # A choice on the command line takes precedence over one that another choice includes.
    explicit = {group for entry in overridden for group in entry}
    overridden += [entry for entry in late_choices if not explicit & entry.keys()]
    content = yaml.safe_dump({"defaults": [*added, *overridden, "_self_"], **body}, allow_unicode=True, sort_keys=False)
    measured = (f", {name} {quantity_text(trial.measured.get(name))}" for name in summary.objectives)
    value = f"{summary.metric} {metric_text(trial.value)}{''.join(measured)}"
    what = "The best" if trial == summary.best else "On the front"
    command = best_command(path.parent.parent, summary, path.stem, trial)
    header = f"# @package _global_\n# {command}\n# {what} of {summary.counts}: trial {trial.number}, {value}.\n"
    write_text(path, header + content)


def best_command(folder: Path, summary: Summary, name: str = "best", trial: TrialRow | None = None) -> str:
    """Return the command that runs NAME.yaml, with what the file cannot contain: folders of choices, deleted keys.

    The file is that of the best trial, or of the given one.
    """
    trial = trial or summary.best
    assert trial is not None, "there is a best trial"
    flags, overrides = _arguments(trial)
    deleted = [str(override.input_line) for override in overrides if override.is_delete()]
    parts = [f"--config-dir={path_text(folder)}", f"experiment={name}", *deleted]
    # Hydra accepts one --config-dir, so the others become its search path.
    if places := [os.path.abspath(flag.partition("=")[2]) for flag in flags]:
        parts.append(f"hydra.searchpath=[{','.join(f'file://{place}' for place in places)}]")
    return shlex.join(["python", "-m", "nlu.train", *parts])


def _arguments(trial: TrialRow) -> tuple[list[str], list[Override]]:
    """Return the flags and overrides in the folder of a trial; without a folder, its drawn values."""
    file = Path(trial.folder or "") / "overrides"
    if trial.folder and file.is_file():
        texts = shlex.split(file.read_text(encoding="utf-8"))
    else:
        texts = [quoted(f"{name}={written(value)}") for name, value in trial.params.items()]
    flags = [text for text in texts if text.startswith("--config-dir=")]
    parsed = OverridesParser.create().parse_overrides([text for text in texts if not text.startswith("--")])
    return flags, [override for override in parsed if override.key_or_group.split(".")[0] not in NOT_KEPT]


def _group_test(flags: Sequence[str]) -> Callable[[str], bool]:
    """Return a function that tells whether a key is a config group."""
    places = [conf_dir(), *(Path(flag.partition("=")[2]) for flag in flags)]

    def is_group(key: str) -> bool:
        return any((place / key).is_dir() for place in places)

    return is_group


def _later_groups() -> list[str]:
    """Return the groups that are composed after the experiment, which therefore cannot choose from them."""
    defaults = yaml.safe_load((conf_dir() / "train.yaml").read_text(encoding="utf-8"))["defaults"]
    names = [next(iter(entry)) for entry in defaults if isinstance(entry, dict)]
    return [name for name in names[names.index("experiment") + 1 :] if not name.startswith("override ")]


def _content(group: str, choice: str) -> tuple[list[dict[str, object]], dict[str, Any]]:
    """Return what a choice of a later group overrides in other groups, and the keys that it sets."""
    text = (conf_dir() / group / f"{choice}.yaml").read_text(encoding="utf-8")
    content = yaml.safe_load(text) or {}
    choices = [entry for entry in content.pop("defaults", []) if isinstance(entry, dict)]
    return choices, content if "@package _global_" in text.partition("\n")[0] else {group: content}


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merged(merged[key], value) if both else value
    return merged


def _plain(value: object) -> object:
    if isinstance(value, QuotedString):
        return value.text
    if isinstance(value, dict):
        return {_plain(key): _plain(entry) for key, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, list) else value


def _put(body: dict[str, Any], key: str, value: object) -> None:
    *groups, name = key.split(".")
    for group in groups:
        body = body.setdefault(group, {})
    body[name] = value
