"""Speed of scoring a set against `Trainer.predict` of transformers: the same AFQMC dev rows, in one precision.

    python benchmarks/predict.py
    python benchmarks/predict.py --sizes "4 x 312" --rows 1000

A turn scores every row once: ours by `score`, which each evaluation of a run calls, on the run that `python -m
nlu.train` builds and in that command's environment , so that
records of all rows and all metrics are computed too; the peer's by `Trainer.predict`, which returns logits, with the
same batch size. Three configurations of the peer are measured: as in training (bf16 by autocast, rows in file order),
the same with rows grouped by length (which returns predictions in another order than the rows'), and weights cast to
bf16 (`bf16_full_eval`) with grouped rows, its fastest. The first is what a user of the Trainer has; the target is held
against it. With `--compiled`, nlu with trainer.compile=true and the Trainer with torch_compile=True take turns with the
others, in the place of the third; both compile in their warm-up, which has every row. On a CPU without bf16 products
both sides compute in fp32, and the third is left out.
"""

import argparse
import sys
import time
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

from afqmc import (
    SIZES,
    TINY,
    PadTo,
    as_command,
    built,
    options,
    peer_arguments,
    peer_model,
    rows_for_peer,
    silent,
    stored_set,
    subset,
)  # fmt: skip
from inputs import announce
from table import Row, best_rate, encoder_gflop_per_token, matmul_rates, show
from train import training_overrides
from turns import Side, Turns, at, compiling, with_batches

TARGETS = {"BERT-base": 2.5, "4 x 312": 2.5}
TARGETS_ON_A_DEVICE = {"4 x 312": 4.0}
"""of compiled prediction"""
ROWS = {"BERT-base": 512, "4 x 312": 4316, TINY: 64}
WARM_UP_ROWS = 128


@dataclass(frozen=True)
class PeerSetting:
    """One configuration of the peer."""

    grouped: bool = False
    cast: bool = False
    compiled: bool = False


def peers_of(precision: str, *, compiled: bool) -> dict[str, PeerSetting]:
    """Return the peer's settings by name, the one that counts first."""
    name = f"HF Trainer.predict, {precision}"
    peers = {name: PeerSetting(), f"{name}, group_by_length": PeerSetting(grouped=True)}
    if compiled:
        peers[f"{name}, group_by_length, torch_compile"] = PeerSetting(grouped=True, compiled=True)
    elif precision == "bf16":
        peers["HF Trainer.predict, bf16_full_eval, group_by_length"] = PeerSetting(grouped=True, cast=True)
    return peers


def native(turns: Turns, *, size: str, rows: int, threads: int, compiled: bool = False, **run: Any) -> None:
    """nlu's side: `score` on the run that `python -m nlu.train` builds, in that command's environment."""

    def work(composed: Any) -> int:
        from nlu.config.entry.app import prepare
        from nlu.config.schema import Run
        from nlu.training.evaluation import score
        from nlu.training.warm_up import warm_up as compile_all

        ours = built(Run.of(prepare(composed)))
        part = subset(ours.store.sets["dev"], rows)
        evaluator = ours.evaluator(part.member)
        # Of a run that is computed eagerly nlu only warns.
        assert not compiled or ours.stepper.compiled
        compile_all(ours)
        ours.stepper.model.eval()

        def predict(some: Any) -> None:
            scored = score(evaluator, some, {}, lambda count: None)
            # A side that skipped rows would look fast.
            assert len(scored.spool) == len(some)
            scored.spool.close()

        warm_up = part if compiled else subset(part, WARM_UP_ROWS)
        measure_turns(turns, predict, warm_up, part, int(part.lengths_N.sum()))
        return 0

    # Of training only one step is compiled.
    overrides = [f"trainer.eval_batch_size={run['batch_size']}", "trainer.max_duration=1st"]
    as_command(work, [*training_overrides(size, compiled=compiled, **run), *overrides], threads)


