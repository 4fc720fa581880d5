"""Continuing from a late step must cost no more than from an early one: nothing is replayed.

    python benchmarks/resume.py

Each side trains a very small model on 200,000 synthetic rows, batch 2 (100,000 steps an epoch), for 50 real steps and
saves its state. The late state is a copy of it in which only the number of the step is edited, to 50,000 (state.json
on our side, trainer_state.json on the peer's); weights and optimizer have the same size at any step. Then a new process
continues, from the early and the late state in turn, and the time from its start until one more step is done is
measured. The peer is `Trainer.train(resume_from_checkpoint=...)`, which skips the batches that were seen.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import options
from start import ROOT, until
from table import Row, show

EARLY, LATE = 50, 50_000
ROWS = 200_000
BATCH_SIZE = 2
MOST_MORE = 0.1
"""what a late state may cost more, as a share of the time from an early one: the noise of a start"""
HIDDEN, LAYERS, HEADS, INTERMEDIATE = 32, 2, 2, 64


def write_rows(path: Path) -> None:
    """Write distinct rows of 3 to 8 words and a label."""
    rng = random.Random(0)
    words = [f"word{number}" for number in range(2_000)]
    with path.open("w", encoding="utf-8") as file:
        for number in range(ROWS):
            file.write(f"{' '.join(rng.choices(words, k=rng.randint(3, 8)))} {number}\t{rng.randrange(2)}\n")


def command(folder: Path, run_dir: Path) -> list[str]:
    """Return our command; the same one begins the run and continues it."""
    return [
        sys.executable, "-m", "nlu.train", "model=bert_tiny", f"model.hidden_size={HIDDEN}", f"model.layers={LAYERS}",
        f"model.heads={HEADS}", f"model.intermediate_size={INTERMEDIATE}", "data=files",
        f"data.train={folder}/rows.tsv", "data.fields={text: 0, label: 1}", "data.dev_fraction=0.001",
        "tokenizer.min_count=50", f"trainer.batch_size={BATCH_SIZE}", "trainer.max_duration=1000000st",
        "trainer.eval_interval=0", f"trainer.save_interval={EARLY}st", "trainer.log_interval=1st", "trainer.device=cpu",
        "resume=auto", f"hydra.run.dir={run_dir}",
    ]  # fmt: skip


def prepare_native(folder: Path, environment: dict[str, str]) -> None:
    """Train 50 steps, and make the late state of a copy."""
    from safetensors.torch import load_file, save_file

    early = folder / f"native-{EARLY}"
    until(command(folder, early), (early / "checkpoints" / "last" / "COMPLETE").is_file, environment)
    late = folder / f"native-{LATE}"
    shutil.copytree(early, late)
    path = late / "checkpoints" / "last" / "state.json"
    document = json.loads(path.read_text())
    assert document["state"]["step"] == EARLY
    # Training 50,000 steps would take hours, and a state of a late step has the same size.
    document["state"]["step"] = LATE
    path.write_text(json.dumps(document))
    for file in path.parent.glob("*.safetensors"):
        # Each names the step that it was saved at.
        save_file(load_file(file), file.with_suffix(".new"), {"step": str(LATE)})
        file.with_suffix(".new").replace(file)


def native(folder: Path, step: int, environment: dict[str, str]) -> float:
    """Return the seconds from the start until the step after `step` stands in train.tsv."""
    run_dir = folder / "run"
    shutil.rmtree(run_dir, ignore_errors=True)
    # Each turn continues from a fresh copy, since the run before it saved another state.
    shutil.copytree(folder / f"native-{step}", run_dir)
    table, wanted = run_dir / "train.tsv", f"\n{step + 1}\t".encode()
    return until(command(folder, run_dir), lambda: wanted in table.read_bytes(), environment)


def run_peer(folder: Path, step: int) -> None:
    """The peer's script: train up to a state and leave it (step 0), or continue one and leave a mark."""
    import datasets
    from afqmc import PadTo
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

    class Marks(TrainerCallback):
        def on_step_end(self, args: object, state: object, control: object, **named: object) -> None:
            if step:
                (folder / "peer-mark").touch()
            control.should_training_stop = state.global_step == EARLY

    config = BertConfig(
        vocab_size=3_000, hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        intermediate_size=INTERMEDIATE,
    )  # fmt: skip
    arguments = TrainingArguments(
        output_dir=str(folder / "peer"), per_device_train_batch_size=BATCH_SIZE, use_cpu=True, max_steps=1_000_000,
        save_strategy="steps", save_steps=EARLY, report_to="none", disable_tqdm=True, logging_steps=EARLY, seed=1,
    )  # fmt: skip
    trainer = Trainer(
        model=BertForSequenceClassification(config), args=arguments, data_collator=PadTo(),
        train_dataset=datasets.load_from_disk(str(folder / "peer-rows")), callbacks=[Marks()],
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=str(folder / "peer" / f"checkpoint-{step}") if step else None)


