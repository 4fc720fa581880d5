"""What a trial waits for its storage: the same study through a journal file, PostgreSQL and a journal on S3.

    python tests/services/run.py --then python benchmarks/sweep_storage.py --trials 100     # on servers of this machine
    python benchmarks/sweep_storage.py --storages s3://bucket/folder                        # on yours

One process asks for trials of 4 parameters and reports 20 times in each, asking the pruner after every report, which
lets all of them pass. Then a new process would open the study, as every job does: that is the last column. The journal
file is the peer; every other storage's times are multiples of the journal's.
"""

import argparse
import os
import statistics
import tempfile
import time
import uuid
from pathlib import Path

PARAMETERS, REPORTS = 4, 20


def measure(url: str, trials: int) -> tuple[float, float, float, int]:
    """Return median seconds of an ask, and of a report with its pruner's answer; seconds to open; entries about."""
    import optuna

    from nlu.search.storage.opening import open_storage

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    name = f"study-{uuid.uuid4().hex}"
    study = optuna.create_study(
        storage=open_storage(url), study_name=name, direction="maximize", sampler=optuna.samplers.RandomSampler(0),
        pruner=optuna.pruners.ThresholdPruner(lower=-1.0),
    )  # fmt: skip
    ask_s, report_s = [], []
    for _ in range(trials):
        began_s = time.perf_counter()
        trial = study.ask()
        for number in range(PARAMETERS):
            trial.suggest_float(f"x{number}", 0, 1)
        ask_s.append(time.perf_counter() - began_s)
        for step in range(1, REPORTS + 1):
            began_s = time.perf_counter()
            trial.report(step / REPORTS, 100 * step)
            # The pruner reads the reports of other trials, which is what a job waits for.
            assert not trial.should_prune()
            report_s.append(time.perf_counter() - began_s)
        study.tell(trial, 1.0)
    began_s = time.perf_counter()
    again = optuna.load_study(storage=open_storage(url), study_name=name)
    assert len(again.get_trials(deepcopy=False)) == trials
    open_s = time.perf_counter() - began_s
    return statistics.median(ask_s), statistics.median(report_s), open_s, trials * (PARAMETERS + REPORTS + 2)


def main() -> None:
    """Print a line for each storage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--storages", nargs="*", help="URLs; the default is the servers of tests/services/run.py")
    arguments = parser.parse_args()
    running = [os.environ.get(name) for name in ("NLU_TEST_POSTGRESQL", "NLU_TEST_S3")]
    urls = arguments.storages if arguments.storages is not None else [url for url in running if url]
    with tempfile.TemporaryDirectory() as name:
        base: tuple[float, ...] | None = None
        print("storage         entries     ask ms  report ms     open s")
        for url in [f"journal://{Path(name) / 'journal.log'}", *urls]:
            is_object = url.startswith(("s3", "oss"))
            *times_s, entries = measure(f"{url}/{uuid.uuid4().hex}" if is_object else url, arguments.trials)
            base = base or tuple(times_s)
            shown = (f"{value * scale:9.1f}" for value, scale in zip(times_s, (1e3, 1e3, 1), strict=True))
            ratios = ", ".join(f"{value / peer:.1f}" for value, peer in zip(times_s, base, strict=True))
            print(f"{url.partition(':')[0]:12} {entries:10,} {'  '.join(shown)}    x {ratios}", flush=True)


if __name__ == "__main__":
    main()
