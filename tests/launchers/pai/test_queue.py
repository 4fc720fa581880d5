"""What is checked before the first submission, where runs are kept, and how they come back: over a real store."""

import csv
import json
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("alibabacloud_pai_dlc20201203", reason="the SDK of PAI-DLC comes with the extra pai")
from hydra_plugins.pai_launcher import _requests as requests
from hydra_plugins.pai_launcher._code import packed
from hydra_plugins.pai_launcher._queue import PaiQueue, open_pai
from pai_server import ID, SECRET

from nlu.config.errors import UserError
from nlu.launching.listing import follow, latest, listed
from nlu.launching.queue import Job, JobState, QueueContext, open_queue
from nlu.launching.submissions import Submissions
from nlu.runs.mirror import Mirror
from nlu.storage.objects import ObjectStore
from tests.buckets import Server

# Each opens a connection, which takes seconds.
pytestmark = pytest.mark.thorough


@pytest.fixture
def store(s3: Server, monkeypatch, tmp_path) -> str:
    """A folder of a bucket, by its address."""
    monkeypatch.setenv(requests.ID, ID)
    monkeypatch.setenv(requests.SECRET, SECRET)
    return f"{s3.bucket(monkeypatch)}/{tmp_path.name}"


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    top = tmp_path / "project"
    (top / "rows").mkdir(parents=True)
    with open(top / "rows/train.csv", "w", encoding="utf-8") as file:
        csv.writer(file).writerow(["text", "label"])
    (top / "untracked.csv").write_text("text,label\n")
    for command in (["init", "-q"], ["add", "rows"]):
        subprocess.run(["git", "-C", str(top), *command], check=True)
    monkeypatch.chdir(top)
    monkeypatch.setenv("NLU_DATA", str(tmp_path / "data"))
    packed.cache_clear()
    return top


@pytest.fixture
def opened(server, store, project):
    def queue(**given) -> PaiQueue:
        compose = given.pop("compose", lambda job: config())
        dirs, module = given.pop("config_dirs", ()), given.pop("module", "nlu.train")
        settings = {
            "endpoint": f"http://{server.host}", "workspace": "1", "image": "i", "resource_quota": "q",
            "oss_folder": store, "wait": True, **given,
        }  # fmt: skip
        return open_queue("pai", QueueContext(settings, project / "outputs/grid", module, None, compose, dirs))  # type: ignore[return-value]

    return queue


def config(**data) -> dict:
    """What a job's configuration holds, as far as paths go."""
    return {"mirror": None, "data": {"train": "rows/train.csv", "dev": None, "test": None, "urls": None, **data},
            "tokenizer": {"vocab": None}, "model": {"pretrained": "pypi://a/b"}}  # fmt: skip


def job(number: int, *overrides: str) -> Job:
    folder = Path.cwd() / "outputs/grid" / str(number)
    return Job(number, str(folder), overrides or (f"seed={number}",), f"token{number}")


def objects(store: str) -> list[str]:
    return sorted(ObjectStore(store, "store").list())


def test_a_job_runs_its_overrides_with_its_run_in_a_mirror(opened, server, store):
    first, second = opened().submit([job(0), job(1, "seed=1", "resume=never")])
    command = server.jobs[second.id].request["UserCommand"]
    (code,) = [key for key in objects(store) if key.startswith("code/")]
    assert f"{store}/{code}" in command and f"{code.removeprefix('code/').removesuffix('.zip')}" in command
    assert f"exec python3 -m nlu.train seed=1 hydra.run.dir=run mirror={store}/runs/grid-" in command
    assert command.rstrip().endswith("/1 resume=auto") and "resume=never" not in command
    assert first.job == job(0)


def test_a_job_counts_as_running_before_its_claim_is_in_the_store(opened, server):
    queue = opened()
    (ticket,) = queue.submit([job(0)])
    server.jobs[ticket.id].status = "Running"
    assert queue.look([ticket.id])[ticket.id].state is JobState.RUNNING


def test_the_code_is_put_once(opened, server, store, monkeypatch):
    opened().submit([job(0)])
    put = []
    monkeypatch.setattr(ObjectStore, "put", lambda self, key, content: put.append(key))
    opened().submit([job(1)])
    assert put == [] and len(server.jobs) == 2


