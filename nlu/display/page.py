"""One page of HTML that shows a sweep: no other file, no network; figures and table are drawn by its own script."""

from __future__ import annotations

import html
import json
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from nlu.display.search import place_of, ticks_of
from nlu.display.tables import count_text, metric_text
from nlu.display.trials import Summary, TrialRow, duration_text, written
from nlu.storage.files import plain, write_text

MAX_STEPS = 200
"""Points of one curve; a longer one is thinned, its last point stays."""


def write_page(
    path: Path, summary: Summary, importances: dict[str, float], remark: str, command: str | bool
) -> None:  # fmt: skip
    """Write the page. `remark` says how importances came about or why there are none; `command` runs the best trial."""
    parts = {name: files(__package__).joinpath(name).read_text(encoding="utf-8") for name in PARTS}
    data = json.dumps(plain(_data(summary, importances)), ensure_ascii=False, separators=(",", ":"))
    text = Template(parts["page.html"]).substitute(
        title=html.escape(summary.name), counts=html.escape(summary.counts), facts=_facts(summary, command),
        remark=html.escape(remark), style=parts["page.css"], script=parts["page.js"],
        # The end of the script element must not stand inside it.
        data=data.replace("</", "<\\/").replace("<!--", "<\\!--"),
    )  # fmt: skip
    write_text(path, text)


PARTS = ("page.html", "page.css", "page.js")


def _facts(summary: Summary, command: str | bool) -> str:
    best = summary.best
    spent = sum(trial.examples or 0 for trial in summary.trials)
    wall_s = sum(trial.wall_s or 0.0 for trial in summary.trials)
    facts = [
        (f"best {summary.metric}", f"{metric_text(best.value)} (trial {best.number})" if best else "no complete trial"),
        ("examples seen", count_text(spent)),
        ("time of all trials", duration_text(wall_s)),
    ]
    lines = "".join(f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>" for name, value in facts)
    text = f'<dl class="facts">{lines}</dl>'
    return text + (f"<pre class='command'>{html.escape(str(command))}</pre>" if command else "")


def _data(summary: Summary, importances: dict[str, float]) -> dict[str, Any]:
    return {
        "metric": summary.metric,
        "maximize": summary.maximize,
        "best": summary.best.number if summary.best else None,
        "params": [{"name": param.name, "ticks": ticks_of(param)} for param in summary.params],
        "importances": list(importances.items()),
        "trials": [_trial(trial, summary) for trial in summary.trials],
    }


def _trial(trial: TrialRow, summary: Summary) -> dict[str, Any]:
    choices = {param.name for param in summary.params if param.scale == "choice"}
    return {
        "number": trial.number, "state": trial.state, "value": trial.value, "sd": trial.sd, "examples": trial.examples,
        "wall_s": trial.wall_s, "wall": duration_text(trial.wall_s), "error": trial.error,
        "steps": _thinned(trial.steps),
        "params": {name: written(value) if name in choices else value for name, value in trial.params.items()},
        "places": [place_of(param, trial.params) for param in summary.params],
    }  # fmt: skip


def _thinned(steps: list[tuple[int, float]]) -> list[tuple[int, float]]:
    stride = -(-len(steps) // MAX_STEPS)
    return [*steps[:-1:stride], *steps[-1:]] if stride > 1 else steps
