"""Jobs of a real Slurm: handed over, looked at, cancelled, lost."""

import subprocess
from pathlib import Path

import pytest

from nlu.jobs.queue import JobState, Ticket
from tests.slurm.cluster import begin_node, lose_node
from tests.slurm.works import (
    ask,
    detail,
    has_begun,
    jobs,
    kill_process,
    let_end,
    queue,
    until,
    wait,
)  # fmt: skip

pytestmark = [pytest.mark.slurm]


def test_a_job_runs_on_a_node_and_leaves_its_result_and_output(tmp_path):
    own = queue(tmp_path, wait)
    (ticket,) = own.submit(jobs(tmp_path, 1))
    (look,) = until(JobState.RUNNING, own, ticket)
    assert look.node in ("n1", "n2")
    let_end(ticket)
    until(JobState.DONE, own, ticket)
    assert own.outcome(ticket).return_value == 0
    assert ticket.log and Path(ticket.log).name == f"{ticket.id}_0_log.err"
    assert own.log_tail(ticket) == ["job 0 has waited"]


def test_a_waiting_job_says_why_and_can_be_cancelled(tmp_path):
    own = queue(tmp_path, additional_parameters={"hold": True})
    (ticket,) = own.submit(jobs(tmp_path, 1))
    assert until(JobState.WAITING, own, ticket)[0].reason == "JobHeldUser" and own.log_tail(ticket) == []
    own.cancel([ticket])
    until(JobState.CANCELLED, own, ticket)


def test_every_key_reaches_slurm(tmp_path):
    own = queue(
        tmp_path, partition="urgent", gpus=1, cpus=2, memory_gb=1.5, nodes=2, tasks_per_node=2, name="mine",
        constraint=None, timeout_min=7, array_parallelism=3, additional_parameters={"comment": "said", "hold": True},
    )  # fmt: skip
    (ticket,) = own.submit(jobs(tmp_path, 1))
    found = {name: detail(ticket, name) for name in (
        "Partition", "JobName", "NumNodes", "NumTasks", "CPUs/Task", "TimeLimit", "MinMemoryNode", "TresPerNode",
        "Comment", "Requeue",
    )}  # fmt: skip
    assert found == {
        "Partition": "urgent", "JobName": "mine", "NumNodes": "2-2", "NumTasks": "4", "CPUs/Task": "2",
        "TimeLimit": "00:07:00", "MinMemoryNode": "1.50G", "TresPerNode": "gres:gpu:1", "Comment": "said",
        "Requeue": "1",
    }  # fmt: skip


def test_trials_share_the_gpus_and_cores_of_a_node_as_small_jobs_with_a_shard_each(tmp_path):
    share = queue(tmp_path, wait, cpus=3, additional_parameters={"gres": "shard:1", "nodelist": "n1"})
    first, second = (share.submit([job])[0] for job in jobs(tmp_path, 2))
    until(JobState.RUNNING, share, first, second)
    for ticket in (first, second):
        held = ask("scontrol", "show", "job", ticket.id, "--details")
        assert "Nodes=n1" in held and "GRES=shard:1(IDX:0)" in held and "NumCPUs=3" in held, "the first GPU"
    let_end(first, second)
    until(JobState.DONE, share, first, second)


@pytest.mark.thorough
def test_a_job_whose_node_goes_down_is_requeued_or_lost_if_that_is_forbidden(tmp_path):
    own = queue(tmp_path, wait, additional_parameters={"nodelist": "n2"})
    fixed = queue(tmp_path / "fixed", wait, additional_parameters={"nodelist": "n2", "no-requeue": True})
    (again,), (gone,) = own.submit(jobs(tmp_path, 1)), fixed.submit(jobs(tmp_path, 1))
    # Before srun has started a job's work, the end of slurmd is a failure of the job.
    has_begun(again, gone)
    lose_node("n2")
    try:
        assert until(JobState.LOST, fixed, gone)[0].reason in ("NODE_FAIL", "NODE_FAIL, exit 1:0")
        until(JobState.WAITING, own, again)
    finally:
        begin_node("n2")
    let_end(again, start=1)
    until(JobState.DONE, own, again)
    assert detail(again, "Restarts") == "1"


@pytest.mark.without_accounting
def test_without_accounting_jobs_end_and_are_cancelled_and_lost_all_the_same(tmp_path):
    assert subprocess.run(["sacct"], capture_output=True).returncode != 0
    own = queue(tmp_path, wait)
    tickets = own.submit(jobs(tmp_path, 3))
    until(JobState.RUNNING, own, *tickets)
    own.cancel([tickets[0]])
    kill_process(tickets[1])
    until(JobState.CANCELLED, own, tickets[0])
    until(JobState.LOST, own, tickets[1])
    let_end(tickets[2])
    until(JobState.DONE, own, tickets[2])


@pytest.mark.without_accounting
def test_without_accounting_a_job_that_slurm_has_forgotten_is_lost(tmp_path):
    gone = Ticket(jobs(tmp_path, 1)[0], "987654", str(tmp_path / "987654_0_log.err"))
    assert queue(tmp_path).look([gone])[gone.id].state is JobState.LOST
    (ticket,) = queue(tmp_path, wait).submit(jobs(tmp_path, 1))
    let_end(ticket)
    assert until(JobState.DONE, queue(tmp_path), ticket)
