"""The command of a job as text: shell for DLC, letters and digits for MaxCompute. Every value arrives as it was given.

A job fetches the archive of its code into an empty folder, checks its digest and becomes its program. MaxCompute
unpacks the archive itself, and `_entry.py` in the archive does the rest.
"""

import base64
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

MODULE = "nlu.train"
FETCH = Path(__file__).with_name("_fetch.py")
"""the program that fetches the code; it needs the standard library and fsspec"""
ENTRY = "nlu_pai_entry.py"
"""the name of the first program of a MaxCompute job in the archive"""
JOB = "--nlu-job="
OURS = ("mirror", "resume", "hydra.run.dir", "trial")
"""keys that the launcher gives to a job"""
OUTPUT_OF = {"nlu.predict": "output", "nlu.evaluate": "out", "nlu.export": "out", "nlu.preprocess": "stores"}
"""the commands besides MODULE that jobs may run, and the key with the place of their output"""


def value_of(overrides: Sequence[str], key: str) -> str | None:
    """Return the value of the last override of a key, without quotes; None if it is absent or null."""
    found = [text.partition("=")[2] for text in overrides if text.partition("=")[0].lstrip("+~") == key]
    return found[-1].strip("'\"") if found and found[-1] not in ("null", "") else None


def without_ours(overrides: Sequence[str]) -> list[str]:
    """Return the overrides without the keys of the launcher."""
    return [text for text in overrides if text.partition("=")[0].lstrip("+~") not in OURS]


def shell_command(archive: str, digest: str, arguments: Sequence[str], within: str) -> str:
    """Return the command line of a DLC job, for `sh -c`: it fetches `archive`, checks it and becomes its program.

    `arguments` are those of Python, `within` is the folder of the code in which it starts.
    """
    fetch = shlex.join(["python3", "-c", FETCH.read_text(encoding="utf-8"), archive, digest])
    lines = [
        # Every step must succeed: a job without its code must not compute.
        "set -eu",
        "code=$(mktemp -d)",
        f'{fetch} "$code"',
        'export PYTHONPATH="$code${PYTHONPATH:+:$PYTHONPATH}"',
        f'cd "$code"/{shlex.quote(within)}',
        f"exec {shlex.join(['python3', *arguments])}",
    ]
    return "\n".join(lines) + "\n"


def parameters(arguments: Sequence[str], within: str, environment: Mapping[str, str], token: str) -> str:
    """Return the argument of a MaxCompute job, in characters that no client, service or shell changes."""
    job = {"arguments": list(arguments), "within": within, "environment": dict(environment), "token": token}
    # Without padding, since `=` may separate names from values on the way.
    return JOB + base64.urlsafe_b64encode(json.dumps(job, ensure_ascii=False).encode()).decode().rstrip("=")


def token_in(given: str) -> str:
    """Return the token in the arguments of a MaxCompute job, an empty text if the job is not ours."""
    text = given.removeprefix(JOB)
    try:
        return str(json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))["token"])
    except (ValueError, KeyError, TypeError):
        return ""
