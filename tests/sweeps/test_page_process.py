"""The process that writes the page of a search: what it writes, what it is given, and how it ends."""

import re
import subprocess
import sys
import time
from pathlib import Path

import optuna
import pytest

from nlu.sweeps.brackets import PRUNER
from nlu.sweeps.page_process import PageProcess
from nlu.sweeps.schedulers.scheduler import Decision
from nlu.sweeps.snapshot import Snapshot
from nlu.sweeps.space import Branch
from nlu.sweeps.steps import step_of
from nlu.sweeps.storage import open_storage
from nlu.sweeps.summary import write_page_so_far
from tests.few import first
from tests.sweeps.studies import SPACE, study_of

CONDITIONAL = "optimizer.layer_lr_decay"
PARAMS = {name: each for name, each in SPACE.items() if name != CONDITIONAL}
BRANCHES = [Branch("model", "bert_tiny", {CONDITIONAL: SPACE[CONDITIONAL]})]
SPEC = {"min_resource": 1000, "max_resource": 4000, "reduction_factor": 3, "max_examples": None, "parts": 1}
STATES = ("COMPLETE", "PRUNED", "RUNNING", "COMPLETE", "FAIL", "WAITING")


def mixed(number: int) -> str:
    return STATES[number % len(STATES)]


def snapshot_of(study: optuna.Study, folder: Path) -> Snapshot:
    return Snapshot(
        taken_s=1e9, folder=folder, name=study.study_name, direction=study.direction, attributes=study.user_attrs,
        trials=study.get_trials(deepcopy=False),
    )  # fmt: skip


def written(snapshot: Snapshot) -> dict[str, bytes]:
    """The files of a page that a process writes."""
    process = PageProcess(snapshot, nice=0)
    process.wait()
    seconds, error = process.result()
    assert error is None and seconds > 0.0
    return files_of(snapshot.folder)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("summary/*")}


@pytest.mark.parametrize(
    ("scheme", "pruner"), first(1, [("sqlite", "freeze_thaw"), ("journal", "none"), ("journal", "asha")])
)
def test_the_bytes_are_those_that_the_process_of_the_search_would_write(
    tmp_path: Path, scheme: str, pruner: str
) -> None:
    storage = open_storage(f"{scheme}:///{tmp_path}/storage")
    optuna.copy_study(
        from_study_name="a <b>sweep</b>", from_storage=study_of(mixed, 24, maximize=False)._storage, to_storage=storage
    )
    study = optuna.load_study(study_name="a <b>sweep</b>", storage=storage)
    study.set_user_attr(PRUNER, {"name": pruner, **SPEC})
    for number, trial in enumerate(study.get_trials()):
        if not trial.state.is_finished():
            name, step = step_of(Decision(4000, number, why={"rule": "random"}), number, answers=True)
            storage.set_trial_system_attr(trial._trial_id, name, step)
    here, there = tmp_path / "here", tmp_path / "there"
    write_page_so_far(study, here, 1e9)
    found = written(snapshot_of(study, there))
    assert found == files_of(here) and {"index.html", "trials.tsv"} <= found.keys()
    assert re.search(rb"the search has not ended; as of</dt><dd>2001-09-0[89] ", found["index.html"])


@pytest.mark.thorough
def test_an_error_is_one_line_and_the_last_page_stays(tmp_path: Path) -> None:
    before = written(snapshot_of(study_of(mixed, 12), tmp_path))
    (tmp_path / "summary" / "index.html").unlink()
    (tmp_path / "summary" / "index.html").mkdir()
    (tmp_path / "summary" / "index.html" / "x").touch()
    process = PageProcess(snapshot_of(study_of(mixed, 12), tmp_path), nice=0)
    process.wait()
    _, error = process.result()
    assert error is not None and error.startswith("IsADirectoryError: ") and "\n" not in error
    assert {path.name for path in tmp_path.glob("summary/*")} == before.keys()


SEARCH = """
import sys, time
from pathlib import Path
from nlu.sweeps.page_process import PageProcess
from tests.sweeps.studies import study_of
from tests.sweeps.test_page_process import mixed, snapshot_of
process = PageProcess(snapshot_of(study_of(mixed, 60), Path(sys.argv[1])), nice=0)
print(process.number, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("moment", first(1, ["while it writes", "at once", "while it imports"]))
def test_the_process_ends_with_a_search_that_is_killed_and_leaves_no_part_of_a_file(
    tmp_path: Path, moment: str
) -> None:
    (tmp_path / "summary").mkdir()
    (tmp_path / "summary" / "index.html").write_text("the last page")
    search = subprocess.Popen([sys.executable, "-c", SEARCH, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    with search:
        number = int(search.stdout.readline())
        place = Path(f"/proc/{number}")
        if moment == "while it imports":
            time.sleep(0.5)
        while moment == "while it writes" and not (tmp_path / "summary" / "trials.tsv").exists():
            time.sleep(0.001)
        search.kill()
    until_s = time.monotonic() + 20.0
    while place.exists() and "(zombie)" not in place.joinpath("status").read_text():
        assert time.monotonic() < until_s, "it still runs"
        time.sleep(0.01)
    assert (tmp_path / "summary" / "index.html").read_text() == "the last page"
    assert {path.name for path in tmp_path.glob("summary/*")} <= {"index.html", "trials.tsv", "decisions.tsv"}
    assert not list(tmp_path.glob("summary/.*"))
