"""One page of HTML that shows a sweep: no other file, no network.

The figures are those of `search`. A script of the page makes the table and shows what belongs to the trial under the
pointer.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure

from nlu.display.document import document, part
from nlu.display.search import FIGURES, svg_of
from nlu.display.tables import count_text, metric_text
from nlu.display.trials import Summary, TrialRow, duration_text, written
from nlu.storage.files import plain, write_text

NOTHING = {
    "history": '<p class="remark">No trial has reported a value.</p>',
    "intermediate": '<p class="remark">No trial has reported a value.</p>',
    "parallel": '<p class="remark">There is no trial with parameters and a value.</p>',
    "importances": "",
}
"""what stands in the place of a figure that would be empty"""


def write_page(path: Path, summary: Summary, figures: Mapping[str, Figure], remark: str, command: str | bool) -> None:
    """Write the page. `remark` says how importances came about or why there are none; `command` runs the best trial."""
    shown = {name: svg_of(name, figures[name]) if name in figures else NOTHING[name] for name in FIGURES}
    data = json.dumps(plain(_data(summary)), ensure_ascii=False, separators=(",", ":"))
    text = document(
        "page.html", summary.name, summary.counts, ["page.css"], facts=_facts(summary, command),
        remark=html.escape(remark), script=part("page.js"),
        # Neither the end of the script element nor the beginning of a comment may stand inside it.
        data=data.replace("<", "\\u003c"), **shown,
    )  # fmt: skip
    write_text(path, text)


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


def _data(summary: Summary) -> dict[str, object]:
    return {
        "metric": summary.metric,
        "maximize": summary.maximize,
        "best": summary.best.number if summary.best else None,
        "params": [param.name for param in summary.params],
        "trials": [_trial(trial, summary) for trial in summary.trials],
    }


def _trial(trial: TrialRow, summary: Summary) -> dict[str, object]:
    choices = {param.name for param in summary.params if param.scale == "choice"}
    return {
        "number": trial.number, "state": trial.state, "value": trial.value, "sd": trial.sd, "examples": trial.examples,
        "wall_s": trial.wall_s, "wall": duration_text(trial.wall_s), "error": trial.error,
        "params": {name: written(value) if name in choices else value for name, value in trial.params.items()},
    }  # fmt: skip
