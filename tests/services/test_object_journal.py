"""The journal in an object store, on a real S3 server with real processes, kills and lost replies."""

import os
import random
import signal
from collections import Counter

import pytest
from faulty_proxy import FaultyProxy
from writers import start_writer

from nlu.search.storage.journals import ObjectJournalBackend

pytestmark = pytest.mark.services

WRITERS = 8
APPENDS = 50


def entries(url: str) -> list[dict]:
    return ObjectJournalBackend(url).read_logs(0)


def test_eight_processes_append_at_once_and_no_entry_is_lost_or_doubled(s3_url: str) -> None:
    follower = ObjectJournalBackend(s3_url)
    followed: list[dict] = []
    writers = [start_writer(s3_url, str(name), APPENDS) for name in range(WRITERS)]
    while any(writer.poll() is None for writer in writers):
        followed += follower.read_logs(len(followed))
    followed += follower.read_logs(len(followed))
    assert [writer.communicate() and writer.returncode for writer in writers] == [0] * WRITERS
    found = entries(s3_url)
    assert Counter((entry["writer"], entry["number"]) for entry in found) == {
        (str(name), number): 1 for name in range(WRITERS) for number in range(APPENDS)
    }
    for name in range(WRITERS):
        own = [entry["number"] for entry in found if entry["writer"] == str(name)]
        assert own == list(range(APPENDS)), "a writer's entries keep their order"
    assert followed == found, "a reader that followed from the start saw the same order as one that came later"


def test_killed_writers_leave_each_entry_completely_or_not_at_all(s3_url: str) -> None:
    rng = random.Random(0)
    acknowledged: dict[str, int] = {}
    for generation in range(3):
        writers = {f"{generation}-{name}": start_writer(s3_url, f"{generation}-{name}", 10**6) for name in range(4)}
        lines = {name: rng.randrange(3, 15) for name in writers}
        for name, writer in writers.items():
            assert writer.stdout is not None
            for _ in range(lines[name]):
                assert writer.stdout.readline(), "a writer ended by itself"
            writer.send_signal(signal.SIGKILL)
        for name, writer in writers.items():
            rest = writer.communicate()[0].split()
            acknowledged[name] = lines[name] + len(rest)
    found = entries(s3_url)
    counts = Counter(entry["writer"] for entry in found)
    for name, count in acknowledged.items():
        own = [entry["number"] for entry in found if entry["writer"] == name]
        assert own == list(range(len(own))), name
        assert counts[name] in (count, count + 1), "only the entry in flight at the kill may be unacknowledged"
    survivor = start_writer(s3_url, "survivor", 3)
    assert survivor.communicate()[0].split() == ["0", "1", "2"]
    assert entries(s3_url)[: len(found)] == found


@pytest.mark.parametrize("in_a_row", [1, 9], ids=["a retry is refused by the own entry", "every retry is lost too"])
def test_an_entry_whose_reply_was_lost_is_not_written_twice(
    s3_url: str, monkeypatch: pytest.MonkeyPatch, in_a_row: int
) -> None:
    every_retry = in_a_row > 1
    remaining = [0]

    def choose(method: str, target: str) -> str | None:
        if method == "PUT" and remaining[0]:
            remaining[0] -= 1
            return "lost"
        return None

    with FaultyProxy.before(os.environ["AWS_ENDPOINT_URL"], choose) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        journal = ObjectJournalBackend(s3_url)
        for number in range(4):
            remaining[0] = in_a_row if number % 2 else 0
            lost = proxy.counts["lost"]
            journal.append_logs([{"number": number}])
            if number % 2:
                # How often a request is repeated depends on whether its connection was one in use already.
                assert proxy.counts["lost"] > lost, "the replies were really lost"
                assert (remaining[0] > 0) is every_retry
        assert [entry["number"] for entry in journal.read_logs(0)] == list(range(4))