HERE = r"hydra\.sweeper\.storage is {0}, which is a file of this machine.*set mirror=oss://"


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (
            ["data.train=untracked.csv"],
            r"data\.train is untracked\.csv, which is untracked\.csv on this machine, and jobs do not have it; put it "
            r"on the store .* or name it in hydra\.launcher\.include",
        ),
        (["data.train=/etc/hosts"], r"data\.train is /etc/hosts, which is /etc/hosts on this machine"),
        (["data.train=afqmc/a.csv"], r"data\.train is afqmc/a\.csv, which is .*/data/afqmc/a\.csv on this machine"),
        (["resume=outputs/old"], r"resume starts a run from a folder of this machine"),
        (['trial={storage:"journal:///x/y.log",study:"s",number:0}'], HERE.format(r"journal:///x/y\.log")),
        (['trial={storage:"sqlite:///x.db",study:"s",number:0}'], HERE.format(r"sqlite:///x\.db")),
        (["mirror=/local/folder"], r"mirror is /local/folder/2, which is not a folder in a bucket"),
    ],
)
def test_nothing_is_submitted_where_one_job_is_wrong(opened, server, store, overrides, told):
    def compose(one: Job) -> dict:
        train = [text.partition("=")[2] for text in one.overrides if text.startswith("data.train=")]
        return config(train=train[0]) if train else config()

    queue = opened(compose=compose)
    with pytest.raises(UserError, match=f"job 2: {told}"):
        queue.submit([job(1), job(2, *overrides), job(3)])
    assert server.jobs == {} and objects(store) == []


def test_a_check_finds_what_a_submission_would_find_and_writes_nothing(opened, server, store, project, tmp_path):
    with pytest.raises(UserError, match=r"job 1: resume starts a run from a folder of this machine"):
        opened().check([job(0), job(1, "resume=outputs/old")])
    kept_run(f"{store}/taken/0", tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"job 0: .*/taken/0 holds a run; set resume=auto"):
        opened().check([job(0, f"mirror={store}/taken")])
    before = objects(store)
    opened().check([job(0), job(1)])
    assert server.jobs == {} and objects(store) == before and not (project / "outputs").exists()


def test_a_problem_of_all_jobs_is_reported_once(opened):
    with pytest.raises(UserError) as raised:
        taught = {"method": {"teacher": ["outputs/a"], "logits": "b.jsonl"}}
        opened(compose=lambda one: config(train="no.csv", dev="none.csv") | taught).submit([job(0), job(1)])
    keys = [problem.partition(" ")[0] for problem in raised.value.problems]
    assert keys == ["data.train", "data.dev", "method.teacher", "method.logits"]


def test_a_declared_file_is_packed(opened, server):
    queue = opened(compose=lambda one: config(train="untracked.csv"), include=["untracked.csv"])
    assert len(queue.submit([job(0)])) == 1


def test_data_that_the_job_fetches_need_no_local_file(opened):
    urls = config(train="far.csv", dev=["oss://b/dev.csv"], urls={"far.csv": "https://x/far.csv"})
    assert len(opened(compose=lambda one: urls).submit([job(0)])) == 1


def test_a_command_that_makes_nothing_to_keep_is_refused(opened):
    with pytest.raises(
        UserError, match=r"nlu\.serve cannot be submitted to PAI; submit one of nlu\.train, nlu\.predict"
    ):
        opened(module="nlu.serve", compose=lambda one: {}).submit([job(0)])


PREDICT = ("run=oss://b/run", "input.path=oss://b/new.csv")


def test_a_prediction_runs_its_overrides_and_has_no_mirror(opened, server, store, project):
    queue = opened(
        module="nlu.predict", compose=lambda one: {"run": "oss://b/run", "input": {"path": "oss://b/new.csv"}}
    )
    tickets = queue.submit([job(number, *PREDICT, f"output=oss://b/{number}.csv") for number in range(2)])
    commands = [server.jobs[ticket.id].request["UserCommand"] for ticket in tickets]
    assert [command.splitlines()[-1].partition(" -m ")[2] for command in commands] == [
        f"nlu.predict {' '.join(PREDICT)} output=oss://b/{number}.csv" for number in range(2)
    ]
    server.jobs[tickets[0].id].status, server.jobs[tickets[1].id].status = "Succeeded", "Failed"
    assert [queue.outcome(ticket.id) for ticket in tickets] == [0, None]


