"""What a service does to a request, and what a queue makes of it."""

from collections.abc import Callable
from typing import Any

from nlu.launching.queue import Job, JobState, Queue, Ticket

FAULTS = ("429", "500", "503", "reset", "lost", "cut")


def survive(
    server: Any, queue: Queue, job: Job, fault: str, verb: str, other: Callable[[Queue, Ticket | None], None]
) -> None:
    """Ask a queue for one thing, while two of the first three requests fail, and assert that it is done once.

    `verb` is create, look or cancel; any other is left to `other`, which gets the ticket of a job that was submitted.
    """
    ticket = queue.submit([job])[0] if verb != "create" else None
    times = iter([fault, None, fault])
    server.fault = lambda method, path: next(times, None)
    if verb == "create":
        (ticket,) = queue.submit([job])
        assert list(server.jobs) == [ticket.id]
    elif verb == "look":
        assert queue.look([ticket.id])[ticket.id].state is JobState.WAITING
    elif verb == "cancel":
        queue.cancel([ticket.id])
        assert server.jobs[ticket.id].status == "Stopped"
    else:
        other(queue, ticket)
    assert sum(server.faults.values()) >= 1
