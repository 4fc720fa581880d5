"""Size, style and fonts of all figures, and how figures become files.

Labels, names of runs and values of a configuration come from users and are drawn as they are written. matplotlib would
parse a `$` in them as a formula, so parsing is off for all texts, and numbers on axes avoid formulas too.
"""

import functools
import io
import logging
import re
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter

from nlu.storage.files import write_bytes

log = logging.getLogger(__name__)
# Otherwise it warns about each font that lacks a weight, even if no figure uses that weight.
logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)

SIZE_INCHES = (10.0, 6.0)
DOTS_PER_INCH = 100
SET_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c6d1f")
WITH_CHINESE = (
    "Noto Sans CJK SC",
    "Source Han Sans SC",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "Microsoft YaHei",
    "SimHei",
    "PingFang SC",
    "Hiragino Sans GB",
    "Arial Unicode MS",
    "Droid Sans Fallback",
)
NO_GLYPH = re.compile(r"Glyph (\d+) .*missing from")
"""the warning of matplotlib for a letter that no font has"""
WARNED: list[str] = []
"""letters that the log named; a process warns once"""
STYLE: Mapping[str, object] = {
    "font.size": 10,
    "text.parse_math": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#888888",
    "axes.grid": True,
    "grid.color": "#e8e8e8",
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "legend.frameon": True,
    "legend.framealpha": 0.85,
    "agg.path.chunksize": 10_000,
    "legend.edgecolor": "none",
}


@functools.cache
def families() -> list[str]:
    """Return the fonts of figures: matplotlib's own, then those of this machine that have Chinese letters."""
    from matplotlib import font_manager

    # All that exist, since a font may lack a letter: matplotlib takes each letter from the first font that has it.
    there = {font.name for font in font_manager.fontManager.ttflist}
    return ["DejaVu Sans", *(name for name in WITH_CHINESE if name in there)]


def new_figure(
    size_inches: tuple[float, float] = SIZE_INCHES,
    *,
    layout: Literal["tight", "constrained"] = "tight",
) -> tuple[Figure, Axes]:
    """Return a figure, of the usual size unless another is given, with one pair of axes."""
    with styled():
        figure = Figure(figsize=size_inches, dpi=DOTS_PER_INCH, layout=layout)
        return figure, figure.subplots()


def styled(**others: object) -> AbstractContextManager[None]:
    """Return a context in which lines, texts and legends are created in the style and in the fonts of figures."""
    # matplotlib types the keys as an enumeration of all settings.
    settings: Any = {**STYLE, **others, "font.family": families()}
    return rc_context(settings)


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG; returns the path."""
    write_bytes(path, drawn(figure, "png"))
    return path


def save_drawn(path: Path, draw: Callable[[], Figure | None]) -> list[Path]:
    """Draw a figure and write it as PNG; returns the path, or none without a figure.

    A figure that cannot be drawn is left out with a warning, so that a run does not lose its numbers for a picture.
    """
    try:
        figure = draw()
        content = None if figure is None else drawn(figure, "png")
    except Exception:
        log.warning("%s is left out, since drawing it failed", path, exc_info=True)
        return []
    if content is None:
        return []
    write_bytes(path, content)
    return [path]


def drawn(figure: Figure, form: str, salt: str = "nlu") -> bytes:
    """Return a figure as png, svg or pdf.

    An SVG contains its text as text, which the reader's fonts show, and its identifiers are made from `salt`. Letters
    that no font of this machine has are logged once, and are boxes in the other formats.
    """
    # Written to memory, so that `write_bytes` can replace the file as a whole.
    content = io.BytesIO()
    # Equal figures must have equal bytes, so dates are left out.
    dated = {"svg": ("Date", "Creator", "Format", "Type"), "pdf": ("CreationDate",)}
    metadata = dict.fromkeys(dated.get(form, ()))
    # A text keeps the settings that were active when it was created, often matplotlib's defaults. Ticks are created
    # while drawing, under the settings below.
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        text.set_parse_math(False)
        text.set_fontfamily(families())
    with styled(**{"svg.fonttype": "none", "svg.hashsalt": salt}), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        figure.savefig(content, format=form, metadata=metadata)
    letters = set()
    for warning in said:
        if (found := NO_GLYPH.match(str(warning.message))) is None:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        elif form != "svg":
            letters.add(chr(int(found[1])))
    if letters:
        _warn_of("".join(sorted(letters)[:5]))
    return content.getvalue()


def svg_of(name: str, figure: Figure) -> str:
    """Return a figure as an element for a page of HTML, which refers to nothing outside it."""
    # Identifiers in a figure must differ from those of other figures on the page, so they are made from its name.
    text = drawn(figure, "svg", salt=name).decode()
    text = text[text.index("<svg") :]
    head, body = text[: text.index(">") + 1], text[text.index(">") + 1 :]
    size = re.search(r'viewBox="[^"]*"', head)
    assert size, "an SVG of matplotlib has a viewBox"
    body = re.sub(r'<g id="[^"]*"', "<g", body)
    return f'<svg {size[0]} role="img" xmlns="http://www.w3.org/2000/svg">{" ".join(body.split())}'


def thousands(axis: Axis) -> None:
    """Write whole numbers with separators."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _warn_of(letters: str) -> None:
    if not WARNED:
        WARNED.append(letters)
        log.warning(
            "figures: no font on this machine has %s, so they are drawn as boxes; install one that does, such as "
            "fonts-noto-cjk",
            letters,
        )
