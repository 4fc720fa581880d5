"""Training speed against the HF Trainer: real tokens (without padding) per second on AFQMC pairs.

    python benchmarks/train.py
    python benchmarks/train.py --sizes "4 x 312" --turns 7 --threads 1
    python benchmarks/train.py --device cuda --batch-size 32 256 --compiled 100

Ours is the command, `python -m nlu.train`, with its environment and its defaults; the peer is `Trainer.train` in the
environment of this script. Both run their whole loop on the same token rows, with the same model size, batch,
precision, optimizer (AdamW), constant rate, clipping and threads, and log every ten steps; neither evaluates nor
saves. What differs: ours keeps a moving average of the weights (trainer.ema_decay),
which the Trainer does not have. They take turns of some steps each, after a warm-up in which the libraries meet most
of the lengths that batches have; figures are medians over the turns. The peer's best configuration (bf16, or fp32 on a
CPU without bf16 products; batches grouped by length and padded to their longest row, SDPA) is the one that counts. With
`--compiled`, nlu with trainer.compile=true and the Trainer with torch_compile=True take turns with the two that are
eager: the clock starts after the warm-up, in which both compile, and the time that this takes is told apart. Matrix
products are timed between the turns, in bf16 and fp32: the faster of two shapes is the machine's limit.
"""

import argparse
import multiprocessing
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from itertools import product
from tempfile import TemporaryFile
from typing import Any

from afqmc import (
    SIZES,
    TINY,
    PadTo,
    as_command,
    native_overrides,
    options,
    peer_arguments,
    peer_model,
    rows_for_peer,
    silent,
    stored_set,
)  # fmt: skip
from inputs import announce
from table import Row, best_rate, encoder_gflop_per_token, matmul_rates, show
from turns import Side, StepPacer, Turns, at, compiling, with_batches

TARGETS = {"BERT-base": 1.5, "4 x 312": 2.0}
TARGETS_ON_A_DEVICE = {("BERT-base", 256): 1.5, ("4 x 312", 256): 2.5, ("4 x 312", 32): 3.0}
"""of the compiled step, by size and batch, against the peer's best"""
LEAST_SHARE = {"BERT-base": 0.75}
STEPS = {"BERT-base": 8, "4 x 312": 80, TINY: 2}
WARM_UP_STEPS = {"BERT-base": 10, "4 x 312": 150, TINY: 8}
"""at most; no more than four times the steps of a turn"""
WARM_UP_STEPS_ON_A_DEVICE = 150
"""an epoch of AFQMC with its last, smaller batch, for which the peer compiles again"""
LOADERS = 4
"""processes of the peer that make batches for a device"""
ENDLESS = 1_000_000_000
LONGEST = 2_000
"""steps of nlu's side, more than are taken: a compiled run looks at batches of all of it before it begins"""
SHOWN = 4000
"""characters of what a run that ends by itself has said at last"""


@dataclass(frozen=True)
class PeerSetting:
    """One configuration of the peer."""

    precision: str
    compiled: bool = False

    @property
    def name(self) -> str:
        return f"HF Trainer, {self.precision}, group_by_length{', torch_compile' if self.compiled else ''}"


def pacer_of(turns: Turns, size: str, steps: int, device: str) -> StepPacer:
    """Return what cuts either side's loop into turns."""
    warm_up_steps = min(WARM_UP_STEPS[size], 4 * steps) if device == "cpu" else WARM_UP_STEPS_ON_A_DEVICE
    return StepPacer(turns, warm_up_steps=warm_up_steps, steps=steps, device=device)


def native(turns: Turns, *, size: str, steps: int, threads: int, **run: Any) -> None:
    """nlu's side: `python -m nlu.train` with its own environment and defaults, stopped between turns. `run`: what
    `training_overrides` takes."""
    paced_command(pacer_of(turns, size, steps, run["device"]), training_overrides(size, **run), threads)


def training_overrides(size: str, *, batch_size: int, device: str, precision: str, compiled: bool = False) -> list[str]:
    """Return the overrides of a run of a size that is longer than all turns."""
    return [
        *native_overrides(size), *(["trainer.compile=true"] if compiled else []),
        f"precision={precision}", f"trainer.device={device}", f"trainer.batch_size={batch_size}",
        f"trainer.max_duration={LONGEST}st", "trainer.eval_interval=0", "trainer.save_interval=0",
    ]  # fmt: skip


def paced_command(pacer: Any, overrides: list[str], threads: int) -> None:
    """Be `python -m nlu.train OVERRIDES` in this process, which the `after_step` of a pacer stops between turns."""

    def work(composed: Any) -> int:
        from nlu.commands import train as command
        from nlu.training import single

        train = single.train

        def paced(run: Any) -> Any:
            # Of a run that is computed eagerly nlu only warns.
            assert run.stepper.compiled or "trainer.compile=true" not in overrides
            take_step = run.stepper.step
            done = 0

            def paced_step(*arguments: Any, **named: Any) -> Any:
                nonlocal done
                began_s = time.perf_counter()
                result = take_step(*arguments, **named)
                host_s = time.perf_counter() - began_s
                lengths_N = run.train_set(done).lengths_N
                tokens = sum(int(lengths_N[examples_B].sum()) for examples_B in run.global_batches(done))
                done += 1
                pacer.after_step(tokens, host_s)
                return result

            run.stepper.step = paced_step
            return train(run)

        # The command itself runs, with its own loop; only the method of one step is wrapped, to count and to wait.
        single.train = paced
        # What the run shows would stand between the rows of the benchmark, unless it says why it has failed.
        with TemporaryFile("w+") as shown:
            with redirect_stdout(shown), redirect_stderr(shown):
                status = command.main(composed)
            shown.seek(0)
            print(shown.read()[-SHOWN:], file=sys.stderr)
            return status

    as_command(work, overrides, threads)


