"""How many trials run at a time on this machine, and with which of its GPUs and cores."""

from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra._internal.callbacks import Callbacks
from hydra.core.global_hydra import GlobalHydra
from hydra.types import HydraContext

LOCAL = "hydra/launcher=local"


def slots_of(tmp_path: Path, count: int, *overrides: str) -> Any:
    """The slots of a search that was begun with these overrides."""
    from nlu.search.slots import Slots

    with initialize_config_dir(config_dir=str(tmp_path / "conf")):
        config = compose("mine", [LOCAL, f"hydra.sweep.dir={tmp_path}", *overrides], return_hydra_config=True)
        config.hydra.job.config_name = "mine"
        context = HydraContext(config_loader=GlobalHydra.instance().config_loader(), callbacks=Callbacks(config))
        return Slots(config, context, lambda config: 10 * config.x, count)


def shares(slots: Any, number: int, need: Any) -> dict[str, str]:
    """The variables that give a job its part of the machine."""
    found = [text.removeprefix("+hydra.job.env_set.").split("=", 1) for text in slots._share_of_machine(number, need)]
    return {name: value.strip("'") for name, value in found}


def test_each_of_several_jobs_here_gets_its_share_of_cores_and_separate_gpus(tmp_path, monkeypatch):
    from nlu.search import slots as _slots
    from nlu.search.slots import Need

    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5, 6,1")
    monkeypatch.setattr(_slots, "usable_cores", lambda: 16)
    slots = slots_of(tmp_path, 4)
    assert slots.count == 4 and slots.sentence(4) is None
    assert shares(slots, 0, Need(1, 1)) == {"OMP_NUM_THREADS": "4", "CUDA_VISIBLE_DEVICES": "3"}
    assert shares(slots, 1, Need(2, 2)) == {"OMP_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": "5,6"}
    assert shares(slots, 2, Need(8, 0)) == {"OMP_NUM_THREADS": "1"}, "it computes on the CPU"
    assert slots.gpus.has_free(1) and not slots.gpus.has_free(2)
    slots.freed(2)
    slots.freed(0)
    assert slots.gpus.has_free(2) and not slots.gpus.has_free(3)
    assert shares(slots, 3, Need(2, 2))["CUDA_VISIBLE_DEVICES"] == "3,1"


@pytest.mark.parametrize(
    ("named", "least", "count"), [("3,5", 1, 2), ("3,5,6", 2, 1), ("3,3,5,5", 1, 4), ("3,5", 0, 4), ("", 1, 4)]
)
def test_as_many_trials_run_at_once_as_there_are_gpus_for(tmp_path, monkeypatch, named, least, count):
    from nlu.search.slots import Slots

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    given = slots_of(tmp_path, 4)
    slots = Slots(given._config, given._context, given._task, 4, least)
    assert slots.count == count
    if count < 4:
        each = "a GPU each" if least == 1 else "at least 2 GPUs each"
        assert f"n_jobs is 4, but trials take {each}, of which there are {len(named) // 2 + 1}" in slots.sentence(4)
        assert f"so {count} run at a time" in slots.sentence(4)


@pytest.fixture(autouse=True)
def primary(tmp_path):
    """The primary configuration."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/mine.yaml").write_text("x: 1\n")
