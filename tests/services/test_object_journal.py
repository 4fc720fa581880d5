"""The journal in an object store, on a real S3 server with real processes, kills and lost replies."""

import json
import os
import pickle
import random
import signal
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import optuna
import pytest
from faulty_proxy import FaultyProxy
from hypothesis import given, settings
from hypothesis import strategies as st
from writers import start_writer

from nlu.config.errors import UserError
from nlu.storage.objects import ObjectStore
from nlu.sweeps.object_journal import FAN, JournalObjects, ObjectJournalBackend

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


@settings(max_examples=8)
@given(script=st.lists(st.tuples(st.integers(0, 2), st.one_of(st.none(), st.integers(1, 3))), min_size=1, max_size=20))
def test_any_interleaving_of_readers_and_writers_agrees_with_a_list(script: list[tuple[int, int | None]]) -> None:
    """Each step is (which of three, entries to append at once or None to read what is new)."""
    url = f"{os.environ['NLU_TEST_S3']}/{uuid.uuid4().hex}"
    backends = [ObjectJournalBackend(url) for _ in range(3)]
    expected: list[dict] = []
    read: list[list[dict]] = [[], [], []]
    for who, count in script:
        if count is None:
            read[who] += backends[who].read_logs(len(read[who]))
            assert read[who] == expected
        else:
            new = [{"number": len(expected) + offset, "text": "é\n"} for offset in range(count)]
            backends[who].append_logs(new)
            expected += new
    for backend in backends:
        start = random.randrange(len(expected) + 1)
        assert backend.read_logs(start) == expected[start:]
        assert backend.read_logs(0) == expected


def test_a_long_journal_opens_with_few_requests_also_without_merged_objects(
    s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = FAN**2 + 2 * FAN + 5
    lines = [
        json.dumps({"id": f"{number:x}", "logs": [{"number": number}]}).encode() + b"\n" for number in range(batches)
    ]
    store = ObjectStore(s3_url, "storage")
    last = FAN**2 - 1
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda number: store.put(f"batches/{number:010d}.jsonl", lines[number]), range(last)))
    for number in range(FAN - 1):
        part = lines[number * FAN : (number + 1) * FAN]
        store.put(f"merged-{FAN}/{number:010d}.jsonl", b"".join(part))

    journal = ObjectJournalBackend(s3_url)
    for number in range(last, batches):
        journal.append_logs([{"number": number}])
    merged = [*store.list(f"merged-{FAN}"), *store.list(f"merged-{FAN**2}")]
    assert len(merged) == FAN + 2 + 1, "the writer of a range's last batch merged the range"

    asked = []
    run = JournalObjects._run

    def counting(self: JournalObjects, level: int, number: int, count: int) -> list[bytes]:
        asked.append(count)
        return run(self, level, number, count)

    monkeypatch.setattr(JournalObjects, "_run", counting)
    expected = [{"number": number} for number in range(batches)]
    assert entries(s3_url) == expected
    assert sum(asked) < 30
    for key in merged:
        store.delete(key)
    asked.clear()
    assert entries(s3_url) == expected
    assert sum(asked) >= batches


def test_a_backend_goes_through_pickle_and_fork(s3_url: str) -> None:
    journal = ObjectJournalBackend(s3_url)
    journal.append_logs([{"number": 0}])
    copy = pickle.loads(pickle.dumps(journal))
    copy.append_logs([{"number": 1}])
    child = os.fork()
    if child == 0:
        status = 1
        try:
            journal.append_logs([{"number": 2}])
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert [entry["number"] for entry in journal.read_logs(0)] == [0, 1, 2]


def test_a_study_of_a_name_is_created_once(s3_url: str) -> None:
    first = optuna.storages.JournalStorage(ObjectJournalBackend(s3_url))
    second = optuna.storages.JournalStorage(ObjectJournalBackend(s3_url))
    study = optuna.create_study(storage=first, study_name="a", direction="maximize")
    study.enqueue_trial({"x": 1.0})
    with pytest.raises(optuna.exceptions.DuplicatedStudyError):
        optuna.create_study(storage=second, study_name="a")
    again = optuna.create_study(storage=second, study_name="a", load_if_exists=True, direction="maximize")
    assert again.ask().suggest_float("x", 0, 2) == 1.0


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, "correct AWS_SECRET_ACCESS_KEY"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_MAX_ATTEMPTS": "1"}, "check AWS_ENDPOINT_URL"),
    ],
)
def test_a_store_that_cannot_be_used_is_one_clear_error(
    s3_url: str, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], says: str
) -> None:
    secret = os.environ["AWS_SECRET_ACCESS_KEY"]
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError) as caught:
        ObjectJournalBackend(s3_url)
    assert says in str(caught.value) and s3_url in str(caught.value)
    assert secret not in str(caught.value)


def test_a_prefix_that_holds_something_else_is_refused(s3_url: str) -> None:
    journal = ObjectJournalBackend(s3_url)
    objects = JournalObjects(s3_url)
    objects.create(0, 0, b"some other file\n")
    with pytest.raises(UserError, match="not part of a journal"):
        journal.read_logs(0)
