"""Memory and time of the order of examples, with and without windows.

    python benchmarks/order.py --rows 100000000 --windows 0 1000000

Draws the first step, one in the middle and the last of two epochs from rows whose lengths are computed when they are
asked for, each time in a process of its own. Prints what the peak of its memory is beyond that of the libraries.
"""

import argparse
import multiprocessing
import resource
import time
from concurrent.futures import ProcessPoolExecutor

import numpy as np

from nlu.data.order import Order

BATCH_SIZE = 256


class Rows:
    """Rows of 4 to 131 tokens, of which nothing is kept."""

    is_complete = True

    def __init__(self, rows: int):
        self.rows = rows

    def lengths(self, start: int, stop: int) -> np.ndarray:
        mixed = np.arange(start, stop, dtype=np.uint32) * np.uint32(2_654_435_761)
        return (mixed >> np.uint32(25)).astype(np.int32) + 4


def measure(rows: int, window_rows: int | None) -> tuple[float, float]:
    """Return the MB beyond the libraries at the peak, and the seconds until the first step."""
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    order, began_s = Order(Rows(rows), seed=1, batch_size=BATCH_SIZE, window_rows=window_rows), time.perf_counter()
    order.step(0)
    first_s = time.perf_counter() - began_s
    for step in (order.steps_per_epoch // 2, 2 * order.steps_per_epoch - 1):
        order.step(step)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) / 1024, first_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--windows", type=int, nargs="+", default=[0, 1_000_000], help="0 = no windows")
    asked = parser.parse_args()
    for window_rows in asked.windows:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            megabytes, first_s = pool.submit(measure, asked.rows, window_rows or None).result()
        print(f"window_rows {window_rows or 'null'}: {megabytes:,.0f} MB, first step after {first_s:.1f} s", flush=True)


if __name__ == "__main__":
    main()
