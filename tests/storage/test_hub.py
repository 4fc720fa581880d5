"""Files of data sets on the Hugging Face hub, from a server that answers the requests of huggingface_hub."""

import gzip
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from nlu.config.errors import DataError
from nlu.data.dataset import Files
from nlu.storage.presence import State, ask

NAME = "org/words"
FILES = {
    "data/train-00000.csv": b"text,label\na,1\n", "data/train-00001.csv": b"text,label\nb,0\n",
    "data/deep/er/rows.jsonl.gz": gzip.compress(b'{"text": "c"}\n', mtime=0), "README.md": b"# words\n",
}  # fmt: skip


class Hub(ThreadingHTTPServer):
    """Serves FILES, by revision, to whoever has the token."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.revisions = {"main": dict(FILES), "v1": {"data/train-00000.csv": b"text,label\nold,1\n"}}
        self.asked: list[str] = []


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        where = urlsplit(self.path)
        path = unquote(where.path)
        self.server.asked.append(path)
        found = self.found(path, "true" in parse_qs(where.query).get("recursive", []))
        is_known = self.headers.get("Authorization") == "Bearer secret-token"
        code = None if found is not None else "RevisionNotFound" if "/revision/" in path else "EntryNotFound"
        code = "RepoNotFound" if NAME not in path or not is_known else code
        body = json.dumps({"error": code}).encode() if code else found
        self.send_response(404 if code else 200)
        if code:
            self.send_header("X-Error-Code", code)
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def found(self, path: str, is_recursive: bool) -> object:
        kind, _, rest = path.removeprefix(f"/api/datasets/{NAME}/").removeprefix(f"/datasets/{NAME}/").partition("/")
        revision, _, inner = rest.partition("/")
        files = self.server.revisions.get(revision, {})
        if kind == "resolve":
            return files.get(inner)
        if kind == "tree":
            return self.tree(files, f"{inner}/" if inner else "", is_recursive)
        is_there = path == f"/api/datasets/{NAME}" or (kind == "revision" and rest in self.server.revisions)
        return {"id": NAME, "sha": "a" * 40, "siblings": []} if is_there else None

    def tree(self, files: dict[str, bytes], above: str, is_recursive: bool) -> list[dict[str, object]]:
        entries = {}
        for name, content in files.items():
            head, slash, _ = name.removeprefix(above).partition("/")
            if name.startswith(above) and slash:
                entries[above + head] = {"type": "directory", "oid": "d" * 40, "size": 0, "path": above + head}
            if name.startswith(above) and (is_recursive or not slash):
                oid = hashlib.sha1(content).hexdigest()
                entries[name] = {"type": "file", "oid": oid, "size": len(content), "path": name}
        return list(entries.values())

    def log_message(self, *arguments: object) -> None:
        """Keeps the test output free of the access log."""


@pytest.fixture
def hub(cache, monkeypatch) -> Iterator[Hub]:
    with Hub() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("HF_TOKEN", "secret-token")
        yield server
        server.shutdown()


def read(reference: str) -> list[bytes]:
    return [source.path.read_bytes() for source in Files(train=f"hf://datasets/{NAME}{reference}").sets()["train"]]


def resolved(hub: Hub) -> int:
    return sum("/resolve/" in path for path in hub.asked)


def test_a_file_is_fetched_once_until_the_hub_has_another_of_its_name(hub):
    for _ in range(2):
        assert read("/data/train-00000.csv") == [b"text,label\na,1\n"]
    assert resolved(hub) == 1
    hub.revisions["main"]["data/train-00000.csv"] = b"text,label\nz,1\n"
    assert read("/data/train-00000.csv") == [b"text,label\nz,1\n"]


def test_a_revision_a_pattern_and_a_compressed_file_are_read(hub):
    assert read("@v1/data/train-00000.csv") == [b"text,label\nold,1\n"]
    assert read("/data/train-*.csv") == [FILES["data/train-00000.csv"], FILES["data/train-00001.csv"]]
    assert read("/**/*.jsonl.gz") == [b'{"text": "c"}\n']


def test_without_the_hub_the_file_fetched_last_is_used(hub, monkeypatch, caplog):
    read("/data/train-00000.csv")
    hub.shutdown()
    hub.server_close()
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert read("/data/train-00000.csv") == [FILES["data/train-00000.csv"]]
    assert "cannot be asked" in caplog.text
    with pytest.raises(DataError, match=r"data\.train hf://.*cannot be fetched: .*HF_ENDPOINT and HF_TOKEN"):
        read("/data/train-00001.csv")


@pytest.mark.parametrize(
    ("reference", "said"),
    [("/data/other.csv", "does not exist in the hub.*HF_TOKEN"), ("/data/other-*.csv", "which no file matches"),
     ("@v9/data/train-00000.csv", "does not exist"), ("", "folder of the hub, with README.md"),
     ("/data", "folder of the hub, with .*train-00001.csv.*/\\*.parquet")],
)  # fmt: skip
def test_what_the_hub_does_not_have_is_said_with_what_helps(hub, reference, said):
    with pytest.raises(DataError, match=said):
        read(reference)


def test_a_wrong_token_is_no_access_and_is_never_shown(hub, monkeypatch, caplog):
    monkeypatch.setenv("HF_TOKEN", "another-token")
    with pytest.raises(DataError, match="set HF_TOKEN") as error:
        read("/data/train-00000.csv")
    assert "another-token" not in f"{error.value}{error.value.__cause__}{caplog.text}"


def test_files_are_asked_for_before_jobs_are_submitted(hub):
    names = ("/data/train-00000.csv", "/data/train-*.csv", "/data/other.csv", "@v9/data/train-00000.csv")
    answers = ask((f"hf://datasets/{NAME}{name}", False) for name in names)
    found = [answers[f"hf://datasets/{NAME}{name}", False].state for name in names]
    assert found == [State.THERE, State.THERE, State.ABSENT, State.ABSENT]
