"""Jobs over doubles of PAI that really train: code from the store, runs kept in mirrors, on a real S3 server.

The doubles run the submitted command in an empty folder; of this machine a job has Python and the keys of the store.
"""

import csv
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import optuna
import pytest
from pai_server import ID, SECRET, PaiServer

from nlu.search.storage.open_study import open_storage
from nlu.storage.objects import ObjectStore
from tests import warm
from tests.few import first
from tests.training.phases import PHASES, waiting_at, waiting_job

pytestmark = pytest.mark.services
REPOSITORY = Path(__file__).resolve().parents[2]
TINY = (
    "data=files", "data.train=rows/train.csv", "data.dev=rows/dev.csv", "data.fields={text: text, label: label}",
    "model=bert_tiny", "model.hidden_size=8", "model.heads=2", "model.layers=1",
    "model.intermediate_size=16", "model.max_positions=32", "data.max_len=32", "trainer.device=cpu",
    "trainer.batch_size=8", "trainer.max_duration=6st", "trainer.eval_interval=2st",
)  # fmt: skip


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of a user's own, which uses an installed nlu."""
    top = tmp_path / "project"
    (top / "rows").mkdir(parents=True)
    for name, count in (("train", 64), ("dev", 16)):
        with open(top / f"rows/{name}.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "label"])
            writer.writerows([("好 good" if number % 2 else "坏 bad", number % 2) for number in range(count)])
    for command in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", "-C", str(top), *command], check=True)
    return top


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PaiServer]:
    folder = tmp_path / "pai"
    folder.mkdir()
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION", "PGPASSWORD")
    given = {name: os.environ[name] for name in names}
    image = {
        **given,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "NLU_CACHE": str(folder / "cache"),
    }
    # What the platform's role would give; on this machine the packages lie beside the code.
    if known := [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if "lib" in Path(path).name]:
        image["PYTHONPATH"] = os.pathsep.join(known)
    with PaiServer(folder, image) as started:
        started.odps_environment = {"AWS_ENDPOINT_URL": os.environ["AWS_ENDPOINT_URL"]}
        yield started


def on_pai(server: PaiServer, url: str, backend: str) -> list[str]:
    """Return the overrides by which a command runs over the double."""
    of_backend = {
        "dlc": [f"endpoint=http://{server.host}", "workspace=1234", "image=registry/nlu:1", "resource_quota=q1"],
        "maxcompute": [f"endpoint=http://{server.host}/api", "project=proj1"],
    }[backend]
    keys = [
        f"backend={backend}", "region=cn-hangzhou", f"oss_folder={url}",
        f"oss_endpoint={os.environ['AWS_ENDPOINT_URL']}", "gpus=0", "cpus=1", *of_backend,
    ]  # fmt: skip
    return ["hydra/launcher=pai", *(f"hydra.launcher.{key}" for key in keys), *TINY]


def command(project: Path, server: PaiServer, url: str, backend: str, *overrides: str, status: int = 0) -> str:
    """Run nlu.train in the project over the double, and return what it said."""
    return nlu_train(project, *on_pai(server, url, backend), *overrides, status=status)


