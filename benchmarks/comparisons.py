"""What methods, heads and encoders are worth: small runs on real data, several seeds, mean and deviation, time beside.

    python benchmarks/comparisons.py methods             # plain, R-Drop, FGM, FreeLB on 8,000 rows of TNEWS and AFQMC
    python benchmarks/comparisons.py crf                 # tagging CLUENER2020 with and without a CRF
    python benchmarks/comparisons.py siamese             # two texts encoded apart or together, 20,000 rows of LCQMC
    python benchmarks/comparisons.py all --seeds 3 --write benchmarks/COMPARISONS.md
    python benchmarks/comparisons.py methods --data tnews --folder runs  # a part; what ended in runs counts later
    python benchmarks/comparisons.py all --seeds 1 --override data.max_rows=500          # whether it works at all

Each run is the command that a user would type, with SimBERT-tiny, bf16 and two epochs; its time is that of its training
loop, evaluations included. For pairs of texts the speed of scoring stands beside: pairs a second, as in each
evaluation, and for texts encoded apart, where the vectors of the second texts are known already, as in
search, the pairs a second of encoding the first texts and comparing.
"""

import argparse
import dataclasses
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from afqmc import built, composed
from machine import description, versions

COMMON = ("model=simbert_tiny", "precision=bf16", "trainer.max_duration=2ep", "trainer.eval_interval=1ep")
METHODS = ("plain", "rdrop", "fgm", "freelb")
PAIRS = (
    "data=lcqmc", "data.train=[LCQMC/dev.txt,LCQMC/test.txt]", "data.dev=null", "data.dev_fraction=0.06",
)  # fmt: skip
"""21,302 pairs, of which about 20,000 are trained on"""
FIRST_TEXTS = (
    "data=files", *PAIRS[1:], "data.format=tsv", "data.header=false", "data.fields={text: 0, label: 2}",
    "data.labels=['0','1']", "data.max_len=64", "task=classify", "loss=cross_entropy",
)  # fmt: skip
"""the first texts of the same files, each by itself; pooling and model stay"""
HEADINGS = (
    "data", "variant", "metric", "mean", "sd", "best of each seed", "training, s", "times", "examples/s",
    "pairs scored/s", "one side known",
)  # fmt: skip
SPEED_TURNS = 3


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
            Case("lcqmc, 20,000 rows", "apart, vectors and their difference, cross-entropy", apart),
            Case("lcqmc, 20,000 rows", "apart, cosine, InfoNCE", (*apart, "loss=info_nce")),
        ]
    return found


def run(case: Case, seeds: int, folder: Path) -> dict[str, Any]:
    """Train every seed, one after another in one process, and return result.json; a run that was broken continues."""
    # With a kept folder, the benchmark itself can be interrupted and continued.
    place = (f"hydra.run.dir={folder}", "resume=auto")
    command = [sys.executable, "-m", "nlu.train", *case.overrides, f"seeds={seeds}", *place]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return json.loads((folder / "result.json").read_text(encoding="utf-8"))


def cells(case: Case, result: dict[str, Any], first_s: float, speeds: tuple[str, str]) -> tuple[str, ...]:
    """Return a line of the table."""
    best, runs = result["best"], result.get("parts") or [result]
    values = [one["value"] if "value" in one else one["best"]["value"] for one in runs]
    seconds = result["train_s"] / len(runs)
    return (
        case.group, case.variant, best["metric"], f"{best['value']:.4f}",
        "" if best.get("sd") is None else f"{best['sd']:.4f}", ", ".join(f"{value:.4f}" for value in values),
        f"{seconds:.0f}", f"{seconds / first_s:.2f}", f"{result['examples'] / result['train_s']:.0f}", *speeds,
    )  # fmt: skip


def scoring_speeds(case: Case) -> tuple[str, str]:
    """Return pairs a second of scoring, and with the second texts' vectors known; empty where they are not asked."""
    if PAIRS[0] not in case.overrides:
        return "", ""
    both = f"{score_pairs(case):,.0f}"
    return both, f"{score_first_texts(case):,.0f}" if "task=siamese" in case.overrides else ""