@pytest.mark.parametrize(
    ("module", "config", "overrides", "told"),
    [
        ("nlu.predict", {"run": "r"}, ["output=odps://p/tables/t"], "run is r, which is .* and jobs do not have it"),
        ("nlu.predict", {"input": {"path": "-"}}, ["output=s3://b/a"], "input is -, but a job has no standard input"),
        ("nlu.predict", {}, ["output=a.csv"], r"output is a\.csv, but what nlu\.predict makes in a job must leave"),
        ("nlu.export", {}, ["out=odps://p/tables/t"], "out is odps://p/tables/t, but what"),
        ("nlu.evaluate", {"run": "s3://b/r"}, [], "out is not set, but what nlu.evaluate makes"),
        ("nlu.preprocess", {}, [], "stores is not set, but what nlu.preprocess makes"),
    ],
)
def test_what_a_job_reads_and_makes_is_not_on_its_own_machine(opened, server, module, config, overrides, told):
    with pytest.raises(UserError, match=told):
        opened(module=module, compose=lambda one: config).submit([job(0, *overrides)])
    assert server.jobs == {}


def test_two_jobs_never_write_the_same_output(opened):
    with pytest.raises(UserError, match="job 1: it would have the output of job 0, s3://b/a"):
        opened(module="nlu.predict", compose=lambda one: {}).submit([job(n, "output=s3://b/a") for n in range(2)])


def test_an_evaluation_of_a_run_reads_only_the_rows_that_the_command_names(opened, server):
    own = {"run": "s3://b/r", "data": {"train": "no.csv", "dev": None, "test": "s3://b/test.csv"}}
    queue = opened(module="nlu.evaluate", compose=lambda one: own)
    assert len(queue.submit([job(0, "data.test=s3://b/test.csv", "out=s3://b/scores")])) == 1
    own["data"]["test"] = "none.csv"
    with pytest.raises(UserError, match=r"data\.test is none\.csv"):
        queue.submit([job(1, "data.test=none.csv", "out=s3://b/others")])


def test_several_machines_without_a_folder_in_common_are_refused(opened, server):
    with pytest.raises(
        UserError, match=r"workers is 2, but the machines of a job share no folder.*mount one into all.*one machine"
    ):
        opened(workers=2).submit([job(0)])
    assert server.jobs == {}


def test_machines_with_a_shared_folder_keep_the_run_there_and_read_mounted_files(opened, server, project):
    mounts = [f"d-1:{project.parent}/mnt"]
    shared = f"{project.parent}/mnt/nlu"
    queue = opened(
        workers=2, mounts=mounts, work_folder=shared, compose=lambda job: config(train=f"{project.parent}/mnt/a.csv")
    )
    (ticket,) = queue.submit([job(3)])
    command = server.jobs[ticket.id].request["UserCommand"]
    name = queue.mirror_of(job(3)).partition("/runs/")[2]
    assert f"hydra.run.dir={shared}/runs/{name} mirror=" in command and name.endswith("/3")
    with pytest.raises(UserError, match=r"data\.train is /elsewhere/a\.csv"):
        other = config(train="/elsewhere/a.csv")
        opened(mounts=mounts, compose=lambda job: other).submit([job(4, "data.train=/elsewhere/a.csv")])


def test_a_folder_of_configurations_is_packed_or_refused(opened, project, server, tmp_path):
    (project / "my").mkdir()
    (project / "my/a.yaml").write_text("")
    with pytest.raises(UserError, match="--config-dir is my, which does not go to a job"):
        opened(config_dirs=(str(project / "my"),)).submit([job(0)])
    (ticket,) = opened(config_dirs=(str(project / "my"),), include=["my"]).submit([job(0)])
    assert "-m nlu.train --config-dir=my seed=0" in server.jobs[ticket.id].request["UserCommand"]


def test_two_jobs_never_share_a_mirror(opened, server):
    with pytest.raises(UserError, match="job 1: it would have the mirror of job 0"):
        opened().submit([job(0), Job(1, job(0).folder, ("seed=1",), "token1")])
    assert server.jobs == {}


def test_another_machine_that_sees_the_folder_finds_the_same_mirror(opened, monkeypatch):
    first = opened().mirror_of(job(1))
    monkeypatch.setattr("socket.gethostname", lambda: "another-machine")
    assert opened().mirror_of(job(1)) == first


