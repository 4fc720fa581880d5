"""What PAI-DLC does with a request: jobs are made, shown, listed by tags or ids, stopped; a log is read."""

import json
import socket
from pathlib import Path
from typing import Any

from pai_server import PaiServer, Started, new_id

STARTING = ("Creating", "Queuing", "EnvPreparing")
REQUIRED = ("DisplayName", "JobType", "JobSpecs", "UserCommand", "WorkspaceId")

Answer = tuple[int, dict[str, Any]]


def answer(server: PaiServer, method: str, path: str, query: dict[str, str], body: bytes) -> Answer:
    """Carry a request out; returns the status and the body, of an error its Code and Message."""
    parts = path.removeprefix("/api/v1/").split("/")
    if parts[0] != "jobs":
        return 404, {"Code": "InvalidAction.NotFound", "Message": path}
    if len(parts) == 1:
        return _create(server, json.loads(body)) if method == "POST" else _listed(server, query)
    job = server.jobs.get(parts[1])
    if job is None:
        return 404, {"Code": "JobNotFound", "Message": f"job {parts[1]} does not exist"}
    if len(parts) == 2 and method == "GET":
        job.asked += 1
        return 200, {**_shown(server, job), "RequestId": "r"}
    if parts[2:] == ["stop"]:
        return _stop(server, job)
    if parts[2] == "pods" and parts[4] == "logs":
        lines = job.log.read_text(errors="replace").splitlines() if job.log.exists() else []
        return 200, {
            "JobId": job.id,
            "PodId": parts[3],
            "Logs": lines[-int(query.get("MaxLines", 2000)) :],
            "RequestId": "r",
        }
    return 404, {"Code": "InvalidAction.NotFound", "Message": path}


def _create(server: PaiServer, request: dict[str, Any]) -> Answer:
    if absent := [name for name in REQUIRED if not request.get(name)]:
        return 400, {"Code": "MissingParameter", "Message": f"{', '.join(absent)} is mandatory for this action"}
    for spec in request["JobSpecs"]:
        if not spec.get("Image"):
            return 400, {"Code": "InvalidParameter", "Message": "JobSpec.Image is required"}
        if spec["Image"].endswith(":none"):
            return 400, {"Code": "InvalidImage", "Message": f"image {spec['Image']} cannot be pulled"}
    for source in request.get("DataSources") or []:
        if not (source.get("DataSourceId") or source.get("Uri")) or not source.get("MountPath", "").startswith("/"):
            return 400, {"Code": "InvalidParameter", "Message": f"DataSource {source} names no source, or no MountPath"}
        server.mount(source.get("DataSourceId") or source["Uri"], Path(source["MountPath"]))
    id = new_id("dlc")
    devices = int((request["JobSpecs"][0].get("ResourceConfig") or {}).get("GPU") or 0)
    count = sum(spec["PodCount"] for spec in request["JobSpecs"])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {
        **(request.get("Envs") or {}), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": "0",
        "WORLD_SIZE": str(count), "NPROC_PER_NODE": str(max(1, devices)),
    }  # fmt: skip
    if (request.get("CredentialConfig") or {}).get("EnableCredentialInject"):
        environment |= server.role_environment
    command = ["sh", "-c", request["UserCommand"]]
    if server.runs:
        for rank in range(1, count):
            server.start(request, command, {**environment, "RANK": str(rank)}, f"{id}-{rank}")
    server.start(request, command, environment, id)
    return 200, {"JobId": id, "RequestId": "r"}


def status_of(server: PaiServer, job: Started) -> str:
    """The status that is shown: that of the process if one runs, else the one that a test set."""
    if job.status in ("Stopped", "Succeeded", "Failed"):
        return job.status
    if job.process is None:
        return job.status
    if job.asked < len(STARTING):
        return STARTING[job.asked]
    nodes = [one for id, one in list(server.jobs.items()) if id == job.id or id.startswith(f"{job.id}-")]
    codes = [one.process.poll() for one in nodes if one.process is not None]
    if any(code for code in codes if code is not None):
        for one in nodes:
            server.end(one)
        return "Failed"
    return "Running" if None in codes else "Succeeded"


def _shown(server: PaiServer, job: Started) -> dict[str, Any]:
    status = status_of(server, job)
    has_begun = status not in STARTING
    failed = (
        {"ReasonCode": "JobFailed", "ReasonMessage": f"exit code {job.process.poll()}"}
        if status == "Failed" and job.process
        else {}
    )
    pod = {"PodId": f"{job.id}-master-0", "Type": "master", "Status": status, "Ip": "127.0.0.1"}
    return {
        **job.request, **failed, "JobId": job.id, "Status": status, "Pods": [pod] if has_begun else [],
    }  # fmt: skip


def _listed(server: PaiServer, query: dict[str, str]) -> Answer:
    wanted = json.loads(query["Tags"]) if "Tags" in query else {}
    ids = query["JobIds"].split(",") if "JobIds" in query else None
    with server.lock:
        # Further nodes of a job do not count as jobs.
        jobs = [job for job in server.jobs.values() if job.id.startswith("dlc") and "-" not in job.id]
    found = [
        job
        for job in sorted(jobs, key=lambda job: -job.created_s)
        if (ids is None or job.id in ids)
        and job.request.get("WorkspaceId") == query.get("WorkspaceId", job.request.get("WorkspaceId"))
        and wanted.items() <= ((job.request.get("Settings") or {}).get("Tags") or {}).items()
    ]
    for job in found:
        job.asked += 1
    size, page = int(query.get("PageSize", 10)), int(query.get("PageNumber", 1))
    shown = [_shown(server, job) for job in found[size * (page - 1) : size * page]]
    return 200, {"Jobs": shown, "TotalCount": len(found), "RequestId": "r"}


def _stop(server: PaiServer, job: Started) -> Answer:
    if status_of(server, job) in ("Succeeded", "Failed", "Stopped"):
        return 400, {"Code": "InvalidJobStatus", "Message": f"job {job.id} has ended"}
    for id, one in list(server.jobs.items()):
        if id == job.id or id.startswith(f"{job.id}-"):
            server.end(one)
    job.status = "Stopped"
    return 200, {"JobId": job.id, "RequestId": "r"}
