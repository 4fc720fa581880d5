"""Each kind of fault as a client sees it, on a real S3 server."""

import os
from collections.abc import Iterator

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, ConnectionError, HTTPClientError
from faulty_proxy import KINDS, FaultyProxy, at_random

pytestmark = pytest.mark.services

ONCE = Config(retries={"total_max_attempts": 1})


class Store:
    """A prefix of the bucket behind a proxy, whose next request meets `fault`."""

    def __init__(self, url: str) -> None:
        self.bucket, _, self.prefix = url.removeprefix("s3://").partition("/")
        self.fault: str | None = None
        self.proxy = FaultyProxy.before(os.environ["AWS_ENDPOINT_URL"], lambda method, target: self.fault)
        self.faulty = boto3.client("s3", endpoint_url=self.proxy.url, config=ONCE)
        self.plain = boto3.client("s3", config=ONCE)

    def put(self, name: str, content: bytes) -> None:
        self.faulty.put_object(Bucket=self.bucket, Key=f"{self.prefix}/{name}", Body=content)

    def get(self, name: str) -> bytes:
        return self.faulty.get_object(Bucket=self.bucket, Key=f"{self.prefix}/{name}")["Body"].read()

    def names(self, client: object | None = None) -> list[str]:
        found = (client or self.faulty).list_objects_v2(Bucket=self.bucket, Prefix=self.prefix)  # type: ignore[union-attr]
        return [entry["Key"].rpartition("/")[2] for entry in found.get("Contents", [])]


@pytest.fixture
def store(s3_url: str) -> Iterator[Store]:
    made = Store(s3_url)
    with made.proxy:
        yield made


def test_without_faults_every_request_succeeds(store: Store) -> None:
    content = os.urandom(3_000_000)
    store.put("größe 1", content)
    assert store.get("größe 1") == content and store.names() == ["größe 1"]
    assert store.proxy.requests == 3 and not store.proxy.counts


@pytest.mark.parametrize(
    ("fault", "error"),
    [("500", ClientError), ("503", ClientError), ("reset", (ConnectionError, HTTPClientError))],
)
def test_a_refused_put_was_not_carried_out(store: Store, fault: str, error: type[Exception]) -> None:
    store.fault = fault
    with pytest.raises(error):
        store.put("a", b"abc")
    assert store.names(store.plain) == []
    assert store.proxy.counts == {fault: 1}


@pytest.mark.parametrize("fault", ["lost", "truncated"])
def test_a_put_whose_reply_is_lost_or_cut_was_carried_out(store: Store, fault: str) -> None:
    store.fault = fault
    with pytest.raises((ConnectionError, HTTPClientError)):
        store.put("a", b"abc")
    assert store.names(store.plain) == ["a"]


def test_a_truncated_object_ends_early(store: Store) -> None:
    store.put("a", b"x" * 100_000)
    store.fault = "truncated"
    with pytest.raises(Exception, match="(?i)incomplete|closed|broken"):
        store.get("a")


def test_a_stale_listing_lacks_what_came_and_has_what_went(store: Store) -> None:
    store.put("old", b"")
    store.fault = "stale"
    store.put("new", b"")
    assert store.names() == [], "never asked before: without what was just put"
    store.fault = None
    assert store.names() == ["new", "old"]
    store.faulty.delete_object(Bucket=store.bucket, Key=f"{store.prefix}/old")
    store.fault = "stale"
    assert store.names() == ["new", "old"]
    assert store.get("new") == b"", "an object itself is as it is"
    assert store.proxy.counts == {"stale": 2}


def test_faults_at_random_are_of_all_kinds_and_as_frequent_as_said() -> None:
    choose = at_random(0.1, seed=1)
    found = [choose("GET", "/") for _ in range(5000)]
    assert 400 < len([kind for kind in found if kind]) < 600
    assert {kind for kind in found if kind} == set(KINDS)
