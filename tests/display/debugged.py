"""A command of one or two processes that stop at a breakpoint and then exchange a number, with bars on rank 0."""

import sys
import time
from functools import partial

from nlu.config import stopping
from nlu.display.progress_bars import Progress
from nlu.training.processes import in_processes, spread
from nlu.training.ranks import process_group


def work(seconds: float) -> int:
    with stopping.polled(), process_group("cpu") as ranks, Progress(enabled=ranks.is_first) as progress:
        progress.start(10)
        secret = 40 + ranks.rank
        time.sleep(seconds)
        breakpoint()
        total = ranks.sum_on_host([float(secret)])
        ended = stopping.exit_code() if stopping.asked() else 0
    print(f"rank {ranks.rank} of {ranks.world_size}: {total}")
    return ended


if __name__ == "__main__":
    count = int(sys.argv[1])
    own = partial(work, 0.3)
    with stopping.passed_on(lambda number: None) if count > 1 else stopping.listening():
        sys.exit(in_processes(own, count) if count > 1 else spread(own, 1))
