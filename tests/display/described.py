"""A figure in words: each artist with the properties that a program chooses, which are the same on every machine.

Nothing in it depends on the fonts of a machine or on how its version of the library lays figures out.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis, Tick, XAxis
from matplotlib.collections import Collection, QuadMesh
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.offsetbox import OffsetBox
from matplotlib.patches import Patch, Rectangle, StepPatch
from matplotlib.spines import Spine
from matplotlib.text import Annotation, Text

CHOSEN = {
    Line2D: ("color", "linestyle", "linewidth", "solid_joinstyle"),
    Text: ("position", "fontsize", "color", "ha", "va", "rotation", "fontweight", "in_layout"),
    Patch: ("facecolor", "edgecolor", "linewidth", "fill"),
    Collection: ("facecolor", "edgecolor", "linewidth"),
    AxesImage: ("clim",),
}  # fmt: skip
"""by kind of artist what is told of it, beside what is told of all"""
USUAL = {
    ("rotation", "0"), ("fontweight", "normal"), ("in_layout", "True"), ("fill", "True"), ("solid_joinstyle", "round"),
    ("inverted", "False"), ("offset", "''"), ("aspect", "auto"), ("zorder", "None"),
}  # fmt: skip
"""what is not told, so that the rest is seen"""
MARKS = ("marker", "markersize", "markerfacecolor", "markeredgecolor")


def described(figure: Figure) -> str:
    """Return a line for each artist of a figure, those inside another below it."""
    width, height = figure.get_size_inches()
    layout = type(figure.get_layout_engine()).__name__
    head = f"Figure size={short((width, height))} dpi={short(figure.dpi)} layout={layout} {_tellings(figure.patch)}"
    return "".join(f"{line}\n" for line in [head, *_below(figure, 1)])


def short(value: Any) -> str:
    """Return a value with digits that rounding does not change, and colours as they are written."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return f"({' '.join(map(short, value))})"
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return str(value)
    return f"{value:.5g}" if isinstance(value, int | float) else type(value).__name__


def _below(parent: Artist, depth: int) -> Iterator[str]:
    for child in parent.get_children():
        if isinstance(child, Tick) or child is getattr(parent, "patch", None):
            continue
        # The boxes into which a legend is packed tell nothing themselves.
        is_told = bool(child.get_text()) if isinstance(child, Text) else not isinstance(child, OffsetBox)
        if is_told:
            yield f"{'  ' * depth}{type(child).__name__} {_tellings(child)}"
        yield from _below(child, depth + is_told)


def _tellings(artist: Artist) -> str:
    return " ".join(f"{name}={text}" for name, text in _properties(artist)
                    if text != "None" and (name, text) not in USUAL)  # fmt: skip


def _properties(artist: Artist) -> Iterator[tuple[str, str]]:
    if isinstance(artist, Text):
        yield "text", repr(artist.get_text())
    label = artist.get_label()
    if isinstance(label, str) and label and not label.startswith("_"):
        yield "label", repr(label)
    yield "gid", short(artist.get_gid())
    yield "alpha", short(artist.get_alpha())
    yield "zorder", short(artist.get_zorder())
    if not artist.get_visible():
        yield "visible", "False"
    for name in next((names for kind, names in CHOSEN.items() if isinstance(artist, kind)), ()):
        value = getattr(artist, f"get_{name}")()
        yield name, _colours(value) if "color" in name else short(value)
    yield from _of_its_kind(artist)


def _of_its_kind(artist: Artist) -> Iterator[tuple[str, str]]:
    # Dashes, and where a legend stands, can be read from private attributes only; these are those of Matplotlib 3.9 on.
    private: Any = artist
    match artist:
        case Line2D():
            if artist.is_dashed():
                yield "dashes", short(private._unscaled_dash_pattern)
            if artist.get_marker() not in ("None", None):
                for name in MARKS:
                    value = getattr(artist, f"get_{name}")()
                    yield name, _colours(value) if "color" in name else short(value)
            yield "x", short(np.asarray(artist.get_xdata()))
            yield "y", short(np.asarray(artist.get_ydata()))
        case Annotation():
            yield "xy", short(artist.xy)
            yield "offset", short(artist.xyann)
            if (box := artist.get_bbox_patch()) is not None:
                yield "box", f"({_tellings(box)})"
        case StepPatch():
            values, edges, _ = artist.get_data()
            yield "values", short(np.asarray(values))
            yield "edges", short(np.asarray(edges))
        case Spine():
            pass
        case Rectangle():
            yield "bounds", short((*artist.get_xy(), artist.get_width(), artist.get_height()))
        case QuadMesh():
            pass
        case Collection():
            if hasattr(artist, "get_sizes") and len(artist.get_sizes()):
                yield "sizes", short(artist.get_sizes())
                yield "offsets", short(np.asarray(artist.get_offsets()))
            else:
                yield "paths", short([path.vertices for path in artist.get_paths()])
        case AxesImage():
            norm = artist.norm
            yield "colours", f"{artist.get_cmap().name} {type(norm).__name__} {short(getattr(norm, 'gamma', None))}"
            yield "array", short(np.asarray(artist.get_array()))
        case Legend():
            inside = artist.axes
            if inside is not None:
                anchor = artist.get_bbox_to_anchor().transformed(inside.transAxes.inverted())
                yield "anchor", short(np.round(anchor.bounds[:2], 3))
            yield "place", short(private._loc if isinstance(private._loc, int) else None)
            yield "columns", short(private._ncols)
            yield "spacing", short((artist.borderaxespad, artist.columnspacing, artist.handlelength))
            yield "frame", f"{artist.get_frame_on()} {_tellings(artist.get_frame())}"
        case Axes():
            yield "limits", short((*artist.get_xlim(), *artist.get_ylim()))
            yield "scale", f"{artist.get_xscale()} {artist.get_yscale()}"
            yield "aspect", short(artist.get_aspect())
            yield "below", short(artist.get_axisbelow())
            yield "face", _colours(artist.get_facecolor())
        case Axis():
            yield from _of_axis(artist)


def _of_axis(axis: Axis) -> Iterator[tuple[str, str]]:
    is_across = isinstance(axis, XAxis)
    low, high = sorted(axis.get_view_interval())
    for name, ticks in (("ticks", axis.get_major_ticks()), ("minor", axis.get_minor_ticks())):
        places = axis.get_majorticklocs() if name == "ticks" else axis.get_minorticklocs()
        texts = [label.get_text() for label in axis.get_ticklabels(minor=name == "minor")]
        inside = [(place, text) for place, text in zip(places, texts, strict=True) if low <= place <= high]
        if not inside:
            continue
        yield name, short([f"{short(round(place, 9))}:{text}" for place, text in inside])
        tick: Any = ticks[0]
        length = tick.tick1line.get_markersize()
        label, line = tick.label1, tick.gridline
        look = [label.get_fontsize(), label.get_rotation(), _colours(label.get_color())]
        yield f"{name}_look", short([length, tick.get_pad(), *look])
        if line.get_visible():
            yield f"{name}_grid", short([_colours(line.get_color()), line.get_linestyle(), line.get_linewidth()])
    yield "inverted", short(axis.get_inverted())
    yield "offset", repr(axis.get_major_formatter().get_offset() if not is_across else "")


def _colours(value: Any) -> str:
    if isinstance(value, str) and value in ("none", "auto"):
        return value
    if isinstance(value, np.ndarray) and value.ndim == 2:
        return short(list(dict.fromkeys(to_hex(one, keep_alpha=True) for one in value)))
    return to_hex(value, keep_alpha=not isinstance(value, str))
