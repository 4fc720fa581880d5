"""A run kept in an object store: its objects of any instant continue, to the same bytes, from an empty disk."""

import json
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import boto3
import pytest

from nlu.config.errors import UserError
from nlu.inference.locate import locate
from nlu.runs import mirror as mirrors
from nlu.runs.logs import end_of
from nlu.runs.mirror import Mirror
from nlu.runs.mirror_files import bring_back
from nlu.storage.objects import ObjectStore
from nlu.storage.pointer import Pointer, Pointers, Stored, TakenOver
from tests.buckets import Server
from tests.few import first
from tests.suspending import write_state
from tests.training.in_process import TINY, composed, killed_in_backward, start
from tests.training.runs import files

STATE = ("model", "optimizer", "average")


@pytest.fixture
def url(s3: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("NLU_CACHE", str(tmp_path / "cache"))
    return f"{s3.bucket(monkeypatch)}/run"


Run = Callable[..., None]


@pytest.fixture
def run(tmp_path: Path, url: str) -> Run:
    """Runs a small configuration in a folder, kept at `url`, until a number of saves have been sent."""
    overrides = [
        *TINY, *files(tmp_path, train_rows=40, dev_rows=11), "trainer.max_duration=8st", "trainer.eval_interval=3st",
        "trainer.save_interval=1st", "trainer.keep_best=2", "trainer.ema_decay=0.9",
    ]  # fmt: skip

    def started(folder: Path, *more: str, status: int = 0, kept: bool = True) -> None:
        own = [f"mirror={url}"] if kept else []
        start(composed(*overrides, *own, *more), folder, status)

    return started


def digests(folder: Path) -> dict[str, bytes]:
    """What must not depend on where a run went on: weights, states, scores; times aside."""
    names = [f"checkpoints/last/{part}.safetensors" for part in STATE]
    names += [f"checkpoints/best-{place}/model.safetensors" for place in (1, 2)]
    found = {name: (folder / name).read_bytes() for name in [*names, "predictions/dev.jsonl", "valid.tsv"]}
    result = json.loads((folder / "result.json").read_text())
    return {**found, "result": json.dumps([result[key] for key in ("metrics", "best", "last", "steps")]).encode()}


def objects(url: str) -> dict[str, bytes]:
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    found = boto3.resource("s3").Bucket(bucket).objects.filter(Prefix=f"{prefix}/")
    return {entry.key.removeprefix(f"{prefix}/"): entry.get()["Body"].read() for entry in found}


def named(url: str) -> dict[str, str]:
    """The key of each file that the newest pointer of a mirror names."""
    newest = Pointers(ObjectStore(url, "mirror")).newest()
    assert newest is not None
    return {place: file.key for place, file in newest.files.items()}


def damage(url: str, place: str) -> None:
    content = bytearray(objects(url)[named(url)[place]])
    content[-1] ^= 1
    ObjectStore(url, "mirror").put(named(url)[place], bytes(content))


class Written(ObjectStore):
    """Records every change of the store, in order."""

    changes: list[tuple[str, str, bytes | None]]

    def put(self, key: str, content: bytes) -> None:
        super().put(key, content)
        self.changes.append((self.shown, key, content))

    def put_new(self, key: str, content: bytes) -> bool:
        if written := super().put_new(key, content):
            self.changes.append((self.shown, key, content))
        return written

    def put_file(self, key: str, path: Path, advance: Any = None) -> None:
        super().put_file(key, path)
        self.changes.append((self.shown, key, path.read_bytes()))

    def copy(self, source: str, target: str) -> None:
        super().copy(source, target)
        self.changes.append((self.shown, target, self.get(target)))

    def delete(self, key: str) -> None:
        super().delete(key)
        self.changes.append((self.shown, key, None))


def contents_after(changes: list[tuple[str, str, bytes | None]]) -> Iterator[dict[str, bytes]]:
    there: dict[str, bytes] = {}
    for _, key, content in changes:
        if content is None:
            there.pop(key, None)
        else:
            there[key] = content
        yield dict(there)


def written_by(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, bytes]]:
    """Run, and return all that the mirror held, one after another."""
    Written.changes = []
    with monkeypatch.context() as patched:
        patched.setattr(mirrors, "ObjectStore", Written)
        run(folder)
    return list(contents_after(Written.changes))


def put_all(url: str, contents: dict[str, bytes]) -> None:
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    for key, content in contents.items():
        boto3.resource("s3").Object(bucket, f"{prefix}/{key}").put(Body=content)


def assert_continues_from(
    instants: list[dict[str, bytes]], run: Run, tmp_path: Path, url: str, whole: dict[str, bytes],
) -> None:  # fmt: skip
    for number, contents in enumerate(instants):
        place = f"{url}-{number}"
        # The process that wrote this was killed: a claim of a living one is waited for.
        killed = {key: body.replace(b'"started": "', b'"started": "0') for key, body in contents.items()}
        put_all(place, {key: killed[key] if key.startswith(".pointer/") else contents[key] for key in contents})
        folder = tmp_path / f"from-{number}"
        run(folder, "resume=auto", f"mirror={place}", kept=False)
        assert digests(folder) == whole, f"after change {number}: {list(contents)[-1]}"
        shutil.rmtree(folder)


