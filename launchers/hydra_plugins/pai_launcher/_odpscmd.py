"""PAI commands by odpscmd, MaxCompute's client: its command line, and the instance that it started.

odpscmd (aliyun/aliyun-odps-console, CommandSplitter and PAICommand) splits a command at blanks, semicolons and `--`
outside of quotes, and undoes Java's escapes inside quotes. So each value stands in quotes, in ASCII. The client follows
an instance to its end. It is stopped once it has printed the number of the instance. If it prints none, the instance is
looked for by its token.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path

from hydra_plugins.pai_launcher._queue import Credentials, RequestRefused, ServiceAway, keys_refused

from nlu.config.errors import UserError

PROGRAM = "odpscmd"
LONGEST_S = 300.0
"""longer than the 130 seconds after which the client repeats a failed submission"""
STARTED = re.compile(r"\s*ID\s*=\s*(\w+)\s*")
REFUSED = re.compile(r"ODPS-0[1-9]\d{5}|Invalid parameters|Bad Command")
SIGNATURE_REFUSED = re.compile(r"Signature|AccessKey|AccessId|ODPS-0410")


def require(key: str) -> None:
    """Raise UserError if the client is not on PATH."""
    if shutil.which(PROGRAM) is None:
        raise UserError(f"{key} is {PROGRAM}, which is not on PATH; install it, or set {key}=pyodps")


def pai_command(
    name: str,
    project: str,
    parameters: Mapping[str, str],
    priority: int | None,
    settings: Mapping[str, str],
) -> str:
    """Return the argument of -e, one line of ASCII; `settings` are further ones of the session."""
    # JSON's escapes are Java's.
    given = " ".join(f"-D{key}={json.dumps(value)}" for key, value in parameters.items())
    sets = {} if priority is None else {"odps.instance.priority": str(priority)}
    before = "".join(f"set {key}={value};" for key, value in (sets | dict(settings)).items())
    return f"{before}pai -name {name} -project {project} {given};"


def submit(command: str, project: str, endpoint: str, keys: Credentials) -> str:
    """Run a command with the client and return the number of the instance.

    The keys are in a file that only this user may read, while the client runs. Raises RequestRefused, ServiceAway.
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
        raise RequestRefused(keys_refused(text))
    raise (RequestRefused if REFUSED.search(text) else ServiceAway)(f"{PROGRAM} said: {text or 'nothing'}")


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
