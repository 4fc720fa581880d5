"""The page of a survey of data files: a figure of lengths, its tables and some of the texts.

The record is what `nlu.data.survey.survey_report.as_record` returns.
"""

import html
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from nlu.config.sentences import counted
from nlu.display.canvas import SET_COLOURS, new_figure, styled, svg_of, thousands
from nlu.display.page import html_list, html_table, section, write_page
from nlu.display.survey_tables import shown_texts, survey_tables

NO_LABEL = "(none)"
MOST_TEXT = 400
"""characters of a text that are shown"""
SIZE_INCHES = (5.4, 3.2)
"""narrow, so that letters stay readable on a telephone"""


def write_survey_page(path: Path, title: str, record: Mapping[str, Any]) -> None:
    """Write the page."""
    first, *others = (
        section(html_table(grid.columns, grid.lines), grid.title, note=grid.remark) for grid in survey_tables(record)
    )
    remarks = html_list(record["remarks"]) or "<p class='remark'>Nothing stands out.</p>"
    fields = html_list(f"{name}: {one['fields_because']}" for name, one in record["sets"].items())
    with styled():
        svg = svg_of("lengths", lengths_figure(record))
    begin = f'<pre class="command">{html.escape(record["command"])}</pre>{fields}'
    sections = [
        section(remarks, "To look at", name="remarks"),
        section(begin, "To begin with", name="begin"),
        first,
        section(svg, "Lengths", name="lengths", classes=""),
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


def lengths_figure(record: Mapping[str, Any]) -> Figure:
    """Return the figure of the lengths of each set, with the suggested max_len."""
    sets: Mapping[str, Mapping[str, Any]] = record["sets"]
    figure, axes = new_figure(SIZE_INCHES, layout="constrained")
    histograms = {name: one["length_histogram"] for name, one in sets.items()}
    holds_longer = any(
        one["lengths"][-1] >= histograms[name]["width"] * len(histograms[name]["counts"]) for name, one in sets.items()
    )
    for place, (name, histogram) in enumerate(histograms.items()):
        width, counts = histogram["width"], np.asarray(histogram["counts"], float)
        edges, colour = np.arange(len(counts) + 1) * width, SET_COLOURS[place % len(SET_COLOURS)]
        # Sets may have bins of different widths, so heights are shares of rows for each length.
        axes.stairs(counts / counts.sum() / width, edges, color=colour, linewidth=1.5, label=name)
        axes.stairs(counts / counts.sum() / width, edges, color=colour, fill=True, alpha=0.1)
    max_len = record["max_len"]
    axes.axvline(max_len, color="#444444", linewidth=1.0, linestyle="--", label=f"max_len {max_len}")
    axes.set_xlabel(f"{record['unit']} of a row{'; a last bin holds all longer ones' * holds_longer}")
    axes.set_ylabel("share of rows of each length")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.3g} %"))
    thousands(axes.xaxis)
    axes.legend(fontsize=8)
    return figure
