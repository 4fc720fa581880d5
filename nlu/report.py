"""Read runs back: a table over many, the difference of two, what can be freed.

python -m nlu.report outputs                one row a configuration, best first; mean and sd over seeds and folds
python -m nlu.report outputs --metric f1_macro --metric test/accuracy
python -m nlu.report outputs/sweep --csv > table.csv
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from nlu.config.command import Parser, run_command
from nlu.config.errors import UserError
from nlu.config.nearest import hint

SUBCOMMANDS = ("diff", "clean")


def main(arguments: Sequence[str]) -> int:
    """Run the sub-command that the first argument names, or make the table; returns the exit status."""
    return table(arguments)


def table(arguments: Sequence[str]) -> int:
    """Print the table of all runs in and below some folders."""
    parser = Parser(prog="python -m nlu.report", description=__doc__ or "")
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="a run, a sweep, or what holds such")
    parser.add_argument(
        "--metric", action="append", default=[], metavar="[SET/]NAME",
        help="a metric, of the first evaluation set unless SET is given; the first one sorts; default: the metric "
        "that decided which checkpoint is best",
    )  # fmt: skip
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print everything, each run too, as JSON")
    form.add_argument("--csv", action="store_true", help="print one line a row, with every digit")
    given = parser.parse(arguments)
    _refuse_mistyped(given.folders)

    from nlu.reports.aggregate import rows_of
    from nlu.reports.runs import find_runs
    from nlu.reports.show import as_csv, as_json, print_tables

    runs, unread = find_runs(given.folders)
    if not runs:
        found = unread or [f"{folder} holds no run; give a folder that does" for folder in given.folders]
        raise UserError(*found)
    tables, remarks = rows_of(runs, given.metric)
    if given.json or given.csv:
        print((as_json if given.json else as_csv)(tables), end="" if given.csv else "\n")
    else:
        print_tables(tables)
    for remark in [*remarks, *unread]:
        print(f"nlu: {remark}", file=sys.stderr)
    return 0


def _refuse_mistyped(folders: Sequence[Path]) -> None:
    first = str(folders[0])
    if not folders[0].exists() and "/" not in first and not hint(first, SUBCOMMANDS).startswith("valid"):
        raise UserError(f"{first} is neither a folder nor a sub-command; {hint(first, SUBCOMMANDS)}")


if __name__ == "__main__":
    run_command(main)
