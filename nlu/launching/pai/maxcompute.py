"""PAI commands of a MaxCompute project, by PyODPS (read in 0.13.2): run_xflow and what tells of instances.
They are submitted by odpscmd where the settings say so.

A command takes no name of ours. An instance carries the token of its submission, and the attempt that made it, in its
parameters: the instances that this user started meanwhile are asked for their source.
"""

from __future__ import annotations

import json
import logging
import time
from datetime import datetime
from typing import Any
from xml.etree import ElementTree

from nlu.config.errors import UserError
from nlu.launching.pai import credentials, odpscmd
from nlu.launching.pai.calls import Away, Failure, Fate, asked, done_once, import_or_say
from nlu.launching.pai.command import ENTRY, Attempt, Program, attempt_in, parameters
from nlu.launching.pai.credentials import Credentials
from nlu.launching.pai.packed import Packed
from nlu.launching.pai.service import NEW_S, Doubts, Made, Service
from nlu.launching.pai.settings import ODPSCMD, PREFIX, PaiSettings, region_endpoint, store_environment
from nlu.launching.queue import Job, JobState, Look
from nlu.storage.objects import ObjectStore

PACKAGE = "pyodps"
XFLOW_PROJECT = "algo_public"
SKEW_S = 600.0
"""by how much the service's clock may be behind ours when the instances of a while are listed"""
HIGHEST = 9
"""MaxCompute's lowest priority is our 0: there 0 comes first"""
STATES = {
    "WAITING": JobState.WAITING, "RUNNING": JobState.RUNNING, "SUSPENDED": JobState.WAITING,
    "SUCCESS": JobState.DONE, "FAILED": JobState.FAILED, "CANCELLED": JobState.CANCELLED,
}  # fmt: skip
WORST_FIRST = (JobState.FAILED, JobState.CANCELLED, JobState.RUNNING, JobState.WAITING, JobState.DONE)
FULL_STATUSES = (408, 429)

_sources: dict[str, tuple[str, str]] = {}
"""by instance: token and attempt in its source, which never changes"""
_seen_s: dict[str, float] = {}
"""by instance whose source is not known yet: when it was listed first, by the monotonic clock"""


