"""OSS as far as transfers, mirrors and journals use it: moto's S3 behind a door that speaks OSS and checks signatures.

The door takes requests signed with version 1 (HMAC-SHA1), renames headers (x-oss-* to x-amz-*) and puts answers into
the form of OSS. It refuses a bulk delete without Content-MD5, as OSS does. It is not OSS, which may be stricter.
"""

import base64
import hashlib
import hmac
import re
import threading
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import parse_qsl, urlencode

import oss2
from moto.s3.models import s3_backends
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

KEY, SECRET, BUCKET = "oss-key", "oss-secret", "bucket"
MARKERS = ("continuation-token", "marker", "part-number-marker")
"""what oss2 sends without a value, which moto does not take"""
SUBRESOURCES = {*oss2.Auth._subresource_key_set, "objectMeta", "bucketInfo"}
S3_AUTHORIZATION = (
    f"AWS4-HMAC-SHA256 Credential={KEY}/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
)

ELSEWHERE = (
    "The bucket you are attempting to access must be addressed using the specified endpoint. Please send all future "
    "requests to this endpoint."
)
"""the answer of OSS for a bucket of another region"""

Environment = dict[str, Any]


class OssServer:
    """A context that serves one empty bucket on a free port of 127.0.0.1.

    It refuses a bucket of `elsewhere` as OSS does if that is in another region. A `versioned` bucket ignores the header
    x-oss-forbid-overwrite, as the reference says. `token` is what goes with short-lived keys; without it, any is taken.
    """

    def __init__(self, bucket: str = BUCKET, elsewhere: str = "far", *, versioned: bool = False) -> None:
        self.bucket, self.elsewhere, self.versioned = bucket, elsewhere, versioned
        self.token: str | None = None
        self._application = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self.methods: list[str] = []

    @property
    def environment(self) -> dict[str, str]:
        """What a client must find in its environment."""
        endpoint = f"http://127.0.0.1:{self._server.server_port}"
        return {"OSS_ENDPOINT": endpoint, "FSSPEC_OSS_KEY": KEY, "FSSPEC_OSS_SECRET": SECRET}

    def __enter__(self) -> "OssServer":
        # The memory behind all servers is that of the process.
        for backend in (backend for account in s3_backends.values() for backend in account.values()):
            if earlier := backend.buckets.get(self.bucket):
                earlier.keys.clear()
                earlier.multiparts.clear()
        self._thread.start()
        oss2.Bucket(oss2.Auth(KEY, SECRET), self.environment["OSS_ENDPOINT"], self.bucket).create_bucket()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _answer(self, environment: Environment, start: Callable[..., Any]) -> Iterable[bytes]:
        query = parse_qsl(environment.get("QUERY_STRING", ""), keep_blank_values=True)
        self.methods.append(f"{environment['REQUEST_METHOD']} {environment['PATH_INFO']}")
        if refused := _refusal(environment, query, self.token):
            return _refuse(start, *refused)
        if environment["PATH_INFO"].strip("/").partition("/")[0] == self.elsewhere:
            return _refuse(start, "403 Forbidden", "AccessDenied", ELSEWHERE)
        if any(name == "delete" for name, _ in query) and "HTTP_CONTENT_MD5" not in environment:
            return _refuse(start, "400 Bad Request", "MissingArgument")
        if is_new := environment.get("HTTP_X_OSS_FORBID_OVERWRITE") == "true" and not self.versioned:
            environment["HTTP_IF_NONE_MATCH"] = "*"
        kept = [(name, value) for name, value in query if value or name not in MARKERS]
        environment["QUERY_STRING"] = urlencode(kept)
        for name in [name for name in environment if name.startswith("HTTP_X_OSS_")]:
            environment["HTTP_X_AMZ_" + name.removeprefix("HTTP_X_OSS_")] = environment.pop(name)
        environment["HTTP_AUTHORIZATION"] = S3_AUTHORIZATION
        answer: list[Any] = []
        body = b"".join(self._application(environment, lambda *values: answer.extend(values)))
        if is_new and answer[0].startswith("412"):
            return _refuse(start, "409 Conflict", "FileAlreadyExists")
        return _translate(answer, body, environment["REQUEST_METHOD"], start)


def _refusal(environment: Environment, query: list[tuple[str, str]], token: str | None) -> tuple[str, str] | None:
    match = re.fullmatch(r"OSS ([^:]+):(.+)", environment.get("HTTP_AUTHORIZATION", ""))
    if match is None:
        return "403 Forbidden", "AccessDenied"
    if match[1] != KEY:
        return "403 Forbidden", "InvalidAccessKeyId"
    if token not in (None, environment.get("HTTP_X_OSS_SECURITY_TOKEN")):
        return "403 Forbidden", "InvalidSecurityToken"
    headers = {name[5:].lower().replace("_", "-"): value for name, value in environment.items() if name[:5] == "HTTP_"}
    signed = sorted((name, value) for name, value in headers.items() if name.startswith("x-oss-"))
    resources = [name + (f"={value}" if value else "") for name, value in sorted(query) if name in SUBRESOURCES]
    path = environment["PATH_INFO"].encode("latin-1").decode() + ("?" + "&".join(resources) if resources else "")
    lines = [
        environment["REQUEST_METHOD"], headers.get("content-md5", ""), environment.get("CONTENT_TYPE", ""),
        headers.get("date", ""), *(f"{name}:{value}" for name, value in signed), path,
    ]  # fmt: skip
    digest = hmac.digest(SECRET.encode(), "\n".join(lines).encode(), hashlib.sha1)
    return None if base64.b64encode(digest).decode() == match[2] else ("403 Forbidden", "SignatureDoesNotMatch")


def _refuse(start: Callable[..., Any], status: str, code: str, message: str = "") -> list[bytes]:
    body = f"<Error><Code>{code}</Code><Message>{message or code}</Message></Error>".encode()
    start(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body))), ("x-oss-request-id", "1")])
    return [body]


def _translate(answer: list[Any], body: bytes, method: str, start: Callable[..., Any]) -> list[bytes]:
    status, headers = answer[0], answer[1]
    kind = {name.lower(): value for name, value in headers}.get("content-type", "")
    if "xml" in kind or body[:5] == b"<?xml":
        body = re.sub(rb' xmlns="[^"]*"', b"", body).replace(b"<Contents>", b"<Contents><Type>Normal</Type>")
        if b"<NextKeyMarker>" not in body:
            markers = b"<NextKeyMarker></NextKeyMarker><NextUploadIdMarker></NextUploadIdMarker>"
            body = body.replace(b"</ListMultipartUploadsResult>", markers + b"</ListMultipartUploadsResult>")
    sent = [("x-oss-request-id", "1")]
    for name, value in headers:
        if name.lower() == "content-length" and method != "HEAD":
            value = str(len(body))
        sent.append((re.sub("(?i)^x-amz-", "x-oss-", name), value))
    start(status, sent)
    return [body]