def start(project: Path, *overrides: str, program: Sequence[str] = ("-m", "nlu.train"), **more: str) -> warm.Process:
    """Start nlu.train in the project, or what stands for it, with more in its environment."""
    environment = {
        **os.environ, "ALIBABA_CLOUD_ACCESS_KEY_ID": ID, "ALIBABA_CLOUD_ACCESS_KEY_SECRET": SECRET,
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]), **more,
    }  # fmt: skip
    return warm.start(
        [*program, *overrides], cwd=project, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def end(process: warm.Process, status: int = 0) -> str:
    """Wait for the end of a command, and return what it said; asserts its exit status, and that it keeps the secret."""
    said = process.communicate(timeout=600)[0] or ""
    assert process.returncode == status, f"exit {process.returncode}, not {status}\n{said}"
    assert SECRET not in said
    return said


def nlu_train(project: Path, *overrides: str, status: int = 0) -> str:
    """Run nlu.train in the project, and return what it said."""
    return end(start(project, *overrides), status)


@pytest.mark.parametrize("backend", ["dlc", "maxcompute"])
def test_one_run_trains_there_and_comes_back(project, server, s3_url, backend):
    said = command(project, server, s3_url, backend, "hydra.run.dir=outputs/one")
    run = project / "outputs/one"
    result = json.loads((run / "result.json").read_text())
    assert result["steps"] == 6 and list((run / "checkpoints").glob("best-1/*.safetensors"))
    assert not (run / "checkpoints/last").exists(), "the state to continue from stays in the mirror"
    assert "run: done" in said
    (job,) = server.jobs.values()
    assert not [path for path in project.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert not [name for name in os.listdir(job.folder / "work") if name == ".git"]


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["dlc", "maxcompute"])
def test_predictions_and_scores_are_made_there(project, server, s3_url, backend):
    server.role = {"AccessKeyId": ID, "AccessKeySecret": SECRET, "SecurityToken": "of the role"}
    own = on_pai(server, s3_url, backend)[: -len(TINY)]
    tables = dict.fromkeys(("ODPS_ENDPOINT", "ODPS_TUNNEL_ENDPOINT"), f"http://{server.host}/api")

    def there(program: str, *overrides: str, status: int = 0) -> str:
        given = (f"run={s3_url}/run", *overrides, *own)
        return end(start(project, *given, program=("-m", program), **tables), status)

    command(project, server, s3_url, backend, f"mirror={s3_url}/run")
    store = ObjectStore(f"{s3_url}/x", "s3_url")
    ObjectStore(s3_url, "s3_url").put("new.csv", (project / "rows/dev.csv").read_bytes())
    predicted = (f"input={s3_url}/new.csv", f"output={s3_url}/x/predicted.csv", "device=cpu")
    assert "run: done" in there("nlu.predict", *predicted)
    rows = list(csv.DictReader(store.get("predicted.csv").decode().splitlines()))
    assert len(rows) == 16 and set(rows[0]) == {"text", "label", "prediction", "probability"}
    there("nlu.evaluate", f"data.test={s3_url}/new.csv", f"out={s3_url}/x/scores", "trainer.device=cpu")
    right = sum(row["prediction"] == row["label"] for row in rows) / 16
    result = json.loads(store.get("scores/result.json"))
    assert result["metrics"]["test"]["accuracy"] == pytest.approx(right)
    said = there("nlu.predict", *predicted, status=2)
    assert "output is" in said and "which exists" in said
    if backend == "dlc":
        there("nlu.predict", f"input={s3_url}/new.csv", "output=odps://proj1/tables/predicted", "device=cpu")
        assert server.tables["predicted"].column("prediction").to_pylist() == [row["prediction"] for row in rows]


def weights(run: Path) -> dict[str, str]:
    """Digests of the weights of a run, by file."""
    return {
        path.relative_to(run).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(run.glob("checkpoints/best-1/*.safetensors"))
    }


def test_a_job_of_two_machines_trains_to_the_same_bytes_as_two_processes_here(project, server, s3_url, tmp_path):
    """Its machines share nothing but what is mounted; RANK and WORLD_SIZE count them."""
    mount = tmp_path / "mnt"
    command(
        project, server, s3_url, "dlc", "hydra.run.dir=outputs/there", "hydra.launcher.workers=2",
        f"hydra.launcher.mounts=[d-1abc:{mount}]", f"hydra.launcher.work_folder={mount}/nlu",
    )  # fmt: skip
    first, second = sorted(server.jobs.values(), key=lambda job: job.environment["RANK"])
    assert [each.process.returncode for each in (first, second)] == [0, 0]
    assert (second.environment["WORLD_SIZE"], second.environment.get("LOCAL_RANK")) == ("2", None)
    (kept,) = (server.folder / "sources/d-1abc/nlu/runs").iterdir()
    here = [*TINY, "trainer.devices=2", "hydra.run.dir=outputs/here"]
    nlu_train(project, *here)
    outputs = project / "outputs"
    assert weights(outputs / "there") == weights(outputs / "here") == weights(kept) and weights(kept)
    found = [json.loads((outputs / name / "result.json").read_text()) for name in ("there", "here")]
    assert found[0]["best"]["value"] == found[1]["best"]["value"]


@pytest.mark.parametrize(
    ("backend", "phase", "name"),
    first(1, [("dlc", "step", "SIGTERM"), ("maxcompute", "last scoring", "SIGUSR1"), ("dlc", "prepare", "SIGINT")]),
)
def test_a_job_that_a_signal_meets_saves_its_state_and_continues(
    project, server, s3_url, tmp_path, backend, phase, name
):
    """PAI reports that a job failed, not with which status; the state is in the mirror."""
    waits, image = tmp_path / "waits", dict(server.image)
    wanted = waiting_at(PHASES[phase], waits)
    paths = [wanted.pop("PYTHONPATH"), image.get("PYTHONPATH", "")]
    server.image = {
        **image, **wanted, "WAITING_PROGRAM": "nlu.train", "PYTHONPATH": os.pathsep.join(filter(None, paths))
    }  # fmt: skip
    own = [*on_pai(server, s3_url, backend), "hydra.run.dir=outputs/one", "resume=auto"]
    process = start(project, *own)
    os.kill(waiting_job(waits), signal.Signals[name])
    assert "run: failed" in end(process, 1)
    (job,) = server.jobs.values()
    how = "interrupted" if name == "SIGINT" else f"stopped by {name}"
    assert job.process.returncode == (130 if name == "SIGINT" else 75) and how in job.log.read_text()
    end(start(project, *own))
    nlu_train(project, *TINY, "hydra.run.dir=outputs/here")
    assert weights(project / "outputs/one") == weights(project / "outputs/here") != {}
    assert len(server.jobs) == 2


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["dlc", "maxcompute"])
def test_a_search_of_four_trials_trains(project, server, s3_url, backend):
    mirror = f"{s3_url}/searches/first"
    said = command(
        project, server, s3_url, backend, "--multirun", "hydra/sweeper=hyperband", "hydra/sweeper/sampler=random",
        "hydra.sweeper.n_trials=4", "hydra.sweeper.n_jobs=2", "optimizer.lr=tag(log,interval(1e-4,1e-2))",
        "hydra.sweep.dir=outputs/search", f"mirror={mirror}",
    )  # fmt: skip
    assert len(server.jobs) == 4, said
    study = optuna.load_study(study_name="search", storage=open_storage(f"{mirror}/journal"))
    assert {trial.state.name for trial in study.trials} <= {"COMPLETE", "PRUNED"} and len(study.trials) == 4
    assert any(trial.intermediate_values for trial in study.trials)
    for trial in study.trials:
        result = json.loads((project / f"outputs/search/{trial.number}/result.json").read_text())
        assert result["best"]["value"] == pytest.approx(trial.user_attrs["outcome"]["value"])


