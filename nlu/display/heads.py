"""What the attention heads of a run are worth: the table and the figure of `nlu.prune`."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from nlu.display.canvas import BEST_COLOUR, SET_COLOURS, TITLE, new_figure, save_drawn, styled
from nlu.display.tables import metric_text, numbers, print_table, table_of, texts

TITLE_PAD = 12
PLAIN_WIDTH = 160


@dataclass(frozen=True)
class Candidate:
    """A run without some of its heads."""

    removed: int
    """heads that were removed"""
    heads: int
    """heads of the run before"""
    value: float
    """the metric of the run on its first evaluation set"""
    loss_points: float
    """hundredths of the metric that it is worse than the whole run; negative if it is better"""
    parameters: int
    size_mb: float
    """of its weights on disk"""
    rows_per_s: float
    """of predicting"""
    speedup: float
    """how many times as fast as the whole run, measured in turns with it"""
    is_chosen: bool = False

    @property
    def fraction(self) -> float:
        """The share of heads that were removed."""
        return self.removed / self.heads

    def to_json(self) -> dict[str, object]:
        return {"fraction": self.fraction, **asdict(self)}


def print_candidates(found: Sequence[Candidate], metric: str, importance: Sequence[np.ndarray]) -> None:
    """Print a line for each candidate, and the importance of each head, by layer."""
    columns = numbers("removed", "heads", metric, "points lost", "parameters", "MB", "rows/s", "speed")
    lines = [
        [
            f"{one.fraction:.0%}",
            f"{one.heads - one.removed} of {one.heads}",
            metric_text(one.value),
            f"{one.loss_points:.2f}",
            f"{one.parameters:,}",
            f"{one.size_mb:.1f}",
            f"{one.rows_per_s:,.0f}",
            f"{one.speedup:.2f}x",
            "chosen" if one.is_chosen else "",
        ]
        for one in found
    ]
    print_table("", table_of([*columns, *texts("")], lines), plain_width=PLAIN_WIDTH)
    most = max(map(len, importance))
    by_layer = [
        [str(layer), *(f"{value:.2f}" for value in own_H), *[""] * (most - len(own_H))]
        for layer, own_H in enumerate(importance)
    ]
    header = numbers("layer", *(f"head {head}" if head == 0 else str(head) for head in range(most)))
    print_table("", "importance of the heads that the run has", table_of(header, by_layer), plain_width=PLAIN_WIDTH)


def draw_candidates(path: Path, title: str, found: Sequence[Candidate], metric: str) -> list[Path]:
    """Draw the metric by the share of heads that were removed, as a PNG at `path`; returns the files written."""
    return save_drawn(path, lambda: candidates_figure(title, found, metric))


def candidates_figure(title: str, found: Sequence[Candidate], metric: str) -> Figure:
    """Return the figure of `draw_candidates`; the whole run is a dashed line, the chosen candidate a red dot."""
    with styled():
        figure, axes = new_figure()
        in_order = sorted(found, key=lambda one: one.removed)
        shares, values = [one.fraction for one in in_order], [one.value for one in in_order]
        axes.plot(shares, values, color=SET_COLOURS[0], marker="o")
        axes.axhline(values[0], color="#888888", linewidth=1.0, linestyle="--", label="all heads")
        for one in in_order:
            if one.is_chosen:
                axes.plot([one.fraction], [one.value], "o", color=BEST_COLOUR, markersize=9, label="chosen")
        axes.set_title(title, **TITLE, pad=TITLE_PAD)
        axes.set_xlabel("share of heads removed")
        axes.set_ylabel(metric)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))
        axes.set_xlim(-0.02, max(shares) + 0.02)
        axes.legend(loc="best")
    return figure
