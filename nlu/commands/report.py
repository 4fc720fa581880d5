"""Read runs back: a table over many, the difference of some, the errors of one, what can be freed.

python -m nlu.report outputs                one row per configuration, best first; mean and sd over seeds and folds
python -m nlu.report outputs --metric f1_macro --metric test/accuracy
python -m nlu.report outputs/sweep --csv > table.csv
python -m nlu.report --follow outputs/grid  each event of submitted jobs until all have ended, then the report
python -m nlu.report diff outputs/a outputs/b
                                            configuration, metrics, McNemar's test, and rows that only one gets right
python -m nlu.report diff outputs/a planned.yaml
                                            the keys in which a run differs from the output of nlu.train ... --cfg job
python -m nlu.report errors outputs/a       most confident mistakes, and where they occur; for folds also suspected
                                            label errors
python -m nlu.report curve outputs/few      score by number of labelled rows, and whether more of them would help
python -m nlu.report search outputs/search  the trials of a search, its tables and its page
python -m nlu.report clean outputs          what could be freed; --yes frees it
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nlu.config.addresses import is_object
from nlu.config.console import Parser, at_least, run_command
from nlu.config.errors import UserError
from nlu.config.nearest import hint

if TYPE_CHECKING:
    from nlu.reports.runs import RunRecord


def main(arguments: Sequence[str]) -> int:
    """Run the sub-command that the first argument names, or make the table; returns the exit status.

    Raises UserError for errors of the operating system.
    """
    chosen = SUBCOMMANDS.get(arguments[0]) if arguments else None
    try:
        return chosen(arguments[1:]) if chosen else table(arguments)
    except BrokenPipeError:
        # A reader such as `head` has enough; `run_command` ends quietly then.
        raise
    except OSError as error:
        what = error.filename or "a file"
        raise UserError(f"{what}: {error.strerror or error}; correct that, or name another folder") from error


def table(arguments: Sequence[str]) -> int:
    """Print the table of all runs in and below some folders."""
    parser = Parser(
        prog="python -m nlu.report",
        description="One row a configuration, best first, with the keys that differ; mean and standard deviation over "
        "seeds and folds. Sub-commands, each with its own --help: diff A B, errors RUN, curve DIR, search DIR, "
        "clean DIR. A folder of such a name is written ./diff.",
    )
    _add_folders(parser)
    parser.add_argument(
        "--metric",
        action="append",
        default=[],
        metavar="[SET/]NAME",
        help="a metric, of the first evaluation set unless SET is given; the first one sorts; default: the metric "
        "that decided which checkpoint is best",
    )
    parser.add_argument(
        "--follow", action="store_true", help="first follow the jobs that a launcher submitted there, to their end"
    )
    parser.add_argument("--csv", action="store_true", help="print one line a row, with every digit")
    given = parser.parse(arguments)
    _refuse_mistyped(given.folders)
    if given.follow:
        # Before the runs are read, so that the table shows how they ended.
        _follow(given.folders)

    from nlu.reports.run_table import join_predictions, rows_of
    from nlu.reports.show_table import print_tables, write_csv
    from nlu.storage.run_copies import records_of

    runs, remarks = _runs_in([records_of(one, "DIR") for one in given.folders])
    tables, left_out = rows_of(runs, given.metric)
    # Joined for every table: a metric of all held-out rows together is another number than the mean over folds.
    remarks += left_out + [remark for rows in tables for row in rows for remark in join_predictions(row)]
    if given.csv:
        write_csv(tables)
    else:
        print_tables(tables)
    for remark in remarks:
        print(f"nlu: {remark}", file=sys.stderr)
    return 0


def _follow(folders: Sequence[str]) -> None:
    from nlu.jobs.following import follow
    from nlu.reports.job_row import progress_of

    if away := [folder for folder in folders if "://" in folder]:
        raise UserError(
            f"--follow looks after the jobs of a folder here, and {away[0]} is none; give the folder in which they "
            "were submitted"
        )
    follow([Path(folder) for folder in folders], progress_of)


def diff(arguments: Sequence[str]) -> int:
    """Print the differences between runs, or between configurations with their seeds and folds."""
    parser = Parser(
        prog="python -m nlu.report diff",
        description="Configuration and metrics side by side, and McNemar's test of every pair; of two "
        "also rows that only one predicts right. Of a run and a file .yaml, such as --cfg job prints: the keys that "
        "differ.",
    )
    parser.add_argument("first", metavar="A", help="a run, or a folder with the runs of one configuration")
    parser.add_argument("second", metavar="B", help="another, or the file of a configuration")
    parser.add_argument("others", nargs="*", default=[], metavar="C", help="further ones")
    parser.add_argument(
        "--examples", type=at_least(0), default=5, metavar="N", help="rows of two runs shown each way; default 5"
    )
    given = parser.parse(arguments)

    from nlu.reports.compare import comparison_of, print_comparison, print_planned
    from nlu.storage.run_copies import records_of

    if given.second.endswith((".yaml", ".yml")) and "://" not in given.second and not Path(given.second).is_dir():
        print_planned(records_of(given.first, "RUN"), Path(given.second))
        return 0
    folders = [records_of(one, "RUN") for one in (given.first, given.second, *given.others)]
    print_comparison(comparison_of(folders, 0 if given.others else given.examples))
    return 0


def errors(arguments: Sequence[str]) -> int:
    """Print the most confident mistakes of a run, where mistakes are frequent, and suspected label errors."""
    parser = Parser(
        prog="python -m nlu.report errors",
        description="The surest mistakes of a run with their text, and the error rate by class and length. "
        "Given the folder of all folds, it looks at their out-of-fold predictions, and at labels "
        "that may be wrong, by confident learning (needs cleanlab: pip install 'nlu[errors]').",
    )
    parser.add_argument("folder", metavar="RUN", help="a run, or a folder with all folds of one")
    parser.add_argument("--set", metavar="NAME", help="which predictions; default: of the set that decides")
    parser.add_argument("--rows", type=at_least(0), default=20, metavar="N", help="rows shown of a kind; default 20")
    given = parser.parse(arguments)

    from nlu.reports.error_report import analyse, print_report
    from nlu.reports.error_source import source_of
    from nlu.storage.run_copies import records_of

    print_report(analyse(source_of(records_of(given.folder, "RUN"), given.set), given.rows), given.rows)
    return 0


def curve(arguments: Sequence[str]) -> int:
    """Print and draw the score of runs by the number of rows they were trained on."""
    parser = Parser(
        prog="python -m nlu.report curve",
        description="Score by number of labelled rows, of runs that differ only in data.rows_per_class, data.max_rows "
        "or data.train; with intervals over seeds, and whether more labels would help.",
    )
    _add_folders(parser)
    parser.add_argument(
        "--metric", metavar="[SET/]NAME", help="default: the metric that decided which checkpoint is best"
    )
    parser.add_argument("--out", default="curve.png", metavar="FILE", help="the figure; default curve.png")
    given = parser.parse(arguments)

    from nlu.display.canvas import save_figure
    from nlu.reports.learning_curve import curves_of, draw, print_curves
    from nlu.reports.run_table import rows_of
    from nlu.storage.run_copies import records_of

    runs, remarks = _runs_in([records_of(one, "DIR") for one in given.folders])
    tables, left_out = rows_of(runs, [given.metric] if given.metric else ())
    curves = curves_of(tables)
    print_curves(curves)
    save_figure(draw(curves), Path(given.out))
    print(given.out)
    for remark in [*remarks, *left_out]:
        print(f"nlu: {remark}", file=sys.stderr)
    return 0


def search(arguments: Sequence[str]) -> int:
    """Print the trials of a search, also of one that still runs, and write its tables, its figures and its page."""
    parser = Parser(
        prog="python -m nlu.report search",
        description="The trials of a search, best first; its tables, figures and page in summary/ are written again.",
    )
    parser.add_argument("folder", metavar="DIR", help="the hydra.sweep.dir of a search")
    given = parser.parse(arguments).folder
    if is_object(given):
        raise UserError(f"DIR is {given}; copy the folder of the search by python -m nlu.io cp -r, and name the copy")
    folder = Path(given)

    from nlu.search.storage.open_study import study_in
    from nlu.search.summary import write_summary

    return 0 if write_summary(study_in(folder), folder) else 1


def clean(arguments: Sequence[str]) -> int:
    """Show what can be removed of each run, and remove it with --yes."""
    parser = Parser(
        prog="python -m nlu.report clean",
        description="Frees space in runs that have ended, complete or pruned. Keeps the best checkpoint and everything "
        "that RUN/last predicts with. Removes further best checkpoints, and the optimizer's state in checkpoints/last, "
        "without which resume=RUN cannot start a longer training from there. Removes nothing of a run that has not "
        "ended, or that a process holds. Without --yes nothing is removed.",
    )
    _add_folders(parser)
    parser.add_argument("--yes", action="store_true", help="remove it")
    parser.add_argument("--keep-optimizer", action="store_true", help="keep what resume=RUN needs of an ended run")
    given = parser.parse(arguments)
    # The lock that tells whether a process holds a run is one of the local disk.
    if remote := [folder for folder in given.folders if "://" in folder]:
        raise UserError(
            f"{remote[0]} lies in a store, where nothing is cleaned; python -m nlu.io rm -r removes a folder there"
        )

    from nlu.reports.cleaning import clean_runs

    runs, unread = _runs_in(given.folders)
    problems = clean_runs(runs, given.keep_optimizer, confirmed=given.yes)
    for remark in unread:
        print(f"nlu: {remark}", file=sys.stderr)
    # After all runs: one that a process holds must not keep the space of the others.
    if problems:
        raise UserError(*problems)
    return 0


SUBCOMMANDS = {"diff": diff, "errors": errors, "curve": curve, "search": search, "clean": clean}


def _add_folders(parser: Parser) -> None:
    parser.add_argument("folders", nargs="+", metavar="DIR", help="a run, a sweep, or a folder that contains some")


def _runs_in(folders: Sequence[str | Path]) -> "tuple[list[RunRecord], list[str]]":
    """Return the runs in and below folders, and a sentence for each that cannot be read. Raises UserError for none."""
    from nlu.reports.runs import find_runs

    runs, unread = find_runs(map(Path, folders))
    if not runs:
        raise UserError(*(unread or [f"{folder} holds no run; give a folder that does" for folder in folders]))
    return runs, unread


def _refuse_mistyped(folders: Sequence[str]) -> None:
    first = folders[0]
    if not Path(first).exists() and "/" not in first and not hint(first, SUBCOMMANDS).startswith("valid"):
        raise UserError(f"{first} is neither a folder nor a sub-command; {hint(first, SUBCOMMANDS)}")


if __name__ == "__main__":
    run_command(main)
