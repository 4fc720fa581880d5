"""Work of two ranks, of which one hangs or dies between two exchanges."""

import os
import signal
import time

from nlu.training.ranks import process_group


def work(how: str) -> int:
    with process_group("cpu", timeout_min=(4.0 if how == "hangs" else 60.0) / 60) as ranks:
        for step in (1, 2):
            ranks.sum_on_host([1.0])
            if ranks.rank == 1 and step == 2:
                time.sleep(1.0)
                if how == "dies":
                    os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(60)
        ranks.sum_on_host([1.0])
    return 0
