"""What a figure says, in words: titles, axes, curves, bars, marks, texts and legends with their numbers, in order.

Colours, sizes, places of texts and everything else that is only style is left out, and so is what a version of the
library chooses by itself, such as where the ticks of an axis stand.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import Collection, LineCollection, QuadMesh
from matplotlib.contour import ContourSet
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle, StepPatch
from matplotlib.text import Annotation, Text
from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter

EXAMPLES = (0.0325, 12345.0)
"""numbers that show how an axis writes its numbers"""


def described(figure: Figure) -> str:
    """Return a line for each thing that a figure shows."""
    lines = [line for axes in figure.axes if not _is_colour_bar(axes) for line in _of_axes(axes)]
    lines += [f"legend: {_texts(legend.get_texts())}" for legend in figure.legends]
    return "".join(f"  {line}\n" for line in lines)


def short(value: Any) -> str:
    """Return a value with as many digits as rounding leaves equal."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return " ".join(map(short, value))
    return f"{value:.5g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _of_axes(axes: Axes) -> Iterator[str]:
    titles = [axes.get_title(loc=place) for place in ("left", "center", "right")]
    yield f"title: {' | '.join(title for title in titles if title)}"
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        yield f"{name}: {axis.get_label_text()}{_of_axis(axis)}"
    for child in axes.get_children():
        if child is not axes.patch:
            yield from _of_artist(child)
    if (legend := axes.get_legend()) is not None:
        yield f"legend: {_texts(legend.get_texts())}"


def _of_axis(axis: Axis) -> str:
    parts = [f", {axis.get_scale()}"] if axis.get_scale() != "linear" else []
    formatter = axis.get_major_formatter()
    if isinstance(axis.get_major_locator(), FixedLocator) or isinstance(formatter, FixedFormatter):
        parts.append(f", ticks: {_texts(axis.get_ticklabels())}")
    elif isinstance(formatter, FuncFormatter):
        parts.append(f", numbers: {' '.join(formatter(number, None) for number in EXAMPLES)}")
    return "".join(parts)


def _of_artist(artist: Artist) -> Iterator[str]:
    if isinstance(artist, Line2D):
        if artist.get_alpha() != 0:
            yield f"line{_named(artist)}: x {short(artist.get_xdata())}; y {short(artist.get_ydata())}"
    elif isinstance(artist, StepPatch):
        values, edges, _ = artist.get_data()
        if not artist.get_fill():
            yield f"steps{_named(artist)}: {short(values)}; edges {short(edges)}"
    elif isinstance(artist, Rectangle):
        if artist.get_width():
            middle = artist.get_y() + artist.get_height() / 2
            yield f"bar{_named(artist)}: {short(artist.get_width())} at {short(round(middle, 9))}"
    elif isinstance(artist, LineCollection):
        ends = [np.asarray(segment)[:, 0] for segment in artist.get_segments() if len(segment)]
        yield f"spreads{_named(artist)}: {'; '.join(map(short, ends))}"
    elif isinstance(artist, ContourSet):
        yield f"levels: {short(np.asarray(artist.levels))}"
    elif isinstance(artist, QuadMesh) and artist.axes is not None and not _is_colour_bar(artist.axes):
        yield from (f"cells: {short(line)}" for line in np.asarray(artist.get_array()))
    elif isinstance(artist, Collection) and not isinstance(artist, QuadMesh):
        offsets = np.asarray(artist.get_offsets())
        if offsets.any():
            yield f"marks{_named(artist)}: {short(offsets)}"
        else:
            (band,) = artist.get_paths()
            x_P, y_P = np.asarray(band.vertices).T
            spreads = [(x, y_P[x_P == x].min(), y_P[x_P == x].max()) for x in np.unique(x_P)]
            yield f"band: {'; '.join(map(short, spreads))}"
    elif isinstance(artist, AxesImage):
        yield from (f"cells: {short(line)}" for line in np.asarray(artist.get_array()))
    elif isinstance(artist, Annotation):
        yield f"text {artist.get_text()!r} at {short(artist.xy)}"
    elif isinstance(artist, Text) and artist.get_text() and artist not in _titles(artist):
        yield f"text {artist.get_text()!r} at {short(artist.get_position())}"


def _titles(text: Text) -> list[Any]:
    axes: Any = text.axes
    return [] if axes is None else [axes.title, axes._left_title, axes._right_title]


def _named(artist: Artist) -> str:
    label, identity = str(artist.get_label()), artist.get_gid()
    return (f" {label!r}" if label and not label.startswith("_") else "") + (f" ({identity})" if identity else "")


def _is_colour_bar(axes: Artist) -> bool:
    return axes.get_label() == "<colorbar>"


def _texts(texts: list[Text]) -> str:
    return " | ".join(text.get_text().replace("\n", " ") for text in texts)
