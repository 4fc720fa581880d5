"""PAI commands of a MaxCompute project, by PyODPS (read in 0.13.2) or, with client=odpscmd, by that client.

A command cannot have a name or tags. So an instance carries the token of its submission and its attempt in its
parameters, which are read from the source of every instance that this user has started since.
"""

import json
import logging
import time
from datetime import datetime
from typing import Any
from xml.etree import ElementTree

from nlu.config.errors import UserError
from nlu.launching.queue import Job, JobState, Look
from nlu.storage.objects import ObjectStore
from nlu.storage.tables import is_table

from . import _odpscmd as odpscmd
from ._code import CodePackage
from ._command import ENTRY, Attempt, Program, attempt_in, parameters, value_of
from ._requests import Credentials, RequestFailure, ServiceUnavailable, asked, done_once, import_or_say
from ._service import NEW_S, AmbiguousSubmissions, Created, Service
from ._settings import ODPSCMD, PREFIX, PaiSettings, region_endpoint, store_environment

PACKAGE = "pyodps"
XFLOW_PROJECT = "algo_public"
SKEW_S = 600.0
"""by how much the clock of the service may be behind ours when instances are listed by their start"""
GPU_LABEL = "odps.algo.hybrid.deploy.info"
"""the setting of a session that asks for machines with a label; read in public scripts, not in a manual"""
HIGHEST = 9
"""the largest priority of hydra.launcher; in MaxCompute 0 comes first"""
STATES = {
    "WAITING": JobState.WAITING, "RUNNING": JobState.RUNNING, "SUSPENDED": JobState.WAITING,
    "SUCCESS": JobState.DONE, "FAILED": JobState.FAILED, "CANCELLED": JobState.CANCELLED,
}  # fmt: skip
WORST_FIRST = (JobState.FAILED, JobState.CANCELLED, JobState.RUNNING, JobState.WAITING, JobState.DONE)

_sources: dict[str, tuple[str, str]] = {}
"""token and attempt of each instance, from its source, which never changes"""
_seen_s: dict[str, float] = {}
"""when each instance without a known source was first listed, by the monotonic clock"""


