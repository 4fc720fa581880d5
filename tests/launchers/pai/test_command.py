"""A job's command line: what a value holds arrives as it is, through the shell of a real process."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("ossfs", reason="the driver of oss:// comes with the extra pai")
from hydra_plugins.pai_launcher import _checks
from hydra_plugins.pai_launcher import _claim as claim
from hydra_plugins.pai_launcher import _last as last
from hydra_plugins.pai_launcher._command import JOB, Attempt, Program, parameters, shell_command
from hydra_plugins.pai_launcher._service import DOUBT_S, AmbiguousSubmissions
from oss_emulator import OssEmulator
from pai_server import SECRET

AWKWARD = {
    "quotes": """model.name='it''s "quoted"'""",
    "spaces": "data.train=two  words and a tab\there",
    "dollar": "data.fields=$HOME ${seed} $(touch ran) `touch ran`",
    "braces": "data.fields={text: 'a, b', label: [x, y]}",
    "newline": "note=first\nsecond\n",
    "chinese": 'data.train="数据 集.csv"',
    "shell": "note=; touch ran & echo > ran | cat < /etc/passwd # \\ ! * ? ~ %s",
    "empty": "note=",
    "dash": "~data.dev",
}
FIRST = Attempt("oss://bucket/nlu", "token1", "attempt1")
NLU = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")])}
SAYING = Program("says.main", sys.executable)
SAYS = "import json, os, sys; print(json.dumps([sys.argv[1:], sorted(os.listdir())]))"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch):
    with OssEmulator() as emulator:
        for name, value in emulator.environment.items():
            monkeypatch.setenv(name, value)
        yield emulator


def archived(store: OssEmulator, tmp_path: Path) -> tuple[str, str]:
    """An archive with a module that says its arguments; its address and digest."""
    import hashlib

    with zipfile.ZipFile(tmp_path / "code.zip", "w") as archive:
        archive.write(claim.__file__, "nlu_pai_claim.py")
        archive.writestr("says/__init__.py", "")
        archive.writestr("says/main.py", SAYS)
    content = (tmp_path / "code.zip").read_bytes()
    store.objects["/bucket/code%2Fa.zip"] = content
    return "oss://bucket/code/a.zip", hashlib.sha256(content).hexdigest()


def run(command: str, folder: Path) -> subprocess.CompletedProcess:
    folder.mkdir()
    environment = {**os.environ, **NLU, "TMPDIR": str(folder)}
    return subprocess.run(["sh", "-c", command], cwd=folder, env=environment, capture_output=True, text=True)


def test_every_awkward_value_arrives_unchanged(store, tmp_path):
    address, digest = archived(store, tmp_path)
    # As of a job that the service starts again.
    store.objects[CLAIM] = FIRST.id.encode()
    command = shell_command(address, digest, list(AWKWARD.values()), SAYING, FIRST)
    done = run(command, tmp_path / "job")
    assert done.stderr == ""
    arguments, files = json.loads(done.stdout)
    assert arguments == list(AWKWARD.values()) and [name for name in files if name != "__pycache__"] == [
        "nlu_pai_claim.py",
        "says",
    ]
    assert not list(tmp_path.rglob("ran"))


def test_the_text_of_a_command_is_this_one():
    command = shell_command(
        "oss://b/f/code/ab.zip", "ab", ["a=1", "b='x y'", "c=$HOME", "d={e: 1}", "f=é\n"], Program(), FIRST
    )
    head, fetch_line, *rest = re.sub(r"'\"\"\"python fetch.py.*?' oss", "'...' oss", command, flags=re.S).split("\n", 2)
    assert head == "set -eu" and fetch_line == "code=$(mktemp -d)"
    assert rest == [
        "python3 -c '...' oss://b/f/code/ab.zip ab \"$code\"\n"
        'cd "$code"\n'
        "python3 -m nlu_pai_claim oss://bucket/nlu token1 attempt1 "
        "|| { status=$?; if [ $status -eq 3 ]; then status=0; fi; exit $status; }\n"
        "exec python3 -m nlu.train a=1 'b='\"'\"'x y'\"'\"'' 'c=$HOME' 'd={e: 1}' 'f=é\n'\n"
    ]


def entered(text: str, folder: Path, store: OssEmulator) -> subprocess.CompletedProcess:
    """Do what a MaxCompute job does with its arguments, in a folder of code."""
    (folder / "says").mkdir(parents=True)
    (folder / "says/main.py").write_text(SAYS + "; print(os.environ['NOTE'])")
    for name in ("claim", "entry"):
        shutil.copy(Path(claim.__file__).with_name(f"_{name}.py"), folder / f"nlu_pai_{name}.py")
    command = [sys.executable, str(folder / "nlu_pai_entry.py"), text]
    given = {
        **NLU,
        **store.environment,
        "PATH": os.environ["PATH"],
        "LC_ALL": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return subprocess.run(command, capture_output=True, text=True, env=given)


def test_a_maxcompute_job_gets_its_command_in_plain_characters(store, tmp_path):
    text = parameters(list(AWKWARD.values()), SAYING, {"NOTE": "https://数据"}, FIRST)
    assert re.fullmatch(re.escape(JOB) + r"[A-Za-z0-9_-]+", text)
    done = entered(text, tmp_path / "job", store)
    said, endpoint = done.stdout.splitlines()
    assert (
        json.loads(said) == [list(AWKWARD.values()), ["nlu_pai_claim.py", "nlu_pai_entry.py", "says"]]
        and endpoint == "https://数据"
    )


CLAIM = "/bucket/nlu%2Fjobs%2Ftoken1"
"""where the double of OSS has the claim"""


@pytest.mark.parametrize("backend", ["dlc", "maxcompute"])
def test_a_job_whose_submission_another_claimed_ends_without_computing(store, tmp_path, backend):
    store.objects[CLAIM] = b"attempt2"
    if backend == "dlc":
        done = run(shell_command(*archived(store, tmp_path), ["x=1"], SAYING, FIRST), tmp_path / "job")
    else:
        done = entered(parameters(["x=1"], SAYING, {"NOTE": "n"}, FIRST), tmp_path / "job", store)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("nlu: another job of the same submission has begun")


def test_the_first_claim_wins_and_a_restarted_job_finds_its_claim(claims):
    statuses = [claim.main(["oss://bucket/nlu", "token1", attempt]) for attempt in ("attempt1", "attempt2", "attempt1")]
    assert statuses == [0, claim.TAKEN, 0]
    assert claim.holder_after(claims, "token1", "attempt3") == "attempt1"
    assert claim.main(["oss://bucket/nlu", "token2", "attempt2"]) == 0


def test_a_job_that_cannot_claim_computes_nothing_and_says_why(store, tmp_path):
    given = {"NOTE": "n", "FSSPEC_OSS_SECRET": "wrong"}
    done = entered(parameters(["x=1"], SAYING, given, FIRST), tmp_path / "job", store)
    assert done.returncode == 2 and done.stdout == "" and "correct FSSPEC_OSS_SECRET" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"digest": "0" * 64}, "is not the code that was submitted"),
        ({"address": "oss://bucket/code/none.zip"}, "cannot be fetched from oss://bucket/code/none.zip"),
    ],
)
def test_a_job_without_its_code_ends_with_one_line(store, tmp_path, change, said):
    address, digest = archived(store, tmp_path)
    command = shell_command(change.get("address", address), change.get("digest", digest), [], SAYING, FIRST)
    done = run(command, tmp_path / "job")
    assert done.returncode and said in done.stderr and "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.thorough
def test_a_job_with_a_role_fetches_its_code_by_the_keys_of_the_platform(tmp_path, monkeypatch):
    from oss_emulator import KEY as KEY_OF_STORE
    from oss_emulator import SECRET as SECRET_OF_STORE
    from pai_server import PaiServer

    (tmp_path / "pai").mkdir()
    with OssEmulator() as store, PaiServer(tmp_path / "pai", runs=False) as server:
        server.role = {"AccessKeyId": KEY_OF_STORE, "AccessKeySecret": SECRET_OF_STORE, "SecurityToken": "a-token"}
        address, digest = archived(store, tmp_path)
        monkeypatch.setenv("OSS_ENDPOINT", store.environment["OSS_ENDPOINT"])
        monkeypatch.delenv("FSSPEC_OSS_KEY", raising=False)
        for name, value in server.role_environment.items():
            monkeypatch.setenv(name, value)
        done = run(shell_command(address, digest, ["x=1"], SAYING, FIRST), tmp_path / "job")
    assert json.loads(done.stdout)[0] == ["x=1"] and done.stderr == ""


def test_old_pythons_can_read_what_says_that_they_are_too_old():
    """No syntax that Python 3.6 does not know: there the refusal must still be read."""
    import ast

    for name in ("_fetch.py", "_entry.py"):
        source = Path(claim.__file__).with_name(name).read_text()
        ast.parse(source, feature_version=(3, 6))
        assert not re.search(r"\w \| \w", source)


def test_no_key_of_the_account_is_in_a_command():
    text = shell_command("oss://b/f/a.zip", "ab", ["x=1"], Program(), FIRST) + parameters(["x=1"], Program(), {}, FIRST)
    assert SECRET not in text and "ALIBABA_CLOUD_ACCESS_KEY" not in text


@pytest.mark.parametrize(("numbers", "said"), [([1], "job 1: bad"), ([0, 2], "jobs 0, 2: bad"), ([0, 1, 2], "bad")])
def test_a_problem_names_its_jobs_unless_all_have_it(numbers, said):
    assert _checks._named("bad", numbers, 3) == said


def test_a_doubtful_submission_is_looked_at_for_a_while_from_now_on():
    doubtful = AmbiguousSubmissions()
    before_s = time.monotonic()
    doubtful.note("token", 5.0)
    assert doubtful.open["token"].until_s >= before_s + DOUBT_S and doubtful.open["token"].since_s == 5.0


def test_commands_of_after_are_run_by_the_program_that_runs_the_job():
    program = Program(before=("nlu.preprocess",), after=("nlu.report {run}", "nlu.data"), flags=("--config-dir=my",))
    own = ("seed=1", "hydra.run.dir=run", "mirror=oss://b/x", "resume=auto")
    first, last = program.commands(own)
    assert first == ["-m", "nlu.preprocess", "--config-dir=my", "seed=1"]
    assert last[:2] == ["-m", "nlu_pai_last"] and last[3:] == ["-m", "nlu.train", "--config-dir=my", *own]
    assert json.loads(last[2]) == [["-m", "nlu.report", "run"], ["-m", "nlu.data", "--config-dir=my", "seed=1"]]


AFTER = json.dumps([["-c", "import sys; sys.exit(9)"], ["-c", "import os; print('after', os.environ['NLU_STATUS'])"]])


def last_of(*job: str, commands: str = AFTER, **more: str) -> subprocess.Popen:
    command = [sys.executable, last.__file__, commands, "-c", *job]
    return subprocess.Popen(
        command, env={**os.environ, **NLU, **more}, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


@pytest.mark.parametrize(
    ("status", "environment", "said"),
    [(0, {}, "after 0\n"), (3, {}, "after 3\n"), (75, {}, ""), (3, {"RANK": "1"}, "")],
)
def test_a_job_ends_as_its_run_did_whatever_follows(status, environment, said):
    """Nothing follows a run that will be continued, nor on machines other than the first."""
    process = last_of(f"import sys; sys.exit({status})", **environment)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (status, said)
    assert ("of hydra.launcher.after ended with 9" in err) == bool(said)


def test_a_signal_to_the_program_reaches_the_run():
    waits = "signal.signal(15, lambda *_: sys.exit(75)); print('ready', flush=True); time.sleep(60)"
    process = last_of(f"import signal, sys, time; {waits}")
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.terminate()
    assert process.communicate(timeout=60)[0] == "" and process.returncode == 75
