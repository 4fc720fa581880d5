"""PAI commands by odpscmd, MaxCompute's client: its command line, and the instance that it started.

odpscmd (aliyun/aliyun-odps-console, CommandSplitter and PAICommand) splits a command at blanks, semicolons and `--`
outside of quotes, undoes Java's escapes inside quotes, and drops a quote at the end of a value. So each value stands in
quotes, in ASCII, with every special character escaped. The client follows an instance to its end. It is stopped once it
has printed the number of the instance. If it prints none, the instance is looked for by its token.
"""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path

from nlu.config.errors import UserError

from ._requests import KEYS_REFUSED, TOKEN, Credentials, Fate, RequestFailure

PROGRAM = "odpscmd"
LONGEST_S = 300.0
"""longer than the 130 seconds after which the client repeats a failed submission"""
PLAIN = re.compile(r"[A-Za-z0-9_./:,={}\[\]]")
STARTED = re.compile(r"\s*ID\s*=\s*(\w+)\s*")
REFUSED = re.compile(r"ODPS-0[1-9]\d{5}|Invalid parameters|Bad Command")
SIGNATURE_REFUSED = re.compile(r"Signature|AccessKey|AccessId|ODPS-0410")


def require(keys: Credentials, key: str) -> None:
    """Raise UserError if the client is not on PATH, or if it does not support the kind of keys."""
    if shutil.which(PROGRAM) is None:
        raise UserError(f"{key} is {PROGRAM}, which is not on PATH; install it, or set {key}=pyodps")
    if keys.token:
        raise UserError(f"{key} is {PROGRAM}, but {TOKEN} is set, which it does not support; set {key}=pyodps")


def pai_command(
    name: str,
    project: str,
    parameters: Mapping[str, str],
    priority: int | None,
    settings: Mapping[str, str] | None = None,
) -> str:
    """Return the argument of -e, one line of ASCII; `settings` are further ones of the session.

    Raises RequestFailure for a value that the client would change.
    """
    given = []
    for key, value in parameters.items():
        if value.endswith('"') or value.lower().startswith("file:"):
            raise RequestFailure(
                Fate.REFUSED, f"{PROGRAM} cannot pass on {key}={value}; set hydra.launcher.client=pyodps"
            )
        given.append(f"-D{key}={quoted(value)}")
    sets = {} if priority is None else {"odps.instance.priority": str(priority)}
    before = "".join(f"set {key}={value};" for key, value in (sets | dict(settings or {})).items())
    return f"{before}pai -name {name} -project {project} {' '.join(given)};"


def quoted(value: str) -> str:
    """Return a value in double quotes, with Java's escapes."""
    return f'"{"".join(map(_escaped, value))}"'


def _escaped(letter: str) -> str:
    if PLAIN.fullmatch(letter):
        return letter
    if letter in '"\\':
        return f"\\{letter}"
    # Java's escapes are UTF-16 units: a letter beyond the first plane needs two.
    units = letter.encode("utf-16-be").hex()
    return "".join(f"\\u{units[place : place + 4]}" for place in range(0, len(units), 4))


def submit(command: str, project: str, endpoint: str, keys: Credentials) -> str:
    """Run a command with the client and return the number of the instance. Raises RequestFailure, without keys.

    The keys are in a file that only this user may read, while the client runs.
    """
    with tempfile.TemporaryDirectory(prefix="nlu-odpscmd-") as folder:
        config = Path(folder, "odps_config.ini")
        # Only this user may enter the folder; the file is private before it has content.
        with open(os.open(config, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(
                f"project_name={project}\naccess_id={keys.id}\naccess_key={keys.secret}\nend_point={endpoint}\n"
                "https_check=true\n"
            )
        found, said = _followed([PROGRAM, f"--config={config}", "-e", command])
    if found is not None:
        return found
    text = keys.hidden(" ".join(" ".join(said).split()))[-500:]
    if SIGNATURE_REFUSED.search(text):
        raise RequestFailure(Fate.REFUSED, f"{KEYS_REFUSED} ({text})")
    raise RequestFailure(Fate.REFUSED if REFUSED.search(text) else Fate.UNKNOWN, f"{PROGRAM} said: {text or 'nothing'}")


def _followed(command: list[str]) -> tuple[str | None, list[str]]:
    """Run the client until it prints the number of an instance; returns that and the lines before it."""
    said: list[str] = []
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # Its own session, so that Ctrl-C does not reach the client, and so that its children end with it.
        start_new_session=True,
        encoding="utf-8",
        errors="replace",
    )
    # A client that hangs prints no line, so the loop over its lines could not end it.
    limit = threading.Timer(LONGEST_S, _end, [process])
    limit.start()
    assert process.stdout is not None, "its output is a pipe"
    try:
        for line in process.stdout:
            if match := STARTED.fullmatch(line):
                return match[1], said
            said.append(line)
        return None, said
    finally:
        limit.cancel()
        # The instance continues without its client.
        _end(process)
        process.stdout.close()
        process.wait()


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
