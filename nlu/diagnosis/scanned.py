"""What `nlu.scan` found: its tables, figures and files."""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from nlu.config.words import counted
from nlu.diagnosis.batch_scan import CLOSE, BatchScan
from nlu.diagnosis.range_test import DIVERGED, STANDARD_ERRORS, RangeTest
from nlu.display.canvas import BEST_COLOUR, SET_COLOURS, SUPERSCRIPT, TITLE, new_figure, save_drawn, styled, thousands
from nlu.display.tables import numbers, print_table, table_of, texts
from nlu.runs.records import Table
from nlu.storage.files import write_json

SHOWN = 12
"""rows of the table of rates on the console"""
PLAIN_WIDTH = 120
CURVE, FAINT = SET_COLOURS[0], "#9aa5b1"


def print_scan(found: RangeTest | BatchScan, files: Sequence[str]) -> None:
    """Print the table, what it shows, the recommendation as overrides, and the paths of files."""
    lines = _rates(found) if isinstance(found, RangeTest) else _sizes(found)
    print_table(
        *lines, *[f"note: {note}" for note in found.notes], *(["", *files] if files else []), plain_width=PLAIN_WIDTH
    )


def _rates(found: RangeTest) -> Iterator[Any]:
    last = len(found.lr_N) - 1
    shown = np.unique(np.linspace(0, last, min(SHOWN, last + 1)).round().astype(int))
    rows = [[f"{found.lr_N[at]:.2e}", _loss(found.loss_N[at]), _loss(found.smoothed_N[at])] for at in shown]
    yield f"range test: {counted(len(found.lr_N), 'step')}, each at a higher rate"
    yield ""
    yield table_of(numbers("optimizer.lr", "loss", "smoothed"), rows)
    yield ""
    facts = [["loss at the start", f"{found.start:.4g}"]]
    if found.fastest is not None:
        facts.append(["falls fastest at", f"{found.lr_N[found.fastest]:.1e}"])
    lowest = float(found.smoothed_N[found.lowest])
    facts.append(["lowest at", f"{found.lr_N[found.lowest]:.1e}, where it is {lowest:.4g}"])
    if found.diverged_lr is not None:
        facts.append(
            ["diverges at", f"{found.diverged_lr:.1e}: it is not finite, or above {DIVERGED:g} times that at the start"]
        )
    table = table_of(texts("", ""), facts)
    table.show_header = False
    yield table
    yield ""
    if found.recommended is None:
        yield (
            f"no rate can be recommended: the smoothed loss falls by {max(0.0, found.fall):.2g}, which may be chance "
            f"(up to {STANDARD_ERRORS:g} standard errors of {found.standard_error:.2g})"
        )
        yield "set max_lr, steps or trainer.batch_size higher; debug=overfit shows whether the model can learn"
        return
    yield f"recommended: optimizer.lr={found.recommended:.1e}"
    yield (
        "This is the smaller of the rate at which the smoothed loss falls fastest and a tenth of that with the lowest"
    )
    yield "loss. It is the peak of the schedule, which the warm-up (scheduler.warmup) reaches."


def _sizes(found: BatchScan) -> Iterator[Any]:
    best = found.best.real_tokens_per_s
    rows = [
        [f"{size.batch_size:,}", f"{1e3 * size.step_s:,.1f}", f"{size.examples_per_s:,.1f}",
         f"{size.real_tokens_per_s:,.0f}", f"{size.real_tokens_per_s / best:.0%}",
         "-" if size.peak_mb is None else f"{size.peak_mb:,.0f}"]
        for size in found.sizes
    ]  # fmt: skip
    yield f"steps of one micro-batch and its update, on {found.device}"
    yield ""
    yield table_of(numbers("batch_size", "ms per step", "examples/s", "real tokens/s", "of the best", "peak MB"), rows)
    yield ""
    yield f"larger sizes were not measured: {found.end}"
    yield ""
    yield f"recommended: {found.overrides}"
    yield f"This is the smallest size with at least {CLOSE:.0%} of the most tokens per second, {best:,.0f}."


def _loss(value: float) -> str:
    return f"{value:.4f}" if math.isfinite(value) else "-"


def write_scan(found: RangeTest | BatchScan, folder: Path, result: str, lr: float) -> None:
    """Write lr.tsv and lr.png, or batch_size.tsv and batch_size.png, and last the file `result`. `lr` is
    optimizer.lr of the configuration, for the figure."""
    if isinstance(found, RangeTest):
        table = Table(folder / "lr.tsv", ("step", "lr", "loss", "smoothed"))
        for at, values in enumerate(zip(found.lr_N, found.loss_N, found.smoothed_N, strict=True)):
            rate, loss, smooth = (float(value) if math.isfinite(value) else None for value in values)
            table.append(step=at + 1, lr=rate, loss=loss, smoothed=smooth)
        save_drawn(folder / "lr.png", partial(rates_figure, found, lr))
    else:
        columns = ("batch_size", "steps", "step_s", "examples_per_s", "real_tokens_per_s", "peak_mb")
        table = Table(folder / "batch_size.tsv", columns)
        for size in found.sizes:
            table.append(**{name: getattr(size, name) for name in columns})
        save_drawn(folder / "batch_size.png", partial(sizes_figure, found))
    write_json(folder / result, found.to_json())


