"""Which values of a configuration are remote addresses, and what is said of those that are not there.

The servers are real ones on this machine, of http, S3 and OSS; nothing is downloaded or written.
"""

import socket
import time

import boto3
import pytest

from nlu.config.errors import UserError
from nlu.storage import required
from nlu.storage.required import addresses_of, ask, require_addresses
from tests.buckets import Server

CONFIG = {
    "data": {
        "train": ["s3://b/a.csv", "here.csv", "far.csv"], "dev": {"good": "OSS://b/good.txt"}, "test": None,
        "urls": {"far.csv": "https://x/far.csv#sha256=0", "here.csv": "https://x/here.csv", "unused.csv": "https://x/u"},
    },
    "tokenizer": {"vocab": "http://x/vocab.txt"},
    "model": {"pretrained": "hf://org/name@main"},
    "method": {"of": {"teacher": "s3://b/teacher/best", "service": "http://x/api"}},
    "tracker": {"uri": "s3://b/mlflow"}, "trial": {"storage": "s3://b/journal"}, "note": "s3://b/before",
    "run": "s3://b/run", "mirror": "s3://b/runs", "out": "outputs/x", "output": "odps://p/tables/t",
}  # fmt: skip


def test_the_addresses_of_files_are_found_by_their_keys() -> None:
    assert dict(addresses_of(CONFIG)) == {
        "data.train": "s3://b/a.csv", "data.dev.good": "OSS://b/good.txt", "tokenizer.vocab": "http://x/vocab.txt",
        "model.pretrained": "hf://org/name@main", "method.of.teacher": "s3://b/teacher/best", "run": "s3://b/run",
        "mirror": "s3://b/runs",
    }  # fmt: skip


@pytest.fixture
def bucket(s3: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket with rows, a mirror, and an output of each kind."""
    url = s3.bucket(monkeypatch)
    for key in ("rows/a.csv", "rows/part-1.csv", "run/.mirror/0", "taken/a", "begun/.begun", "begun/a", "file"):
        boto3.client("s3", endpoint_url=s3.address).put_object(Bucket=url.removeprefix("s3://"), Key=key, Body=b"x")
    return url


def problems(configs: dict[int, dict], **options: bool) -> list[str]:
    with pytest.raises(UserError) as raised:
        require_addresses(configs, **options)
    return raised.value.problems


def test_objects_folders_patterns_and_runs_are_found_in_a_bucket(bucket: str) -> None:
    there = ("rows/a.csv", "rows", "rows/", "rows/part-*.csv", "r*/**/*.csv", "run", "run/best", "run/best-2")
    absent = ("rows/b.csv", "row", "rows/*.tsv", "rows/x/*.csv", "other/best", "other/worst")
    assert ask(f"{bucket}/{key}" for key in there + absent) == {
        **{f"{bucket}/{key}": True for key in there}, **{f"{bucket}/{key}": False for key in absent},
    }  # fmt: skip
    assert list(ask(["s3://there-is-no-such-bucket/a.csv"]).values()) == [False]


def test_all_problems_of_all_jobs_are_said_together_each_once(bucket: str, server, capsys) -> None:
    server.files["/there.csv"] = b"x"
    server.faults["/private.csv"] = [403]
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        away = f"http://127.0.0.1:{closed.getsockname()[1]}/away.csv"
        own = {"data": {"train": f"{bucket}/no.csv", "dev": [away, server.url("/there.csv")]}}
        configs = {0: own, 1: {**own, "mirror": "s3://no-such-one/runs"}, 2: own | {"run": server.url("/private.csv")}}
        found = problems({**configs, 3: own})
    assert found[:2] == [
        f"data.train is {bucket}/no.csv, which does not exist; correct data.train",
        "job 1: mirror is s3://no-such-one/runs, but this bucket does not exist; create it, or correct mirror",
    ]
    assert len(found) == 3 and found[2].startswith(
        f"job 2: run is {server.url('/private.csv')}, which cannot be used: "
    )
    assert server.requests == {"/there.csv": 1, "/private.csv": 1}
    said = capsys.readouterr().err
    assert (
        said.startswith(f"nlu: warning: data.dev is {away}, which this machine cannot reach (")
        and said.count("\n") == 1
    )


def test_a_new_output_must_be_free_or_begun_but_a_mirror_may_hold_a_run(bucket: str) -> None:
    for place in ("new", "new/", "begun", "begun/"):
        require_addresses({0: {"out": f"{bucket}/{place}", "mirror": f"{bucket}/taken"}})
    for place in ("taken", "taken/", "file"):
        (problem,) = problems({0: {"out": f"{bucket}/{place}"}})
        assert problem.endswith(", which exists; choose another, or remove it")


def test_jobs_with_rights_of_their_own_may_read_what_this_machine_may_not(monkeypatch, capsys) -> None:
    pytest.importorskip("ossfs")
    from fsspec.config import conf

    from tests.oss_server import KEY, OssServer

    monkeypatch.setitem(conf, "oss", {"key": KEY, "secret": "wrong"})
    with OssServer() as server:
        for name, value in {**server.environment, "FSSPEC_OSS_SECRET": "wrong"}.items():
            monkeypatch.setenv(name, value)
        config = {0: {"data": {"train": "oss://bucket/a.csv"}}}
        (problem,) = problems(config)
        require_addresses(config, are_elsewhere=True)
    assert "which cannot be used: " in problem and "correct FSSPEC_OSS_SECRET" in problem
    assert "the role of the jobs must allow it" in capsys.readouterr().err


def test_a_server_that_does_not_answer_in_time_is_unknown_and_delays_no_other(server, monkeypatch) -> None:
    server.files["/there"] = b"x"
    monkeypatch.setattr(required, "LIMIT_S", 1.0)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        stalled, began_s = f"http://127.0.0.1:{silent.getsockname()[1]}/a", time.monotonic()
        answers = ask([stalled, server.url("/there")])
        assert time.monotonic() - began_s < 10
    assert answers[server.url("/there")] is True and str(answers[stalled]) == "no answer within 1 s"
