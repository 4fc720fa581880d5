"""What is particular to PAI-DLC: its request, its mounts, its log, many jobs in one question."""

from hydra_plugins.pai_launcher import _dlc

from tests.launchers.pai.projects import config, job


def specs_of(request: dict) -> list[dict]:
    """What is said of the machines; the SDK adds empty lists."""
    return [{key: value for key, value in spec.items() if value != []} for spec in request["JobSpecs"]]


def test_a_job_requests_its_settings_and_what_is_mounted(opened, server, tmp_path, store):
    data, runs = f"{tmp_path}/mnt/data", f"{tmp_path}/mnt/runs"
    queue = opened(
        workers=3, priority=4, max_minutes=90, environment={"A": "b"}, gpu_type="V100",
        mounts=[f"d-1abc:{data}", f"nas://1.cn-hangzhou/share:{runs}"], work_folder=f"{runs}/mine",
        compose=lambda one: config(train=f"{data}/train.csv"),
    )  # fmt: skip
    queue.check([job(7)])
    (ticket,) = queue.submit([job(7, "seed=7", "resume=never")])
    request = server.jobs[ticket.id].request
    share = {"CPU": "8", "Memory": "32Gi", "GPU": "2", "GPUType": "V100", "SharedMemory": "32Gi"}
    assert specs_of(request) == [
        {"Type": "Master", "PodCount": 1, "Image": "registry/nlu:1", "ResourceConfig": share},
        {"Type": "Worker", "PodCount": 2, "Image": "registry/nlu:1", "ResourceConfig": share},
    ]
    assert request["WorkspaceId"] == "1234" and request["ResourceId"] == "quota1" and request["Priority"] == 4
    assert request["JobMaxRunningTimeMinutes"] == 90 and request["JobType"] == "PyTorchJob"
    assert (
        request["Envs"].items() >= {"OSS_ENDPOINT": "https://oss-cn-hangzhou-internal.aliyuncs.com", "A": "b"}.items()
    )
    assert request["CredentialConfig"]["EnableCredentialInject"] is True
    assert request["Settings"]["Tags"] == {"nlu-token": "token7"}
    assert request["DataSources"] == [
        {"DataSourceId": "d-1abc", "MountPath": data},
        {"Uri": "nas://1.cn-hangzhou/share", "MountPath": runs, "MountAccess": "RW"},
    ]
    (code,) = [key for key in store.list() if key.startswith("code/")]
    name = queue.mirror_of(job(7)).partition("/runs/")[2]
    command = request["UserCommand"]
    assert f"oss://bucket/nlu/{code} {code.removeprefix('code/').removesuffix('.tar.gz')}" in command
    assert command.splitlines()[-1] == (
        f"exec python3 -m nlu.train seed=7 hydra.run.dir={runs}/mine/runs/{name} mirror=oss://bucket/nlu/runs/{name} "
        "resume=auto"
    )


def test_public_machines_are_named_by_their_type(opened, server):
    queue = opened(resource_quota=None, instance_type="ecs.gn6v", role="acs:ram::1:role/nlu")
    (ticket,) = queue.submit([job(0)])
    request = server.jobs[ticket.id].request
    assert specs_of(request) == [{"Type": "Master", "PodCount": 1, "Image": "registry/nlu:1", "EcsSpec": "ecs.gn6v"}]
    (item,) = request["CredentialConfig"]["CredentialConfigItems"]
    assert item["Roles"][0]["RoleArn"] == "acs:ram::1:role/nlu"
    assert " hydra.run.dir=run " in request["UserCommand"]


def test_the_log_is_that_of_the_first_machine(opened, server):
    queue = opened()
    (ticket,) = queue.submit([job(0)])
    server.jobs[ticket.id].log.write_text("".join(f"line {number}\n" for number in range(5)))
    assert queue.log_tail(ticket, 3) == []
    server.jobs[ticket.id].status = "Running"
    assert queue.log_tail(ticket, 3) == ["line 2", "line 3", "line 4"]


def test_many_jobs_are_looked_at_with_few_requests(opened, server):
    queue = opened()
    tickets = queue.submit([job(number) for number in range(2 * _dlc.IDS_PER_QUESTION + 1)])
    server.requests.clear()
    assert list(queue.look(tickets)) == [ticket.id for ticket in tickets] and len(server.requests) == 3


def test_a_command_started_in_a_folder_of_the_project_starts_there_in_the_job(opened, server, project, monkeypatch):
    first = job(0)
    monkeypatch.chdir(project / "rows")
    queue = opened(compose=lambda one: config(train="train.csv"))
    queue.check([first])
    (ticket,) = queue.submit([first])
    assert '\ncd "$code"/rows\n' in server.jobs[ticket.id].request["UserCommand"]
