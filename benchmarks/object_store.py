"""A large file to an object store and back by nlu.io cp, against plain s3fs on the same server, in turns.

    python tests/services/run.py --then python benchmarks/object_store.py

Both sides run in this process, connected and warm. nlu.io looks whether the file is there already, compares what came
with what the store says of it, and has a download on the disk before it gets its name; s3fs does none of that.
"""

import argparse
import contextlib
import io
import os
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path

import s3fs
from table import Row, show

from nlu.commands.io import main as nlu_io

TARGET = 1 / 1.3


def seconds(work: Callable[[], object]) -> float:
    """Return how long a call takes, with nothing from before it left for the disk to write."""
    os.sync()
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


def copy(source: str, target: str) -> None:
    """Do what the command does."""
    with contextlib.redirect_stderr(io.StringIO()):
        if nlu_io(["cp", "-f", source, target]):
            sys.exit("nlu.io cp failed")


def main() -> None:
    """Send and fetch by both in turns, and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default=os.environ.get("NLU_TEST_S3"), help="folder of a bucket")
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--turns", type=int, default=5)
    given = parser.parse_args()
    if given.url is None:
        parser.error("no --url, and NLU_TEST_S3 is not set: start it by tests/services/run.py --then")
    found: dict[str, list[float]] = {name: [] for name in ("up, s3fs", "up", "down, s3fs", "down")}
    filesystem = s3fs.S3FileSystem(skip_instance_cache=True, use_listings_cache=False)
    with tempfile.TemporaryDirectory() as name:
        big, back = Path(name, "big"), Path(name, "back")
        big.write_bytes(os.urandom(given.megabytes * 10**6))
        small = Path(name, "small")
        small.write_bytes(b"")
        url = f"{given.url}/{uuid.uuid4().hex}"
        # Connects and imports before the first measured turn.
        copy(str(small), f"{url}/warm")
        for turn in range(given.turns):
            theirs, ours = f"{url}/theirs-{turn}", f"{url}/ours-{turn}"
            sides = [
                (
                    partial(filesystem.put_file, str(big), theirs), partial(filesystem.get_file, theirs, str(back)),
                    ", s3fs",
                ),
                (partial(copy, str(big), ours), partial(copy, ours, str(back)), ""),
            ]  # fmt: skip
            # The sides change places in each turn, so that caches of the server help none of them more.
            for send, fetch, side in sides if turn % 2 else sides[::-1]:
                found[f"up{side}"].append(seconds(send))
                found[f"down{side}"].append(seconds(fetch))
                if back.stat().st_size != big.stat().st_size:
                    sys.exit("the file did not come back")
                back.unlink()
                filesystem.rm_file(theirs if side else ours)
    medians = {side: statistics.median(times) for side, times in found.items()}
    show(
        [
            Row(f"{given.megabytes} MB {way} by nlu.io cp", "s3fs alone", "s", medians[f"{way}, s3fs"], medians[way],
                TARGET, lower_is_better=True)
            for way in ("up", "down")
        ]
    )  # fmt: skip


if __name__ == "__main__":
    main()