class MaxComputeQueue(Service):
    """The instances of one project."""

    name = "MaxCompute"
    one = "instance"
    ambiguous = AmbiguousSubmissions()

    def __init__(
        self, settings: PaiSettings, keys: Credentials, store: ObjectStore, code: CodePackage, program: Program
    ):
        import_or_say("odps", PACKAGE, "backend=maxcompute")
        if settings.client == ODPSCMD:
            odpscmd.require(keys, f"{PREFIX}.client")
        super().__init__(settings, keys, store, code, program)
        # That client repeats a submission by itself, with the same attempt.
        self.client_repeats = settings.client == ODPSCMD

    def log_tail(self, id: str, lines: int = 1) -> list[str]:
        """Return nothing: only the page of an instance, which its ticket names, shows its output."""
        return []

    def upload(self, code: CodePackage) -> None:
        """See `Service.upload`: the code becomes a resource of the project."""
        name = code.resource
        what = f"uploading the code as resource {name}"

        def create() -> bool:
            if self._call(lambda odps: odps.exist_resource(name)):
                return True
            self._call(lambda odps: odps.create_resource(name, "archive", fileobj=code.archive.content))
            return True

        try:
            done_once(create, lambda: self._call(lambda odps: odps.exist_resource(name)) or None, what)
        except RequestFailure as failure:
            # If two commands upload the same content at once, the second one is refused.
            if not asked(lambda: self._call(lambda odps: odps.exist_resource(name)), what):
                raise UserError(f"{what}: {failure.sentence}") from None
        # Jobs keep their runs on the store, so it must be writable.
        self._store.put("writable", b"1\n")

    def _create(self, job: Job, attempt: Attempt) -> str:
        settings = self._settings
        priority = None if settings.priority is None else HIGHEST - settings.priority
        asked_for = self.parameters_of(job, attempt)
        hints = {GPU_LABEL: f"LABEL:{settings.gpu_type}:OPER_EQUAL"} if settings.gpu_type else {}
        if settings.client == ODPSCMD:
            command = odpscmd.pai_command(settings.framework_version, XFLOW_PROJECT, asked_for, priority, hints)
            return odpscmd.submit(command, str(settings.project), region_endpoint(settings), self._keys)
        return self._call(
            lambda odps: (
                odps.run_xflow(
                    settings.framework_version, XFLOW_PROJECT, parameters=asked_for, hints=hints, priority=priority
                ).id
            )
        )

    def _stop(self, id: str) -> None:
        self._call(lambda odps: odps.stop_instance(id))

    def _page(self, id: str) -> str:
        return f"https://maxcompute.console.aliyun.com/{self._settings.region}/job-insights?instanceId={id}"

    def _state_of(self, id: str) -> Look:
        """Return the worst state of the tasks of an instance."""
        statuses = self._call(lambda odps: self._statuses(odps, id))
        # An unknown status must not end the job.
        states = {STATES.get(status, JobState.RUNNING) for status in statuses} or {JobState.WAITING}
        # An instance in which one task failed has failed, although others may still run.
        state = next(state for state in WORST_FIRST if state in states)
        return Look(state, reason=self._reason(id) if state is JobState.FAILED else None)

    def parameters_of(self, job: Job, attempt: Attempt) -> dict[str, str]:
        """Return the parameters of the PAI command: GPUs and cores in hundredths, memory in megabytes."""
        settings = self._settings
        worker = {
            "gpu": settings.gpus * 100,
            "cpu": round(settings.cpus * 100),
            "memory": round(settings.memory_gb * 1024),
        }
        found = {
            "script": f"odps://{settings.project}/resources/{self._code.resource}",
            "entryFile": ENTRY,
            "workerCount": str(settings.workers),
            "cluster": json.dumps({"worker": worker}),
            "userDefinedParameters": parameters(job.overrides, self._program, store_environment(settings), attempt),
        }
        if is_table(output := value_of(job.overrides, "output") or ""):
            found["outputs"] = output
        if settings.tables:
            found["tables"] = ",".join(settings.tables)
        if settings.role and settings.role != "default" and str(settings.oss_folder).startswith("oss://"):
            bucket = str(settings.oss_folder).rstrip("/")
            host = (settings.oss_endpoint or f"oss-{settings.region}-internal.aliyuncs.com").partition("://")[2]
            host = host or f"oss-{settings.region}-internal.aliyuncs.com"
            found["buckets"] = f"{bucket}/?role_arn={settings.role}&host={host}"
        return found

    def _with_token(self, token: str, since_s: float) -> list[Created]:
        start = datetime.fromtimestamp(since_s - SKEW_S)

        def listed() -> list[str]:
            return self._call(lambda odps: [each.id for each in odps.list_instances(start_time=start, only_owner=True)])

        try:
            ids = asked(listed, "the list of instances")
        except RequestFailure as failure:
            raise UserError(f"MaxCompute does not list the instances of the project: {failure.sentence}") from None
        made = [(id, *self._source(id)) for id in sorted(ids)]
        return [Created(id, attempt) for id, own, attempt in made if own == token]

    def _source(self, id: str) -> tuple[str, str]:
        """Return token and attempt of an instance, two empty texts if it is not ours or gone."""
        if id not in _sources:
            seen_s = _seen_s.setdefault(id, time.monotonic())
            try:
                _sources[id] = asked(lambda: self._made_by(id), f"the source of instance {id}")
            except RequestFailure:
                if time.monotonic() - seen_s < NEW_S:
                    # A new instance may be listed before it has a source.
                    return "", ""
                _sources[id] = "", ""
            _seen_s.pop(id, None)
        return _sources[id]

    def _made_by(self, id: str) -> tuple[str, str]:
        return made_by(self._call(lambda odps: odps.get_project().xflows.get_xflow_source(odps.get_instance(id))))

    @staticmethod
    def _statuses(odps: Any, id: str) -> list[str]:
        tasks = odps.get_instance(id).get_task_statuses(retry=False)
        return [str(getattr(task.status, "value", task.status)).upper() for task in tasks.values()]

    def _reason(self, id: str) -> str | None:
        """Return the service's message about an instance that failed."""
        try:
            results = asked(
                lambda: self._call(lambda odps: odps.get_instance(id).get_task_results_without_format()),
                f"instance {id}",
            )
        except (RequestFailure, ServiceUnavailable):
            return None
        said = " ".join(" ".join(str(text).split()) for text in results.values() if text)
        return self._keys.hidden(said)[:500] or None

    def _connected(self) -> Any:
        from odps import ODPS
        from odps.accounts import StsAccount

        # PyODPS logs each refused command as an error.
        logging.getLogger("odps").setLevel(logging.CRITICAL)
        keys, where = self._keys, {"project": self._settings.project, "endpoint": region_endpoint(self._settings)}
        found = (
            ODPS(account=StsAccount(keys.id, keys.secret, keys.token), **where)
            if keys.token
            else ODPS(keys.id, keys.secret, **where)
        )
        # The caller knows which requests may be repeated.
        found.rest = found.rest.with_retry_enabled(False)
        return found

    def _said(self, error: Exception) -> tuple[str, str]:
        return str(getattr(error, "code", None) or ""), str(error)

    def _means_overload(self, code: str) -> bool:
        return "Throttl" in code or "FlowExceeded" in code


def made_by(source: bytes) -> tuple[str, str]:
    """Return token and attempt in the source of an instance, which is XML, two empty texts if it is not ours."""
    try:
        parameters = ElementTree.fromstring(source).iter("Parameter")
    except ElementTree.ParseError:
        return "", ""
    given = {each.findtext("Key"): each.findtext("Value") or "" for each in parameters}
    return attempt_in(given.get("userDefinedParameters", ""))