def kept_run(url: str, folder: Path) -> None:
    """A run that a job left in a mirror."""
    folder.mkdir(parents=True)
    mirror = Mirror(url, folder)
    mirror.open(may_hold_a_run=False)
    (folder / "config.yaml").write_text("seed: 1\n")
    (folder / "log.txt").write_text("one\ntwo\n")
    (folder / "result.json").write_text(json.dumps({"steps": 6}))
    mirror.close()


def test_a_mirror_that_holds_a_run_is_refused_unless_the_command_resumes(opened, server, store, tmp_path):
    queue = opened()
    kept_run(queue.mirror_of(job(1)), tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"job 1: .* holds a run; set resume=auto to continue it"):
        queue.submit([job(0), job(1)])
    assert server.jobs == {}
    assert len(queue.submit([job(0), job(1, "seed=1", "resume=auto")])) == 2


def test_another_command_can_fetch_a_run(opened, server, tmp_path, project):
    queue = opened()
    (ticket,) = queue.submit([job(0)])
    kept_run(queue.mirror_of(job(0)), tmp_path / "elsewhere")
    server.jobs[ticket.id].status = "Failed"
    record = Submissions(project / "outputs/grid")
    record.begin([job(0)], "pai", {}, "nlu.train")
    record.submitted([ticket])
    other = opened()
    assert other.look([ticket.id])[ticket.id].state is JobState.FAILED
    assert other.outcome(ticket.id) == 0, "its result counts although its machine failed"
    assert json.loads((project / "outputs/grid/0/result.json").read_text()) == {"steps": 6}
    assert other.log_tail(ticket.id, 1) == ["two"]


def test_runs_of_several_folders_are_fetched_into_each_but_listing_fetches_none(opened, server, tmp_path, project):
    folders, settings = [project / name for name in "ab"], dict(opened()._context.settings)
    for number, folder in enumerate(folders):
        queue = open_pai(QueueContext(settings, folder, "nlu.train", None, lambda job: config()))
        one = Job(0, str(folder), ("seed=1",), f"of-{folder.name}")
        record = Submissions(folder)
        record.begin([one], "pai", settings, "nlu.train")
        record.submitted(tickets := queue.submit([one]))
        kept_run(queue.mirror_of(one), tmp_path / f"elsewhere-{number}")
        server.jobs[tickets[0].id].status = "Failed"
    found = latest([Submissions(folder) for folder in folders])
    assert [row.state for row in listed(found)] == ["done", "done"]
    assert not any((folder / "result.json").exists() for folder in folders)
    follow(folders)
    assert all((folder / "result.json").exists() for folder in folders)


def test_a_job_without_a_result_has_none(opened, server):
    queue = opened()
    (ticket,) = queue.submit([job(0)])
    server.jobs[ticket.id].status = "Failed"
    assert queue.outcome(ticket.id) is None and queue.log_tail(ticket.id) == []


def test_wrong_keys_of_the_store_are_reported_by_their_variables(opened, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(UserError, match="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        opened().submit([job(0)])


def test_a_command_started_in_a_folder_of_the_project_starts_there_in_the_job(opened, server, project, monkeypatch):
    first = job(0)
    monkeypatch.chdir(project / "rows")
    (ticket,) = opened(compose=lambda one: config(train="train.csv")).submit([first])
    command = server.jobs[ticket.id].request["UserCommand"]
    assert 'cd "$code"/rows\n' in command and 'export PYTHONPATH="$code${PYTHONPATH:+:$PYTHONPATH}"' in command


def test_nothing_is_opened_without_keys(project, monkeypatch):
    monkeypatch.delenv(requests.ID, raising=False)
    settings = {"endpoint": "http://h", "workspace": "1", "image": "i", "resource_quota": "q", "oss_folder": "s3://b/f"}
    with pytest.raises(UserError, match="ALIBABA_CLOUD_ACCESS_KEY_ID"):
        open_pai(QueueContext(settings, project))


def test_missing_keys_settings_and_checkout_are_reported_together(tmp_path, monkeypatch):
    monkeypatch.delenv(requests.ID, raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as caught:
        open_pai(QueueContext({"region": "cn-hangzhou"}, tmp_path, "nlu.train", None, lambda job: config()))
    told = "\n".join(caught.value.sentences)
    assert all(word in told for word in ("launcher.workspace is not set", requests.ID, "is not a checkout of git"))
