"""Run in a separate process by test_takeover.py: how resume=PATH takes over another run if it is killed meanwhile.

    python taking_over.py FOLDER OVERRIDE ...

Every start is a fork of this process, which has imported everything; one that is to die does so at a named point.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nlu.config.errors import UserError
from nlu.config.schema import Run
from nlu.runs import folder as run_folder
from nlu.training import single
from nlu.training.processes import launch
from tests.training.in_process import composed

NAMED_POINTS = ("rename", "replace", "rmdir")
KILLED = 9


def forked(work: Callable[[], Any]) -> int:
    """Do the work in a fork of this process; returns its exit status: 2 for a UserError, 1 for any other."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = work() or 0
        except UserError as error:
            print(error, file=sys.stderr, flush=True)
            status = 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def armed(point: int) -> None:
    """From now on the point-th of the named calls is this process's last."""
    left = [point]

    def wrapped(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            result = real(*arguments, **named)
            left[0] -= 1
            if not left[0]:
                os._exit(KILLED)
            return result

        return call

    for name in NAMED_POINTS:
        setattr(os, name, wrapped(getattr(os, name)))


def started(config: Run, run_dir: Path, dies_at: int = 0) -> int:
    """Start the run as far as its first step; die at a point after it began to copy the other's state, if one is given.

    Returns KILLED where it died, else 0.
    """

    def work() -> int:
        copy = run_folder.take

        def take(*arguments: Any) -> Path:
            if dies_at:
                armed(dies_at)
            return copy(*arguments)

        def train(run: Any) -> bool:
            os._exit(0)

        run_folder.take, single.train = take, train  # type: ignore[assignment]
        return launch(config, run_dir, [])

    return forked(work)


def kills(folder: Path, options: list[str]) -> None:
    """Print the number of points that were tried, and those after which another start did not get as far as at once."""
    first = composed(*options)
    assert forked(lambda: launch(first, folder / "first", [])) == 0
    state = folder / "first" / "checkpoints" / "last" / "state.json"
    state.write_text(state.read_text().replace('"pruned": false', '"pruned": true'))
    longer = composed(*options, f"resume={folder}/first", "trainer.max_duration=6st")
    before = listing(folder / "first")
    assert started(longer, folder / "whole") == 0
    expected, wrong, point = outcome(folder / "whole"), [], 1
    while (status := started(longer, run_dir := folder / f"killed-{point}", dies_at=point)) == KILLED:
        if started(longer, run_dir) or outcome(run_dir) != expected:
            wrong.append(point)
        point += 1
    pruned = json.loads((folder / "whole" / "checkpoints" / "last" / "state.json").read_text())["state"]["pruned"]
    unchanged = listing(folder / "first") == before
    found = {"points": point - 1, "wrong": wrong, "last": status, "pruned": pruned, "unchanged": unchanged}
    print(json.dumps(found))


def outcome(run_dir: Path) -> dict[str, Any]:
    """What must be the same: the state, the best weights, their predictions, and the names of all that is there."""
    places = [run_dir / "checkpoints", run_dir / "predictions"]
    names = {str(path.relative_to(run_dir)) for path in run_dir.rglob("*") if not path.name.startswith("log")}
    files = [path for place in places for path in sorted(place.rglob("*")) if path.is_file()]
    return {"names": names, "contents": {str(path.relative_to(run_dir)): path.read_bytes() for path in files}}


def listing(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}


if __name__ == "__main__":
    kills(Path(sys.argv[1]), sys.argv[2:])