def score_pairs(case: Case) -> float:
    """Return pairs a second of scoring the dev set, as an evaluation does it. Weights do not change what it costs."""
    from nlu.training.evaluation import score

    scoring = built(composed(*case.overrides))
    part = scoring.store.sets["dev"]

    def once() -> None:
        score(scoring.evaluator, part, {}, lambda count: None).spool.close()

    return len(part) / seconds_of(once)


def score_first_texts(case: Case) -> float:
    """Return pairs a second of encoding the first texts and comparing them with vectors that are there already."""
    import torch

    from nlu.data.collate import collate
    from nlu.data.order import evaluation_batches
    from nlu.models.encoder import Encoded

    kept = [one for one in case.overrides if one not in PAIRS and one.partition("=")[0] not in ("task", "loss")]
    pairs, texts = built(composed(*case.overrides)), built(composed(*kept, *FIRST_TEXTS))
    model, precision, part = pairs.stepper.model.eval(), pairs.stepper.precision, texts.store.sets["dev"]
    device = pairs.stepper.device
    # In a search, the vectors of the second texts are computed once and stored. Their values do not change the cost.
    known_ND = torch.randn(len(part), model.backbone.width, device=device)
    batch_size = pairs.evaluator.batch_size

    @torch.inference_mode()
    def once() -> None:
        for examples_B in evaluation_batches(part.lengths_N, batch_size=batch_size, rank=0, world_size=1):
            batch = collate(part, examples_B).to(device)
            with precision.autocast(device):
                first_SD = model.backbone.encode(model.backbone.embed(batch), batch, pooled=True).pooled_SD
                rows_B = torch.from_numpy(batch.examples_B).to(device)
                both_SD = torch.cat([first_SD, known_ND.index_select(0, rows_B)])
                count = len(batch)
                # The head expects two sequences for each row: the encoded one, and the known vector appended behind all
                # of them.
                sides = torch.stack([batch.sequences_KB[0], torch.arange(count, 2 * count, device=device)])
                model.head(Encoded(pooled_SD=both_SD), dataclasses.replace(batch, sequences_KB=sides)).cpu()

    return len(part) / seconds_of(once)


def seconds_of(once: Any) -> float:
    """Return the median of some turns, after one that does not count."""
    once()
    found = []
    for _ in range(SPEED_TURNS):
        began_s = time.perf_counter()
        once()
        found.append(time.perf_counter() - began_s)
    return statistics.median(found)


def document(rows: list[tuple[str, ...]]) -> str:
    """Return the content of COMPARISONS.md."""
    import torch

    lines = [HEADINGS, ("---",) * len(HEADINGS), *rows]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    command = "python benchmarks/" + " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])
    where = f"{datetime.now(UTC):%Y-%m-%d}, on {description(torch.get_num_threads())}; {versions()}"
    return f"# Comparisons\n\n`{command}`, {where}.\n\n{table}"


def main() -> None:
    """Run what is asked for, and print a line as soon as it is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", choices=("methods", "crf", "siamese", "all"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data", default="", help="only the data sets whose name begins so")
    parser.add_argument("--folder", type=Path, help="keep the runs here; default: a temporary folder")
    parser.add_argument("--override", nargs="*", default=[], help="further overrides of all runs")
    parser.add_argument("--write", type=Path, help="a Markdown file for the table")
    arguments = parser.parse_args()
    rows: list[tuple[str, ...]] = []
    first_s: dict[str, float] = {}
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        for case in cases(arguments.which):
            if not case.group.startswith(arguments.data):
                continue
            case = dataclasses.replace(case, overrides=(*case.overrides, *arguments.override))
            name = re.sub(r"\W+", "-", f"{case.group} {case.variant}")
            result = run(case, arguments.seeds, folder / name)
            seconds = result["train_s"] / arguments.seeds
            rows.append(cells(case, result, first_s.setdefault(case.group, seconds), scoring_speeds(case)))
            print(" | ".join(rows[-1]), flush=True)
    print(f"{(time.monotonic() - began_s) / 60:.1f} minutes")
    if arguments.write:
        arguments.write.write_text(document(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
