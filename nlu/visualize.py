"""Draw runs over each other, as figures and as one page.

python -m nlu.visualize outputs/a outputs/b --out figures           two runs, by examples seen
python -m nlu.visualize outputs/grid --out figures --x epochs --metric f1_macro --metric test/accuracy
python -m nlu.visualize outputs/seeds --out figures --format svg --format pdf
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from nlu.config.entry.command import Parser, run_command
from nlu.config.errors import UserError
from nlu.storage.settle import require_new

MOST_ROWS = 40
MOST_CONFUSIONS = 8


def main(arguments: Sequence[str]) -> int:
    """Draw; returns the exit status. Raises UserError for what the user must change."""
    parser = Parser(
        prog="python -m nlu.visualize",
        description="Metrics, loss, learning rate and gradient norms of runs, over each other by examples seen; seeds "
        "and folds of a configuration as mean with a band of one standard deviation. Of classifiers also scores by "
        "class and by length, confusion and calibration, of the best weights. index.html holds all of it.",
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="RUN", help="a run, a sweep, or what holds such")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="new folder for the figures")
    parser.add_argument(
        "--x", choices=("examples", "steps", "epochs", "time"), default="examples", help="the x axis; default examples"
    )
    parser.add_argument(
        "--metric", action="append", default=[], metavar="[SET/]NAME",
        help="a metric to draw; default: the one that decided which checkpoint is best",
    )  # fmt: skip
    parser.add_argument(
        "--format", action="append", choices=("png", "svg", "pdf"), default=[], help="of the figures; default png"
    )
    given = parser.parse(arguments)
    require_new(given.out, "--out")

    from nlu.reports.aggregate import rows_of
    from nlu.reports.curves import drawings_of, labels_of
    from nlu.reports.runs import find_runs

    runs, remarks = find_runs(given.folders)
    begun = [run for run in runs if (run.folder / "valid.tsv").is_file()]
    if not begun:
        raise UserError(*(remarks or [f"{folder} holds no run that has evaluated; give a folder that does"
                                      for folder in given.folders]))  # fmt: skip
    tables, left_out = rows_of(begun)
    rows = [row for table in tables for row in table]
    if len(rows) > MOST_ROWS:
        raise UserError(
            f"there are {len(rows)} configurations, but {MOST_ROWS} are as many as can be told apart; name fewer"
        )
    drawings = drawings_of(rows, given.x, given.metric)

    from nlu.display import comparison
    from nlu.display.tables import metric_text
    from nlu.reports.kept_scores import kept_scores

    figures = {drawing.name: comparison.draw(drawing) for drawing in drawings}
    labels = labels_of(rows)
    found = {
        label: kept
        for label, row in zip(labels, rows, strict=True)
        if (kept := kept_scores(row.runs[0].folder, row.set_name)) is not None
    }
    if found:
        figures |= comparison.draw_by_class(found)
        figures["by_length"] = comparison.draw_by_length(found)
        for number, (label, kept) in enumerate(list(found.items())[:MOST_CONFUSIONS]):
            figures[f"confusion_{number}"] = comparison.draw_confusion_of(label, kept)
            figures[f"calibration_{number}"] = comparison.draw_calibration_of(label, kept)
    formats = list(dict.fromkeys(given.format or ["png"]))
    written = comparison.write_figures(given.out, figures, formats)
    header = ["configuration", "runs", f"{drawings[0].title}, best of the mean", "state"]
    best = {curve.label: curve.best for curve in drawings[0].curves}
    lines = [
        [label, str(len(row.runs)), metric_text(best[label][1] if best.get(label) else None), row.state]  # type: ignore[index]
        for label, row in zip(labels, rows, strict=True)
    ]
    title = ", ".join(folder.name or str(folder) for folder in given.folders)
    comparison.write_comparison(given.out / "index.html", title, header, lines, figures)
    for path in [*written, given.out / "index.html"]:
        print(path)
    for remark in [*remarks, *left_out]:
        print(f"nlu: {remark}", file=sys.stderr)
    return 0


def command() -> NoReturn:
    """Be the program nlu-visualize."""
    run_command(main)


if __name__ == "__main__":
    command()
