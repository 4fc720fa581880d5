"""Check whether this machine can run nlu, and why the score of a run differs.

python -m nlu.doctor                    versions, devices, threads, ranks, disks
python -m nlu.doctor outputs/mine       also each reason why the score of this run may differ now
python -m nlu.doctor outputs/mine/last
"""

from collections.abc import Sequence
from pathlib import Path

from nlu.config.console import Parser, run_command
from nlu.config.errors import UserError
from nlu.jobs.placement import placement

EXIT_BROKEN = 1
DEFAULT_OUTPUTS = "outputs"


def main(arguments: Sequence[str]) -> int:
    """Run all checks and print the results; returns 1 if something is broken.

    Raises UserError for a reference that names no run, and if several ranks were started by another program.
    """
    parser = Parser(
        prog="python -m nlu.doctor",
        description="Checks versions, devices, threads, a sum over all ranks of this machine, and disks. With RUN also "
        "each reason why its score may differ now: code, versions, rows, weights, machine, settings; some of its rows "
        "are predicted again, one by one and in batches. Exit status 1: something is broken; the remedy is printed "
        "below it.",
    )
    parser.add_argument(
        "run", nargs="?", metavar="RUN", help="a run's folder, RUN/best-2, RUN/last, or the folder of a search"
    )
    where = f"where runs are written; default {DEFAULT_OUTPUTS}"
    parser.add_argument("--outputs", type=Path, default=Path(DEFAULT_OUTPUTS), metavar="DIR", help=where)
    given = parser.parse(arguments)

    # Heavy imports come after the arguments: --help and a wrong flag must answer at once.
    from nlu.diagnosis.check import is_broken, print_sections
    from nlu.diagnosis.examination import of_machine, of_run

    # Ranks that torchrun started would each measure the same disks and start further ranks.
    if placement().kind != "alone":
        raise UserError("RANK and WORLD_SIZE are set, but doctor starts ranks itself; start it once, without torchrun")
    run = of_run(given.run) if given.run else []
    sections = [*of_machine(given.outputs), *run]
    print_sections(sections)
    return EXIT_BROKEN if is_broken(sections) else 0


if __name__ == "__main__":
    run_command(main)
