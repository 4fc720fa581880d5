"""PAI commands of a MaxCompute project, by PyODPS (read in 0.13.2) or, with client=odpscmd, by that client.

A command cannot have a name or tags. So an instance carries the token of its submission in its parameters, which are
read from the source of every instance that this user has started within a day.
"""

import json
import logging
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from xml.etree import ElementTree

from hydra_plugins.pai_launcher import _odpscmd as odpscmd
from hydra_plugins.pai_launcher._code import ENTRY, CodePackage, parameters, token_in, value_of
from hydra_plugins.pai_launcher._queue import Credentials, PaiQueue, RequestRefused, import_or_say
from hydra_plugins.pai_launcher.pai_launcher import ODPSCMD, PREFIX, PaiSettings, region_endpoint, store_environment

from nlu.jobs.queue import Job, JobState, Look, QueueContext
from nlu.storage.locks import JOB_VARIABLE
from nlu.storage.tables import client_of, is_table

PACKAGE = "pyodps"
XFLOW_PROJECT = "algo_public"
DAY_S = 24 * 3600.0
"""the age of the oldest submission that is looked for"""
GPU_LABEL = "odps.algo.hybrid.deploy.info"
"""the setting of a session that asks for machines with a label; read in public scripts, not in a manual"""
HIGHEST = 9
"""the largest priority of hydra.launcher; in MaxCompute 0 comes first"""
STATES = {
    "WAITING": JobState.WAITING, "RUNNING": JobState.RUNNING, "SUSPENDED": JobState.WAITING,
    "SUCCESS": JobState.DONE, "FAILED": JobState.FAILED, "CANCELLED": JobState.CANCELLED,
}  # fmt: skip


