"""What a job runs, as text: shell for DLC, letters and digits for MaxCompute. Nothing in a value is lost or run.

A job fetches its code, which is the archive of that digest, into an empty folder. There it claims its submission, so
that of two jobs of one submission one computes (`nlu.launching.pai.claim`), and starts what the command says. For
MaxCompute, which unpacks the code by itself, `entry.py` in the archive does the rest.
"""

import base64
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nlu.launching.pai.claim import TAKEN, arguments

MODULE = "nlu.train"
FETCH = Path(__file__).with_name("fetch.py")
"""the program that gets the code: it needs the standard library and fsspec"""
ENTRY = "nlu_pai_entry.py"
"""by what name a MaxCompute job finds its beginning in the archive"""
JOB = "--nlu-job="
OURS = ("mirror", "resume", "hydra.run.dir", "trial")
"""keys that a job gets from its launcher"""


@dataclass(frozen=True)
class Attempt:
    """One request for the job of a submission, of which a lost answer may cost several."""

    folder: str
    """OSS_FOLDER, where it is claimed"""
    token: str
    """of the submission"""
    id: str
    """which no other attempt has"""

    @property
    def claim(self) -> list[str]:
        """What follows the name of Python in the command that claims the submission for this attempt."""
        return arguments(self.folder, self.token, self.id)


@dataclass(frozen=True)
class Program:
    """What jobs run: `python -m MODULE OVERRIDES`, after the commands of `before`, each in a process of its own."""

    module: str = MODULE
    python: str = "python3"
    before: tuple[str, ...] = ()
    """MODULE, which is given the job's own overrides, or MODULE ARGUMENT ..."""
    within: str = "."
    """folder of the code in which they start"""
    flags: tuple[str, ...] = ()
    """arguments before the overrides, such as --config-dir=DIR"""

    def commands(self, overrides: Sequence[str]) -> list[list[str]]:
        """Return what follows the name of Python in each command of a job, the last one being the job itself."""
        found = []
        for text in self.before:
            module, *arguments = shlex.split(text)
            found.append(["-m", module, *(arguments or [*self.flags, *without_ours(overrides)])])
        return [*found, ["-m", self.module, *self.flags, *overrides]]


def without_ours(overrides: Sequence[str]) -> list[str]:
    """Return the overrides that say what is trained, not where it is kept: other commands have no such keys."""
    return [text for text in overrides if text.partition("=")[0].lstrip("+~") not in OURS]


def shell_command(archive: str, digest: str, overrides: Sequence[str], program: Program, attempt: Attempt) -> str:
    """Return the command line of a DLC job, for `sh -c`: it fetches `archive`, checks it and runs the overrides."""
    python = shlex.split(program.python)
    fetch = shlex.join([*python, "-c", FETCH.read_text(encoding="utf-8"), archive, digest])
    claim, *before, last = (
        shlex.join([*python, *command]) for command in (attempt.claim, *program.commands(overrides))
    )
    lines = ["set -eu", "code=$(mktemp -d)", f'{fetch} "$code"']
    if program.within == ".":
        lines.append('cd "$code"')
    else:
        lines += ['export PYTHONPATH="$code${PYTHONPATH:+:$PYTHONPATH}"', f'cd "$code"/{shlex.quote(program.within)}']
    lines.append(f"{claim} || {{ status=$?; if [ $status -eq {TAKEN} ]; then status=0; fi; exit $status; }}")
    return "\n".join([*lines, *before, f"exec {last}"]) + "\n"


def parameters(overrides: Sequence[str], program: Program, environment: Mapping[str, str], attempt: Attempt) -> str:
    """Return the arguments of a MaxCompute job, in characters that no client, service or shell reads otherwise."""
    job = {
        "claim": attempt.claim, "taken": TAKEN, "commands": program.commands(overrides), "within": program.within,
        "environment": dict(environment), "token": attempt.token, "attempt": attempt.id,
    }  # fmt: skip
    return JOB + base64.urlsafe_b64encode(json.dumps(job, ensure_ascii=False).encode()).decode().rstrip("=")


def attempt_in(given: str) -> tuple[str, str]:
    """Return token and attempt in the arguments of a MaxCompute job; empty texts where it is none of ours."""
    if not given.startswith(JOB):
        return "", ""
    text = given.removeprefix(JOB)
    try:
        job = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        return job["token"], job.get("attempt", "")
    except (ValueError, KeyError, TypeError):
        return "", ""
