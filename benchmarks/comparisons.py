"""What methods, heads and encoders are worth: small runs on real data, several seeds, mean and deviation, time beside.

    python benchmarks/comparisons.py methods             # plain, R-Drop, FGM, FreeLB on 8,000 rows of TNEWS and AFQMC
    python benchmarks/comparisons.py crf                 # tagging CLUENER2020 with and without a CRF
    python benchmarks/comparisons.py siamese             # two texts encoded apart or together, 20,000 rows of LCQMC
    python benchmarks/comparisons.py all --seeds 3 --write benchmarks/COMPARISONS.md

Each run is the command that a user would type; its time is that of its training loop, evaluations included.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMMON = ("model=simbert_tiny", "precision=bf16", "trainer.max_duration=2ep", "trainer.eval_interval=0.5ep")
METHODS = ("plain", "rdrop", "fgm", "freelb")
PAIRS = (
    "data=lcqmc", "data.train=[LCQMC/dev.txt,LCQMC/test.txt]", "data.dev=null", "data.dev_fraction=0.06",
)  # fmt: skip
"""21,302 pairs, of which about 20,000 are trained on"""
HEADINGS = ("data", "variant", "metric", "mean", "sd", "best of each seed", "training, s", "times", "examples/s")


@dataclass(frozen=True)
class Case:
    """One line of a comparison; times are set against the first of its group."""

    group: str
    variant: str
    overrides: tuple[str, ...]


def cases(which: str) -> list[Case]:
    """Return the runs of a comparison, or of all."""
    found = []
    if which in ("methods", "all"):
        for data in ("tnews", "afqmc"):
            own = (*COMMON, f"data={data}", "data.max_rows=8000")
            found += [Case(f"{data}, 8,000 rows", method, (*own, f"method={method}")) for method in METHODS]
    if which in ("crf", "all"):
        own = ("experiment=cluener", *COMMON[1:])
        found += [Case("cluener", head, (*own, f"head={head}")) for head in ("linear", "crf")]
    if which in ("siamese", "all"):
        own = (*COMMON, *PAIRS)
        apart = (*own, "task=siamese", "model.pooling=mean")
        found += [
            Case("lcqmc, 20,000 rows", "together (match)", own),
            Case("lcqmc, 20,000 rows", "apart, [u; v; |u-v|], cross-entropy", apart),
            Case("lcqmc, 20,000 rows", "apart, cosine, InfoNCE", (*apart, "loss=info_nce")),
        ]
    return found


def run(case: Case, seeds: int, folder: Path) -> dict[str, Any]:
    """Train every seed, one after another in one process, and return result.json."""
    command = [sys.executable, "-m", "nlu.train", *case.overrides, f"seeds={seeds}", f"hydra.run.dir={folder}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return json.loads((folder / "result.json").read_text(encoding="utf-8"))


def cells(case: Case, result: dict[str, Any], first_s: float) -> tuple[str, ...]:
    """Return a line of the table."""
    best, runs = result["best"], result.get("parts") or [result]
    values = [one.get("value", one.get("best", {}).get("value")) for one in runs]
    seconds = result["train_s"] / len(runs)
    return (
        case.group, case.variant, best["metric"], f"{best['value']:.4f}",
        "" if best.get("sd") is None else f"{best['sd']:.4f}", ", ".join(f"{value:.4f}" for value in values),
        f"{seconds:.0f}", f"{seconds / first_s:.2f}", f"{result['examples'] / result['train_s']:.0f}",
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", choices=("methods", "crf", "siamese", "all"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--write", type=Path, help="a Markdown file for the table")
    arguments = parser.parse_args()
    rows: list[tuple[str, ...]] = []
    first_s: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, case in enumerate(cases(arguments.which)):
            result = run(case, arguments.seeds, Path(folder) / str(number))
            seconds = result["train_s"] / arguments.seeds
            rows.append(cells(case, result, first_s.setdefault(case.group, seconds)))
            print(" | ".join(rows[-1]), flush=True)
    if arguments.write:
        lines = [HEADINGS, ("---",) * len(HEADINGS), *rows]
        arguments.write.write_text("".join(f"| {' | '.join(line)} |\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
