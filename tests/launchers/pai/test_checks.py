"""What is checked before a submission: files that a job would not find, places that it could not leave, mirrors."""

import pytest

from nlu.config.errors import UserError
from nlu.jobs.queue import Job
from nlu.jobs.submissions import Submissions
from tests.launchers.pai.projects import config, git, job, kept_run

HERE = r"hydra\.sweeper\.storage is {0}, which is a file of this machine.*set mirror=oss://"
PREDICT = ("run=oss://b/run", "input.path=oss://b/new.csv")


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (
            ["data.train=untracked.csv"],
            r"data\.train is untracked\.csv, a file of this machine, which jobs do not have; put it on the store",
        ),
        (["data.train=/etc/hosts"], r"data\.train is /etc/hosts, a file of this machine"),
        (["resume=outputs/old"], r"resume starts a run from a folder of this machine"),
        (['trial={storage:"journal:///x/y.log",study:"s",number:0}'], HERE.format(r"journal:///x/y\.log")),
        (['trial={storage:"sqlite:///x.db",study:"s",number:0}'], HERE.format(r"sqlite:///x\.db")),
        (["mirror=/local/folder"], r"mirror is /local/folder/2, which is not a folder in a bucket"),
    ],
)
def test_a_job_that_would_find_less_there_is_named(opened, store, overrides, told):
    def compose(one: Job) -> dict:
        train = [text.partition("=")[2] for text in one.overrides if text.startswith("data.train=")]
        return config(train=train[0]) if train else config()

    with pytest.raises(UserError, match=f"job 2: {told}"):
        opened(compose=compose).check([job(1), job(2, *overrides), job(3)])
    assert list(store.list()) == []


def test_a_problem_of_all_jobs_is_reported_once(opened):
    taught = {"method": {"teacher": ["outputs/a"], "logits": "b.jsonl"}}
    with pytest.raises(UserError) as raised:
        opened(compose=lambda one: config(train="no.csv", dev={"a": "x.csv"}) | taught).check([job(0), job(1)])
    keys = [problem.partition(" ")[0] for problem in raised.value.problems]
    assert keys == ["data.train", "data.dev.a", "method.teacher", "method.logits"]


def test_data_that_the_job_fetches_and_files_that_git_tracks_pass(opened, project):
    urls = config(train="far.csv", dev=["oss://b/dev.csv"], urls={"far.csv": "https://x/far.csv"}, test="rows/*.csv")
    opened(compose=lambda one: urls).check([job(0)])
    (project / "my").mkdir()
    (project / "my/a.yaml").write_text("")
    queue = opened(dirs=(str(project / "my"),))
    with pytest.raises(UserError, match="--config-dir is my, which does not go to a job"):
        queue.check([job(0)])
    git(project, "add", "my")
    from hydra_plugins.pai_launcher._code import packed

    packed.cache_clear()
    queue.check([job(0)])
    assert queue.arguments_of(job(0))[:4] == ["-m", "nlu.train", "--config-dir=my", "seed=0"]


def test_a_mirror_that_holds_a_run_is_refused_unless_the_command_resumes(opened, server, store, project, tmp_path):
    opened().check([job(0), job(1)])
    assert list(store.list()) == [] and not (project / "outputs").exists(), "a check leaves nothing"
    kept_run("oss://bucket/nlu/taken/0", tmp_path / "given")
    with pytest.raises(UserError, match=r"job 0: .*/taken/0 holds a run; set resume=auto"):
        opened().check([job(0, "mirror=oss://bucket/nlu/taken")])
    queue = opened()
    Submissions(project / "outputs/grid").begin([job(0), job(1)], "pai", {}, "nlu.train")
    kept_run(queue.mirror_of(job(1)), tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"job 1: .* holds a run; set resume=auto to continue it"):
        queue.check([job(0), job(1)])
    queue.check([job(0), job(1, "seed=1", "resume=auto")])


def test_two_jobs_share_no_mirror_and_an_output_only_in_pieces(opened):
    with pytest.raises(UserError, match="job 1: it would have the mirror of job 0"):
        opened().check([job(0), Job(1, job(0).folder, ("seed=1",), "token1")])
    queue = opened(module="nlu.predict", compose=lambda one: {})
    with pytest.raises(UserError, match="job 1: it would have the output of job 0, s3://b/a"):
        queue.check([job(n, "output=s3://b/a") for n in range(2)])
    queue.check([job(n, "output=s3://b/a", "jobs=2", f"job={n}") for n in range(2)])


@pytest.mark.parametrize(
    ("module", "config", "overrides", "told"),
    [
        ("nlu.predict", {"run": "r"}, ["output=odps://p/tables/t"], "run is r, a file of this machine"),
        ("nlu.predict", {"input": {"path": "-"}}, ["output=s3://b/a"], "input.path is -, but a job has no standard"),
        ("nlu.predict", {}, ["output=a.csv"], r"output is a\.csv, but what nlu\.predict makes in a job must leave"),
        ("nlu.export", {}, ["out=odps://p/tables/t"], "out is odps://p/tables/t, but what"),
        ("nlu.evaluate", {}, [], "out is not set, but what nlu.evaluate makes"),
        ("nlu.preprocess", {}, [], "stores is not set, but what nlu.preprocess makes"),
        ("nlu.serve", {}, [], r"nlu\.serve cannot be submitted to PAI; submit one of nlu\.train, nlu\.predict"),
    ],
)
def test_what_a_job_reads_and_makes_is_not_on_its_own_machine(opened, module, config, overrides, told):
    with pytest.raises(UserError, match=told):
        opened(module=module, compose=lambda one: config).check([job(0, *overrides)])


def test_a_prediction_runs_its_overrides_and_has_no_mirror(opened, server):
    queue = opened(
        module="nlu.predict", compose=lambda one: {"run": "oss://b/run", "input": {"path": "oss://b/new.csv"}}
    )
    jobs = [job(number, *PREDICT, f"output=oss://b/{number}.csv") for number in range(2)]
    queue.check(jobs)
    tickets = queue.submit(jobs)
    commands = [server.jobs[ticket.id].request["UserCommand"].splitlines()[-1] for ticket in tickets]
    assert commands[1] == f"exec python3 -m nlu.predict {' '.join(PREDICT)} output=oss://b/1.csv"
    server.jobs[tickets[0].id].status, server.jobs[tickets[1].id].status = "Succeeded", "Failed"
    assert [queue.outcome(ticket) for ticket in tickets] == [0, None]


def test_an_evaluation_of_a_run_reads_only_the_rows_that_the_command_names(opened):
    own = {"run": "s3://b/r", "data": {"train": "no.csv", "dev": None, "test": "s3://b/test.csv"}}
    queue = opened(module="nlu.evaluate", compose=lambda one: own)
    queue.check([job(0, "data.test=s3://b/test.csv", "out=s3://b/scores")])
    own["data"]["test"] = "none.csv"
    with pytest.raises(UserError, match=r"data\.test is none\.csv"):
        queue.check([job(1, "data.test=none.csv", "out=s3://b/others")])
