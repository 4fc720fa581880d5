"""The final output of a run on the console: metrics, speed, and the paths of its files."""

import os
import shlex
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from nlu.display.console_tables import metric_text, print_table
from nlu.display.progress_bars import format_time
from nlu.runs.freeing import CHECKPOINTS, run_folders, size_of

MAX_METRIC_COLUMNS = 6
PLAIN_WIDTH = 120
"""characters in a line of a file or a pipe"""


def final_table(result: Mapping[str, Any]) -> RenderableType:
    """Return the metrics of each set, at most six with the one that decides first, above the facts of the run.

    `result` has the layout of result.json. Missing keys, and `best` if it is None (no evaluation), are left out.
    """
    metrics = result.get("metrics") or {}
    names = _metric_names(metrics, (result.get("best") or {}).get("metric"))
    table = Table(show_edge=False, pad_edge=False, header_style="bold")
    table.add_column("set")
    for name in names[:MAX_METRIC_COLUMNS]:
        table.add_column(name, justify="right", overflow="fold")
    for set_name, values in metrics.items():
        table.add_row(set_name, *(metric_text(values.get(name)) for name in names[:MAX_METRIC_COLUMNS]))
    facts = Table.grid(padding=(0, 2, 0, 0))
    for label, value in _facts(result, len(names) - MAX_METRIC_COLUMNS):
        facts.add_row(label, value)
    return Group(table, "", facts) if metrics else facts


def print_result(result: Mapping[str, Any], run_dir: Path, figures: Sequence[Path]) -> None:
    """Print `final_table` on standard output, then the paths of the figures, the best checkpoint and result.json.

    Paths are relative to the working folder, one a line, never wrapped.
    """
    checkpoint = (result.get("best") or {}).get("checkpoint")
    paths = [*figures, *([run_dir / checkpoint] if checkpoint else []), run_dir / "result.json"]
    reason = (result.get("best") or {}).get("no_checkpoint")
    without = [f"no best checkpoint was kept: {reason}"] if reason else []
    shown = [*without, *map(os.path.relpath, paths), *disk_lines(run_dir)]
    print_table("", final_table(result), "", *shown, plain_width=PLAIN_WIDTH)


def disk_lines(run_dir: Path) -> list[str]:
    """Return how much the checkpoints of a run hold, with those of its folds and seeds, and how to free a part."""
    held = sum(size_of(folder / CHECKPOINTS) for folder in run_folders(run_dir)) if run_dir.is_dir() else 0
    command = f"python -m nlu.report clean {shlex.quote(os.path.relpath(run_dir))}"
    return [f"checkpoints: {held / 1e6:,.1f} MB; {command} shows what can be freed"] if held else []


def parts_table(result: Mapping[str, Any], set_name: str) -> RenderableType:
    """Return the metrics of a set for each part, with mean and deviation, and for joined folds those of all rows."""
    best = result["best"]
    names = _metric_names(result["metrics"], best["metric"])[:MAX_METRIC_COLUMNS]
    table = Table(show_edge=False, pad_edge=False, header_style="bold")
    table.add_column(set_name)
    for name in ["step", *names]:
        table.add_column(name, justify="right", overflow="fold")
    for part in result["parts"]:
        values = part["metrics"].get(set_name, {})
        mark = " (pruned)" if part["pruned"] else ""
        table.add_row(part["name"] + mark, f"{part['step']:,}", *(metric_text(values.get(name)) for name in names))
    table.add_section()
    for label, values in (("mean", result["metrics"]), ("sd", result["sd"])):
        table.add_row(label, "", *(metric_text(values[set_name].get(name)) for name in names))
    joined = (result["out_of_fold"] or {}) if set_name == best["set"] else {}
    for seed, values in joined.items():
        label = "joined folds" if len(joined) == 1 else f"joined folds, seed {seed}"
        table.add_row(label, "", *(metric_text(values.get(name)) for name in names))
    return table


def print_parts(result: Mapping[str, Any], run_dir: Path) -> None:
    """Print `parts_table` of each set on standard output, the best metric, and the paths of the files."""
    best = result["best"]
    deviation = "" if best["sd"] is None else f", sd {metric_text(best['sd'])}"
    tables = [part for set_name in result["metrics"] for part in ("", parts_table(result, set_name))]
    mean = f"\nmean best {best['set']} {best['metric']}  {metric_text(best['value'])}{deviation}\n"
    paths = [*sorted((run_dir / "predictions").glob("*.jsonl")), run_dir / "result.json"]
    print_table(*tables, mean, *map(os.path.relpath, paths), *disk_lines(run_dir), plain_width=PLAIN_WIDTH)


def _metric_names(metrics: Mapping[str, Mapping[str, float | None]], major: str | None) -> list[str]:
    """Return the metrics of all sets, the major one first, the others in their order: the first of each set, then the
    second of each, since sets may have different ones."""
    columns = zip_longest(*metrics.values())
    names = dict.fromkeys(name for some in columns for name in some if name is not None)
    return sorted(names, key=lambda name: name != major)


def _facts(result: Mapping[str, Any], hidden_metrics: int) -> list[tuple[str, str]]:
    best = result.get("best") or {}
    facts = []
    if best:
        epoch = "" if best.get("epoch") is None else f", epoch {best['epoch']:.3g}"
        facts.append(
            (
                f"best {best['set']} {best['metric']}",
                f"{metric_text(best['value'])} at step {best['step']:,} ({best['examples']:,} examples{epoch})",
            )
        )
    if sample := result.get("sample"):
        sizes = ", ".join(f"{rows:,} rows of {name}" for name, rows in sample["rows"].items())
        facts.append(("chosen on", f"{sizes}: {metric_text(sample['best'])}"))
    if hidden_metrics > 0:
        facts.append(("more metrics", f"{hidden_metrics} in result.json"))
    for label, key, unit in (
        ("steps", "steps", ""),
        ("examples", "examples", ""),
        ("speed", "examples_per_s", " examples/s"),
        ("", "real_tokens_per_s", " real tokens/s"),
    ):
        if result.get(key) is not None:
            facts.append((label, f"{result[key]:,.0f}{unit}"))
    if result.get("wall_s") is not None:
        training = "" if result.get("train_s") is None else f", {format_time(result['train_s'])} of it training"
        facts.append(("wall time", f"{format_time(result['wall_s'])}{training}"))
    return facts