class CountingPadTo(PadTo):
    """Says how many real tokens a batch has. At the top of the module, so that processes of a loader can read it."""

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        return {**super().__call__(rows), "real_tokens": sum(len(row["input_ids"]) for row in rows)}


def peer(
    turns: Turns, *, setting: PeerSetting, size: str, steps: int, batch_size: int, threads: int, device: str
) -> None:
    """The peer's side: `Trainer.train` on the same rows."""
    import torch

    torch.set_num_threads(threads)
    # As in a script of its user: this process was spawned, and its loader would spawn too.
    multiprocessing.set_start_method("fork", force=True)
    arguments = peer_arguments(
        batch_size=batch_size, device=device, bf16=setting.precision == "bf16", max_steps=ENDLESS,
        remove_unused_columns=False,
        train_sampling_strategy="group_by_length",
        # A device would wait for batches that the peer's one process makes between its steps.
        dataloader_num_workers=LOADERS if device == "cuda" else 0,
        torch_compile=setting.compiled,
    )  # fmt: skip
    paced_trainer(
        pacer_of(turns, size, steps, device), model=peer_model(size), args=arguments,
        data_collator=CountingPadTo(), train_dataset=rows_for_peer(stored_set("train")),
    )  # fmt: skip


def paced_trainer(pacer: StepPacer, **arguments: Any) -> None:
    """Be `Trainer(**arguments).train()`, stopped between turns; each batch holds its number of real tokens too."""
    from transformers import Trainer, TrainerCallback

    class CountingTrainer(Trainer):
        real_tokens = 0

        def training_step(self, model: Any, inputs: dict[str, Any], *arguments: Any, **named: Any) -> Any:
            # Counted where the batch is used, since batches are fetched ahead. On CUDA the mask would cost a sync.
            self.real_tokens = inputs.pop("real_tokens")
            return super().training_step(model, inputs, *arguments, **named)

    class Pacing(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
            pacer.after_step(trainer.real_tokens, 0.0)

    trainer = silent(CountingTrainer(callbacks=[Pacing()], **arguments))
    trainer.train()


def compare(size: str, arguments: argparse.Namespace) -> list[Row]:
    """Measure one size, all batch sizes in the same turns."""
    precision, device = arguments.precision, arguments.device
    common = {"size": size, "steps": arguments.steps or STEPS[size], "threads": arguments.threads, "device": device}
    ours = {"nlu": partial(Side, native, precision=precision, **common)}
    settings = [PeerSetting(precision), PeerSetting(precision, compiled=True)]
    peers = {each.name: partial(Side, peer, setting=each, **common) for each in settings}
    if arguments.compiled:
        ours["nlu, compiled"] = partial(ours["nlu"], compiled=True)
    else:
        del peers[settings[1].name]
    rate = partial(Side, matmul_rates, threads=arguments.threads, device=device)
    sides, medians = with_batches(ours | peers, {"rate": rate}, arguments)
    rates = medians["rate"]
    print("machine: " + ", ".join(f"{name} {value:,.0f} GFLOP/s" for name, value in rates.items()), flush=True)
    rows = []
    for batch_size, own, their in product(arguments.batch_size, ours, peers):
        names = at(own, batch_size), at(their, batch_size)
        if medians.keys() >= set(names):
            found, theirs = (medians[name]["real_tokens_per_s"] for name in names)
            of_device = TARGETS_ON_A_DEVICE.get((size, batch_size)) if own != "nlu" else None
            rows.append(Row(
                at(f"train {size}{own.removeprefix('nlu')}", batch_size), their, "real tokens/s", theirs, found,
                TARGETS.get(size) if device == "cpu" else of_device,
                share=found * encoder_gflop(size) / best_rate(rates, precision),
                least_share=LEAST_SHARE.get(size) if device == "cpu" else None, compiling=compiling(sides, *names),
            ))  # fmt: skip
    show(rows)
    return rows


def encoder_gflop(size: str) -> float:
    sizes = SIZES[size]
    return encoder_gflop_per_token(sizes["hidden"], sizes["layers"], sizes["intermediate"], training=True)


def parser() -> argparse.ArgumentParser:
    out = options(__doc__, steps_on_a_device=True)
    out.add_argument("--steps", type=int, help="of a turn; by default enough for some seconds")
    return out


def measure(*words: str) -> list[Row]:
    """Measure every asked-for size; `words` are as on the command line."""
    arguments = parser().parse_args(words)
    announce()
    return [found for size in arguments.sizes for found in compare(size, arguments)]


if __name__ == "__main__":
    measure(*sys.argv[1:])