class MaxComputeQueue(PaiQueue):
    """The instances of one project."""

    name = "MaxCompute"

    def __init__(self, settings: PaiSettings, keys: Credentials, context: QueueContext):
        import_or_say("odps", PACKAGE, "backend=maxcompute")
        if settings.client == ODPSCMD:
            odpscmd.require(f"{PREFIX}.client")
        super().__init__(settings, keys, context)
        self._tokens: dict[str, str] = {}
        """of each instance whose source was read"""

    def _upload(self, code: CodePackage) -> None:
        name = _resource(code)

        def upload(odps: Any) -> None:
            if not odps.exist_resource(name):
                odps.create_resource(name, "archive", fileobj=code.content)

        self._asked(f"uploading the code as resource {name}", upload)

    def _create(self, job: Job, arguments: Sequence[str], code: CodePackage) -> str:
        settings = self._settings
        priority = None if settings.priority is None else HIGHEST - settings.priority
        given = self.parameters_of(job, arguments, code)
        hints = {GPU_LABEL: f"LABEL:{settings.gpu_type}:OPER_EQUAL"} if settings.gpu_type else {}
        if settings.client == ODPSCMD:
            command = odpscmd.pai_command(settings.framework_version, XFLOW_PROJECT, given, priority, hints)
            return odpscmd.submit(command, str(settings.project), region_endpoint(settings), self._keys)
        return self._once(
            f"submitting job {job.number}",
            lambda odps: (
                odps.run_xflow(
                    settings.framework_version, XFLOW_PROJECT, parameters=given, hints=hints, priority=priority
                ).id
            ),
        )

    def _with_token(self, token: str) -> str | None:
        start = datetime.fromtimestamp(time.time() - DAY_S)
        ids = self._asked(
            "the list of instances",
            lambda odps: sorted(
                (each.id for each in odps.list_instances(start_time=start, only_owner=True)), reverse=True
            ),
        )
        return next((id for id in ids if self._token_of(id) == token), None)

    def _token_of(self, id: str) -> str:
        """Return the token of an instance, an empty text if it is not ours or shows no source yet."""
        if id not in self._tokens:
            try:
                source = self._asked(
                    f"the source of instance {id}",
                    lambda odps: odps.get_project().xflows.get_xflow_source(odps.get_instance(id)),
                )
            except RequestRefused:
                return ""
            self._tokens[id] = token_of(source)
        return self._tokens[id]

    def _stop(self, id: str) -> None:
        self._asked(f"stopping instance {id}", lambda odps: odps.stop_instance(id))

    def _page(self, id: str) -> str:
        return f"https://maxcompute.console.aliyun.com/{self._settings.region}/job-insights?instanceId={id}"

    def _looks(self, ids: Sequence[str]) -> dict[str, Look]:
        return {id: self._lost_or(self._state_of, id) for id in ids}

    def _state_of(self, id: str) -> Look:
        tasks = self._asked(f"instance {id}", lambda odps: odps.get_instance(id).get_task_statuses(retry=False))
        # A PAI command is an instance of one task. An unknown status must not end the job.
        status = next((getattr(task.status, "value", task.status) for task in tasks.values()), "Waiting")
        state = STATES.get(str(status).upper(), JobState.RUNNING)
        return Look(state, reason=self._reason(id) if state is JobState.FAILED else None)

    def parameters_of(self, job: Job, arguments: Sequence[str], code: CodePackage) -> dict[str, str]:
        """Return the parameters of the PAI command: GPUs and cores in hundredths, memory in megabytes."""
        settings = self._settings
        environment = {**store_environment(settings), JOB_VARIABLE: job.token}
        worker = {
            "gpu": settings.gpus * 100,
            "cpu": round(settings.cpus * 100),
            "memory": round(settings.memory_gb * 1024),
        }
        found = {
            "script": f"odps://{settings.project}/resources/{_resource(code)}",
            "entryFile": ENTRY,
            "workerCount": str(settings.workers),
            "cluster": json.dumps({"worker": worker}),
            "userDefinedParameters": parameters(arguments, code.within, environment, job.token),
        }
        if is_table(output := value_of(job.overrides, "output") or ""):
            found["outputs"] = output
        if settings.tables:
            found["tables"] = ",".join(settings.tables)
        if settings.role and settings.role != "default" and str(settings.oss_folder).startswith("oss://"):
            bucket = str(settings.oss_folder).rstrip("/")
            host = (settings.oss_endpoint or f"oss-{settings.region}-internal.aliyuncs.com").rpartition("://")[2]
            found["buckets"] = f"{bucket}/?role_arn={settings.role}&host={host}"
        return found

    def _reason(self, id: str) -> str | None:
        """Return the service's message about an instance that failed."""
        results = self._asked(
            f"the result of instance {id}", lambda odps: odps.get_instance(id).get_task_results_without_format()
        )
        said = " ".join(" ".join(str(text).split()) for text in results.values() if text)
        return self._keys.hidden(said)[:500] or None

    def _connected(self) -> Any:
        # PyODPS logs each refused command as an error.
        logging.getLogger("odps").setLevel(logging.CRITICAL)
        found = client_of(str(self._settings.project), region_endpoint(self._settings))
        # `_asked` knows which requests may be repeated.
        found.rest = found.rest.with_retry_enabled(False)
        return found

    def _failure(self, what: str, error: Exception) -> Exception:
        code, status = str(getattr(error, "code", None) or ""), getattr(error, "status_code", None)
        is_overload = "Throttl" in code or "FlowExceeded" in code
        known = status if isinstance(status, int) else None
        return self._keys.failure(what, str(error), code, known, is_overload=is_overload)


def _resource(code: CodePackage) -> str:
    """Return the name of the code as a resource of the project."""
    return f"nlu-code-{code.digest[:32]}.tar.gz"


def token_of(source: bytes) -> str:
    """Return the token in the source of an instance, which is XML, an empty text if it is not ours."""
    try:
        parameters = ElementTree.fromstring(source).iter("Parameter")
    except ElementTree.ParseError:
        return ""
    given = {each.findtext("Key"): each.findtext("Value") or "" for each in parameters}
    return token_in(given.get("userDefinedParameters", ""))
