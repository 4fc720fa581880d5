"""python -m nlu_pai_claim FOLDER TOKEN ATTEMPT: the first program of a job, before it computes anything.

The archive of the code holds this file under that name, so that an image needs no plugin.

    OSS_FOLDER/jobs/TOKEN       the attempt that has the submission; put there only if no object stands there

A lost answer may leave two jobs of one submission, each created by another attempt. The first of them that claims the
submission has it. The launcher claims for a job if it has to choose one. A job that finds the claim of another attempt
ends. A job that the service starts again, and each machine of one job, finds its own claim and continues.
"""

import sys
from collections.abc import Sequence

from nlu.config.errors import EXIT_USER_ERROR, UserError
from nlu.storage.objects import ObjectStore
from nlu.storage.temporary import is_temporary

MODULE = "nlu_pai_claim"
FOLDER = "jobs"
NO_ATTEMPT = "nobody"
"""the claim of a submission that was withdrawn: no job has this attempt, so all of them end"""
TAKEN, AWAY = 3, 75
"""exit statuses: another job has the submission; the store does not answer"""


def arguments(folder: str, token: str, attempt: str) -> list[str]:
    """Return the arguments of Python in the command that claims."""
    return ["-m", MODULE, folder, token, attempt]


def holder_after(store: ObjectStore, token: str, attempt: str) -> str:
    """Claim a submission for an attempt, unless another one has it; returns the attempt that has it from now on.

    `store` is that of OSS_FOLDER. Raises Unreachable if it does not answer, Denied if it refuses.
    """
    key = f"{FOLDER}/{token}"
    # The store refuses this put if the object exists, so it succeeds for exactly one of several jobs.
    if store.put_new(key, attempt.encode()):
        return attempt
    # This may be our own claim, whose answer was lost.
    return store.get(key).decode()


def holder_of(store: ObjectStore, token: str) -> str | None:
    """Return the attempt that has a submission, None if none has claimed it. Raises as `holder_after` does."""
    try:
        return store.get(f"{FOLDER}/{token}").decode()
    except FileNotFoundError:
        return None


def main(given: Sequence[str]) -> int:
    """Claim the submission and return the exit status; if that is not 0, one line says why."""
    folder, token, attempt = given
    try:
        holder = holder_after(ObjectStore(folder, "hydra.launcher.oss_folder"), token, attempt)
    except (OSError, UserError) as error:
        if is_temporary(error) or not isinstance(error, UserError):
            print(f"nlu: this job cannot claim its submission: {error}", file=sys.stderr)
            return AWAY
        print(f"nlu: {error}", file=sys.stderr)
        return EXIT_USER_ERROR
    if holder != attempt:
        print("nlu: another job of the same submission has begun, or it was withdrawn; this one ends")
        return TAKEN
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
