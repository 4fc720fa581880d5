"""One page of HTML that shows what files hold: no other file, no network; in light and dark, wide and narrow.

The record is what `nlu.data.survey.report.as_record` returns.
"""

import html
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nlu.config.words import counted
from nlu.display.document import document
from nlu.display.survey_figures import draw_survey
from nlu.display.survey_tables import Grid, grids
from nlu.storage.files import write_text

TITLES = {
    "labels": "Balance of labels", "lengths": "Lengths", "characters": "Characters of a row", "cuts": "Cut at max_len",
    "classes": "Classes of characters",
}  # fmt: skip
NO_LABEL = "(none)"
MOST_TEXT = 400
"""characters of a text that are shown"""


def write_survey_page(path: Path, title: str, record: Mapping[str, Any]) -> None:
    """Write the page."""
    figures = "".join(
        f'<section id="{name}"><h2>{TITLES[name]}</h2>{svg}</section>' for name, svg in draw_survey(record).items()
    )
    first, *others = map(_section, grids(record))
    shown = "".join([*_shown_between(record), *_shown_within(record), *_bad(record)])
    text = document(
        "survey.html", title, _counts(record), ["page.css", "survey.css"],
        remarks=_list(record["remarks"]) or "<p class='remark'>Nothing stands out.</p>",
        command=html.escape(record["command"]), fields=_list(_fields(record)), figures=figures, sets=first,
        tables="".join(others), shown=shown,
    )  # fmt: skip
    write_text(path, text)


def _counts(record: Mapping[str, Any]) -> str:
    sets = ", ".join(f"{name}: {counted(one['rows'], 'row')}" for name, one in record["sets"].items())
    return f"{sets}; {tokens_told(record)}"


def tokens_told(record: Mapping[str, Any]) -> str:
    """Return what lengths are counted in."""
    if record["tokenizer"] is not None:
        return f"tokens are those of {record['tokenizer'].partition('#')[0]}, with the special ones"
    return (
        "no tokenizer was given, so words are counted (each Chinese character and each mark is one) with the special "
        "tokens; a tokenizer makes at least as many tokens of them"
    )


def _fields(record: Mapping[str, Any]) -> list[str]:
    return [f"{name}: {one['fields_because']}" for name, one in record["sets"].items()]


def _list(items: Iterable[str]) -> str:
    lines = "".join(f"<li>{html.escape(item)}</li>" for item in items)
    return f"<ul>{lines}</ul>" if lines else ""


def _section(grid: Grid) -> str:
    head = "".join(f"<th{'' if number else ' class=text'}>{html.escape(name)}</th>" for name, number in grid.columns)
    lines = "".join(f"<tr>{''.join(_cells(grid, line))}</tr>" for line in grid.lines)
    remark = f'<p class="remark">{html.escape(grid.remark)}</p>' if grid.remark else ""
    return (
        f'<section class="wide"><h2>{html.escape(grid.title)}</h2>{remark}<div class="scroll"><table><thead><tr>{head}'
        f"</tr></thead><tbody>{lines}</tbody></table></div></section>"
    )


def _cells(grid: Grid, line: Sequence[str]) -> Iterable[str]:
    for (_, is_number), cell in zip(grid.columns, line, strict=True):
        yield f"<td{'' if is_number else ' class=text'}>{html.escape(cell)}</td>"


def _shown_between(record: Mapping[str, Any]) -> Iterable[str]:
    for pair in record["overlap"]:
        if pair["examples"]:
            yield _texts(f"In {pair['first']} and in {pair['second']}", pair["examples"])


def _shown_within(record: Mapping[str, Any]) -> Iterable[str]:
    for name, one in record["sets"].items():
        if one["shown_conflicts"]:
            yield _texts(f"{name}: one text, several labels", one["shown_conflicts"])
        if one["shown_duplicates"]:
            yield _texts(f"{name}: most repeated texts", one["shown_duplicates"])


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
    return f"<section class='wide texts'><h2>{html.escape(title)}</h2><ol>{''.join(lines)}</ol></section>"


def _bad(record: Mapping[str, Any]) -> Iterable[str]:
    for name, one in record["sets"].items():
        if one["bad_rows"]:
            count = f"{counted(one['bad_rows'], 'row')} of {name} cannot be used"
            yield f"<section class='wide'><h2>{html.escape(count)}</h2>{_list(one['listed_bad_rows'])}</section>"
