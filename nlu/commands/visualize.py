"""Compare runs in figures, and on one page.

python -m nlu.visualize outputs/a outputs/b --out figures           two runs, by examples seen
python -m nlu.visualize outputs/grid --out figures --x epochs --metric f1_macro --metric test/accuracy
python -m nlu.visualize base=outputs/a tuned=outputs/b --out figures  with your own names
python -m nlu.visualize outputs/seeds --out figures --format svg --format pdf
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nlu.config.console import Parser, run_command
from nlu.config.errors import UserError
from nlu.storage.outputs import output_folder, require_free

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from nlu.display.curve_figures import Drawing
    from nlu.display.score_figures import KeptScores

MOST_ROWS = 40
MOST_CONFUSIONS = 8
PAGE = "index.html"
NAME = re.compile(r"[^\W_][^/:=]*")
"""the name of a run; legends of matplotlib hide names with an underscore in front"""

OF_XDPX = {
    "save_dir": "{0}",
    "ref_dir": "{0} after the other run",
    "label": "{0}=RUN, which names a run in the figures",
    "figext": "--format {0}",
    "walltime": "--x time",
}
"""what to write for the options of x-viz"""


def _parser() -> Parser:
    parser = Parser(
        prog="python -m nlu.visualize",
        description="Draws metrics, loss, learning rate and gradient norms of runs by examples seen. Seeds and folds "
        "of a configuration are shown as their mean with a band of one standard deviation. For classifiers it also "
        "draws scores by class and by length, confusion and calibration, of the best weights. index.html shows all.",
    )
    parser.add_argument(
        "folders",
        nargs="+",
        metavar="[NAME=]RUN",
        help="a run, a sweep, or a folder that contains some; NAME is their name in the figures, and keeps them apart "
        "from other runs",
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="new folder for the figures")
    parser.add_argument(
        "--x", choices=("examples", "steps", "epochs", "time"), default="examples", help="the x axis; default examples"
    )
    parser.add_argument(
        "--metric",
        action="append",
        default=[],
        metavar="[SET/]NAME",
        help="a metric to draw; default: the one that decided which checkpoint is best",
    )
    parser.add_argument(
        "--format", action="append", choices=("png", "svg", "pdf"), default=[], help="of the figures; default png"
    )
    return parser


def main(arguments: Sequence[str]) -> int:
    """Draw the figures; returns the exit status."""
    given = _parser().parse(arguments)
    require_free(given.out, "--out")

    from nlu.reports.differing_keys import labels_of
    from nlu.reports.run_table import rows_of
    from nlu.reports.runs import find_runs
    from nlu.storage.run_copies import records_of

    named = [_named(text) for text in given.folders]
    folders = [records_of(reference, "RUN") for _, reference in named]
    names = {folder: name for folder, (name, _) in zip(folders, named, strict=True) if name}
    runs, remarks = find_runs(folders)
    begun = [run for run in runs if (run.folder / "valid.tsv").is_file()]
    if not begun:
        nothing = [f"{folder} contains no run with an evaluation; give a folder that does" for folder in folders]
        raise UserError(*(remarks or nothing))
    tables, left_out = rows_of(begun, names=names)
    rows = [row for table in tables for row in table]
    # Checked before matplotlib is imported.
    if len(rows) > MOST_ROWS:
        raise UserError(f"there are {len(rows)} configurations, but a figure can show at most {MOST_ROWS}; name fewer")
    from nlu.display import score_figures
    from nlu.display.console_tables import metric_text, numbers, texts
    from nlu.display.curve_figures import draw
    from nlu.reports.curves import drawings_of, kept_scores
    from nlu.reports.show_table import folders_of

    drawings = drawings_of(rows, given.x, given.metric)
    # Everything is drawn before the folder is made: an error of a figure leaves nothing at --out.
    figures = {drawing.name: draw(drawing) for drawing in drawings}
    labels = labels_of(rows)
    kept_by_label = {label: kept_scores(row.counted, row.set_name) for label, row in zip(labels, rows, strict=True)}
    found = {label: kept for label, kept in kept_by_label.items() if kept is not None}
    if found:
        figures |= _figures_of_classes(found)
    formats = list(dict.fromkeys(given.format or ["png"]))
    best_of = "best of the mean" if any(len(row.runs) > 1 for row in rows) else "best"
    header = [*texts("configuration"), *numbers("runs", f"{drawings[0].title}, {best_of}")]
    header += texts("state", "note", "folder")
    best = {curve.label: curve.best for curve in drawings[0].curves}
    lines = []
    for label, row in zip(labels, rows, strict=True):
        value = metric_text(place[1] if (place := best.get(label)) else None)
        where = folders_of([run.folder for run in row.runs])
        lines.append([label, str(len(row.runs)), value, row.state, row.note, where])
    title = ", ".join(folder.name or str(folder) for folder in folders)
    # The page is written last: a folder with it is complete.
    with output_folder(given.out, "--out", last=PAGE) as folder:
        written = score_figures.write_figures(folder, figures, formats)
        score_figures.write_comparison(folder / PAGE, title, header, lines, figures)
    for path in [*written, folder / PAGE]:
        print(f"{given.out.rstrip('/')}/{path.relative_to(folder)}")
    for remark in [*remarks, *left_out, *_not_drawn(drawings, kept_by_label)]:
        print(f"nlu: {remark}", file=sys.stderr)
    return 0


def _figures_of_classes(found: "Mapping[str, KeptScores]") -> "dict[str, Figure]":
    """Draw the scores of classifiers, by configuration."""
    from nlu.display import score_figures

    figures = {**score_figures.draw_by_class(found), "by_length": score_figures.draw_by_length(found)}
    for number, (label, kept) in enumerate(list(found.items())[:MOST_CONFUSIONS]):
        figures[f"confusion_{number}"] = score_figures.draw_confusion_of(label, kept)
        figures[f"calibration_{number}"] = score_figures.draw_calibration_of(label, kept)
    return figures


def _named(text: str) -> tuple[str, str]:
    """Return name and place of `NAME=RUN`. An existing folder with an equals sign in its name is a place.

    Raises UserError for an option as XDPX writes it.
    """
    name, equals, reference = text.partition("=")
    if equals and name in OF_XDPX and not Path(text).exists():
        raise UserError(f"{text} is no run; write {OF_XDPX[name].format(reference)}")
    if equals and NAME.fullmatch(name) and not Path(text).exists():
        return name, reference
    return "", text


def _not_drawn(drawings: "Sequence[Drawing]", kept: "Mapping[str, KeptScores | None]") -> Iterator[str]:
    """Yield the runs that are left out, a line for each kind of figure."""
    for drawing in drawings:
        if drawing.without:
            yield f"{drawing.name}: left out {'; '.join(drawing.without)}, without any {drawing.title}"
    if lacking := [label for label, one in kept.items() if one is None]:
        yield (
            f"by_class, by_length, confusion and calibration: left out {'; '.join(lacking)}, which kept no "
            "probabilities of classes"
        )
    if beyond := [label for label, one in kept.items() if one is not None][MOST_CONFUSIONS:]:
        yield f"confusion and calibration: left out {'; '.join(beyond)}, beyond the first {MOST_CONFUSIONS}; name fewer"


if __name__ == "__main__":
    run_command(main)
