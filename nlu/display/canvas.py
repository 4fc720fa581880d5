"""What all figures have in common: size, style, fonts, and how they become files.

Labels, names of runs and values of a configuration are a user's words. They are drawn as they are written: a `$` in
them begins no formula. So no text of a figure is parsed, and numbers on axes do without formulas too.
"""

import functools
import io
import logging
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, NullFormatter, ScalarFormatter

from nlu.storage.files import write_bytes

log = logging.getLogger(__name__)
# It tells of each font that lacks a weight, whether or not a figure wants it.
logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)

SIZE_INCHES = (10.0, 6.0)
DOTS_PER_INCH = 100
SET_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c6d1f")
WITH_CHINESE = (
    "Noto Sans CJK SC", "Source Han Sans SC", "WenQuanYi Micro Hei", "WenQuanYi Zen Hei", "Microsoft YaHei", "SimHei",
    "PingFang SC", "Hiragino Sans GB", "Arial Unicode MS", "Droid Sans Fallback",
)  # fmt: skip
NO_GLYPH = re.compile(r"Glyph (\d+) .*missing from")
"""how the library says that no font has a letter"""
TOLD: list[str] = []
"""letters that the log named: once in a process"""
STYLE: Any = {
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
SUPERSCRIPT = str.maketrans("-\N{MINUS SIGN}0123456789", "⁻⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@functools.cache
def families() -> list[str]:
    """Return the fonts of figures: the library's own, then those of this machine that have Chinese letters."""
    from matplotlib import font_manager

    there = {font.name for font in font_manager.fontManager.ttflist}
    return ["DejaVu Sans", *(name for name in WITH_CHINESE if name in there)]


def new_figure(
    size_inches: tuple[float, float] = SIZE_INCHES, *, layout: Literal["tight", "constrained"] = "tight",
    style: Any = STYLE,
) -> tuple[Figure, Axes]:  # fmt: skip
    """Return a figure, of the usual size and style unless others are given, with one pair of axes."""
    with rc_context({**style, "font.family": families()}):
        figure = Figure(figsize=size_inches, dpi=DOTS_PER_INCH, layout=layout)
        return figure, figure.subplots()


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG; returns the path."""
    write_bytes(path, drawn(figure, "png"))
    return path


def save_drawn(path: Path, draw: Callable[[], Figure | None]) -> list[Path]:
    """Draw a figure and write it as PNG; returns the path, or none where there is nothing to show.

    A figure that cannot be drawn is left out with a warning: no numbers may be lost for want of a picture.
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

    The text of an SVG is text, which the reader's fonts show, and the names inside it are made from `salt`. Letters
    that no font of this machine has are named once, and stand as boxes in the other forms.
    """
    content = io.BytesIO()
    style = {**STYLE, "font.family": families(), "svg.fonttype": "none", "svg.hashsalt": salt}
    # Equal figures are to be equal bytes.
    dated = {"svg": ("Date", "Creator", "Format", "Type"), "pdf": ("CreationDate",)}
    metadata = dict.fromkeys(dated.get(form, ()))
    # A text keeps the settings under which it was made, which are often the library's own. Ticks are made on drawing.
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        text.set_parse_math(False)
        text.set_fontfamily(families())
    with rc_context(style), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        figure.savefig(content, format=form, metadata=metadata)
    letters = set()
    for warning in said:
        if (found := NO_GLYPH.match(str(warning.message))) is None:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        elif form != "svg":
            letters.add(chr(int(found[1])))
    if letters:
        _tell_of("".join(sorted(letters)[:5]))
    return content.getvalue()


def scientific(axes: Axes) -> None:
    """Have the numbers of the y axis share a power of ten, written above it, where they are small or large."""
    axes.yaxis.set_major_formatter(_PowerAbove())


class _PowerAbove(ScalarFormatter):
    """Writes the shared power of ten in letters, not as a formula."""

    def __init__(self) -> None:
        super().__init__(useMathText=False)
        self.set_powerlimits((-3, 4))

    def get_offset(self) -> str:
        text = super().get_offset()
        return re.sub(r"1e(\S+)$", lambda found: f"×10{found[1].translate(SUPERSCRIPT)}", text)


def logarithmic(axes: Axes) -> None:
    """Give the y axis a logarithmic scale with plain numbers."""
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _tell_of(letters: str) -> None:
    if not TOLD:
        TOLD.append(letters)
        log.warning(
            "figures: no font on this machine has %s, so boxes stand in their place; install one that does, such as "
            "fonts-noto-cjk", letters,
        )  # fmt: skip
