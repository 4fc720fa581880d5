"""What MaxCompute does with a request of PyODPS: PAI commands become instances; resources; sources; states; tables."""

import io
import json
import re
import struct
import tarfile
from collections.abc import Mapping
from email.utils import formatdate
from typing import Any
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import pyarrow as pa
from pai_server import PaiServer, Started, new_id

from nlu.models.formats.tensorflow import crc32c

ODPS_TYPES = {
    "string": "string", "int64": "bigint", "double": "double", "bool": "boolean", "int32": "int", "float": "float",
    "date32[day]": "date",
}  # fmt: skip
CHUNK_BYTES = 512
Answer = tuple[int, bytes, dict[str, str]]


def answer(
    server: PaiServer, method: str, path: str, query: dict[str, str], body: bytes, headers: Mapping[str, str]
) -> Answer:
    """Carry a request out; returns status, body and headers, of an error its code and, in the headers, a message."""
    parts = path.removeprefix("/api/").split("/")
    if parts[0] != "projects":
        return 404, b"NoSuchObject", {"message": path}
    if len(parts) == 2:
        return (
            200,
            f"<Project><Name>{parts[1]}</Name><Type>managed</Type><State>AVAILABLE</State></Project>".encode(),
            {},
        )
    if parts[2] == "tables":
        return _table(server, method, parts[3], query, body)
    if parts[2] == "resources":
        return _resource(server, method, path, parts[3:], body, headers)
    if parts[2] != "instances":
        return 404, b"NoSuchObject", {"message": path}
    if len(parts) == 3:
        return _started(server, path, body) if method == "POST" else _listed(server, query)
    if parts[3] in server.statements:
        return _told_statement(server.statements[parts[3]], query)
    instance = server.jobs.get(parts[3])
    if instance is None:
        return 404, b"NoSuchObject", {"message": f"instance {parts[3]} does not exist"}
    if method == "PUT":
        return _stop(server, instance)
    return _told(instance, query)


def _table(server: PaiServer, method: str, name: str, query: Mapping[str, str], body: bytes) -> Answer:
    """The description of a table, and its rows through the tunnel: framed Arrow batches without their schema."""
    key = ",".join([name, *([query["partition"].replace("'", "")] if "partition" in query else [])])
    if "uploads" in query or "uploadid" in query:
        return _upload(server, method, key, query, body)
    keys = keys_of(server, name)
    table = server.tables.get(key)
    if table is None and "partition" not in query and keys:
        table = next(rows for other, rows in server.tables.items() if other.startswith(f"{name},"))
    if table is None:
        return 404, b"NoSuchObject", {"message": f"table or partition {key} does not exist"}
    schema = _told_schema(table.schema)
    if "downloads" in query or ("downloadid" in query and "data" not in query):
        told = {"DownloadID": "d1", "Status": "normal", "RecordCount": table.num_rows, "Schema": schema}
        return 200, json.dumps(told).encode(), {"Content-Type": "application/json"}
    if "data" in query:
        begin, count = map(int, query["rowrange"].strip("()").split(","))
        return 200, framed(table.slice(begin, count)), {"Content-Type": "application/octet-stream"}
    changed_s = server.changed_s.get(key, 0)
    if "partition" in query:
        text = f"<Partition><Name>{key}</Name><LastModifiedTime>{changed_s}</LastModifiedTime></Partition>"
        return 200, text.encode(), {}
    described = json.dumps({**schema, "partitionKeys": [{"name": own, "type": "string"} for own in keys]})
    text = (
        f"<Table><Name>{name}</Name><Project>p</Project><Schema format='Json'><![CDATA[{described}]]></Schema>"
        f"<LastModifiedTime>{formatdate(changed_s, usegmt=True)}</LastModifiedTime></Table>"
    )
    return 200, text.encode(), {}


def keys_of(server: PaiServer, name: str) -> list[str]:
    """The keys of a table's partitions: those of its first partition, or what it was created with."""
    if name in server.partitioned:
        return server.partitioned[name]
    first = next((key for key in server.tables if key.startswith(f"{name},")), "")
    return [part.partition("=")[0] for part in first.split(",")[1:]]


def _told_schema(schema: Any) -> dict[str, Any]:
    return {"columns": [{"name": each.name, "type": odps_type(each.type)} for each in schema], "partitionKeys": []}


def odps_type(kind: Any) -> str:
    """What MaxCompute calls an Arrow type."""
    if pa.types.is_list(kind):
        return f"array<{odps_type(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{','.join(f'{each.name}:{odps_type(each.type)}' for each in kind)}>"
    return ODPS_TYPES[str(kind)]


def arrow_type(text: str) -> Any:
    """The Arrow type for a type name of MaxCompute."""
    from odps.tunnel.io.types import odps_type_to_arrow_type
    from odps.types import validate_data_type

    return odps_type_to_arrow_type(validate_data_type(text))


