"""Training speed of a small model as a user sees it: the command in one process and in several, and the HF Trainer.

    python benchmarks/train_small.py
    python benchmarks/train_small.py --busy 1
    python benchmarks/train_small.py --size BERT-base --steps 24 --sides one trainer

Each side is a whole program that runs the same number of steps on the AFQMC pairs, as in benchmarks/train.py:
`python -m nlu.train` with its own environment and defaults, or a script with `Trainer.train` and group_by_length. They
run one after another, in turns. A figure is real tokens per second, without padding, over all steps after the first
ones, in which libraries meet most lengths; it contains what the loop does between steps. With --busy, other processes
spin on so many cores.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from afqmc import SIZES, PadTo, native_overrides, peer_arguments, peer_model, rows_for_peer, silent, stored_set
from inputs import announce

FIRST_STEPS = {"4 x 312": 50, "BERT-base": 4}
OURS = {
    "one": ("trainer.devices=1",),
    "thread": ("trainer.devices=1",),
    "gloo": ("trainer.devices=2", "parallel=replicated"),
}
"""what a side of ours sets beside the defaults; `thread` has one thread"""
TRAINER = "trainer"


def ours(name: str, arguments: argparse.Namespace, folder: Path) -> float:
    """Run the command and return its tokens per second."""
    run_dir = folder / name
    steps = arguments.steps
    overrides = [
        *native_overrides(arguments.size), f"precision={arguments.precision}", "trainer.device=cpu",
        f"trainer.batch_size={arguments.batch_size}", f"trainer.max_duration={steps}st", "trainer.eval_interval=0",
        "trainer.save_interval=0", "trainer.save=false", "data.dev=null", *OURS[name], *arguments.override,
        f"hydra.run.dir={run_dir}",
    ]  # fmt: skip
    log = folder / f"{name}.log"
    with log.open("w") as said:
        command = [sys.executable, "-m", "nlu.train", *overrides]
        environment = {**os.environ, **({"OMP_NUM_THREADS": "1"} if name == "thread" else {})}
        if subprocess.run(command, stdout=said, stderr=said, env=environment, check=False).returncode:
            sys.exit(f"{name} failed:\n{log.read_text()[-3000:]}")
    header, *lines = (run_dir / "train.tsv").read_text().splitlines()
    columns = header.split("\t")
    tokens = elapsed_s = 0.0
    before = FIRST_STEPS[arguments.size]
    rows = [dict(zip(columns, line.split("\t"), strict=True)) for line in lines]
    last = 0
    for row in rows:
        step, examples = int(row["step"]), (int(row["step"]) - last) * arguments.batch_size
        last = step
        if step > before:
            seconds = examples / float(row["examples_per_s"])
            elapsed_s += seconds
            tokens += seconds * float(row["real_tokens_per_s"])
    subprocess.run(["rm", "-rf", str(run_dir)], check=True)
    return tokens / elapsed_s


def trainer(arguments: argparse.Namespace) -> None:
    """Be the Trainer, and print its tokens per second."""
    from transformers import Trainer, TrainerCallback

    counted, times_s = [0], [0.0]

    class Counting(Trainer):
        def training_step(self, model, inputs, *more, **named):  # type: ignore[no-untyped-def]
            counted.append(int(inputs["attention_mask"].sum()))
            return super().training_step(model, inputs, *more, **named)

    class Timing(TrainerCallback):
        def on_step_end(self, args, state, control, **named):  # type: ignore[no-untyped-def]
            times_s.append(time.perf_counter())

    training = peer_arguments(
        batch_size=arguments.batch_size, device="cpu", bf16=arguments.precision == "bf16", max_steps=arguments.steps,
        train_sampling_strategy="group_by_length", dataloader_num_workers=0,
    )  # fmt: skip
    silent(
        Counting(
            model=peer_model(arguments.size),
            args=training,
            data_collator=PadTo(),
            train_dataset=rows_for_peer(stored_set("train")),
            callbacks=[Timing()],
        )  # fmt: skip
    ).train()
    first = FIRST_STEPS[arguments.size]
    print("tokens_per_s", sum(counted[first + 1 :]) / (times_s[-1] - times_s[first]))


def theirs(arguments: argparse.Namespace) -> float:
    """Run the Trainer in another process."""
    command = [sys.executable, __file__, *sys.argv[1:], "--as-trainer"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("tokens_per_s ")]
    if done.returncode or not found:
        sys.exit(f"the Trainer failed:\n{done.stderr[-3000:]}")
    return float(found[0])


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Have so many processes compute all the time."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for each in others:
            each.kill()
            each.wait()


def measure(arguments: argparse.Namespace) -> dict[str, list[float]]:
    """Return the figures of each side, in turns."""
    import tempfile

    found: dict[str, list[float]] = {name: [] for name in arguments.sides}
    with tempfile.TemporaryDirectory() as name, busy(arguments.busy):
        for _ in range(arguments.turns):
            for each in arguments.sides:
                found[each].append(theirs(arguments) if each == TRAINER else ours(each, arguments, Path(name)))
                print(f"{each:8} {found[each][-1]:10,.0f} tokens/s", flush=True)
    return found


def main() -> None:
    """Measure, and print the medians and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=list(SIZES), default="4 x 312")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--busy", type=int, default=0, help="cores on which another process spins")
    parser.add_argument("--sides", nargs="+", choices=[*OURS, TRAINER], default=["one", "gloo", TRAINER])
    parser.add_argument("--override", nargs="*", default=[], help="further overrides of our sides")
    parser.add_argument("--as-trainer", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    announce()
    if arguments.as_trainer:
        trainer(arguments)
        return
    found = {name: statistics.median(figures) for name, figures in measure(arguments).items()}
    base = found.get(TRAINER) or next(iter(found.values()))
    for name, figure in found.items():
        print(f"{name:8} median {figure:10,.0f} tokens/s, {figure / base:.2f} x")


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