def prepare_peer(folder: Path) -> None:
    """Train 50 steps with the peer, and make the late state of a copy."""
    import datasets

    rng = random.Random(0)

    def rows() -> object:
        for _ in range(ROWS):
            tokens = [rng.randrange(5, 3_000) for _ in range(rng.randint(5, 10))]
            yield {"input_ids": tokens, "token_type_ids": [0] * len(tokens), "labels": rng.randrange(2)}

    datasets.Dataset.from_list(list(rows())).save_to_disk(str(folder / "peer-rows"))
    run_peer(folder, 0)
    late = folder / "peer" / f"checkpoint-{LATE}"
    shutil.copytree(folder / "peer" / f"checkpoint-{EARLY}", late)
    path = late / "trainer_state.json"
    state = json.loads(path.read_text())
    assert state["global_step"] == EARLY
    path.write_text(json.dumps({**state, "global_step": LATE, "epoch": LATE * BATCH_SIZE / ROWS}))


def peer(folder: Path, step: int, environment: dict[str, str]) -> float:
    """Return the seconds from the start of the peer's script until its next step is done."""
    mark = folder / "peer-mark"
    mark.unlink(missing_ok=True)
    return until(
        [sys.executable, __file__, "--as-peer", str(folder), "--from-step", str(step)], mark.is_file, environment
    )


def parser() -> argparse.ArgumentParser:
    out = options.parser(__doc__)
    out.add_argument("--as-peer", metavar="FOLDER", type=Path, help="be the peer's script")
    out.add_argument("--from-step", type=int, default=0, help="with --as-peer: 0 makes the states")
    return out


def measure(*words: str) -> list[Row]:
    """Measure in turns; `words` are as on the command line."""
    arguments = parser().parse_args(words)
    if arguments.as_peer:
        if arguments.from_step:
            run_peer(arguments.as_peer, arguments.from_step)
        else:
            prepare_peer(arguments.as_peer)
        return []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = {
            **os.environ, "OMP_NUM_THREADS": str(arguments.threads), "PYTHONPATH": str(ROOT),
            "NLU_CACHE": str(folder / "cache"),
        }  # fmt: skip
        write_rows(folder / "rows.tsv")
        prepare_native(folder, environment)
        subprocess.run(
            [sys.executable, __file__, "--as-peer", name], check=True, env=environment, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        sides: dict[tuple[str, int], Callable[[], float]] = {
            (side.__name__, step): lambda side=side, step=step: side(folder, step, environment)
            for side in (native, peer)
            for step in (EARLY, LATE)
        }
        found = {key: [] for key in sides}
        for turn in range(arguments.turns + 1):
            for key, side in sides.items():
                elapsed_s = side()
                # The first turn reads files from the disk and is not counted.
                if turn:
                    found[key].append(elapsed_s)
    median_s = {key: statistics.median(values) for key, values in found.items()}
    for (side, step), value in median_s.items():
        print(f"{side}, from step {step:,}: {value:.2f} s until one more step is done", flush=True)
    more_s = {side: median_s[side, LATE] - median_s[side, EARLY] for side in ("native", "peer")}
    rows = [
        Row(
            f"resume from step {LATE:,}: more than from step {EARLY}", "HF Trainer", "s", more_s["peer"],
            more_s["native"], lower_is_better=True, limit=MOST_MORE * median_s["native", EARLY],
            compared=False,
        )
    ]  # fmt: skip
    show(rows)
    return rows


if __name__ == "__main__":
    measure(*sys.argv[1:])