def rates_figure(found: RangeTest, lr: float) -> Figure:
    """Draw the loss by rate: of each step, smoothed, and the rates that matter; `lr` is that of the configuration."""
    with styled():
        figure, axes = new_figure()
        axes.plot(found.lr_N, found.loss_N, color=FAINT, linewidth=0.9, label="loss of a step")
        axes.plot(found.lr_N, found.smoothed_N, color=CURVE, label="smoothed")
        axes.axhline(found.start, color=FAINT, linewidth=1.0, linestyle=(0, (4, 4)), label="at the start")
        for at, mark, label in ((found.fastest, "v", "falls fastest"), (found.lowest, "o", "lowest")):
            if at is not None:
                axes.plot(
                    found.lr_N[at], found.smoothed_N[at], mark, color=CURVE, markersize=8, markeredgecolor="white",
                    label=f"{label}: {found.lr_N[at]:.1e}",
                )  # fmt: skip
        axes.set_xscale("log")
        low, high = float(found.lr_N[0]), float(found.lr_N[-1])
        axes.set_xlim(low, high * (high / low) ** 0.02)
        _limit_losses(axes, found)
        if low <= lr <= high:
            axes.axvline(lr, color=FAINT, linewidth=1.0)
            _beside(axes, lr, f"optimizer.lr {lr:.1e}", FAINT, below=True)
        if (best := found.recommended) is not None and low <= best <= high:
            axes.axvline(best, color=BEST_COLOUR, linewidth=1.6)
            _beside(axes, best, f"recommended {best:.1e}", BEST_COLOUR)
        axes.xaxis.set_major_locator(LogLocator(10))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _power(value)))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("learning rate (optimizer.lr), higher at each step")
        axes.set_ylabel("loss")
        axes.set_title("range test of the learning rate", **TITLE)
        axes.legend(loc="lower left")
    return figure


def _limit_losses(axes: Axes, found: RangeTest) -> None:
    """Keep losses that have diverged from flattening the rest of the curve."""
    known = found.loss_N[np.isfinite(found.loss_N)]
    above = max(2 * found.fall, abs(found.start) / 4)
    low, high = float(known.min()), min(float(known.max()), found.start + above)
    if low < high:
        room = 0.06 * (high - low)
        axes.set_ylim(low - room, high + 2 * room)


def _beside(axes: Axes, x: float, text: str, colour: str, *, below: bool = False) -> None:
    """Write a text at the upper end of a vertical line, on the side that has more room."""
    low, high = axes.get_xlim()
    is_right = math.log(x / low) > math.log(high / low) / 2
    axes.annotate(
        text,
        (x, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(-5 if is_right else 5, -20 if below else -4),
        textcoords="offset points",
        ha="right" if is_right else "left",
        va="top",
        color=colour if colour == BEST_COLOUR else "#666666",
        fontweight="bold" if colour == BEST_COLOUR else "normal",
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.5},
    )


def _power(value: float) -> str:
    return f"10{str(round(math.log10(value))).translate(SUPERSCRIPT)}"


def sizes_figure(found: BatchScan) -> Figure:
    """Draw tokens per second and peak memory by batch size."""
    sizes = [size.batch_size for size in found.sizes]
    with styled():
        figure, axes = new_figure()
        axes.plot(
            sizes, [size.real_tokens_per_s for size in found.sizes], color=CURVE, marker="o", label="real tokens/s"
        )
        axes.axhline(
            CLOSE * found.best.real_tokens_per_s, color=FAINT, linewidth=1.0, linestyle=(0, (4, 4)),
            label=f"{CLOSE:.0%} of the best",
        )  # fmt: skip
        best = found.recommended
        axes.plot(
            best.batch_size, best.real_tokens_per_s, "o", color=BEST_COLOUR, markersize=9, markeredgecolor="white",
            label=f"recommended: {best.batch_size:,}", zorder=5,
        )  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(sizes))
        axes.xaxis.set_major_formatter(FixedFormatter([f"{size:,}" for size in sizes]))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_ylim(bottom=0, top=1.12 * found.best.real_tokens_per_s)
        thousands(axes.yaxis)
        axes.set_xlabel("examples of a micro-batch (trainer.batch_size)")
        axes.set_ylabel("real tokens per second")
        axes.set_title(f"speed by batch size on {found.device}", **TITLE)
        handles, labels = axes.get_legend_handles_labels()
        peaks = [(size.batch_size, size.peak_mb) for size in found.sizes if size.peak_mb is not None]
        if peaks:
            memory = axes.twinx()
            memory.plot(*zip(*peaks, strict=True), color=SET_COLOURS[1], marker="s", linewidth=1.2, label="peak memory")
            memory.set_ylim(0, 1.35 * max(peak for _, peak in peaks))
            memory.set_ylabel("peak memory in MB")
            memory.grid(False)
            memory.spines["right"].set_visible(True)
            thousands(memory.yaxis)
            handles, labels = handles + memory.get_legend_handles_labels()[0], [*labels, "peak memory"]
        axes.legend(handles, labels, loc="lower right")
    return figure
