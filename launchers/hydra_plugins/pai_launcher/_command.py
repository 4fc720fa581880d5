"""The command of a job as text: shell for DLC, letters and digits for MaxCompute. Every value arrives as it was given.

A job fetches the archive of its code into an empty folder and checks its digest. There it claims its submission, so
that only one of two jobs of the same submission computes (`_claim`), and runs its commands. MaxCompute unpacks the
archive itself, and `_entry.py` in the archive does the rest.
"""

import base64
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ._claim import TAKEN, arguments

MODULE = "nlu.train"
FETCH = Path(__file__).with_name("_fetch.py")
"""the program that fetches the code; it needs the standard library and fsspec"""
ENTRY = "nlu_pai_entry.py"
"""the name of the first program of a MaxCompute job in the archive"""
JOB = "--nlu-job="
LAST = "nlu_pai_last"
"""the name of the program in the archive that runs a job with commands of `after`"""
OURS = ("mirror", "resume", "hydra.run.dir", "trial")
"""keys that the launcher gives to a job"""
OUTPUT_OF = {"nlu.predict": "output", "nlu.evaluate": "out", "nlu.export": "out", "nlu.preprocess": "stores"}
"""the commands besides MODULE that jobs may run, and the key with the place of their output"""
RUN = "{run}"
"""what stands for the folder of the run in commands of `after`"""


@dataclass(frozen=True)
class Attempt:
    """One request for the job of a submission. Lost answers may need several."""

    folder: str
    """OSS_FOLDER, where the submission is claimed"""
    token: str
    """the token of the submission"""
    id: str
    """a name that no other attempt has"""

    @property
    def claim(self) -> list[str]:
        """The arguments of Python in the command that claims the submission for this attempt."""
        return arguments(self.folder, self.token, self.id)


@dataclass(frozen=True)
class Program:
    """What jobs run: the commands of `before`, the job itself, and those of `after`, each in a new process."""

    module: str = MODULE
    python: str = "python3"
    before: tuple[str, ...] = ()
    """MODULE, which gets the overrides of the job, or MODULE ARGUMENT ..."""
    after: tuple[str, ...] = ()
    """the same, once the run has ended"""
    within: str = "."
    """the folder of the code in which they start"""
    flags: tuple[str, ...] = ()
    """arguments before the overrides, such as --config-dir=DIR"""

    def commands(self, overrides: Sequence[str]) -> list[list[str]]:
        """Return the arguments of Python for each command of a job; the last one is the job itself."""
        before, after = ([self._command(text, overrides) for text in each] for each in (self.before, self.after))
        own = ["-m", self.module, *self.flags, *overrides]
        return [*before, ["-m", LAST, json.dumps(after, ensure_ascii=False), *own] if after else own]

    def _command(self, text: str, overrides: Sequence[str]) -> list[str]:
        module, *arguments = shlex.split(text)
        run = value_of(overrides, "hydra.run.dir") or "."
        own = [argument.replace(RUN, run) for argument in arguments]
        return ["-m", module, *(own or [*self.flags, *without_ours(overrides)])]


def value_of(overrides: Sequence[str], key: str) -> str | None:
    """Return the value of the last override of a key, without quotes; None if it is absent or null."""
    found = [text.partition("=")[2] for text in overrides if text.partition("=")[0].lstrip("+~") == key]
    return found[-1].strip("'\"") if found and found[-1] not in ("null", "") else None


def without_ours(overrides: Sequence[str]) -> list[str]:
    """Return the overrides without the keys of the launcher, which other commands do not have."""
    return [text for text in overrides if text.partition("=")[0].lstrip("+~") not in OURS]


def shell_command(archive: str, digest: str, overrides: Sequence[str], program: Program, attempt: Attempt) -> str:
    """Return the command line of a DLC job, for `sh -c`: it fetches `archive`, checks it and runs the program."""
    python = shlex.split(program.python)
    fetch = shlex.join([*python, "-c", FETCH.read_text(encoding="utf-8"), archive, digest])
    claim, *before, last = (
        shlex.join([*python, *command]) for command in (attempt.claim, *program.commands(overrides))
    )
    # Every step must succeed: a job without its code or its claim must not compute.
    lines = ["set -eu", "code=$(mktemp -d)", f'{fetch} "$code"']
    if program.within == ".":
        lines.append('cd "$code"')
    else:
        lines += ['export PYTHONPATH="$code${PYTHONPATH:+:$PYTHONPATH}"', f'cd "$code"/{shlex.quote(program.within)}']
    lines.append(f"{claim} || {{ status=$?; if [ $status -eq {TAKEN} ]; then status=0; fi; exit $status; }}")
    return "\n".join([*lines, *before, f"exec {last}"]) + "\n"


def parameters(overrides: Sequence[str], program: Program, environment: Mapping[str, str], attempt: Attempt) -> str:
    """Return the argument of a MaxCompute job, in characters that no client, service or shell changes."""
    job = {
        "claim": attempt.claim,
        "taken": TAKEN,
        "commands": program.commands(overrides),
        "within": program.within,
        "environment": dict(environment),
        "token": attempt.token,
        "attempt": attempt.id,
    }
    # Without padding, since `=` may separate names from values on the way.
    return JOB + base64.urlsafe_b64encode(json.dumps(job, ensure_ascii=False).encode()).decode().rstrip("=")


def attempt_in(given: str) -> tuple[str, str]:
    """Return token and attempt in the arguments of a MaxCompute job, two empty texts if the job is not ours."""
    if not given.startswith(JOB):
        return "", ""
    text = given.removeprefix(JOB)
    try:
        job = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        return job["token"], job.get("attempt", "")
    except (ValueError, KeyError, TypeError):
        return "", ""
