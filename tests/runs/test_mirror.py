"""A run kept in an object store: its objects of any instant continue, to the same bytes, from an empty disk."""

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import boto3
import pytest

from nlu.config.errors import UserError
from nlu.inference.locate import locate
from nlu.launching import counting
from nlu.reports.runs import find_runs
from nlu.runs import mirror as mirrors
from nlu.runs.mirror import Mirror, bring_back, closed_at_the_end
from nlu.runs.mirrored import abort_uploads, versions
from nlu.storage import copies
from nlu.storage.bucket import Bucket, CredentialsUnavailable
from nlu.storage.buckets import S3Bucket, open_bucket
from nlu.storage.copies import records_of
from nlu.storage.ledger import RELEASE, SAVE, Ledger, MirrorUnavailable, TakenOver
from nlu.storage.objects import ObjectStore
from nlu.storage.settle import mark_whole
from nlu.storage.temporary import Pauses, is_temporary
from nlu.sweeps.object_journal import ObjectJournalBackend
from tests.buckets import Server
from tests.disk import Disk, followed
from tests.suspending import write_state
from tests.training.in_process import TINY, Killed, composed, killed_in_backward, start
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


def test_a_finished_run_is_mirrored_completely(run: Run, tmp_path: Path, url: str) -> None:
    run(tmp_path / "here")
    here = {
        path.relative_to(tmp_path / "here").as_posix(): path.read_bytes()
        for path in (tmp_path / "here").rglob("*")
        if path.is_file() and path.name not in (".lock", ".mirror.json")
    }
    assert {key: body for key, body in objects(url).items() if not key.startswith(".ledger/")} == here


@pytest.mark.thorough
def test_the_same_command_on_an_empty_disk_finds_the_run_finished(run: Run, tmp_path: Path) -> None:
    run(tmp_path / "here")
    before = digests(tmp_path / "here")
    run(tmp_path / "elsewhere", "resume=auto")
    assert digests(tmp_path / "elsewhere") == before


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
        put_all(place, {key: killed[key] if key.startswith(".ledger/") else contents[key] for key in contents})
        folder = tmp_path / f"from-{number}"
        run(folder, "resume=auto", f"mirror={place}", kept=False)
        assert digests(folder) == whole, f"after change {number}: {list(contents)[-1]}"
        shutil.rmtree(folder)


