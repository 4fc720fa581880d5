"""What the tests of whole runs share: a small data set that can be learned, and the command in a separate process."""

import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

from tests import warm

REPOSITORY = Path(__file__).resolve().parents[2]
TINY = ("model=bert_tiny", "model.hidden_size=16", "model.heads=2", "model.layers=2", "model.intermediate_size=32")
SAME_THREADS = {**os.environ, "OMP_NUM_THREADS": "1"}
"""bytes are compared, and they are the same only for the same number of threads"""
QUICK = ("trainer.batch_size=8", "trainer.device=cpu", "optimizer.lr=3e-3", "trainer.max_duration=10st")


def write_set(path: Path, rows: int, seed: int = 0) -> Path:
    """Write `rows` lines of text and label; the label says which words the text is made of."""
    rng = random.Random(seed)
    lines = []
    for _ in range(rows):
        label = rng.randrange(2)
        words = [f"w{rng.randrange(label * 25, label * 25 + 35)}" for _ in range(rng.randint(2, 20))]
        lines.append(f"{' '.join(words)}\t{('bad', 'good')[label]}\n")
    path.write_text("".join(lines))
    return path


def files(folder: Path, train_rows: int = 83, dev_rows: int = 31) -> tuple[str, ...]:
    """Return the overrides for a small set that is written to `folder`."""
    write_set(folder / "train.tsv", train_rows)
    write_set(folder / "dev.tsv", dev_rows, seed=1)
    return (
        "data=files", f"data.train={folder}/train.tsv", f"data.dev={folder}/dev.tsv", "data.fields={text: 0, label: 1}",
    )  # fmt: skip


def run(
    *overrides: str,
    status: int = 0,
    prefix: tuple[str, ...] = (),
    env: dict[str, str] | None = None,
    figures: bool = False,
) -> str:
    """Run `python -m nlu.train`, or that by another program, and return what it printed; asserts its exit status.

    Figures are drawn where `figures` asks for it.
    """
    command, environment = ["-m", "nlu.train", *overrides], {**SAME_THREADS, **(env or {})}
    if prefix:
        done = subprocess.run(
            [*prefix, *command], cwd=REPOSITORY, capture_output=True, text=True, timeout=1800, env=environment
        )
    else:
        done = warm.run(command, cwd=REPOSITORY, env=environment, figures=figures)
    assert done.returncode == status, f"exit {done.returncode}, not {status}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def result(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "result.json").read_text())


def weights(run_dir: Path, name: str = "last") -> bytes:
    return (run_dir / "checkpoints" / name / "model.safetensors").read_bytes()
