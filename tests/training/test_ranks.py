"""How the processes of a run meet and leave, and the message on a node that does not see the run's folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed import DistError

from nlu.config.errors import UserError
from nlu.config.placement import Placement
from nlu.training import experiment, single
from nlu.training import ranks as ranks_module
from nlu.training.ranks import Ranks, process_group

CPU = torch.device("cpu")


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the second of three processes asks of torch.distributed, which does nothing."""
    told: list[str] = []
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(ranks_module, "placement", lambda: Placement("workers", 1, 3, 1, 3, 4, 5, "tcp://127.0.0.1:1"))
    monkeypatch.setattr(ranks_module, "usable_cores", lambda: 8)
    # The other processes do not exist.
    monkeypatch.setattr(ranks_module, "room_for", lambda *of: None)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: told.append(f"{count} threads"))
    for name in ("barrier", "destroy_process_group"):
        monkeypatch.setattr(ranks_module.dist, name, lambda name=name, **how: told.append(name))

    def meet(address: str, rank: int, world_size: int, **how: Any) -> Iterator[Any]:
        told.append(f"{rank} of {world_size} at {address}")
        yield torch.distributed.HashStore(), rank, world_size

    monkeypatch.setattr(ranks_module.dist, "rendezvous", meet)
    monkeypatch.setattr(
        ranks_module.dist, "init_process_group",
        lambda backend, **how: told.append(f"{backend} {how['rank']} of {how['world_size']}"),
    )  # fmt: skip
    return told


def test_all_processes_wait_for_each_other_before_one_leaves(events: list[str]) -> None:
    with process_group("cpu") as ranks:
        events.append("work")
        assert ranks == Ranks(1, 3, CPU, None, 1, 4, 5) and not ranks.is_first
    assert events == [
        "2 threads", "1 of 3 at tcp://127.0.0.1:1", "gloo 1 of 3", "work", "barrier", "destroy_process_group"
    ]  # fmt: skip


def test_a_failing_process_ends_at_once(events: list[str]) -> None:
    with pytest.raises(ValueError, match="broken"), process_group("cpu"):
        raise ValueError("broken")
    assert events[3:] == ["destroy_process_group"]


def test_the_leader_of_a_node_goes_first_and_the_others_of_it_after_it(events: list[str]) -> None:
    for local_rank, order in ((0, ["work", "barrier"]), (2, ["barrier", "work"])):
        events.clear()
        with Ranks(2, 3, CPU, local_rank=local_rank).leaders_go_first():
            events.append("work")
        assert events == order
    events.clear()
    with Ranks(0, 1, CPU).leaders_go_first():
        events.append("work")
    assert events == ["work"], "one process does not wait"


@pytest.mark.parametrize(
    ("node", "nodes", "is_seen", "is_refused"),
    [(1, 2, False, True), (0, 2, False, False), (1, 2, True, False), (0, 1, False, False)],
)
def test_a_folder_that_another_node_does_not_see_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node: int, nodes: int, is_seen: bool, is_refused: bool
) -> None:
    monkeypatch.setattr(single, "is_seen", lambda run_dir: is_seen)
    ranks: Any = Ranks(node, 1, CPU, None, 0, node, nodes)
    if is_refused:
        with pytest.raises(UserError, match="is not the same on all of its 2 nodes; choose a hydra.run.dir"):
            single.require_shared(tmp_path, ranks)
    else:
        single.require_shared(tmp_path, ranks)


@pytest.mark.parametrize(
    ("rank", "order"),
    [(0, ["held", "may hold a run", "barrier", "work", "closed", "barrier"]), (1, ["barrier", "work", "barrier"])],
)
def test_all_wait_until_the_first_has_fetched_the_mirror_and_until_it_holds_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: list[str], rank: int, order: list[str]
) -> None:
    @contextmanager
    def noted(name: str) -> Iterator[None]:
        events.append(name)
        yield

    @contextmanager
    def closed(mirror: Any) -> Iterator[None]:
        yield
        events.append("closed")

    def opened(mirror: Any, *, may_hold_a_run: bool) -> None:
        events.append(f"may{' ' if may_hold_a_run else ' not '}hold a run")

    saved = object()
    fake = type("Mirror", (), {"__init__": lambda self, url, run_dir: None, "open": opened, "saved": saved})
    monkeypatch.setattr(experiment, "Mirror", fake)
    monkeypatch.setattr(experiment, "hold", lambda run_dir: noted("held"))
    monkeypatch.setattr(experiment, "closed_at_the_end", closed)
    config: Any = SimpleNamespace(mirror="s3://bucket/run", resume="auto")
    with experiment.mirrored(config, tmp_path, Ranks(rank, 2, CPU)) as after_save:
        events.append("work")
        assert (after_save is saved) == (rank == 0)
    assert events == order
    events.clear()
    with experiment.mirrored(SimpleNamespace(mirror=None), tmp_path, Ranks(rank, 2, CPU)) as after_save:  # type: ignore[arg-type]
        assert after_save() is None  # type: ignore[func-returns-value]
    assert events == []


@pytest.mark.parametrize(
    ("error", "was_asked", "status"),
    [
        (DistError("connection closed"), True, 75), (DistError("connection closed"), False, None),
        (RuntimeError("a matrix of another shape"), True, None),
        (RuntimeError("a matrix of another shape"), False, None),
    ],
)  # fmt: skip
def test_a_process_that_lost_another_while_both_were_stopping_has_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: RuntimeError, was_asked: bool, status: int | None
) -> None:
    def fail(*of: Any) -> int:
        raise error

    monkeypatch.setattr(experiment, "_run", fail)
    for name, answer in (("received", was_asked), ("exit_code", 75), ("sentence", "asked to stop")):
        monkeypatch.setattr(experiment.stopping, name, lambda *of, answer=answer: answer)
    config: Any = SimpleNamespace(is_standalone=True, trainer=SimpleNamespace(save=True))
    if status is None:
        with pytest.raises(RuntimeError, match=str(error)):
            experiment.run_experiment(config, tmp_path, [])
    else:
        assert experiment.run_experiment(config, tmp_path, []) == status
