"""Scan the learning rate of a configuration: build its run, take steps, print, draw."""

from dataclasses import replace
from functools import partial

from matplotlib.figure import Figure

from nlu.config.command_keys import Scan
from nlu.diagnosis.few_steps import built
from nlu.diagnosis.range_test import RangeTest, run_range_test
from nlu.display.canvas import SET_COLOURS, new_figure, save_drawn, styled
from nlu.display.console_tables import print_table
from nlu.display.progress_bars import Progress
from nlu.runs import logs
from nlu.runs.records import Table
from nlu.storage.files import write_json
from nlu.storage.outputs import output_folder
from nlu.training.auto import with_precision
from nlu.training.experiment import choose_kernels
from nlu.training.ranks import Ranks, process_group

RESULT = "scan.json"


def run_scan(config: Scan) -> int:
    """Scan; returns the exit status: 0, or 1 if no value can be recommended."""
    logs.set_up(None, 0)
    with process_group(config.trainer.device) as ranks, Progress() as progress:
        choose_kernels(ranks.device)
        config = with_precision(config, ranks)
        found = scan(config, ranks, progress)
        written: list[str] = []
        if config.out is not None:
            with output_folder(config.out, "out", last=RESULT) as folder:
                rows = list(found.rows())
                table = Table(folder / f"{config.of}.tsv", tuple(rows[0]))
                for row in rows:
                    table.append(**row)
                save_drawn(folder / f"{config.of}.png", partial(figure_of, found))
                write_json(folder / RESULT, found.to_json())
                written = ["", *(f"{config.out.rstrip('/')}/{path.name}" for path in sorted(folder.iterdir()))]
    print_table(*found.said(), *written)
    return 1 if found.recommended is None else 0


def scan(config: Scan, ranks: Ranks, progress: Progress) -> RangeTest:
    """Take the steps of a scan and analyze them."""
    # A loss that is too large is a result here, and no weights are kept.
    trainer = replace(config.trainer, max_loss=None, detect_anomaly=False, ema_decay=0.0)
    config = replace(config, trainer=trainer)
    with built(config, ranks, progress) as run, progress.task("rising rates", config.steps) as bar:
        return run_range_test(run, config, bar.advance)


def figure_of(found: RangeTest) -> Figure:
    """Draw the curve of a range test, and the suggestion as a line."""
    with styled():
        figure, axes = new_figure()
        axes.plot(found.lr_N, found.loss_N, color="#9aa5b1", linewidth=0.9, label="loss of a step")
        axes.plot(found.lr_N, found.smoothed_N, color=SET_COLOURS[0], label="smoothed")
        # Losses that have diverged must not flatten the rest of the curve.
        axes.set_ylim(top=1.5 * found.start)
        axes.set(xlabel="learning rate (optimizer.lr), higher at each step", ylabel="loss", xscale="log")
        axes.xaxis.set_major_formatter("{x:.0e}")
        if (best := found.recommended) is not None:
            axes.axvline(best, color=SET_COLOURS[5], linewidth=1.6, label=f"recommended: {best:g}")
        axes.set_title("scan of optimizer.lr", loc="left", fontsize=10, color="#444444")
        axes.legend(loc="best")
    return figure
