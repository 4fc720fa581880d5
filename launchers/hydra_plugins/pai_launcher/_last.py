"""python -m nlu_pai_last COMMANDS ARGUMENT ...: run a job, then the commands of `after`; ends as the job did.

The archive of the code holds this file under that name. COMMANDS is JSON: a list of arguments of Python for each
command. They run when the job has ended, whether or not it succeeded, but not if it was stopped to be continued. Each
finds the exit status of the job in NLU_STATUS. Of several machines only the first one runs them.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from nlu.config.stopping import STOPPED

STATUS = "NLU_STATUS"
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


def main(given: Sequence[str]) -> int:
    """Run everything and return the exit status of the job; a command that fails only causes a line."""
    commands, *job = given
    early: list[int] = []
    for number in PASSED_ON:
        signal.signal(number, lambda number, _: early.append(number))
    process = subprocess.Popen([sys.executable, *job])
    for number in PASSED_ON:
        signal.signal(number, lambda number, _: process.send_signal(number))
    for received in early:
        process.send_signal(received)
    status = process.wait()
    status = 128 - status if status < 0 else status
    if status in STOPPED or os.environ.get("RANK", "0") != "0":
        return status
    for command in json.loads(commands):
        ended = subprocess.call([sys.executable, *command], env={**os.environ, STATUS: str(status)})
        if ended:
            print(f"nlu: {command[1]} of hydra.launcher.after ended with {ended}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
