"""What a search keeps account of: failures that are alike, machines at fault, what was saved, what it wrote down."""

import os
from pathlib import Path

import pytest
from hydra.core.utils import JobReturn, JobStatus
from submitit.core.utils import UncompletedJobError

from nlu.config.errors import UserError
from nlu.launching.queue import JobRefused


def failures(folder: Path, limit: int = 3):
    from hydra_plugins.hyperband_sweeper._failures import Failures

    return Failures(folder, limit)


def test_an_error_is_printed_in_full_only_the_first_time(tmp_path):
    found = failures(tmp_path)
    assert [found.words(number, error) for number, error in ((2, "no"), (2, "no"), (5, "no"), (5, "off"))] == [
        "no", "the same again", "the same as trial 2", "off",
    ]  # fmt: skip


def test_errors_that_differ_only_by_the_folder_of_their_trial_are_alike(tmp_path):
    found = failures(tmp_path)
    found.failed(4, f"no model in {tmp_path}/4", 9)
    found.failed(5, f"no model in {tmp_path}/5", 10)
    with pytest.raises(UserError, match="trials 4, 5, 6 failed one after another with the same error"):
        found.failed(6, f"no model in {tmp_path}/6", 11)


def test_a_trial_that_ends_well_and_another_error_begin_the_count_again(tmp_path):
    found = failures(tmp_path)
    for number, error in enumerate(("no", "no", "off", "no", "no")):
        found.failed(number, error, number + 1)
    found.ended(well=True)
    found.failed(6, "no", 7)
    found.ended(well=False)
    found.failed(7, "no", 8)
    with pytest.raises(UserError, match="trials 6, 7, 8 failed"):
        found.failed(8, "no", 9)
    never = failures(tmp_path, limit=0)
    for number in range(99):
        never.failed(number, "no", number + 1)


def test_each_saved_state_of_a_run_or_a_fold_changes_its_mark(tmp_path):
    from hydra_plugins.hyperband_sweeper._failures import saved_mark

    marks = [saved_mark(tmp_path)]
    for place in ("", "fold-1/"):
        state = tmp_path / f"{place}checkpoints/last/state.json"
        state.parent.mkdir(parents=True)
        state.touch()
        marks.append(saved_mark(tmp_path))
        os.utime(state, ns=(1, 1))
        marks.append(saved_mark(tmp_path))
    assert all(mark not in marks[:place] for place, mark in enumerate(marks))


def test_a_state_that_is_being_replaced_is_skipped(tmp_path):
    from hydra_plugins.hyperband_sweeper._failures import saved_mark

    class Vanishing(type(tmp_path)):
        def glob(self, pattern):
            yield self / "checkpoints/last/state.json"

    assert saved_mark(Vanishing(tmp_path)) == {}


def test_a_search_on_a_full_disk_loses_its_log_and_prints_one_sentence(tmp_path, capfd):
    from hydra_plugins.hyperband_sweeper._board import LOG, Board

    (tmp_path / LOG).symlink_to("/dev/full")
    with Board(tmp_path, 2, with_bar=False) as board:
        board.say("trial 0 started")
        board.say("trial 1 started")
    said = capfd.readouterr().err
    assert "trial 0 started" in said and "trial 1 started" in said
    assert said.count("sweep.log is no longer written") == 1


def test_gpus_are_counted_as_cuda_would_show_them(monkeypatch):
    from hydra_plugins.hyperband_sweeper._slots import Gpus, visible_gpus

    for named, found in (("0,1", ["0", "1"]), (" GPU-7 ,2", ["GPU-7", "2"]), ("", []), ("-1", [])):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
        assert visible_gpus() == found
    none = Gpus([])
    none.require(8)
    assert none.has_free(8) and none.take(1, 8) is None and none.at_once(8, 3) == 3
    two = Gpus(["4", "5"])
    assert [two.at_once(gpus, 3) for gpus in (0, 1, 2, 3)] == [3, 2, 1, 1] and Gpus(["4", "5"]).at_once(1, 1) == 1
    assert two.take(1, 0) is None and two.take(2, 1) == "4" and two.take(3, 1) == "5"
    two.give_back(3)
    two.give_back(2)
    two.give_back(2)
    assert two.take(4, 2) == "4,5", "in the order of the machine"


def test_a_trial_takes_a_gpu_for_each_of_its_devices_and_none_on_the_cpu():
    from hydra_plugins.hyperband_sweeper._slots import Need, need_of
    from omegaconf import OmegaConf

    for trainer, need in (
        ({"devices": 4, "device": "auto"}, Need(4, 4)),
        ({"devices": 4, "device": "cpu"}, Need(4, 0)),
        ({"devices": "many"}, Need(1, 1)),
        ({}, Need(1, 1)),
    ):
        assert need_of(OmegaConf.create({"trainer": trainer})) == need
    assert need_of(OmegaConf.create({"lr": 1})) == Need(1, 1)
    auto, two = OmegaConf.create({"trainer": {"devices": "auto"}}), OmegaConf.create({"trainer": {"devices": 2}})
    assert need_of(auto) == Need(1, 1) and need_of(auto, 3) == Need(3, 3) and need_of(two, 4) == Need(2, 4)


def test_a_slot_is_idle_from_when_its_trial_ended_not_from_when_that_was_noticed(monkeypatch):
    from hydra_plugins.hyperband_sweeper import _board

    now_s = 0.0
    monkeypatch.setattr(_board.time, "time", lambda: now_s)
    idle = _board.Idle(1)
    idle.changed(1, 1)
    now_s = 10.0
    idle.changed(0, 1, at_s=6.0)
    idle.changed(1, 0)
    assert idle.share == pytest.approx(4 / 10)
    # Clocks differ: an end before the beginning, or in the future, is moved to the nearest possible time.
    idle.changed(0, 1, at_s=2.0)
    now_s = 20.0
    idle.changed(1, 0, at_s=99.0)
    assert idle.share == pytest.approx(14 / 20)


def job_return(status: JobStatus, value: object) -> JobReturn:
    found = JobReturn(status=status)
    found.return_value = value
    return found


def test_the_end_of_a_launch_is_described_by_its_error_or_the_value_of_its_job():
    from hydra_plugins.hyperband_sweeper._slots import REMEDY, Ended

    refused = Ended(0, 1, None, JobRefused(f"no such partition{REMEDY}"))
    assert refused.refusal == "no such partition" and refused.never_began and refused.value is None
    gone = Ended(0, 1, None, UncompletedJobError("it is gone\nnobody knows why"))
    assert not gone.never_began and gone.refusal is None and gone.failure is gone.error
    good = Ended(0, 1, job_return(JobStatus.COMPLETED, 3), None)
    assert good.value == 3 and good.failure is None and good.reason == "it returned 3" and not good.never_began
    error = ValueError("no")
    bad = Ended(0, 1, job_return(JobStatus.FAILED, error), None)
    assert bad.failure is error and bad.value is None and bad.reason.endswith("no") and not bad.never_began
    odd = Ended(0, 1, job_return(JobStatus.FAILED, 7), None)
    assert str(odd.failure) == "it returned 7" and odd.value is None
    assert Ended(0, 1, None, None).value is None and Ended(0, 1, None, None).failure is None
