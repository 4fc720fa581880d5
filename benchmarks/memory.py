"""Peak memory of preprocessing by number of rows: it must not grow with them.

    python benchmarks/memory.py --rows 1000000 3000000

Writes synthetic rows of 4 to 40 words to a temporary folder, runs `python -m nlu.preprocess` on them in a process of
its own with an empty cache, and prints that process's peak resident set.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from table import Row


def write_rows(path: Path, rows: int) -> None:
    """Write rows of text and label from a vocabulary of 5,000 words."""
    rng = random.Random(0)
    words = [f"word{number}" for number in range(5_000)]
    with path.open("w") as file:
        for _ in range(rows):
            file.write(f"{' '.join(rng.choices(words, k=rng.randint(4, 40)))}\t{rng.randrange(4)}\n")


def preprocess(folder: Path, rows: int) -> tuple[int, float]:
    """Return the peak resident set in MB and the time in seconds of preprocessing `rows` rows."""
    data = folder / "rows.tsv"
    write_rows(data, rows)
    command = [
        sys.executable, "-m", "nlu.preprocess", "model=bert_tiny", "data=files", f"data.train={data}",
        "data.fields={text: 0, label: 1}", "data.dev_fraction=0.01",
    ]  # fmt: skip
    began_s = time.monotonic()
    process = subprocess.Popen(command, env={**os.environ, "NLU_CACHE": str(folder / f"cache-{rows}")})
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"preprocessing {rows:,} rows failed")
    data.unlink()
    return usage.ru_maxrss // 1024, time.monotonic() - began_s


def measure(*words: str) -> list[Row]:
    """Measure every asked-for size; the row compares the last one with the first. `words`: as on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 3_000_000])
    sizes = parser.parse_args(words).rows
    peaks_mb = []
    with tempfile.TemporaryDirectory() as name:
        for rows in sizes:
            peak_mb, elapsed_s = preprocess(Path(name), rows)
            peaks_mb.append(peak_mb)
            print(f"{rows:,} rows: peak {peak_mb:,} MB, {elapsed_s:.0f} s, {rows / elapsed_s:,.0f} rows/s", flush=True)
    if len(sizes) == 1:
        return []
    claim = f"peak memory of preprocessing {sizes[-1]:,} rows"
    return [Row(claim, f"ours with {sizes[0]:,} rows", "MB", peaks_mb[0], peaks_mb[-1], lower_is_better=True)]


if __name__ == "__main__":
    measure(*sys.argv[1:])
