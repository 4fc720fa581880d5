"""The page of a survey of data files: its figures, its tables and some of the texts.

The record is what `nlu.data.survey.survey_report.as_record` returns.
"""

import html
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from nlu.config.sentences import counted
from nlu.display.canvas import SET_COLOURS, new_figure, styled, svg_of, thousands
from nlu.display.page import html_list, html_table, section, write_page
from nlu.display.survey_tables import shown_texts, survey_tables

TITLES = {
    "labels": "Balance of labels",
    "lengths": "Lengths",
    "cuts": "Cut at max_len",
}
NO_LABEL = "(none)"
MOST_TEXT = 400
"""characters of a text that are shown"""
WIDTH_INCHES = 5.4
"""narrow, so that letters stay readable on a telephone"""
MOST_LABELS = 30
Sets = Mapping[str, Mapping[str, Any]]


def write_survey_page(path: Path, title: str, record: Mapping[str, Any]) -> None:
    """Write the page."""
    first, *others = (
        section(html_table(grid.columns, grid.lines), grid.title, note=grid.remark) for grid in survey_tables(record)
    )
    remarks = html_list(record["remarks"]) or "<p class='remark'>Nothing stands out.</p>"
    fields = html_list(f"{name}: {one['fields_because']}" for name, one in record["sets"].items())
    begin = f'<pre class="command">{html.escape(record["command"])}</pre>{fields}'
    sections = [
        section(remarks, "To look at", name="remarks"),
        section(begin, "To begin with", name="begin"),
        first,
        *(section(svg, TITLES[name], name=name, classes="") for name, svg in draw_survey(record).items()),
        *others,
        *(_texts(title, shown) for title, shown in shown_texts(record)),
        *_bad(record),
    ]
    write_page(path, title, _counts(record), sections, look="survey")


def _counts(record: Mapping[str, Any]) -> str:
    sets = ", ".join(f"{name}: {counted(one['rows'], 'row')}" for name, one in record["sets"].items())
    return f"{sets}; {tokens_told(record)}"


def tokens_told(record: Mapping[str, Any]) -> str:
    """Return the unit in which lengths are counted."""
    if record["tokenizer"] is not None:
        return f"tokens are those of {record['tokenizer'].partition('#')[0]}, with the special ones"
    return (
        "no tokenizer was given, so words are counted (each Chinese character and each mark is one) with the special "
        "tokens; a tokenizer makes at least as many tokens of them"
    )


