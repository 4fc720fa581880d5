"""What a search keeps account of: failures that are alike, machines at fault, what was saved, what it wrote down."""

from pathlib import Path

import pytest

from nlu.config.errors import UserError


def failures(folder: Path, limit: int = 3):
    from nlu.search.failures import Failures

    return Failures(folder, limit)


def test_an_error_is_printed_in_full_only_the_first_time(tmp_path):
    found = failures(tmp_path)
    assert [found.words(number, error) for number, error in ((2, "no"), (2, "no"), (5, "no"), (5, "off"))] == [
        "no", "the same again", "the same as trial 2", "off",
    ]  # fmt: skip


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


def test_gpus_are_counted_as_cuda_would_show_them(monkeypatch):
    from nlu.search.slots import Gpus, visible_gpus

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
    from omegaconf import OmegaConf

    from nlu.search.slots import Need, need_of

    for trainer, need in (
        ({"devices": 4, "device": "auto"}, Need(4, 4)),
        ({"devices": 4, "device": "cpu"}, Need(4, 0)),
        ({"devices": "many"}, Need(1, 1)),
        ({}, Need(1, 1)),
    ):
        assert need_of(OmegaConf.create({"trainer": trainer})) == need
    assert need_of(OmegaConf.create({"lr": 1})) == Need(1, 1)