@pytest.mark.parametrize("count", first(1, [2, 40]))
def test_a_kill_at_some_instants_of_sending_loses_nothing(
    run: Run, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    instants = written_by(run, tmp_path / "here", monkeypatch)
    chosen = instants[1 :: max(1, len(instants) // count)]
    assert_continues_from(chosen, run, tmp_path, url, digests(tmp_path / "here"))


def test_training_continues_while_the_store_is_unreachable(
    run: Run, tmp_path: Path, s3: Server, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mirrors, "PAUSE_S", 0.05)
    monkeypatch.setattr("nlu.storage.refusals.RETRY_DELAYS_S", ())
    saves = []
    saved = Mirror.saved

    def away_from_the_second_on(self: Mirror) -> None:
        saves.append(time.monotonic())
        if len(saves) == 2:
            s3.stop()
        saved(self)

    def back_at_the_end(self: Mirror, limit_s: float) -> None:
        assert (tmp_path / "here/result.json").exists(), "training went to its end"
        while "training continues" not in (tmp_path / "here/log.txt").read_text():
            time.sleep(0.05)
        s3.start()
        wait(self, limit_s)

    wait = Mirror._wait
    monkeypatch.setattr(Mirror, "saved", away_from_the_second_on)
    monkeypatch.setattr(Mirror, "_wait", back_at_the_end)
    run(tmp_path / "here")
    assert len(saves) == 9
    monkeypatch.undo()
    s3.bucket(monkeypatch)
    assert json.loads(objects(url)["result.json"])["steps"] == 8
    assert "responds again" in (tmp_path / "here/log.txt").read_text()


@pytest.mark.parametrize(("number", "status"), first(1, [(signal.SIGTERM, 75), (signal.SIGINT, 130)]))
def test_a_signal_while_the_rest_is_sent_ends_the_command_and_the_same_one_sends_it(
    run: Run, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, status: int
) -> None:
    wait, sent = Mirror._wait, threading.Event()

    def signalled(self: Mirror, limit_s: float) -> None:
        sent.set()
        signal.raise_signal(number)
        wait(self, limit_s)

    with monkeypatch.context() as patched:
        patched.setattr(mirrors, "PAUSE_S", 0.01)
        patched.setattr(mirrors, "GIVE_UP_S", 1.0)
        patched.setattr(Mirror, "_send", _never)
        patched.setattr(Mirror, "_wait", signalled)
        run(tmp_path / "here", status=status)
    assert sent.is_set() and (tmp_path / "here/result.json").exists() and "result.json" not in objects(url)
    run(tmp_path / "here", "resume=auto")
    assert objects(url)["result.json"] == (tmp_path / "here/result.json").read_bytes()


def test_the_mirror_has_the_reason_of_a_run_and_the_log_that_of_its_mirror(
    run: Run, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="above trainer.max_loss"):
        run(tmp_path / "here", "trainer.max_loss=1e-9")
    bring_back(url, tmp_path / "there")
    assert "above trainer.max_loss" in reason_of(tmp_path / "there") == reason_of(tmp_path / "here")
    monkeypatch.setattr(mirrors, "PAUSE_S", 0.01)
    monkeypatch.setattr(mirrors, "GIVE_UP_S", 1.0)
    monkeypatch.setattr(mirrors, "EXIT_WAIT_S", 0.5)
    monkeypatch.setattr(Mirror, "_send", _never)
    with pytest.raises(mirrors.MirrorUnavailable, match="did not accept it"):
        run(tmp_path / "other", f"mirror={url}-other", "trainer.stop_after=2st", kept=False)
    assert "with resume=auto sends the rest" in reason_of(tmp_path / "other")


def reason_of(run_dir: Path) -> str:
    end = end_of(run_dir)
    return end.reason if end else ""


def _never(self: Mirror, snapshot: object) -> None:
    raise mirrors.Unreachable("no answer")


def test_a_damaged_object_is_named_and_not_continued(run: Run, tmp_path: Path, url: str) -> None:
    with killed_in_backward(4):
        run(tmp_path / "here")
    damage(url, "checkpoints/last/model.safetensors")
    with pytest.raises(UserError, match="model.safetensors is damaged: its sha256"):
        run(tmp_path / "there", "resume=auto")


@pytest.mark.parametrize("place", ["../outside", "/tmp/outside", "a/../../outside"])
def test_a_pointer_that_names_a_place_outside_of_the_folder_is_refused(
    run: Run, tmp_path: Path, url: str, place: str
) -> None:
    pointer = Pointer(1, "x", {}, "x", {place: Stored("x", 1, None)}, released=True)
    ObjectStore(url, "mirror").put(".pointer/0000000001.json", json.dumps(asdict(pointer)).encode())
    with pytest.raises(UserError, match="a path outside its folder"):
        run(tmp_path / "here", "resume=auto")
    assert not (tmp_path / "outside").exists()


def overtake(url: str) -> Pointers:
    """Take a mirror, as a process elsewhere does that is told to."""
    other = Pointers(ObjectStore(url, "mirror"))
    while not other.take(other.newest(), force=True):
        # The run has saved meanwhile.
        pass
    return other


def test_a_run_whose_mirror_was_taken_over_ends_and_changes_nothing_there(
    run: Run, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, saves = Mirror.saved, []

    def overtaken(self: Mirror) -> None:
        saves.append(1)
        if len(saves) == 3:
            while self._pointers.last is None or not self._pointers.last.files:
                time.sleep(0.01)
            overtake(url)
        saved(self)
        # Sending is another thread's work, which a run of this size would outrun.
        while self._thread.is_alive() and self._pending is not None:
            time.sleep(0.01)

    monkeypatch.setattr(Mirror, "saved", overtaken)
    with pytest.raises(TakenOver, match=r"is written by process \d+ on .*add --take"):
        run(tmp_path / "here")
    assert "result.json" not in named(url) and not (tmp_path / "here/result.json").exists()
    assert re.search(r"is written by process \d+ on .*add --take", reason_of(tmp_path / "here"))


def test_a_run_whose_machine_is_gone_continues_with_take_and_not_without(run: Run, tmp_path: Path, url: str) -> None:
    run(tmp_path / "whole", kept=False)
    with killed_in_backward(4):
        run(tmp_path / "here")
    gone = overtake(url)
    gone.writer |= {"host": "elsewhere", "machine": "another"}
    gone.put()
    before = objects(url)
    with pytest.raises(TakenOver, match=r"is written by process \d+ on elsewhere; .*add --take"):
        run(tmp_path / "there", "resume=auto")
    assert objects(url) == before and not (tmp_path / "there").exists()
    run(tmp_path / "there", "resume=auto", "take=true")
    assert digests(tmp_path / "there") == digests(tmp_path / "whole")


def test_a_store_that_is_unreachable_at_the_start_is_reported_before_any_write(
    run: Run, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("nlu.storage.refusals.RETRY_DELAYS_S", ())
    with pytest.raises(UserError, match=f"AWS_ENDPOINT_URL.*or leave out mirror={url}"):
        run(tmp_path / "here")
    assert not (tmp_path / "here").exists()


def test_weights_that_are_not_what_the_pointer_says_are_not_read(run: Run, tmp_path: Path, url: str) -> None:
    with killed_in_backward(5):
        run(tmp_path / "here")
    damage(url, "checkpoints/best-1/model.safetensors")
    with pytest.raises(UserError, match="best-1/model.safetensors is damaged: its sha256"):
        locate(url)


def test_the_end_of_a_run_leaves_its_files_under_their_paths_and_touches_no_others(tmp_path: Path, url: str) -> None:
    store = ObjectStore(url, "mirror")
    write_state(tmp_path / "here", 3, "weights")
    mirror = Mirror(url, tmp_path / "here")
    mirror.open(may_hold_a_run=False)
    others = ("below/.pointer/0000000001.json", "below/.saves/x/1/log.txt", "notes/of-checkpoints")
    for key in (*others, ".saves/killed/7/checkpoints/last/model"):
        store.put(key, b"x")
    (tmp_path / "here/result.json").write_text("{}")
    mirror.close()
    state = {f"checkpoints/last/{name}" for name in ("COMPLETE", "model.safetensors", "state.json")}
    there = {key for key in objects(url) if not key.startswith(".pointer/")}
    assert there == {*others, *state, "config.yaml", "result.json", "train.tsv"}


def test_a_folder_that_was_fetched_is_not_fetched_again_before_the_run_continues(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_state(tmp_path / "here", 3, "weights")
    (tmp_path / "here/big.txt").write_bytes(bytes(2_600_000))
    assert not bring_back(url, tmp_path / "there")
    mirror = Mirror(url, tmp_path / "here")
    mirror.open(may_hold_a_run=False)
    mirror.close()
    said: list[str] = []
    for _ in range(2):
        assert bring_back(url, tmp_path / "there", said.append)
    assert said == [f"fetching {tmp_path / 'there'} from {url}, 3 MB"]
    note = json.loads((tmp_path / "there/.mirror.json").read_text())
    newest = Pointers(ObjectStore(url, "mirror")).newest()
    assert newest is not None and note == {"mirror": url, "saves": [], "brought": newest.save}
    assert not (tmp_path / "there/checkpoints/last").exists(), "the state stays where it is"
    assert json.loads((tmp_path / "here/.mirror.json").read_text()) == {"mirror": url, "saves": [newest.save]}
    (tmp_path / "there/.mirror.json").unlink()
    with pytest.raises(UserError, match="there and s3://.* both hold a run.*move the folder away"):
        bring_back(url, tmp_path / "there")
