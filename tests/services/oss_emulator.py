"""As much of OSS as journals and mirrors use, after Alibaba's reference of PutObject, GetObject, HeadObject,
CopyObject, DeleteObject and GetBucket; it stands in for a real OSS.

Signatures (version 1, HMAC-SHA1) are checked. `versioned=True` behaves as the reference says of a versioned bucket: the
header x-oss-forbid-overwrite is ignored there.
"""

import base64
import hashlib
import hmac
import threading
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import oss2

SUBRESOURCES = oss2.Auth._subresource_key_set
KEY, SECRET = "emulated-key", "emulated-secret"
MODIFIED = "2026-11-23T12:00:00.000Z"


class OssEmulator(ThreadingHTTPServer):
    """A context that serves `objects` (path -> content) on a free port of 127.0.0.1."""

    daemon_threads = True

    def __init__(self, versioned: bool = False):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        self.lock = threading.Lock()
        self.versioned = versioned
        self.token: str | None = None
        """what goes with short-lived keys"""

    @property
    def environment(self) -> dict[str, str]:
        """What a client of it must find in its environment."""
        endpoint = f"http://127.0.0.1:{self.server_port}"
        return {"OSS_ENDPOINT": endpoint, "FSSPEC_OSS_KEY": KEY, "FSSPEC_OSS_SECRET": SECRET}

    def __enter__(self) -> "OssEmulator":
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: OssEmulator
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if not self._is_signed():
            return
        forbidden = self.headers.get("x-oss-forbid-overwrite") == "true" and not self.server.versioned
        if source := self.headers.get("x-oss-copy-source"):
            self._copy(unquote(source))
            return
        with self.server.lock:
            exists = self.path in self.server.objects
            if not (exists and forbidden):
                self.server.objects[self.path] = content
        if exists and forbidden:
            self._fail(409, "FileAlreadyExists", "The object you specified already exists and can not be overwritten.")
        else:
            self._answer(200, b"", {"ETag": f'"{hashlib.md5(content).hexdigest().upper()}"'})

    def _copy(self, source: str) -> None:
        content = next((value for path, value in self.server.objects.items() if unquote(path) == source), None)
        if content is None:
            self._fail(404, "NoSuchKey", "The specified key does not exist.")
            return
        self.server.objects[self.path] = content
        etag = hashlib.md5(content).hexdigest().upper()
        body = f'<CopyObjectResult><ETag>"{etag}"</ETag><LastModified>{MODIFIED}</LastModified></CopyObjectResult>'
        self._answer(200, body.encode(), {"Content-Type": "application/xml"})

    def do_DELETE(self) -> None:
        if self._is_signed():
            self.server.objects.pop(self.path, None)
            self._answer(204, b"", {})

    def do_HEAD(self) -> None:
        if not self._is_signed():
            return
        content = self.server.objects.get(urlsplit(self.path).path)
        if content is None:
            self._answer(404, b"", {})
            return
        etag = hashlib.md5(content).hexdigest().upper()
        self._answer(200, b"", {
            "Content-Length": str(len(content)), "ETag": f'"{etag}"', "Last-Modified": formatdate(usegmt=True),
            "x-oss-object-type": "Normal",
        })  # fmt: skip

    def _list(self, bucket: str, query: dict[str, str]) -> None:
        """What lies below a prefix, all of it in one answer; up to a delimiter as common prefixes."""
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        with self.server.lock:
            keys = {unquote(path): content for path, content in self.server.objects.items()}
        rows, folders = [], set()
        for path, content in sorted(keys.items()):
            key = path.removeprefix(f"/{bucket}/")
            if path == key or not key.startswith(prefix):
                continue
            rest = key[len(prefix) :]
            if delimiter and delimiter in rest:
                folders.add(prefix + rest.partition(delimiter)[0] + delimiter)
                continue
            etag = hashlib.md5(content).hexdigest().upper()
            rows.append(
                f'<Contents><Key>{quote(key)}</Key><LastModified>{MODIFIED}</LastModified><ETag>"{etag}"</ETag>'
                f"<Type>Normal</Type><Size>{len(content)}</Size><StorageClass>Standard</StorageClass></Contents>"
            )
        rows += [f"<CommonPrefixes><Prefix>{quote(folder)}</Prefix></CommonPrefixes>" for folder in sorted(folders)]
        body = (
            f"<ListBucketResult><Name>{bucket}</Name><EncodingType>url</EncodingType>"
            f"<IsTruncated>false</IsTruncated>{''.join(rows)}</ListBucketResult>"
        )
        self._answer(200, body.encode(), {"Content-Type": "application/xml"})

    def do_GET(self) -> None:
        if not self._is_signed():
            return
        parts = urlsplit(self.path)
        if parts.path.count("/") == 1 or parts.path.endswith("/") and parts.path.count("/") == 2:
            self._list(parts.path.strip("/"), dict(parse_qsl(parts.query)))
            return
        content = self.server.objects.get(self.path)
        if content is None:
            self._fail(404, "NoSuchKey", "The specified key does not exist.")
        else:
            self._answer(200, content, {})

    def _is_signed(self) -> bool:
        parts = urlsplit(self.path)
        query = sorted(parse_qsl(parts.query, keep_blank_values=True))
        signed = [name + (f"={value}" if value else "") for name, value in query if name in SUBRESOURCES]
        own = sorted((name.lower(), value) for name, value in self.headers.items() if name.lower().startswith("x-oss-"))
        lines = [
            self.command,
            self.headers.get("Content-MD5", ""),
            self.headers.get("Content-Type", ""),
            self.headers.get("Date", ""),
            *(f"{name}:{value}" for name, value in own),
            unquote(parts.path) + ("?" + "&".join(signed) if signed else ""),
        ]
        if (token := self.server.token) and self.headers.get("x-oss-security-token") != token:
            self._fail(403, "InvalidSecurityToken", "The security token you provided is not valid.")
            return False
        digest = hmac.digest(SECRET.encode(), "\n".join(lines).encode(), "sha1")
        if self.headers.get("Authorization") == f"OSS {KEY}:{base64.b64encode(digest).decode()}":
            return True
        self._fail(403, "SignatureDoesNotMatch", "The request signature we calculated does not match.")
        return False

    def _fail(self, status: int, code: str, message: str) -> None:
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>"
        self._answer(status, body.encode(), {"Content-Type": "application/xml"})

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), "x-oss-request-id": "1", **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Keeps the test output free of the access log."""