def peer(
    turns: Turns,
    *,
    setting: PeerSetting,
    size: str,
    rows: int,
    batch_size: int,
    threads: int,
    device: str,
    precision: str,
) -> None:
    """The peer's side: `Trainer.predict` over the same rows."""
    import torch
    from transformers import Trainer

    torch.set_num_threads(threads)
    arguments = peer_arguments(
        batch_size=batch_size, device=device, bf16=precision == "bf16" and not setting.cast,
        bf16_full_eval=setting.cast, torch_compile=setting.compiled,
        train_sampling_strategy="group_by_length" if setting.grouped else "random",
    )  # fmt: skip
    trainer = silent(Trainer(model=peer_model(size), args=arguments, data_collator=PadTo()))
    part = subset(stored_set("dev"), rows)

    def predict(some: Any) -> None:
        assert len(trainer.predict(some).predictions) == len(some)

    warm_up = rows_for_peer(part if setting.compiled else subset(part, WARM_UP_ROWS))
    measure_turns(turns, predict, warm_up, rows_for_peer(part), int(part.lengths_N.sum()))


def measure_turns(turns: Turns, predict: Any, warm_up: Any, everything: Any, real_tokens: int) -> None:
    """Warm up, then predict everything once a turn."""
    predict(warm_up)
    while True:
        turns.wait()
        began_s = time.perf_counter()
        predict(everything)
        elapsed_s = time.perf_counter() - began_s
        turns.report(real_tokens_per_s=real_tokens / elapsed_s, rows_per_s=len(everything) / elapsed_s)


def compare(size: str, arguments: argparse.Namespace) -> list[Row]:
    """Measure one size, all batch sizes in the same turns."""
    common = {
        "size": size, "rows": arguments.rows or ROWS[size], "threads": arguments.threads, "device": arguments.device,
        "precision": arguments.precision,
    }  # fmt: skip
    settings = peers_of(arguments.precision, compiled=arguments.compiled is not None)
    first = next(iter(settings))
    if arguments.first_peer_only:
        settings = {first: settings[first]}
    peers = {name: partial(Side, peer, setting=setting, **common) for name, setting in settings.items()}
    ours = {"nlu": partial(Side, native, **common)}
    if arguments.compiled:
        ours["nlu, compiled"] = partial(ours["nlu"], compiled=True)
    rate = partial(Side, matmul_rates, threads=arguments.threads, device=arguments.device)
    sides, medians = with_batches(ours | peers, {"rate": rate}, arguments)
    sizes = SIZES[size]
    gflop = encoder_gflop_per_token(sizes["hidden"], sizes["layers"], sizes["intermediate"], training=False)
    rows = []
    for batch_size, own, their in product(arguments.batch_size, ours, peers):
        names = at(own, batch_size), at(their, batch_size)
        if medians.keys() >= set(names):
            found, theirs = (medians[name]["real_tokens_per_s"] for name in names)
            # On a CPU against what a user of the Trainer has, on a device against each peer.
            target = TARGETS.get(size) if their == first else None
            of_device = TARGETS_ON_A_DEVICE.get(size) if own != "nlu" else None
            rows.append(Row(
                at(f"predict {size}{own.removeprefix('nlu')}", batch_size), their, "real tokens/s", theirs, found,
                target if arguments.device == "cpu" else of_device, compiling=compiling(sides, *names),
                share=found * gflop / best_rate(medians["rate"], arguments.precision),
            ))  # fmt: skip
    show(rows)
    return rows


def parser() -> argparse.ArgumentParser:
    out = options(__doc__, steps_on_a_device=True)
    out.add_argument("--rows", type=int, help="of the dev set; by default 512 with BERT-base, all with 4 x 312")
    out.add_argument("--first-peer-only", action="store_true", help="leave out the peer's other settings")
    return out


def measure(*words: str) -> list[Row]:
    """Measure every asked-for size; `words` are as on the command line."""
    arguments = parser().parse_args(words)
    announce()
    return [found for size in arguments.sizes for found in compare(size, arguments)]


if __name__ == "__main__":
    measure(*sys.argv[1:])
