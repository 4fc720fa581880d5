"""Files of data sets on the Hugging Face hub, from a server that answers the requests of huggingface_hub."""

import gzip
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from nlu.config.errors import DataError, UserError
from nlu.data.dataset import Files
from nlu.storage.required import ask

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

    def commit(self, path: str) -> str:
        """Return the name of the present state of the revision in a path."""
        revision = next((name for name in self.revisions if f"/{name}/" in path), "main")
        return hashlib.sha1(repr(self.revisions[revision]).encode()).hexdigest()


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        where = urlsplit(self.path)
        path = unquote(where.path)
        self.server.asked.append(f"{self.command} {path}")
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
        self.send_header("ETag", hashlib.sha1(body).hexdigest())
        self.send_header("X-Repo-Commit", self.server.commit(path))
        self.end_headers()
        if self.command == "GET":
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
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache / "hub"))
        yield server
        server.shutdown()


def read(reference: str) -> list[bytes]:
    return [source.path.read_bytes() for source in Files(train=f"hf://datasets/{NAME}{reference}").sets()["train"]]


def resolved(hub: Hub) -> int:
    return sum("/resolve/" in path for path in hub.asked if path.startswith("GET"))


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
    with pytest.raises(DataError, match=r"data\.train hf://.*does not give it.*set HF_ENDPOINT"):
        read("/data/train-00001.csv")


@pytest.mark.parametrize(
    ("reference", "said"),
    [("/data/other.csv", "cannot be fetched.*name a file"), ("/data/other-*.csv", "which no file matches"),
     ("@v9/data/train-00000.csv", "does not give it"), ("", "must read hf://datasets/ORG/NAME"),
     ("/data", "cannot be fetched.*/\\*.parquet")],
)  # fmt: skip
def test_what_the_hub_does_not_have_is_said_with_what_helps(hub, reference, said):
    with pytest.raises(UserError, match=said):
        read(reference)


def test_a_wrong_token_is_no_access_and_is_never_shown(hub, monkeypatch, caplog):
    monkeypatch.setenv("HF_TOKEN", "another-token")
    with pytest.raises(DataError, match="or HF_TOKEN if it is private") as error:
        read("/data/train-00000.csv")
    assert "another-token" not in f"{error.value}{error.value.__cause__}{caplog.text}"


def test_files_are_asked_for_before_jobs_are_submitted(hub):
    names = ("/data/train-00000.csv", "/data/train-*.csv", "/data/other.csv", "@v9/data/train-00000.csv")
    answers = ask(f"hf://datasets/{NAME}{name}" for name in names)
    assert [answers[f"hf://datasets/{NAME}{name}"] for name in names] == [True, True, False, False]
