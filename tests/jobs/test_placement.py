"""The place of a process among those of its run, from the variables that each way of starting it sets."""

import os
import re
from pathlib import Path

import pytest

from nlu.config.errors import UserError
from nlu.jobs.placement import MEETING, Placement, first_node, placement, reachable

TORCHRUN = {
    "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "x",
}  # fmt: skip
SLURM = {
    "SLURM_JOB_ID": "41234", "SLURM_PROCID": "2", "SLURM_LOCALID": "0", "SLURM_NODEID": "1", "SLURM_NTASKS": "3",
    "SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_TASKS_PER_NODE": "2,1",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
}  # fmt: skip
NODES = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "master", "MASTER_PORT": "23456"}


def changed(environment: dict[str, str], **values: str | None) -> dict[str, str]:
    return {name: value for name, value in {**environment, **values}.items() if value is not None}


def test_a_process_without_variables_is_the_only_one():
    assert placement({}) == Placement("alone", 0, 1, 0, 1, 0, 1, None)
    assert placement({"HOME": "/", "MASTER_ADDR": "h"}).kind == "alone"


def test_torchruns_variables_count_processes():
    assert placement(TORCHRUN) == Placement("torchrun", 3, 4, 1, 2, 1, 2, "env://")
    few = {name: TORCHRUN[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    assert placement(few) == Placement("torchrun", 3, 4, 1, 4, 0, 1, "env://")


def test_tasks_of_slurm_are_ranks_that_meet_at_the_first_node_on_a_port_of_the_job():
    assert placement(SLURM) == Placement("slurm", 2, 3, 0, 1, 1, 2, "tcp://gpu07:21234")
    first = changed(SLURM, SLURM_PROCID="1", SLURM_LOCALID="1", SLURM_NODEID="0")
    assert placement(first) == Placement("slurm", 1, 3, 1, 2, 0, 2, "tcp://gpu07:21234")
    assert placement(changed(SLURM, MASTER_ADDR="a", MASTER_PORT="5")).meeting == "tcp://a:5"


def test_a_batch_script_and_the_only_task_of_a_step_are_single_processes():
    script = changed(SLURM, **{name: None for name in SLURM if "STEP" in name})
    assert placement(script) == placement(changed(SLURM, SLURM_STEP_NUM_TASKS="1", SLURM_PROCID="0")) == Placement()


def test_torchrun_within_a_task_of_slurm_decides_the_placement():
    assert placement({**SLURM, **TORCHRUN}) == placement(TORCHRUN)


def test_without_a_local_rank_the_variables_count_nodes_as_on_pai():
    assert placement(NODES) == Placement("nodes", 1, 2, 0, 1, 1, 2, "tcp://master:23456")
    assert placement({**NODES, "NPROC_PER_NODE": "8"}).asked == 8
    assert placement({"RANK": "0", "WORLD_SIZE": "1", "NPROC_PER_NODE": "1"}) == Placement("nodes")


def test_each_node_starts_its_devices_with_separate_ranks():
    workers = placement({**NODES, "NPROC_PER_NODE": "2"}).workers(1)
    assert workers == placement(NODES).workers(2)
    assert workers == [Placement("workers", 2 + local, 4, local, 2, 1, 2, "tcp://master:23456") for local in range(2)]
    task = changed(SLURM, SLURM_PROCID="1", SLURM_STEP_NUM_TASKS="2", SLURM_STEP_TASKS_PER_NODE="1(x2)")
    assert [(worker.rank, worker.world_size) for worker in placement(task).workers(3)] == [(3, 6), (4, 6), (5, 6)]
    assert [worker.meeting for worker in Placement().workers(2)] == [None, None]


def test_one_of_several_processes_of_a_node_starts_no_others():
    for environment in (TORCHRUN, changed(SLURM, SLURM_NODEID="0")):
        assert placement(environment).workers(1) == placement(environment).workers(2) == []
    assert Placement().workers(1) == placement(NODES).workers(1) == []


def test_a_worker_finds_in_its_environment_what_it_is():
    worker = placement({**NODES, "NPROC_PER_NODE": "2"}).workers(1)[1]
    assert placement({**NODES, **SLURM, **worker.environment()}) == worker
    assert set(worker.environment()) >= {"RANK", "LOCAL_RANK", "WORLD_SIZE", MEETING}


@pytest.mark.parametrize(("environment", "devices", "told"), [
    (TORCHRUN, 4, "torchrun started 2 processes on this node, but devices is 4"),
    ({**SLURM, "SLURM_NODEID": "0"}, 4, "slurm started 2 processes on this node, but devices is 4"),
    ({**NODES, "NPROC_PER_NODE": "8"}, 4, "NPROC_PER_NODE is 8, but devices is 4"),
])  # fmt: skip
def test_devices_that_contradict_what_was_started_are_refused(environment, devices, told):
    with pytest.raises(UserError, match=told):
        placement(environment).workers(devices)


@pytest.mark.parametrize(("environment", "told"), [
    ({"RANK": "0"}, "RANK set, but not WORLD_SIZE, LOCAL_RANK; unset all of them"),
    ({"RANK": "0", "LOCAL_RANK": "0"}, "RANK and LOCAL_RANK set, but not WORLD_SIZE"),
    (changed(TORCHRUN, RANK="4"), "RANK is 4, but WORLD_SIZE is 4"),
    (changed(TORCHRUN, LOCAL_RANK="2"), "LOCAL_RANK is 2, but LOCAL_WORLD_SIZE is 2"),
    (changed(TORCHRUN, RANK="one"), "RANK is 'one', but must be a whole number"),
    (changed(NODES, RANK="2"), "without LOCAL_RANK they count nodes"),
    (changed(NODES, MASTER_ADDR=None), "do not say where they meet; set both"),
    ({**SLURM, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"},
     "RANK=0, WORLD_SIZE=1 set, but as a task of Slurm this is RANK=2, WORLD_SIZE=3; unset RANK, WORLD_SIZE"),
    (changed(SLURM, SLURM_PROCID=None), "SLURM_PROCID is None, but must be a whole number"),
])  # fmt: skip
def test_a_contradictory_environment_is_refused_with_one_sentence(environment, told):
    with pytest.raises(UserError, match=re.escape(told)):
        placement(environment)


@pytest.mark.parametrize(("names", "first"), [
    ("n1", "n1"), ("n[1-2]", "n1"), ("gpu[007,009-011],login", "gpu007"), ("a,b[1-2]", "a"), ("r[1-2]n[3,5]", "r1n3"),
])  # fmt: skip
def test_the_first_of_slurms_list_of_nodes_is_found(names, first):
    assert first_node(names) == first


def test_a_node_without_an_entry_in_the_dns_is_met_where_slurm_says_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "scontrol"
    program.write_text('#!/bin/sh\n[ "$4" = node7.invalid ] && echo NodeName=node7 NodeAddr=10.1.2.3 Port=6818\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert reachable("tcp://node7.invalid:29500") == "tcp://10.1.2.3:29500"
    assert reachable("tcp://127.0.0.1:29500") == "tcp://127.0.0.1:29500"
    assert reachable("file:///shared/meeting") == "file:///shared/meeting"
    with pytest.raises(UserError, match="node8.invalid, where the processes of this run meet, cannot be resolved here"):
        reachable("tcp://node8.invalid:29500")
