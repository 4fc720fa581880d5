"""Logging is set up in separate processes, because it changes the whole process."""

import re
import subprocess
import sys
from pathlib import Path

PREAMBLE = """
import logging, sys, warnings
from pathlib import Path
from nlu.config.errors import UserError
from nlu.runs import logs
folder = Path(sys.argv[1])
log = logging.getLogger("nlu")
"""


def run(folder: Path, code: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", PREAMBLE + code, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=True)


def test_rank_0_logs_to_the_console_plainly_and_to_the_file_with_times(tmp_path):
    done = run(tmp_path / "run", "logs.set_up(folder, 0); logging.getLogger('nlu.data').info('read %d rows', 3)")
    assert (done.stdout, done.stderr) == ("", "read 3 rows\n")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:]{8}[+-]\d{4} INFO read 3 rows\n", (tmp_path / "run/log.txt").read_text())


def test_higher_ranks_print_nothing_and_write_separate_files(tmp_path):
    done = run(tmp_path, "logs.set_up(folder, 1); log.error('lost'); warnings.warn('slow')")
    assert (done.stdout, done.stderr) == ("", "")
    text = (tmp_path / "log.rank1.txt").read_text()
    assert "ERROR lost" in text and "UserWarning: slow" in text
    assert not (tmp_path / "log.txt").exists()


def test_a_trial_logs_to_its_file_from_the_start_and_the_console_works_afterwards(tmp_path):
    done = run(
        tmp_path / "run",
        "logs.begin(folder, 0, standalone=False); log.info('early'); log.warning('odd'); warnings.warn('old')\n"
        "logs.set_up(folder, 0, on_console=False); log.info('late'); logs.tear_down(); log.warning('after')\n"
        "warnings.warn('at last')",
    )
    assert done.stdout == "" and done.stderr.startswith("after\n") and "UserWarning: at last" in done.stderr
    text = (tmp_path / "run/log.txt").read_text()
    assert all(text.count(word) == 1 for word in ("INFO early", "WARNING odd", "UserWarning: old", "INFO late"))
    assert "after" not in text


def test_an_ordinary_run_keeps_its_messages_until_its_folder_is_known(tmp_path):
    done = run(tmp_path / "run", "logs.begin(folder, 0, standalone=True); log.info('early'); print(folder.exists())")
    assert (done.stdout, done.stderr) == ("False\n", "early\n")
    done = run(
        tmp_path / "deep/run",
        "logs.begin(folder, 0, standalone=True); log.info('early'); logs.set_up(folder, 0); log.info('late')",
    )
    assert done.stderr == "early\nlate\n"
    assert [line.split()[-1] for line in (tmp_path / "deep/run/log.txt").read_text().splitlines()] == ["early", "late"]


def test_the_end_of_a_rank_is_in_its_own_log_once_without_a_secret(tmp_path):
    code = """
for number in (1, 2):
    try:
        raise ValueError("odd https://user:hunter2@host/a")
    except ValueError as error:
        logs.record_end(folder, error, 1)
assert logs.end_of(folder) is None
print(logs.end_of(folder, 1))
"""
    done = run(tmp_path, code)
    reason = "ValueError: odd https://***@host/a"
    assert (done.stdout, done.stderr) == (f"End(state='failed', reason={reason!r})\n", "")
    text = (tmp_path / "log.rank1.txt").read_text()
    assert re.search(f"ERROR Traceback.*\n{re.escape(reason)}\n$", text, re.DOTALL) and text.count("Traceback") == 1


def test_only_the_last_record_tells_an_end(tmp_path):
    code = """
logs.set_up(folder, 0, on_console=False)
logs.record_end(folder, UserError("a", "b", summary="two"))
logs.record_end(folder, "stopped by SIGTERM", level=logs.STOPPED)
print(logs.end_of(folder))
log.info("again")
print(logs.end_of(folder))
"""
    done = run(tmp_path, code)
    assert done.stdout == "End(state='stopped', reason='stopped by SIGTERM')\nNone\n"
    assert " ERROR two; a; b\n" in (tmp_path / "log.txt").read_text()