def _texts(title: str, shown: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for one in shown:
        text = one["text"] if len(one["text"]) <= MOST_TEXT else f"{one['text'][:MOST_TEXT]}…"
        labels = {place["label"] for place in one["places"]} - {NO_LABEL}
        places = ", ".join(
            f"{html.escape(str(place['row']))} <b>{html.escape(place['label'])}</b>" for place in one["places"]
        )
        more = f" and {one['rows'] - len(one['places'])} more" if one["rows"] > len(one["places"]) else ""
        clash = ' class="clash"' if len(labels) > 1 else ""
        lines.append(f"<li{clash}><q>{html.escape(text)}</q><span class='places'>{places}{more}</span></li>")
    return section(f"<ol>{''.join(lines)}</ol>", title, classes="wide texts")


def _bad(record: Mapping[str, Any]) -> Iterable[str]:
    for name, one in record["sets"].items():
        if one["bad_rows"]:
            count = f"{counted(one['bad_rows'], 'row')} of {name} cannot be used"
            yield section(html_list(one["listed_bad_rows"]), count)


def draw_survey(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the figures by name: labels, lengths, cuts; labels only if they are names."""
    sets: Sets = record["sets"]
    with styled():
        figures = {
            "labels": _labels(sets),
            "lengths": _lengths(sets, record["unit"], record["max_len"]),
            "cuts": _cuts(sets, record["max_len"]),
        }
        return {name: svg_of(name, figure) for name, figure in figures.items() if figure is not None}


def _new(height_inches: float = 3.2) -> tuple[Figure, Axes]:
    return new_figure((WIDTH_INCHES, height_inches), layout="constrained")


def _colour(place: int) -> str:
    return SET_COLOURS[place % len(SET_COLOURS)]


def _labels(sets: Sets) -> Figure | None:
    shown = {name: one["labels"] for name, one in sets.items() if one["labels"]}
    if not shown:
        return None
    totals: dict[str, int] = {}
    for labels in shown.values():
        for label, count in labels.items():
            totals[label] = totals.get(label, 0) + count
    # By their rows in all sets together, so that the bars of a label stand side by side.
    names = sorted(totals, key=lambda label: -totals[label])[:MOST_LABELS]
    figure = _bars(
        names,
        {name: [labels.get(label, 0) / sum(labels.values()) for label in names] for name, labels in shown.items()},
    )
    figure.axes[0].set_xlabel("share of the set")
    return figure


def _bars(names: Sequence[str], values: Mapping[str, Sequence[float]]) -> Figure:
    """Draw horizontal bars for each name, one for each set."""
    figure, axes = _new(max(1.6, 0.9 + (0.14 + 0.13 * len(values)) * len(names)))
    height = 0.8 / len(values)
    for place, (set_name, own) in enumerate(values.items()):
        at = np.arange(len(names)) + (place - (len(values) - 1) / 2) * height
        bars = axes.barh(at, own, height=0.92 * height, color=_colour(place), label=set_name)
        if len(values) <= 3:
            axes.bar_label(bars, [f"{share:.1%}" for share in own], padding=3, fontsize=7.5)
    axes.set_yticks(range(len(names)), [name if len(name) <= 32 else f"{name[:31]}…" for name in names])
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.margins(x=0.14)
    _percent(axes.xaxis)
    if len(values) > 1:
        figure.legend(loc="outside upper right", fontsize=8, ncols=min(4, len(values)))
    return figure


def _lengths(sets: Sets, unit: str, max_len: int) -> Figure:
    figure, axes = _new()
    histograms = {name: one["length_histogram"] for name, one in sets.items()}
    holds_longer = any(
        one["lengths"][-1] >= histograms[name]["width"] * len(histograms[name]["counts"]) for name, one in sets.items()
    )
    for place, (name, histogram) in enumerate(histograms.items()):
        width, counts = histogram["width"], np.asarray(histogram["counts"], float)
        edges = np.arange(len(counts) + 1) * width
        # Sets may have bins of different widths, so heights are shares of rows for each length.
        axes.stairs(counts / counts.sum() / width, edges, color=_colour(place), linewidth=1.5, label=name)
        axes.stairs(counts / counts.sum() / width, edges, color=_colour(place), fill=True, alpha=0.1)
    axes.axvline(max_len, color="#444444", linewidth=1.0, linestyle="--", label=f"max_len {max_len}")
    axes.set_xlabel(f"{unit} of a row{'; a last bin holds all longer ones' * holds_longer}")
    axes.set_ylabel("share of rows of each length")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    _percent(axes.yaxis)
    thousands(axes.xaxis)
    axes.legend(fontsize=8)
    return figure


def _cuts(sets: Sets, max_len: int) -> Figure:
    figure, axes = _new()
    for place, (name, one) in enumerate(sets.items()):
        lengths, shares = [cut["max_len"] for cut in one["cut"]], [cut["rows"] for cut in one["cut"]]
        axes.plot(lengths, shares, "o-", color=_colour(place), label=name, markersize=3.5)
    axes.axvline(max_len, color="#444444", linewidth=1.0, linestyle="--", label=f"max_len {max_len}")
    axes.set_xlabel("max_len")
    axes.set_ylabel("share of rows that are cut")
    axes.set_ylim(bottom=0)
    _percent(axes.yaxis)
    axes.legend(fontsize=8)
    return figure


def _percent(axis: Axis) -> None:
    axis.set_major_locator(MaxNLocator(5))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.3g} %"))