def _upload(server: PaiServer, method: str, key: str, query: Mapping[str, str], body: bytes) -> Answer:
    """An upload: its blocks, which replace those of the same number, and its commit, which shows them all."""
    if key not in server.tables or ("," not in key and keys_of(server, key)):
        return 404, b"NoSuchPartition", {"message": f"table or partition {key} does not exist"}
    if "uploads" in query:
        upload = {"UploadID": new_id("up"), "Status": "normal", "blocks": {}, "key": key}
        server.uploads[upload["UploadID"]] = upload
    else:
        upload = server.uploads.get(query["uploadid"], {})
    if upload.get("key") != key:
        return 404, b"NoSuchUpload", {"message": f"upload {query['uploadid']} does not exist"}
    schema = server.tables[key].schema
    if method == "PUT":
        if upload["Status"] != "normal":
            return 400, b"StatusConflict", {"message": f"upload {upload['UploadID']} is {upload['Status']}"}
        upload["blocks"][int(query["blockid"])] = unframed(body, schema)
        return 200, b"", {}
    if method == "POST" and "uploads" not in query:
        if upload["Status"] != "normal":
            return 400, b"StatusConflict", {"message": f"upload {upload['UploadID']} is {upload['Status']}"}
        parts = [server.tables[key], *(rows for _, rows in sorted(upload["blocks"].items()))]
        server.tables[key], upload["Status"] = pa.concat_tables(parts), "closed"
        server.changed_s[key] = server.changed_s.get(key, 0) + 1
    told = {
        "UploadID": upload["UploadID"], "Status": upload["Status"], "Schema": _told_schema(schema),
        "UploadedBlockList": [{"BlockID": number} for number in upload["blocks"]],
    }  # fmt: skip
    return 200, json.dumps(told).encode(), {"Content-Type": "application/json"}


def unframed(content: bytes, schema: Any) -> Any:
    """The rows of a block as PyODPS sends it; raises AssertionError where a checksum is not that of its bytes."""
    (size,) = struct.unpack("!I", content[:4])
    whole, place = b"", 4
    while len(content) - place >= size + 4:
        chunk, (told,) = content[place : place + size], struct.unpack("!I", content[place + size : place + size + 4])
        assert told == crc32c(chunk), "the checksum of a chunk is wrong"
        whole, place = whole + chunk, place + size + 4
    whole += content[place:-4]
    assert struct.unpack("!I", content[-4:]) == (crc32c(whole),), "the checksum of a block is wrong"
    stream, batches = pa.BufferReader(whole), []
    while stream.tell() < len(whole):
        batches.append(pa.ipc.read_record_batch(pa.ipc.read_message(stream), schema))
    return pa.Table.from_batches(batches, schema)


def _stated(server: PaiServer, path: str, query: str) -> Answer:
    """A statement that makes a table or a partition; any other, and one that fails, is an instance that failed."""
    table = re.fullmatch(
        r"CREATE TABLE IF NOT EXISTS \S*?`?(\w+)`? \((.*?)\)\s*(?:PARTITIONED BY \((.*)\))?;?\s*", query, re.DOTALL
    )
    partition = re.fullmatch(r"ALTER TABLE \S*?`?(\w+)`? ADD IF NOT EXISTS\s+PARTITION \((.*)\);?\s*", query)
    said = ""
    if table:
        name, columns, keys = table.groups()
        found = re.findall(r"^\s*`(\w+)` (.+?),?$", columns, re.MULTILINE)
        schema = pa.schema([(own.lower(), arrow_type(kind.lower().replace("`", ""))) for own, kind in found])
        if name not in server.partitioned and name not in server.tables and not keys_of(server, name):
            server.partitioned[name] = re.findall(r"`(\w+)`", keys or "")
            server.tables[name] = schema.empty_table()
    elif partition:
        name, parts = partition.groups()
        server.tables.setdefault(f"{name},{parts.replace(chr(39), '')}", server.tables[name].schema.empty_table())
    else:
        said = f"ODPS-0130161: parse exception: {query}"
    id = new_id("2026sql")
    server.statements[id] = said
    return 201, b"", {"Location": f"http://{server.host}{path}/{id}"}


def _told_statement(said: str, query: Mapping[str, str]) -> Answer:
    status = "Failed" if said else "Success"
    task = f'<Task Type="SQL"><Name>s</Name><Status>{status}</Status><Result><![CDATA[{said}]]></Result></Task>'
    return 200, f"<Instance><Status>Terminated</Status><Tasks>{task}</Tasks></Instance>".encode(), {}


def framed(table: Any) -> bytes:
    """Batches as the tunnel sends them: the size of a chunk, then each chunk with its CRC32C, the last with all's."""
    content = b"".join(batch.serialize().to_pybytes() for batch in table.to_batches(max_chunksize=10))
    parts, size = [struct.pack("!I", CHUNK_BYTES)], CHUNK_BYTES
    for begin in range(0, len(content) + 1, size):
        chunk = content[begin : begin + size]
        is_last = len(chunk) < size
        parts += [chunk, struct.pack("!I", crc32c(content if is_last else chunk))]
    return b"".join(parts)