@pytest.mark.thorough
def test_a_kill_at_some_instants_of_sending_loses_nothing(
    run: Run, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    instants = written_by(run, tmp_path / "here", monkeypatch)
    assert_continues_from(instants[3 :: max(1, len(instants) // 2)], run, tmp_path, url, digests(tmp_path / "here"))


@pytest.mark.thorough
def test_a_kill_at_a_third_of_all_instants_of_sending_loses_nothing(
    run: Run, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    instants = written_by(run, tmp_path / "here", monkeypatch)
    assert_continues_from(instants[1::3], run, tmp_path, url, digests(tmp_path / "here"))


@pytest.mark.thorough
def test_the_overtaken_one_of_two_folders_fetches_the_mirror(run: Run, tmp_path: Path) -> None:
    with killed_in_backward(5):
        run(tmp_path / "here")
    run(tmp_path / "elsewhere", "resume=auto")
    assert not (tmp_path / "here" / "result.json").exists()
    run(tmp_path / "here", "resume=auto")
    assert digests(tmp_path / "here") == digests(tmp_path / "elsewhere")


@pytest.mark.thorough
def test_a_folder_that_is_ahead_of_its_mirror_keeps_what_it_has(
    run: Run, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with killed_in_backward(3):
        run(tmp_path / "here")
    behind = objects(url)
    with monkeypatch.context() as patched:
        # Nothing more is sent, as where the network went first.
        patched.setattr(Mirror, "_send", lambda self, snapshot: None)
        with killed_in_backward(3):
            run(tmp_path / "here", "resume=auto")
    assert saved_step(behind) == 2 and saved_step(objects(url)) == 2
    assert json.loads((tmp_path / "here/checkpoints/last/state.json").read_text())["state"]["step"] == 4
    with killed_in_backward(1):
        run(tmp_path / "here", "resume=auto")
    assert saved_step(objects(url)) == 4, "it went on from its own state, and sent that"


@pytest.mark.thorough
def test_a_folder_ahead_of_its_mirror_keeps_its_files_after_any_number_of_failures(
    run: Run, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with killed_in_backward(3):
        run(tmp_path / "here")
    failed, append = [], Ledger.append

    def failing(self: Ledger, kind: str, content: Mapping[str, Any], own_id: str | None = None) -> Any:
        if kind != SAVE:
            return append(self, kind, content, own_id)
        failed.append(own_id)
        raise mirrors.Unreachable("no answer")

    wait = Mirror._wait
    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "append", failing)
        patched.setattr(mirrors, "PAUSE_S", 0.01)

        def until_some_failed(self: Mirror, limit_s: float) -> None:
            while len(failed) < 5:
                time.sleep(0.01)
            with suppress(UserError):
                wait(self, 0)

        patched.setattr(Mirror, "_wait", until_some_failed)
        with killed_in_backward(3):
            run(tmp_path / "here", "resume=auto")
    assert json.loads((tmp_path / "here/checkpoints/last/state.json").read_text())["state"]["step"] == 4
    assert saved_step(objects(url)) == 2, "the files went there, and no record names them"
    with killed_in_backward(1):
        run(tmp_path / "here", "resume=auto")
    assert saved_step(objects(url)) == 4, "it continued from its own state, and sent that"


def saved_step(contents: dict[str, bytes]) -> int:
    newest = json.loads(max((key, body) for key, body in contents.items() if key.startswith(".ledger/0"))[1])
    (step,) = {key.split("/")[1] for key in newest["content"]["fixed"] if key.startswith("checkpoints/last")}
    return int(step.removeprefix("last-"))


@pytest.mark.thorough
def test_folds_are_kept_and_continue_too(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folds = ("folds.count=2", "data.dev=null")
    run(tmp_path / "whole", *folds, kept=False)
    saved, saves = Mirror.saved, []

    def killed(self: Mirror) -> None:
        saves.append(saved(self))
        if len(saves) == 11:
            raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(Mirror, "saved", killed)
        run(tmp_path / "here", *folds)
    assert (tmp_path / "here/fold-0/result.json").exists() and not (tmp_path / "here/fold-1/result.json").exists()
    shutil.rmtree(tmp_path / "here")
    run(tmp_path / "elsewhere", "resume=auto", *folds)
    for fold in ("fold-0", "fold-1"):
        name = f"{fold}/checkpoints/best-1/model.safetensors"
        assert (tmp_path / "elsewhere" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_training_continues_while_the_store_is_unreachable(
    run: Run, tmp_path: Path, s3: Server, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mirrors, "PAUSE_S", 0.05)
    monkeypatch.setattr("nlu.storage.bucket.RETRY_DELAYS_S", ())
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


@pytest.mark.thorough
def test_an_unreachable_store_is_reported_at_the_end_with_the_remedy(
    run: Run, tmp_path: Path, s3: Server, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mirrors, "EXIT_WAIT_S", 0.5)
    monkeypatch.setattr(mirrors.Mirror, "_send", _never)
    with pytest.raises(MirrorUnavailable, match="resume=auto sends the rest") as raised:
        run(tmp_path / "here")
    # A trial is not failed by it, and its search starts it again.
    assert is_temporary(raised.value)
    assert (tmp_path / "here/result.json").exists()
    monkeypatch.undo()
    s3_again = s3.bucket(monkeypatch)
    assert s3_again and "result.json" not in objects(url)
    run(tmp_path / "here", "resume=auto")
    assert "result.json" in objects(url)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
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


@pytest.mark.parametrize(
    ("number", "sends", "limit_s"),
    [(signal.SIGTERM, True, mirrors.EXIT_WAIT_S), (signal.SIGINT, False, 0.5), (None, True, mirrors.FAILED_WAIT_S)],
)
def test_a_signal_at_the_end_leaves_the_mirror_its_usual_time_and_a_failure_less(
    run: Run, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch, number: signal.Signals | None, sends: bool,
    limit_s: float,
) -> None:  # fmt: skip
    limits: list[float] = []
    wait = Mirror._wait

    def noted(self: Mirror, limit_s: float) -> None:
        limits.append(limit_s)
        wait(self, limit_s)

    def at_the_end(*_: Any) -> dict[str, Any]:
        if number is None:
            raise RuntimeError("a bug")
        signal.raise_signal(number)
        raise AssertionError("the signal was left unheard")

    with monkeypatch.context() as patched:
        patched.setattr("nlu.training.finish.result_of", at_the_end)
        patched.setattr(Mirror, "_wait", noted)
        if not sends:
            patched.setattr(mirrors, "EXIT_WAIT_S", limit_s)
            patched.setattr(mirrors, "GIVE_UP_S", 0.1)
            patched.setattr(Mirror, "_send", _never)
        if number is None:
            with pytest.raises(RuntimeError, match="a bug"):
                run(tmp_path / "here")
        else:
            run(tmp_path / "here", status=130 if number == signal.SIGINT else 75)
    assert limits == [limit_s]
    # Missing objects are reported even if a signal decides the status.
    said = (tmp_path / "here/log.txt").read_text()
    assert ("the same command with resume=auto sends the rest" in said) != sends


def test_a_moment_without_credentials_is_temporary_also_at_the_start(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def expired(self: Ledger, *_: Any) -> None:
        raise CredentialsUnavailable("the token has expired; renew AWS_SESSION_TOKEN")

    with monkeypatch.context() as patched, pytest.raises(UserError) as raised:
        patched.setattr(Ledger, "newest", expired)
        run(tmp_path / "here")
    assert is_temporary(raised.value) and not (tmp_path / "here/config.yaml").exists()
    run(tmp_path / "here")


def _never(self: Mirror, snapshot: object) -> None:
    raise mirrors.Unreachable("no answer")


@pytest.mark.thorough
def test_a_mirror_that_holds_a_run_is_not_written_over(run: Run, tmp_path: Path, url: str) -> None:
    run(tmp_path / "here")
    before = objects(url)
    with pytest.raises(UserError, match="holds a run; nothing was written; set resume=auto"):
        run(tmp_path / "there", "seed=2")
    assert objects(url) == before and not (tmp_path / "there").exists()


@pytest.mark.thorough
def test_another_configuration_cannot_continue_a_mirror(run: Run, tmp_path: Path, url: str) -> None:
    run(tmp_path / "here")
    with pytest.raises(UserError, match="another configuration"):
        run(tmp_path / "there", "seed=2", "resume=auto")
    assert json.loads(objects(url)["result.json"])["seed"] == 1


@pytest.mark.thorough
def test_a_folder_with_another_run_is_not_mixed_with_the_mirror(run: Run, tmp_path: Path) -> None:
    run(tmp_path / "here")
    run(tmp_path / "there", "seed=2", kept=False)
    with pytest.raises(UserError, match="both hold a run"):
        run(tmp_path / "there", "seed=2", "resume=auto")
    assert json.loads((tmp_path / "there/result.json").read_text())["seed"] == 2


def test_a_prefix_that_holds_something_else_is_refused(run: Run, tmp_path: Path, url: str) -> None:
    ObjectStore(url, "mirror").put("thesis.txt", b"three years of work")
    with pytest.raises(UserError, match=r"holds thesis\.txt"):
        run(tmp_path / "here")
    assert objects(url) == {"thesis.txt": b"three years of work"}


def test_a_damaged_object_is_named_and_not_continued(run: Run, tmp_path: Path, url: str) -> None:
    with killed_in_backward(4):
        run(tmp_path / "here")
    (name,) = (key for key in objects(url) if key.endswith("last-3/model.safetensors"))
    content = bytearray(objects(url)[name])
    content[-1] ^= 1
    ObjectStore(url, "mirror").put(name, bytes(content))
    with pytest.raises(UserError, match="model.safetensors is damaged: its sha256"):
        run(tmp_path / "there", "resume=auto")


@pytest.mark.parametrize("place", ["../outside", "/tmp/outside", "a/../../outside"])
def test_a_record_that_names_a_place_outside_of_the_folder_is_refused(
    run: Run, tmp_path: Path, url: str, place: str
) -> None:
    document = {"id": "x", "kind": "release", "holder": {}, "content": {"id": "x", "fixed": {}, "loose": {place: 1}}}
    ObjectStore(url, "mirror").put(".ledger/0000000001.json", json.dumps(document).encode())
    with pytest.raises(UserError, match="a path outside its folder"):
        run(tmp_path / "here", "resume=auto")
    assert not (tmp_path / "outside").exists()


def test_a_run_whose_mirror_was_taken_over_ends_and_changes_nothing_there(
    run: Run, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, saves = Mirror.saved, []

    def overtaken(self: Mirror) -> None:
        saves.append(1)
        if len(saves) == 3:
            while json.loads((tmp_path / "here/.mirror.json").read_text())["saves"] == []:
                time.sleep(0.01)
            other = mirrors.Ledger(ObjectStore(url, "mirror"))
            other._newest = other.newest()
            other.append("claim", other._newest.content)
        saved(self)
        # Sending is another thread's work, which a run of this size would outrun.
        while self._thread.is_alive() and self._pending is not None:
            time.sleep(0.01)

    monkeypatch.setattr(Mirror, "saved", overtaken)
    with pytest.raises(TakenOver):
        run(tmp_path / "here")
    assert "result.json" not in objects(url) and not (tmp_path / "here/result.json").exists()


class Lost(ObjectStore):
    """Carries out some puts on condition, and then does not answer."""

    puts = 0

    def put_new(self, key: str, content: bytes) -> bool:
        written = super().put_new(key, content)
        Lost.puts += 1
        if Lost.puts % 3 == 0:
            raise mirrors.Unreachable("the answer is lost")
        return written


@pytest.mark.thorough
def test_a_holder_keeps_its_mirror_if_answers_to_its_records_are_lost(
    run: Run, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirrors, "ObjectStore", Lost)
    monkeypatch.setattr(mirrors, "PAUSE_S", 0.01)
    run(tmp_path / "here")
    assert Lost.puts > 3 and json.loads(objects(url)["result.json"])["steps"] == 8


@pytest.mark.thorough
def test_the_clean_up_at_the_end_of_a_run_spares_mirrors_below_its_mirror(run: Run, tmp_path: Path, url: str) -> None:
    with killed_in_backward(6):
        run(tmp_path / "here")
    run(tmp_path / "below", f"mirror={url}/below", kept=False)
    below = {key: body for key, body in objects(url).items() if key.startswith("below/")}
    run(tmp_path / "here", "resume=auto")
    there = objects(url)
    assert {key: body for key, body in there.items() if key.startswith("below/")} == below and "result.json" in there


@pytest.fixture
def bucket(url: str) -> Bucket:
    return open_bucket("s3", url.removeprefix("s3://").removesuffix("/run"))


def test_uploads_of_earlier_processes_are_aborted_and_those_of_others_are_not(url: str, bucket: Bucket) -> None:
    for key in ("checkpoints/last-3/model", "predictions/test.jsonl"):
        bucket.begin(f"run/{key}")
    kept = {bucket.begin("run/notes"), bucket.begin("run/5/checkpoints/last-3/model")}
    bucket.put("run/5/.ledger/0000000001.json", b"{}")
    abort_uploads(ObjectStore(url, "mirror"), ["predictions/test.jsonl"])
    assert {upload.name for upload in bucket.uploads_below("run/")} == kept


@pytest.mark.parametrize("begun", [[], ["run/checkpoints/last-3/model"]])
def test_an_upload_of_a_mirror_below_that_begins_meanwhile_is_not_aborted(
    url: str, bucket: Bucket, monkeypatch: pytest.MonkeyPatch, begun: list[str]
) -> None:
    for key in begun:
        bucket.begin(key)
    asked: list[str] = []

    def then_begins(name: str) -> Callable[..., Iterator[Any]]:
        verb = getattr(S3Bucket, name)

        def done(self: S3Bucket, prefix: str, **options: Any) -> Iterator[Any]:
            found = list(verb(self, prefix, **options))
            asked.append(name)
            if len(asked) == 1:
                bucket.put("run/5/.ledger/0000000001.json", b"{}")
                bucket.begin("run/5/checkpoints/last-3/model")
            return iter(found)

        return done

    with monkeypatch.context() as racing:
        for name in ("entries", "uploads_below"):
            racing.setattr(S3Bucket, name, then_begins(name))
        abort_uploads(ObjectStore(url, "mirror"), [])
    assert [upload.key for upload in bucket.uploads_below("run/")] == ["run/5/checkpoints/last-3/model"]
    assert begun or asked == ["uploads_below"], "a mirror may hold many files"


def test_a_mirror_that_cannot_be_cleaned_up_is_given_back(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: S3Bucket, prefix: str) -> Iterator[Any]:
        raise KeyError("no such answer")

    monkeypatch.setattr(S3Bucket, "uploads_below", broken)
    (tmp_path / "here").mkdir()
    with pytest.raises(KeyError):
        Mirror(url, tmp_path / "here").open(may_hold_a_run=True)
    newest = Ledger(ObjectStore(url, "mirror")).newest()
    assert newest is not None and newest.kind == RELEASE


def test_a_search_does_not_mirror_the_folders_of_its_jobs(tmp_path: Path) -> None:
    for place in ("search.json", "3/config.yaml", "3/log.txt", "summary/trials.tsv"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text("x")
    found = versions(tmp_path, tmp_path / ".mirror", is_search=True)
    assert [version.place for version in found] == ["search.json", "summary/trials.tsv"]


@pytest.mark.parametrize("has_links", [True, False])
def test_a_page_that_is_replaced_while_it_is_linked_has_the_size_of_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    page, link = tmp_path / "index.html", os.link
    page.write_text("old")

    def replaced_and_linked(path: Path, place: Path) -> None:
        # As the process does that writes the page of a search.
        (tmp_path / "new").write_text("the new page")
        (tmp_path / "new").replace(page)
        if not has_links:
            raise PermissionError
        link(path, place)

    monkeypatch.setattr(os, "link", replaced_and_linked)
    (version,) = versions(tmp_path, tmp_path / ".mirror", is_search=True)
    assert (version.content(), version.size) == (b"the new page", 12)
    status = page.stat()
    assert version.identity == (status.st_ino, 12, status.st_mtime_ns)


def test_a_search_touches_no_checkpoint_that_a_trial_is_saving(tmp_path: Path, url: str) -> None:
    (tmp_path / "search.json").write_text("x")
    # A moment of a save: the new state is whole, and not yet renamed into its place.
    new = tmp_path / "3/checkpoints/.last.new"
    new.mkdir(parents=True)
    (new / "state.json").write_text('{"state": {"step": 4}}')
    mark_whole(new)
    mirror = Mirror(url, tmp_path, is_search=True)
    mirror.saved()
    assert new.is_dir() and mirror._pending is not None and mirror._pending.names == {}


def test_a_local_error_while_sending_is_reported_as_an_incomplete_mirror(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirrors, "EXIT_WAIT_S", 0.5)
    monkeypatch.setattr(Mirror, "_note", lambda self, own_id: (_ for _ in ()).throw(OSError(28, "no space left")))
    with pytest.raises(UserError, match="resume=auto sends the rest"):
        run(tmp_path / "here")


def test_a_store_that_is_unreachable_at_the_start_is_reported_before_any_write(
    run: Run, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("nlu.storage.bucket.RETRY_DELAYS_S", ())
    with pytest.raises(UserError, match=f"AWS_ENDPOINT_URL.*or leave out mirror={url}"):
        run(tmp_path / "here")
    assert not (tmp_path / "here").exists()


def test_an_invalid_endpoint_is_one_sentence_that_names_the_variable(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "localhost:9000")
    with pytest.raises(UserError, match="correct AWS_ENDPOINT_URL"):
        Mirror(url, tmp_path / "here").open(may_hold_a_run=False)
    with pytest.raises(UserError, match="correct AWS_ENDPOINT_URL"):
        ObjectJournalBackend(url)


def test_partial_files_of_an_interrupted_fetch_do_not_get_into_the_folder(tmp_path: Path, url: str) -> None:
    store = ObjectStore(url, "mirror")
    store.put("log.txt", b"begun")
    ledger = mirrors.Ledger(store)
    ledger.append("save", {"id": "x", "fixed": {}, "loose": {"log.txt": 5}, "ended": False})
    left = tmp_path / "here/.mirror/incoming/.model.safetensors.0123.part"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    assert bring_back(url, tmp_path / "here")
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == [".mirror", ".mirror.json", "log.txt"]


def test_a_holder_that_was_overtaken_while_it_slept_writes_over_nothing(
    run: Run, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with killed_in_backward(4):
        run(tmp_path / "here")
    sleeper = Mirror(url, tmp_path / "here")
    sleeper.open(may_hold_a_run=True)
    other = mirrors.Ledger(ObjectStore(url, "mirror"))
    other._newest = other.newest()
    other.append("claim", other._newest.content)
    before = objects(url)
    (tmp_path / "here/train.tsv").write_text("stale")
    with pytest.raises(TakenOver):
        sleeper.close()
    assert {key: body for key, body in objects(url).items() if "beat" not in key} == {
        key: body for key, body in before.items() if "beat" not in key
    }


def read(reference: str, *names: str) -> dict[str, bytes]:
    """The weights that a command reads of a run, by the name of the checkpoint."""
    return {name: (locate(reference, name).checkpoint / "model.safetensors").read_bytes() for name in names}


@pytest.mark.thorough
def test_a_run_that_is_still_mirrored_is_read_by_the_names_it_has_in_its_folder(
    run: Run, tmp_path: Path, url: str
) -> None:
    with killed_in_backward(8):
        run(tmp_path / "here")
    assert {key.split("/")[1] for key in objects(url) if key.startswith("checkpoints")} == {
        "best-step-3", "best-step-6", "last-7",
    }  # fmt: skip
    assert read(url, "best-1", "best-2", "last") == read(str(tmp_path / "here"), "best-1", "best-2", "last")
    assert locate(f"{url}/best-2").checkpoint.name == "best-2"
    (found,) = find_runs([records_of(url, "run")])[0]
    (here,) = find_runs([tmp_path / "here"])[0]
    assert (found.state, found.metrics) == (here.state, here.metrics) and found.state != "complete"


@pytest.mark.thorough
def test_a_run_that_continues_while_it_is_read_is_read_as_of_one_record(
    run: Run, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with killed_in_backward(5):
        run(tmp_path / "here")
    gone_on = []

    def continue_first(items: list, title: str) -> None:
        if len(gone_on) < 2:
            gone_on.append(title)
            with killed_in_backward(2) if len(gone_on) == 1 else nullcontext():
                run(tmp_path / "here", "resume=auto")
        run_copies(items, title)

    run_copies = copies.run_copies
    monkeypatch.setattr(copies, "run_copies", continue_first)
    monkeypatch.setattr(copies, "AGAIN_S", Pauses(0, 0, 9))
    assert read(url, "best-1") == read(str(tmp_path / "here"), "best-1") and len(gone_on) == 2
    assert read(url, "last", "best-2") == read(str(tmp_path / "here"), "last", "best-2")


def test_weights_that_are_not_what_the_record_says_are_not_read(run: Run, tmp_path: Path, url: str) -> None:
    with killed_in_backward(5):
        run(tmp_path / "here")
    store = ObjectStore(url, "mirror")
    content = store.get("checkpoints/best-step-3/model.safetensors")
    store.put("checkpoints/best-step-3/model.safetensors", content[:-1] + b"?")
    with pytest.raises(UserError, match="best-step-3/model.safetensors is damaged: its sha256"):
        locate(url)


@pytest.mark.thorough
def test_a_result_that_no_record_names_yet_does_not_make_a_run_complete(run: Run, tmp_path: Path, url: str) -> None:
    with killed_in_backward(5):
        run(tmp_path / "here")
    ObjectStore(url, "mirror").put("result.json", b"{}")
    assert not (records_of(url, "run") / "result.json").exists()


@pytest.mark.thorough
def test_each_mirror_of_a_folder_is_read_as_named_by_its_record(run: Run, tmp_path: Path, url: str) -> None:
    run(tmp_path / "0", f"mirror={url}/0", kept=False)
    with killed_in_backward(5):
        run(tmp_path / "1", f"mirror={url}/1", kept=False)
    ObjectStore(url, "mirror").put("1/result.json", b"{}")
    ObjectStore(url, "mirror").put("notes/result.json", b"{}")
    top = records_of(url, "run")
    assert [found.state == "complete" for found in find_runs([top])[0]] == [True, False]
    assert (top / "notes/result.json").exists() and not list(top.rglob("*.safetensors"))
    for number in "01":
        assert read(str(top / number), "best-1") == read(str(tmp_path / number), "best-1")


def fetched_from_mirror(tmp_path: Path, url: str) -> Disk:
    """Send the folder here to its mirror and fetch it there; returns what was done to the disk, all of it synced."""
    sent = Mirror(url, tmp_path / "here")
    sent.open(may_hold_a_run=False)
    sent.close()
    with followed() as disk:
        fetched = Mirror(url, tmp_path / "there")
        fetched.open(may_hold_a_run=True)
    fetched.close()
    disk.require_on_disk()
    return disk


def test_fetched_files_are_synced_before_they_are_noted_and_config_yaml_comes_last(tmp_path: Path, url: str) -> None:
    write_state(tmp_path / "here", 3, "weights")
    (tmp_path / "here/predictions").mkdir()
    (tmp_path / "here/predictions/dev.jsonl").write_text("{}")
    disk = fetched_from_mirror(tmp_path, url)
    order = [path.relative_to(tmp_path / "there").as_posix() for path in disk.named]
    placed = [place for place in order if not place.startswith((".mirror/", ".mirror.json"))]
    assert set(placed) == {"predictions/dev.jsonl", "train.tsv", "checkpoints/last", "config.yaml"}
    assert placed[-1] == "config.yaml" and order[-1] == ".mirror.json"


@pytest.mark.parametrize("failed", [False, True])
def test_a_failed_run_waits_a_minute_for_its_mirror_and_a_finished_one_longer(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch, failed: bool
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(Mirror, "_wait", lambda self, limit_s: waits.append(limit_s))
    write_state(tmp_path / "here", 3, "weights")
    mirror = Mirror(url, tmp_path / "here")
    mirror.open(may_hold_a_run=False)
    with suppress(Killed), closed_at_the_end(mirror):
        if failed:
            raise Killed
    assert waits == [60.0 if failed else 1800.0]


def test_the_end_of_a_run_deletes_unnamed_objects_but_none_of_mirrors_below(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ObjectStore(url, "mirror")
    write_state(tmp_path / "here", 3, "weights")
    mirror = Mirror(url, tmp_path / "here")
    mirror.open(may_hold_a_run=False)
    kept = ("below/.ledger/0000000001.json", "below/checkpoints/last-1/model", "notes/of-checkpoints")
    for key in ("checkpoints/last-99/model", "fold-1/checkpoints/best-step-9/model", *kept):
        store.put(key, b"x")
    (tmp_path / "here/result.json").write_text("{}")
    done: list[str] = []
    delete, held = ObjectStore.delete, Ledger.require_held
    monkeypatch.setattr(ObjectStore, "delete", lambda self, key: done.append(key) or delete(self, key))
    monkeypatch.setattr(Ledger, "require_held", lambda self: done.append("held") or held(self))
    mirror.close()
    there = {key for key in objects(url) if not key.startswith(".ledger/")}
    state = {f"checkpoints/last/{name}" for name in ("COMPLETE", "model.safetensors", "state.json")}
    assert {key for key in there if "checkpoints" in key.split("/")} == {kept[1], *state}
    assert set(kept) <= there
    gone = [place for place, key in enumerate(done) if key != "held" and not key.startswith(".ledger/")]
    assert len(gone) == 2 and all(done[place - 1] == "held" for place in gone)


def test_a_wait_for_the_mirror_is_logged_every_minute_and_ends_in_time(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, said = [1000.0], list[str]()

    class Clock:
        def monotonic(self) -> float:
            return now_s[0]

    class Thread:
        def is_alive(self) -> bool:
            return True

        def join(self, seconds: float) -> None:
            now_s[0] += 10.0

    mirror = Mirror(url, tmp_path, say=said.append)
    monkeypatch.setattr(mirrors, "time", Clock())
    mirror._thread = Thread()  # type: ignore[assignment]
    with pytest.raises(
        MirrorUnavailable, match="did not accept it for 3 minutes; the same command with resume=auto sends"
    ):
        mirror._wait(180.0)
    assert now_s == [1190.0] and said == [f"ended; waiting until all of it is in {url}"] * 2, "after 70 and 140 s"


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
    newest = Ledger(ObjectStore(url, "mirror")).newest()
    assert newest is not None and note == {"mirror": url, "saves": [], "brought": newest.content["id"]}
    assert not (tmp_path / "there/checkpoints/last").exists(), "the state stays where it is"
    assert json.loads((tmp_path / "here/.mirror.json").read_text()) == {"mirror": url, "saves": [newest.content["id"]]}
    (tmp_path / "there/.mirror.json").unlink()
    with pytest.raises(UserError, match="there holds a different run than s3://.*; move it away"):
        bring_back(url, tmp_path / "there")


@pytest.mark.parametrize("more", [0, 1])
def test_a_file_goes_in_one_piece_up_to_a_size_read_as_it_was_at_the_save(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    sent: list[str] = []
    for verb in ("put", "put_file"):
        real = getattr(ObjectStore, verb)
        noting = lambda self, key, *rest, verb=verb, real=real: sent.append(f"{verb} {key}") or real(self, key, *rest)  # noqa: E731
        monkeypatch.setattr(ObjectStore, verb, noting)
    monkeypatch.setattr(mirrors, "SINGLE_PUT_BYTES", 10)
    write_state(tmp_path / "here", 3, "weights")
    (tmp_path / "here/log.txt").write_bytes(bytes(10 + more))
    mirror = Mirror(url, tmp_path / "here")
    mirror.open(may_hold_a_run=False)
    mirror.close()
    assert [text for text in sent if text.endswith("log.txt")] == [f"put{'_file' if more else ''} log.txt"]


def test_folders_called_like_jobs_are_left_out_of_a_search_only_at_its_top(tmp_path: Path) -> None:
    for place in ("3/log.txt", "summary/3/x.tsv", ".lock", ".jobs/x", "a.tmp", ".a.tmp", "__pycache__/x"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "a.tmp")
    for is_search, expected in (
        (True, ["a.tmp", "summary/3/x.tsv"]),
        (False, ["a.tmp", "3/log.txt", "summary/3/x.tsv"]),
    ):
        found = versions(tmp_path, tmp_path / ".mirror" / str(is_search), is_search=is_search)
        assert [version.place for version in found] == expected and not any(version.is_fixed for version in found)


def test_the_names_of_the_configurations_of_folds_are_on_the_disk_too(tmp_path: Path, url: str) -> None:
    for fold in ("fold-0", "fold-1"):
        write_state(tmp_path / f"here/{fold}", 3, "weights")
    (tmp_path / "here/config.yaml").write_text("x")
    disk = fetched_from_mirror(tmp_path, url)
    configs = {tmp_path / "there" / place for place in ("config.yaml", "fold-0/config.yaml", "fold-1/config.yaml")}
    assert set(disk.named[-4:-1]) == configs, "what makes them runs comes last"


def test_auto_on_another_machine_is_the_number_of_processes_of_the_mirrored_run(
    tmp_path: Path, url: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path / "first")
    monkeypatch.setattr(counting, "idle_cores", lambda: 4)
    options = (*TINY, *files(tmp_path, train_rows=40, dev_rows=11), "trainer.batch_size=32", "trainer.devices=auto")
    elsewhere = composed(*options, f"mirror={url}", "resume=auto")
    assert counting.with_count(elsewhere, tmp_path / "second").trainer.devices == 1
    assert counting.with_count(composed(*options, "resume=auto"), tmp_path / "third").trainer.devices == 4
