"""A job's command line: what a value holds arrives as it is, through the shell of a real process."""

import ast
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

pytest.importorskip("ossfs", reason="the driver of oss:// comes with the extra pai")
from hydra_plugins.pai_launcher import _code
from hydra_plugins.pai_launcher._code import JOB, parameters, shell_command, token_in
from pai_server import SECRET

AWKWARD = [
    """model.name='it''s "quoted"'""",
    "data.train=two  words and a tab\there",
    "data.fields=$HOME ${seed} $(touch ran) `touch ran`",
    "data.fields={text: 'a, b', label: [x, y]}",
    "note=first\nsecond\n",
    'data.train="数据 集.csv"',
    "note=; touch ran & echo > ran | cat < /etc/passwd # \\ ! * ? ~ %s",
    "note=",
    "~data.dev",
]
SAYS = "import json, os, sys; print(json.dumps([sys.argv[1:], sorted(os.listdir()), os.environ.get('NOTE')]))"
ENTRY = Path(_code.__file__).with_name("_entry.py").read_text()
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


@pytest.fixture
def archive(store) -> tuple[str, str]:
    """An archive with a module that says its arguments: its address and digest."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as opened:
        for name, text in (("says/__init__.py", ""), ("says/main.py", SAYS)):
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            opened.addfile(entry, io.BytesIO(text.encode()))
    store.put("code/a.tar.gz", content.getvalue())
    return "oss://bucket/nlu/code/a.tar.gz", hashlib.sha256(content.getvalue()).hexdigest()


def run(command: list[str], folder: Path, **more: str) -> subprocess.CompletedProcess:
    folder.mkdir(exist_ok=True)
    environment = {**os.environ, "PATH": PATH, "TMPDIR": str(folder), "PYTHONDONTWRITEBYTECODE": "1", **more}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_every_awkward_value_arrives_unchanged_on_dlc(archive, tmp_path):
    command = shell_command(*archive, ["-m", "says.main", *AWKWARD], ".")
    done = run(["sh", "-c", command], tmp_path / "job")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == [AWKWARD, ["says"], None]
    assert not list(tmp_path.rglob("ran"))


def test_every_awkward_value_arrives_unchanged_on_maxcompute(tmp_path):
    text = parameters(["-m", "main", *AWKWARD], "says", {"NOTE": "https://数据"}, "token1")
    assert re.fullmatch(re.escape(JOB) + r"[A-Za-z0-9_-]+", text) and token_in(text) == "token1"
    assert token_in("--other=1") == token_in("") == ""
    (tmp_path / "job/says").mkdir(parents=True)
    (tmp_path / "job/says/main.py").write_text(SAYS)
    (tmp_path / "job/nlu_pai_entry.py").write_text(ENTRY)
    done = run([sys.executable, str(tmp_path / "job/nlu_pai_entry.py"), text], tmp_path)
    assert done.stderr == "" and json.loads(done.stdout) == [AWKWARD, ["main.py"], "https://数据"]


def test_the_text_of_a_command_is_this_one_and_holds_no_key():
    arguments = ["-m", "nlu.train", "a=1", "b='x y'", "c=$HOME", "d={e: 1}", "f=é\n"]
    command = shell_command("oss://b/f/code/ab.tar.gz", "ab", arguments, "my rows")
    assert SECRET not in command + parameters(arguments, ".", {}, "token1")
    assert re.sub(r"'\"\"\"python fetch.py.*?' oss", "'...' oss", command, flags=re.DOTALL) == (
        "set -eu\ncode=$(mktemp -d)\n"
        "python3 -c '...' oss://b/f/code/ab.tar.gz ab \"$code\"\n"
        'export PYTHONPATH="$code${PYTHONPATH:+:$PYTHONPATH}"\n'
        "cd \"$code\"/'my rows'\n"
        "exec python3 -m nlu.train a=1 'b='\"'\"'x y'\"'\"'' 'c=$HOME' 'd={e: 1}' 'f=é\n'\n"
    )


@pytest.mark.parametrize(
    ("address", "digest", "said"),
    [
        (None, "0" * 64, "is not the code that was submitted"),
        ("oss://bucket/code/none.tar.gz", None, "cannot be fetched from oss://bucket/code/none.tar.gz"),
    ],
)
def test_a_job_without_its_code_ends_with_one_line(archive, tmp_path, address, digest, said):
    command = shell_command(address or archive[0], digest or archive[1], ["-m", "says.main"], ".")
    done = run(["sh", "-c", command], tmp_path / "job")
    assert done.returncode and said in done.stderr and "Traceback" not in done.stderr and done.stdout == ""


@pytest.mark.thorough
def test_a_job_with_a_role_fetches_its_code_by_the_keys_of_the_platform(archive, server, tmp_path, monkeypatch):
    from tests.oss_server import KEY
    from tests.oss_server import SECRET as SECRET_OF_STORE

    server.role = {"AccessKeyId": KEY, "AccessKeySecret": SECRET_OF_STORE, "SecurityToken": "a-token"}
    monkeypatch.delenv("FSSPEC_OSS_KEY", raising=False)
    command = shell_command(*archive, ["-m", "says.main", "x=1"], ".")
    done = run(["sh", "-c", command], tmp_path / "job", **server.role_environment)
    assert json.loads(done.stdout)[0] == ["x=1"] and done.stderr == ""


def test_old_pythons_can_read_what_says_that_they_are_too_old():
    """No syntax that Python 3.6 does not know: there the refusal must still be read."""
    for source in (ENTRY, _code.FETCH.read_text()):
        ast.parse(source, feature_version=(3, 6))
        assert not re.search(r"\w \| \w", source)