BROKEN = '''
import os

from nlu.losses.cross_entropy import CrossEntropy


class Broken(CrossEntropy):
    """Raises an error in which a library would tell an address with its password."""

    def __call__(self, logits_NC, labels_N):
        keys = [os.environ[name] for name in ("PGPASSWORD", "AWS_SECRET_ACCESS_KEY")]
        raise RuntimeError(f"no connection to postgresql://me:{keys[0]}@host/db nor s3://id:{keys[1]}@bucket/x")
'''
TOKEN = "a-security-token-of-the-account"


def unpacked(name: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    """A file, and each file in it if it is an archive."""
    yield name, content
    if name.endswith(".tar.gz"):
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            yield from ((f"{name}/{each.name}", archive.extractfile(each).read()) for each in archive if each.isfile())


@pytest.mark.parametrize("backend", ["dlc", "maxcompute"])
def test_no_secret_of_the_environment_is_in_anything_that_jobs_leave(project, server, s3_url, monkeypatch, backend):
    """One of two jobs fails with a traceback; searched are both sides, the store and the requests."""
    monkeypatch.setenv("ALIBABA_CLOUD_SECURITY_TOKEN", TOKEN)
    (project / "mine/loss").mkdir(parents=True)
    (project / "mine/loss/broken.yaml").write_text("_target_: mine.broken.Broken\nlabel_smoothing: 0.0\n")
    (project / "mine/__init__.py").touch()
    (project / "mine/broken.py").write_text(BROKEN)
    subprocess.run(["git", "-C", str(project), "add", "mine"], check=True)
    said = command(
        project, server, s3_url, backend, "--multirun", "--config-dir=mine", "trusted_packages=[mine]",
        "loss=cross_entropy,broken", "hydra.sweep.dir=outputs/grid", status=1,
    )  # fmt: skip
    assert (project / "outputs/grid/0/result.json").is_file(), said
    store = ObjectStore(s3_url, "s3_url")
    files = [path for top in (project, server.folder) for path in top.rglob("*") if path.is_file()]
    left = [(str(path), path.read_bytes()) for path in files] + [(key, store.get(key)) for key in store.list()]
    left += [("console", said.encode()), *server.resources.items()]
    left += [(job.id, json.dumps(job.request).encode() + job.xml.encode()) for job in server.jobs.values()]
    left += [("request", " ".join(request).encode()) for request in server.requests]
    found = [each for name, content in left for each in unpacked(name, content)]
    lines = [line for _, content in found for line in content.split(b"\n") if b"no connection to" in line]
    assert any(b"postgresql://***@host/db nor s3://***@" in line for line in lines)
    assert any(name.endswith("mine/broken.py") and "/work/" not in name for name, _ in found), "the archive was read"
    secrets = {name: os.environ[name].encode() for name in ("AWS_SECRET_ACCESS_KEY", "PGPASSWORD")}
    secrets |= {"ALIBABA_CLOUD_ACCESS_KEY_SECRET": SECRET.encode(), "ALIBABA_CLOUD_SECURITY_TOKEN": TOKEN.encode()}
    assert [(secret, name) for name, content in found for secret, value in secrets.items() if value in content] == []
