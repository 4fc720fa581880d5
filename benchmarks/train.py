"""Training speed against the HF Trainer: real tokens (without padding) per second on AFQMC pairs.

    python benchmarks/train.py
    python benchmarks/train.py --sizes "4 x 312" --turns 7 --threads 1
    python benchmarks/train.py --device cuda --batch-size 256

Ours is the command, `python -m nlu.train`, with its environment and its defaults; the peer is `Trainer.train` in the
environment of this script. Both run their whole loop on the same token rows, with the same model size, batch,
precision, optimizer (AdamW), constant rate, clipping and threads, and log every ten steps; neither evaluates nor
saves. What differs: ours keeps a moving average of the weights (trainer.ema_decay),
which the Trainer does not have. They take turns of some steps each, after a warm-up in which the libraries meet most
of the lengths that batches have; figures are medians over the turns. The peer's best configuration (bf16, or fp32 on a
CPU without bf16 products; batches grouped by length and padded to their longest row, SDPA) is the one that counts;
its weaker ones are measured once, for orientation. Matrix products are timed between the turns, in bf16 and fp32: the
faster of two shapes is the machine's limit.
"""

import argparse
import multiprocessing
import os
import sys
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from typing import Any

from afqmc import (
    SIZES,
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
from turns import Measure, Side, StepPacer, Turns, alternate, entered

TARGETS = {"BERT-base": 1.5, "4 x 312": 2.0}
LEAST_SHARE = {"BERT-base": 0.75}
STEPS = {"BERT-base": 8, "4 x 312": 80}
WARM_UP_STEPS = {"BERT-base": 10, "4 x 312": 150}
"""at most; no more than four times the steps of a turn"""
WARM_UP_STEPS_ON_A_DEVICE = 150
"""the same, since it takes a step a fraction of the time"""
MAX_LENGTH = 128
LOADERS = 4
"""processes of the peer that make batches for a device"""
ENDLESS = 1_000_000_000


@dataclass(frozen=True)
class PeerSetting:
    """One configuration of the peer."""

    precision: str
    batches: str
    grouped: bool = True
    pad_to: int | None = None

    @property
    def name(self) -> str:
        return f"HF Trainer, {self.precision}, {self.batches}"


def best(precision: str) -> PeerSetting:
    return PeerSetting(precision, "group_by_length")


def weaker(precision: str) -> list[PeerSetting]:
    """Return the settings of the peer that are slower than its best in this precision."""
    return [
        PeerSetting(precision, "random batches, dynamic padding", grouped=False),
        *([best("fp32")] if precision != "fp32" else []),
        PeerSetting(precision, "padded to max_length", grouped=False, pad_to=MAX_LENGTH),
    ]


def pacer_of(turns: Turns, size: str, steps: int, device: str) -> StepPacer:
    """Return what cuts either side's loop into turns."""
    most = WARM_UP_STEPS[size] if device == "cpu" else WARM_UP_STEPS_ON_A_DEVICE
    return StepPacer(turns, warm_up_steps=min(most, 4 * steps), steps=steps, device=device)


def native(turns: Turns, *, size: str, steps: int, batch_size: int, threads: int, device: str, precision: str) -> None:
    """nlu's side: `python -m nlu.train` with its own environment and defaults, stopped between turns."""
    overrides = [
        f"precision={precision}", f"trainer.device={device}", f"trainer.batch_size={batch_size}",
        f"trainer.max_duration={ENDLESS}st", "trainer.eval_interval=0", "trainer.save_interval=0",
    ]  # fmt: skip
    paced_command(pacer_of(turns, size, steps, device), [*native_overrides(size), *overrides], threads)


def paced_command(pacer: StepPacer, overrides: list[str], threads: int) -> None:
    """Be `python -m nlu.train OVERRIDES` in this process, stopped between turns."""

    def work(composed: Any) -> int:
        from nlu.commands import train as command
        from nlu.training import single

        train = single.train

        def paced(run: Any) -> Any:
            take_step = run.stepper.step
            done = 0

            def paced_step(*arguments: Any, **named: Any) -> Any:
                nonlocal done
                result = take_step(*arguments, **named)
                lengths_N = run.train_set(done).lengths_N
                tokens = sum(int(lengths_N[examples_B].sum()) for examples_B in run.global_batches(done))
                done += 1
                pacer.after_step(tokens)
                return result

            run.stepper.step = paced_step
            return train(run)

        # The command itself runs, with its own loop; only the method of one step is wrapped, to count and to wait.
        single.train = paced
        # What the run shows would stand between the rows of the benchmark.
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            return command.main(composed)

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
        train_sampling_strategy="group_by_length" if setting.grouped else "random",
        # A device would wait for batches that the peer's one process makes between its steps.
        dataloader_num_workers=LOADERS if device == "cuda" else 0,
    )  # fmt: skip
    paced_trainer(
        pacer_of(turns, size, steps, device), model=peer_model(size), args=arguments,
        data_collator=CountingPadTo(setting.pad_to), train_dataset=rows_for_peer(stored_set("train")),
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
            pacer.after_step(trainer.real_tokens)

    trainer = silent(CountingTrainer(callbacks=[Pacing()], **arguments))
    trainer.train()


def compare(size: str, arguments: argparse.Namespace) -> list[Row]:
    """Measure one size."""
    steps, setting = arguments.steps or STEPS[size], best(arguments.precision)
    common = {
        "size": size, "steps": steps, "batch_size": arguments.batch_size, "threads": arguments.threads,
        "device": arguments.device,
    }  # fmt: skip
    with ExitStack() as stack:
        makers = {
            "ours": partial(Side, native, precision=setting.precision, **common),
            "peer": partial(Side, peer, setting=setting, **common),
            "rate": partial(Side, matmul_rates, threads=arguments.threads, device=arguments.device),
        }
        sides = entered(stack, makers, at_once=arguments.device == "cuda")
        medians = alternate(sides, arguments.turns)
    rows = [row(size, setting, medians["ours"], medians["peer"], medians["rate"], judged=arguments.device == "cpu")]
    rate = medians["rate"]
    print("machine: " + ", ".join(f"{name} {value:,.0f} GFLOP/s" for name, value in rate.items()), flush=True)
    theirs = medians["peer"]["real_tokens_per_s"] * encoder_gflop(size) / best_rate(rate, setting.precision)
    print(f"share of the machine's limit of {setting.name}: {theirs:.0%}", flush=True)
    show(rows)
    if arguments.weaker:
        for slower in weaker(arguments.precision):
            rows.append(compare_once(size, slower, medians["rate"], common))
            show(rows[-1:])
    return rows


def compare_once(size: str, setting: PeerSetting, rate: Measure, common: dict[str, Any]) -> Row:
    """Measure a weaker configuration of the peer in one turn, and ours in the same precision right after it."""
    # For orientation only, so half of the steps are enough.
    fewer = {**common, "steps": max(2, common["steps"] // 2)}
    with Side(peer, setting=setting, **fewer) as theirs, Side(native, precision=setting.precision, **common) as ours:
        medians = alternate({"peer": theirs, "ours": ours}, 1)
    return row(size, setting, medians["ours"], medians["peer"], rate, judged=False)


def row(size: str, setting: PeerSetting, ours: Measure, theirs: Measure, rate: Measure, *, judged: bool) -> Row:
    """Return the comparison as a row; our share is of the rate in the precision that both sides used."""
    tokens_per_s = ours["real_tokens_per_s"]
    return Row(
        f"train {size}", setting.name, "real tokens/s", theirs["real_tokens_per_s"], tokens_per_s,
        TARGETS[size] if judged else None,
        share=tokens_per_s * encoder_gflop(size) / best_rate(rate, setting.precision),
        least_share=LEAST_SHARE.get(size) if judged else None,
    )  # fmt: skip


def encoder_gflop(size: str) -> float:
    sizes = SIZES[size]
    return encoder_gflop_per_token(sizes["hidden"], sizes["layers"], sizes["intermediate"], training=True)


def parser() -> argparse.ArgumentParser:
    out = options(__doc__, steps_on_a_device=True)
    out.add_argument("--steps", type=int, help="of a turn; by default enough for some seconds")
    out.add_argument("--no-weaker", dest="weaker", action="store_false", help="leave out the peer's weaker settings")
    return out


def measure(*words: str) -> list[Row]:
    """Measure every asked-for size; `words` are as on the command line."""
    arguments = parser().parse_args(words)
    announce()
    return [found for size in arguments.sizes for found in compare(size, arguments)]


if __name__ == "__main__":
    measure(*sys.argv[1:])