def _resource(
    server: PaiServer, method: str, path: str, rest: list[str], body: bytes, headers: Mapping[str, str]
) -> Answer:
    if method == "POST":
        name = headers["x-odps-resource-name"]
        if name in server.resources:
            return 409, b"ObjectAlreadyExists", {"message": f"resource {name} exists"}
        server.resources[name] = body
        return 201, b"", {"Location": f"http://{server.host}{path}/{name}"}
    name = rest[0]
    if name not in server.resources:
        return 404, b"NoSuchObject", {"message": f"resource {name} does not exist"}
    return 200, b"", {"x-odps-resource-type": "archive", "x-odps-resource-name": name}


def _started(server: PaiServer, path: str, body: bytes) -> Answer:
    if (statement := ElementTree.fromstring(body).findtext(".//SQL/Query")) is not None:
        return _stated(server, path, statement)
    flow = ElementTree.fromstring(body).find("XflowInstance")
    assert flow is not None
    given = {each.findtext("Key"): each.findtext("Value") or "" for each in flow.iter("Parameter")}
    request = {
        "xflow": flow.findtext("Xflow"), "project": flow.findtext("Project"), "priority": flow.findtext("Priority"),
        "parameters": given,
        "settings": {each.findtext("Name"): each.findtext("Value") for each in flow.iter("Property")},
    }  # fmt: skip
    if not str(request["xflow"]).startswith("pytorch"):
        return 400, b"ODPS-0420411", {"message": f"xflow {request['xflow']} is not found in {request['project']}"}
    name = given["script"].rpartition("/")[2]
    if name not in server.resources:
        return 400, b"ODPS-0420411", {"message": f"resource {given['script']} does not exist"}
    worker = json.loads(given["cluster"])["worker"]
    assert set(worker) == {"gpu", "cpu", "memory"} and all(isinstance(value, int) for value in worker.values())
    id = new_id("2026")
    files = {}
    if server.runs:
        with tarfile.open(fileobj=io.BytesIO(server.resources[name])) as archive:
            files = {member.name: archive.extractfile(member).read() for member in archive if member.isfile()}  # type: ignore[union-attr]
    # The service splits at spaces, as a shell would; nothing of ours holds one.
    command = ["python3", given["entryFile"], *given["userDefinedParameters"].split(" ")]
    server.start(request, command, server.odps_environment, id, files, xml=body.decode())
    return 201, b"", {"Location": f"http://{server.host}{path}/{id}"}


def status_of(instance: Started) -> str:
    """The status of the only task."""
    if instance.process is None or instance.status == "Stopped":
        return {"Creating": "Waiting", "Stopped": "Cancelled", "Succeeded": "Success"}.get(
            instance.status, instance.status
        )
    code = instance.process.poll()
    return "Running" if code is None else "Failed" if code else "Success"


def _told(instance: Started, query: Mapping[str, str]) -> Answer:
    status = status_of(instance)
    has_ended = status in ("Success", "Failed", "Cancelled")
    state = "Terminated" if has_ended else "Running"
    if "taskstatus" in query:
        task = f'<Task Type="XFlow"><Name>pytorch</Name><Status>{status}</Status></Task>'
        return 200, f"<Instance><Status>{state}</Status><Tasks>{task}</Tasks></Instance>".encode(), {}
    if "xsource" in query or "source" in query:
        return 200, instance.xml.encode(), {}
    if "result" in query:
        said = escape(instance.log.read_text(errors="replace")[-300:]) if instance.log.exists() else ""
        result = f'<Result Format="text"><![CDATA[{said}]]></Result>'
        task = f'<Task Type="XFlow"><Name>pytorch</Name>{result}</Task>'
        return 200, f"<Instance><Tasks>{task}</Tasks></Instance>".encode(), {}
    return 200, f"<Instance><Status>{state}</Status></Instance>".encode(), {"x-odps-owner": "o"}


def _listed(server: PaiServer, query: Mapping[str, str]) -> Answer:
    since_s = float((query.get("daterange") or "0:").partition(":")[0] or 0)
    with server.lock:
        found = [job for job in server.jobs.values() if job.xml and job.created_s >= since_s]
    rows = "".join(
        f"<Instance><Name>{job.id}</Name><Owner>o</Owner>"
        f"<StartTime>{formatdate(job.created_s, usegmt=True)}</StartTime><Status>Running</Status></Instance>"
        for job in found
    )
    return 200, f"<Instances><Marker/><MaxItems>1000</MaxItems>{rows}</Instances>".encode(), {}


def _stop(server: PaiServer, instance: Started) -> Answer:
    if status_of(instance) in ("Success", "Failed", "Cancelled"):
        return 409, b"InvalidStateSetting", {"message": f"instance {instance.id} has ended"}
    server.end(instance)
    instance.status = "Stopped"
    return 200, b"", {}
