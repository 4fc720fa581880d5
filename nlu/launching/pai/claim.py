"""python -m nlu.launching.pai.claim FOLDER TOKEN ATTEMPT: the first thing that a job does, before it computes anything.

    OSS_FOLDER/jobs/TOKEN       the attempt at this submission that has it, put there on condition that nothing stands

An answer that was lost may leave two jobs of one submission. Each was made by an attempt of its own, and the first of
them to claim the submission has it; so has whoever submits, where it must choose one. A job that finds another's claim
leaves. One that the service starts again finds its own, as do the machines of one job, and goes on.
"""

import sys
from collections.abc import Sequence

from nlu.config.errors import EXIT_USER_ERROR, UserError
from nlu.storage.objects import ObjectStore
from nlu.storage.temporary import is_temporary

MODULE = "nlu.launching.pai.claim"
FOLDER = "jobs"
NOBODY = "nobody"
"""an attempt that no job was made by: a submission that it has is computed by none"""
TAKEN, AWAY = 3, 75
"""exit statuses: another job has the submission; the store does not answer"""


def arguments(folder: str, token: str, attempt: str) -> list[str]:
    """Return what follows the name of Python in the command that claims."""
    return ["-m", MODULE, folder, token, attempt]


def holder_after(store: ObjectStore, token: str, attempt: str) -> str:
    """Claim a submission for an attempt, unless another has it; returns the attempt that has it from now on.

    `store` is that of OSS_FOLDER. Raises Unreachable where it does not answer, Denied where it refuses.
    """
    key = f"{FOLDER}/{token}"
    if store.put_new(key, attempt.encode()):
        return attempt
    # It may be our own, whose answer was lost.
    return store.get(key).decode()


def holder_of(store: ObjectStore, token: str) -> str | None:
    """Return the attempt that has a submission; None where nothing has claimed it. Raises as `holder_after` does."""
    try:
        return store.get(f"{FOLDER}/{token}").decode()
    except FileNotFoundError:
        return None


def main(given: Sequence[str]) -> int:
    """Claim the submission; returns the exit status, after one line where that is not 0."""
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
        print("nlu: another job of the same submission has begun, or it was withdrawn; this one leaves it alone")
        return TAKEN
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
