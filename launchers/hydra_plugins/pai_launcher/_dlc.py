"""PAI-DLC, by the SDK alibabacloud_pai_dlc20201203 (read in 1.11.6): version 2020-12-03 of its interface.

A job carries the token of its submission as a tag, and the service lists jobs by their tags.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from hydra_plugins.pai_launcher._code import CodePackage, shell_command
from hydra_plugins.pai_launcher._queue import Credentials, PaiQueue, import_or_say
from hydra_plugins.pai_launcher.pai_launcher import PaiSettings, mount_of, mounts_of, region_endpoint, store_environment

from nlu.jobs.queue import Job, JobState, Look, QueueContext
from nlu.storage.locks import JOB_VARIABLE

PACKAGE = "alibabacloud_pai_dlc20201203"
TOKEN_TAG = "nlu-token"
IDS_PER_QUESTION = 50
CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 10, 30
STATES = {
    **dict.fromkeys(("Creating", "Queuing", "Bidding", "EnvPreparing", "SanityChecking"), JobState.WAITING),
    **dict.fromkeys(("Running", "Restarting", "Stopping"), JobState.RUNNING),
    **dict.fromkeys(("Succeeded", "SucceededReserving"), JobState.DONE),
    **dict.fromkeys(("Failed", "FailedReserving"), JobState.FAILED),
    "Stopped": JobState.CANCELLED,
}


class DlcQueue(PaiQueue):
    """The jobs of one workspace."""

    name = "PAI-DLC"

    def __init__(self, settings: PaiSettings, keys: Credentials, context: QueueContext):
        import_or_say(f"{PACKAGE}.client", PACKAGE, "backend=dlc")
        super().__init__(settings, keys, context)

    def _upload(self, code: CodePackage) -> None:
        if self._store.stat(_key(code)) is None:
            self._store.put(_key(code), code.content)

    def _create(self, job: Job, arguments: Sequence[str], code: CodePackage) -> str:
        request = self._request(job, arguments, code)
        return self._once(f"submitting job {job.number}", lambda client: client.create_job(request).body.job_id)

    def _with_token(self, token: str) -> str | None:
        # The service lists the newest first, and of two jobs of one submission the newest has the mirror.
        return next((item.job_id for item in self._listed({TOKEN_TAG: token})), None)

    def _stop(self, id: str) -> None:
        self._asked(f"stopping job {id}", lambda client: client.stop_job(id))

    def _looks(self, ids: Sequence[str]) -> dict[str, Look]:
        found: dict[str, Look] = {}
        for begin in range(0, len(ids), IDS_PER_QUESTION):
            part = ids[begin : begin + IDS_PER_QUESTION]
            # For a single job the request for that job tells more.
            if len(part) > 1:
                found |= {item.job_id: _look(item) for item in self._listed(job_ids=",".join(part), size=len(part))}
        return {id: found.get(id) or self._lost_or(self._state_of, id) for id in ids}

    def _state_of(self, id: str) -> Look:
        return _look(self._job(id))

    def _output(self, id: str, lines: int) -> list[str]:
        """Return the last lines of the output of the first machine of the job."""
        pods = self._job(id).pods or []
        # Rank 0 runs on this machine, and only its log has the progress.
        pod = next((pod for pod in pods if (pod.type or "").lower() in ("master", "chief")), pods[0] if pods else None)
        if pod is None:
            return []
        request = self._models.GetPodLogsRequest(max_lines=lines)
        answer = self._asked(f"the log of job {id}", lambda client: client.get_pod_logs(id, pod.pod_id, request).body)
        return [line for entry in answer.logs or [] for line in entry.rstrip("\n").split("\n")][-lines:]

    def _page(self, id: str) -> str:
        region, workspace = self._settings.region, self._settings.workspace
        return f"https://pai.console.aliyun.com/?regionId={region}&workspaceId={workspace}#/dlc/jobs/{id}/overview"

    def _job(self, id: str) -> Any:
        request = self._models.GetJobRequest()
        return self._asked(f"job {id}", lambda client: client.get_job(id, request).body)

    def _listed(self, tags: Mapping[str, str] | None = None, job_ids: str | None = None, size: int = 100) -> list[Any]:
        """Return the jobs with these tags or ids, newest first."""
        request = self._models.ListJobsRequest(
            workspace_id=self._settings.workspace,
            tags=dict(tags) if tags else None,
            job_ids=job_ids,
            page_number=1,
            page_size=size,
        )
        return self._asked("the list of jobs", lambda client: client.list_jobs(request).body).jobs or []

    def _request(self, job: Job, arguments: Sequence[str], code: CodePackage) -> object:
        settings, models = self._settings, self._models
        archive = f"{self._store.reference.location.rstrip('/')}/{_key(code)}"
        return models.CreateJobRequest(
            display_name=f"nlu-{job.number}-{job.token[-8:]}",
            job_type="PyTorchJob",
            workspace_id=settings.workspace,
            resource_id=settings.resource_quota,
            priority=settings.priority,
            job_max_running_time_minutes=settings.max_minutes or None,
            user_command=shell_command(archive, code.digest, arguments, code.within),
            envs={**store_environment(settings), JOB_VARIABLE: job.token},
            job_specs=self._specs(),
            data_sources=self._data_sources(),
            credential_config=self._credential_config(),
            settings=models.JobSettings(tags={TOKEN_TAG: job.token}),
        )

    def _specs(self) -> list[object]:
        settings, models = self._settings, self._models
        if settings.instance_type:
            share: dict[str, object] = {"ecs_spec": settings.instance_type}
        else:
            gigabytes = f"{settings.memory_gb:g}Gi"
            share = {
                "resource_config": models.ResourceConfig(
                    cpu=f"{settings.cpus:g}",
                    memory=gigabytes,
                    gpu=str(settings.gpus),
                    gputype=settings.gpu_type,
                    shared_memory=gigabytes,
                )
            }
        counts = {"Master": 1, "Worker": settings.workers - 1}
        return [
            models.JobSpec(type=type, pod_count=count, image=settings.image, **share)
            for type, count in counts.items()
            if count
        ]

    def _data_sources(self) -> list[object]:
        mounts, folder = mounts_of(self._settings), self._settings.work_folder
        written = mount_of(folder, mounts) if folder else None
        return [
            self._models.CreateJobRequestDataSources(
                **{"uri" if "://" in source else "data_source_id": source},
                mount_path=path,
                # Only the mount with the runs is asked for writing; the others keep the access of their data sets.
                mount_access="RW" if path == written else None,
            )
            for path, source in mounts.items()
        ]

    def _credential_config(self) -> object:
        """Return the role by which the service gives the job short-lived keys, at ALIBABA_CLOUD_CREDENTIALS_URI."""
        role, models = self._settings.role, self._models
        if role is None:
            return None
        roles = [] if role == "default" else [models.CredentialRole(role_arn=role, role_type="service")]
        return models.CredentialConfig(
            enable_credential_inject=True,
            aliyun_env_role_key="0",
            credential_config_items=[models.CredentialConfigItem(key="0", type="Role", roles=roles)],
        )

    @property
    def _models(self) -> Any:
        from alibabacloud_pai_dlc20201203 import models

        return models

    def _connected(self) -> Any:
        from alibabacloud_pai_dlc20201203.client import Client
        from alibabacloud_tea_openapi.models import Config

        keys = self._keys
        protocol, _, host = region_endpoint(self._settings).rpartition("://")
        return Client(
            Config(
                access_key_id=keys.id,
                access_key_secret=keys.secret,
                security_token=keys.token,
                region_id=self._settings.region,
                endpoint=host,
                protocol=protocol or "https",
                connect_timeout=CONNECT_TIMEOUT_S * 1000,
                read_timeout=READ_TIMEOUT_S * 1000,
            )
        )

    def _failure(self, what: str, error: Exception) -> Exception:
        code, status = str(getattr(error, "code", None) or ""), getattr(error, "status_code", None)
        if not isinstance(status, int):
            status, message = None, str(getattr(error, "inner_exception", None) or error)
        else:
            message = f"{code or status}: {getattr(error, 'message', None) or error}"
        is_overload = code.startswith(("Throttling", "TooManyRequests", "ServiceUnavailable"))
        return self._keys.failure(what, message, code, status, is_overload=is_overload)


def _key(code: CodePackage) -> str:
    """Return the name of the code on the store."""
    return f"code/{code.digest}.tar.gz"


def _look(item: Any) -> Look:
    status = item.status or "Creating"
    # An unknown status must not end the job.
    state = STATES.get(status, JobState.RUNNING)
    said = [text for text in (item.reason_code, item.reason_message) if text]
    reason = ": ".join(dict.fromkeys(said)) or (status.lower() if state is not JobState.RUNNING else None)
    nodes = [pod.node_name or pod.ip for pod in item.pods or [] if pod.node_name or pod.ip]
    return Look(state, ",".join(dict.fromkeys(nodes)) or None, reason)