class MaxComputeQueue(Service):
    """The instances of one project."""

    name = "MaxCompute"
    one = "instance"
    doubts = Doubts()

    def __init__(self, settings: PaiSettings, keys: Credentials, store: ObjectStore, code: Packed, program: Program):
        import_or_say("odps", PACKAGE, "backend=maxcompute")
        if settings.client == ODPSCMD:
            odpscmd.require(keys, f"{PREFIX}.client")
        super().__init__(settings, keys, store, code, program)
        # That client tries again by itself, with the same attempt.
        self.hands_over_again = settings.client == ODPSCMD

    def log_tail(self, id: str, lines: int = 1) -> list[str]:
        """Return nothing: what an instance writes is behind its Logview address, which the ticket names."""
        return []

    def upload(self, code: Packed) -> None:
        """See `Service.upload`: the code is a resource of the project."""
        name = code.resource
        what = f"uploading the code as resource {name}"

        def create() -> bool:
            if self._call(lambda odps: odps.exist_resource(name)):
                return True
            self._call(lambda odps: odps.create_resource(name, "archive", fileobj=code.archive.content))
            return True

        try:
            done_once(create, lambda: self._call(lambda odps: odps.exist_resource(name)) or None, what)
        except Failure as failure:
            # Of two that upload the same content at once the second is refused.
            if not asked(lambda: self._call(lambda odps: odps.exist_resource(name)), what):
                raise UserError(f"{what}: {failure.sentence}") from None
        # Its jobs need the store for their runs all the same.
        self._store.put("writable", b"1\n")

    def _create(self, job: Job, attempt: Attempt) -> str:
        settings = self._settings
        priority = None if settings.priority is None else HIGHEST - settings.priority
        asked_for = self.parameters_of(job, attempt)
        if settings.client == ODPSCMD:
            command = odpscmd.pai_command(settings.framework_version, XFLOW_PROJECT, asked_for, priority)
            return odpscmd.submit(command, str(settings.project), region_endpoint(settings), self._keys)
        return self._call(
            lambda odps: (
                odps.run_xflow(settings.framework_version, XFLOW_PROJECT, parameters=asked_for, priority=priority).id
            )
        )

    def _stop(self, id: str) -> None:
        self._call(lambda odps: odps.stop_instance(id))

    def _page(self, id: str) -> str:
        return f"https://maxcompute.console.aliyun.com/{self._settings.region}/job-insights?instanceId={id}"

    def _seen(self, id: str) -> Look:
        """The service lists states of many by no request of its own."""
        statuses = self._call(lambda odps: self._statuses(odps, id))
        states = {STATES.get(status, JobState.RUNNING) for status in statuses} or {JobState.WAITING}
        state = next(state for state in WORST_FIRST if state in states)
        return Look(state, reason=self._reason(id) if state is JobState.FAILED else None)

    def parameters_of(self, job: Job, attempt: Attempt) -> dict[str, str]:
        """Return the parameters of the PAI command: GPUs and cores in hundredths, memory in megabytes."""
        settings = self._settings
        worker = {
            "gpu": settings.gpus * 100, "cpu": round(settings.cpus * 100), "memory": round(settings.memory_gb * 1024)
        }  # fmt: skip
        found = {
            "script": f"odps://{settings.project}/resources/{self._code.resource}",
            "entryFile": ENTRY,
            "workerCount": str(settings.workers),
            "cluster": json.dumps({"worker": worker}),
            "userDefinedParameters": parameters(job.overrides, self._program, store_environment(settings), attempt),
        }
        if settings.tables:
            found["tables"] = ",".join(settings.tables)
        if settings.role and settings.role != "default" and str(settings.oss_folder).startswith("oss://"):
            bucket = str(settings.oss_folder).rstrip("/")
            host = (settings.oss_endpoint or f"oss-{settings.region}-internal.aliyuncs.com").partition("://")[2]
            host = host or f"oss-{settings.region}-internal.aliyuncs.com"
            found["buckets"] = f"{bucket}/?role_arn={settings.role}&host={host}"
        return found

    def _with_token(self, token: str, since_s: float) -> list[Made]:
        start = datetime.fromtimestamp(since_s - SKEW_S)

        def listed() -> list[str]:
            return self._call(lambda odps: [each.id for each in odps.list_instances(start_time=start, only_owner=True)])

        try:
            ids = asked(listed, "the list of instances")
        except Failure as failure:
            raise UserError(f"MaxCompute does not list the instances of the project: {failure.sentence}") from None
        made = [(id, *self._source(id)) for id in sorted(ids)]
        return [Made(id, attempt) for id, own, attempt in made if own == token]

    def _source(self, id: str) -> tuple[str, str]:
        """Return token and attempt of an instance; empty texts where it is no PAI command of ours, or gone."""
        if id not in _sources:
            seen_s = _seen_s.setdefault(id, time.monotonic())
            try:
                _sources[id] = asked(lambda: self._made_by(id), f"the source of instance {id}")
            except Failure:
                if time.monotonic() - seen_s < NEW_S:
                    # It may be ours, listed before it tells its source.
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
        """Return what the service says of an instance that failed."""
        try:
            results = asked(
                lambda: self._call(lambda odps: odps.get_instance(id).get_task_results_without_format()),
                f"instance {id}",
            )
        except (Failure, Away):
            return None
        said = " ".join(" ".join(str(text).split()) for text in results.values() if text)
        return self._keys.hidden(said)[:500] or None

    def _connected(self) -> Any:
        from odps import ODPS
        from odps.accounts import StsAccount

        # It logs every command that is refused, as an error of its own.
        logging.getLogger("odps").setLevel(logging.CRITICAL)
        keys, where = self._keys, {"project": self._settings.project, "endpoint": region_endpoint(self._settings)}
        found = (
            ODPS(account=StsAccount(keys.id, keys.secret, keys.token), **where) if keys.token
            else ODPS(keys.id, keys.secret, **where)
        )  # fmt: skip
        # Whoever asks knows what may be asked twice.
        found.rest = found.rest.with_retry_enabled(False)
        return found

    def _failure(self, error: Exception) -> Failure:
        keys = self._keys
        status, code = getattr(error, "status_code", None), str(getattr(error, "code", None) or "")
        if not isinstance(status, int):
            return Failure(Fate.UNKNOWN, f"no answer ({keys.hidden(str(error))[:300]})")
        said = " ".join(keys.hidden(str(error)).split())[:500]
        if status in FULL_STATUSES or "Throttl" in code or "FlowExceeded" in code:
            return Failure(Fate.NOT_DONE, said, status)
        if status >= 500:
            return Failure(Fate.UNKNOWN, said, status)
        if status in (401, 403) and any(word in f"{code} {said}" for word in ("Signature", "AccessKey", "AccessId")):
            return Failure(Fate.REFUSED, f"{credentials.refused()} ({code})", status)
        remedy = "" if status == 404 else f"; correct what {PREFIX} sets"
        return Failure(Fate.REFUSED, f"{said}{remedy}", status)


def made_by(source: bytes) -> tuple[str, str]:
    """Return token and attempt in the source of an instance, which is XML; empty texts where it is none of ours."""
    try:
        parameters = ElementTree.fromstring(source).iter("Parameter")
    except ElementTree.ParseError:
        return "", ""
    given = {each.findtext("Key"): each.findtext("Value") or "" for each in parameters}
    return attempt_in(given.get("userDefinedParameters", ""))
