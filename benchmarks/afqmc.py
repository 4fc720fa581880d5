"""The main job's cost on both sides: AFQMC pairs of at most 128 tokens, or their stand-in, through nlu's own command
and the same token rows through the HF Trainer.
"""

import argparse
import multiprocessing.util
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from inputs import data_overrides, vocab_path
from table import fast_precision

TINY = "2 x 24"
SIZES = {
    "BERT-base": {"choice": "bert_base", "hidden": 768, "layers": 12, "heads": 12, "intermediate": 3072},
    "4 x 312": {"choice": "bert_tiny", "hidden": 312, "layers": 4, "heads": 12, "intermediate": 1200},
    TINY: {"choice": "bert_tiny", "hidden": 24, "layers": 2, "heads": 2, "intermediate": 48},
}
"""Random weights of these sizes; values do not change what a step costs. TINY only tries what a device will run."""


def options(description: str | None, *, turns: bool = True, steps_on_a_device: bool = False) -> argparse.ArgumentParser:
    """Return a parser with --threads and, where they apply, --turns and what describes steps of a size on a device."""
    out = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    out.add_argument("--threads", type=int, default=os.cpu_count())
    if turns:
        out.add_argument("--turns", type=int, default=5)
    if steps_on_a_device:
        out.add_argument("--sizes", nargs="+", choices=list(SIZES), default=[size for size in SIZES if size != TINY])
        out.add_argument("--batch-size", nargs="+", type=int, default=[32])
        out.add_argument(
            "--compiled",
            type=float,
            metavar="SECONDS",
            help="also measure both sides compiled; one that takes longer to start is left out",
        )
        out.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
        precision_option(out)
    return out


def precision_option(parser: argparse.ArgumentParser) -> None:
    """Give a parser --precision, of both sides."""
    parser.add_argument(
        "--precision", choices=("bf16", "fp32"), default=fast_precision(),
        help="by default bf16, but fp32 on a CPU without bf16 products (default %(default)s)",
    )  # fmt: skip


def scratch_folder() -> Path:
    """Return a folder of this process's own, deleted when it ends."""
    folder = Path(tempfile.mkdtemp(prefix="nlu-bench-"))
    # Unlike atexit, this also runs at the end of a process that multiprocessing has started.
    multiprocessing.util.Finalize(None, shutil.rmtree, (folder, True), exitpriority=0)
    return folder


def composed(*overrides: str) -> Any:
    """Compose and validate a configuration as `python -m nlu.train` does; returns its Run."""
    from nlu.config.choices import RUN, conf_dir
    from nlu.config.command_line import read_command_line
    from nlu.config.entry.app import checked_composition, hydra_of, prepare
    from nlu.config.resolving import without_hydra
    from nlu.config.schema import Run

    line = read_command_line(overrides)
    with hydra_of(line, RUN, conf_dir()) as hydra:
        config = checked_composition(hydra, "train", line.overrides)
        return Run.of(prepare(without_hydra(config)))


def native_overrides(size: str) -> list[str]:
    """Return what is set for a size, random weights and the chosen data; the rest are the command's defaults."""
    sizes = SIZES[size]
    return [
        f"model={sizes['choice']}", f"model.hidden_size={sizes['hidden']}", f"model.layers={sizes['layers']}",
        f"model.heads={sizes['heads']}", f"model.intermediate_size={sizes['intermediate']}", *data_overrides(),
        f"tokenizer.vocab={vocab_path()}", "scheduler=constant", "optimizer.lr=1e-5",
    ]  # fmt: skip


def native_config(size: str, *overrides: str) -> Any:
    """Return the configuration of a size, random weights and the chosen data."""
    return composed(*native_overrides(size), *overrides)


def as_command(work: Callable[[Any], int], overrides: list[str], threads: int) -> NoReturn:
    """Be `python -m nlu.train OVERRIDES` in this process, with `work(composed configuration)` as its task.

    The command sets its environment itself (how products are computed, for instance), so torch must not be imported
    before.
    """
    from nlu.config.entry.app import run_app

    assert "torch" not in sys.modules, "torch has read the environment already"
    os.environ["OMP_NUM_THREADS"] = str(threads)
    sys.argv = ["nlu.train", *overrides, f"hydra.run.dir={scratch_folder() / 'run'}"]
    run_app(work, "train")


def built(config: Any) -> Any:
    """Return the run of a configuration, built with the functions of nlu's command, in a scratch folder."""
    from nlu.display.progress_bars import Progress
    from nlu.runs.records import COST_COLUMNS, TRAIN_COLUMNS, Table
    from nlu.training.build import build_run
    from nlu.training.ranks import Ranks, choose_device, keep_freed_memory

    folder = scratch_folder()
    # As every command does where it joins its group.
    keep_freed_memory()
    ranks = Ranks(0, 1, choose_device(config.trainer.device, 0))
    run = build_run(config, folder, ranks, Progress(enabled=False), None)
    run.tables = {"train": Table(folder / "train.tsv", (*TRAIN_COLUMNS, *COST_COLUMNS))}
    return run


def stored_set(name: str, *overrides: str) -> Any:
    """Return the examples of an nlu set of AFQMC; its store is built where it does not exist yet."""
    import torch

    from nlu.display.progress_bars import Progress
    from nlu.training.build import build_data
    from nlu.training.ranks import Ranks

    ranks = Ranks(0, 1, torch.device("cpu"))
    data = build_data(native_config("4 x 312", *overrides), ranks, Progress(enabled=False))
    return data.store.sets[name]


def rows_for_peer(part: Any) -> list[dict[str, Any]]:
    """Return every example of an nlu set, token for token, as the peer's Trainer takes it."""
    import numpy as np

    rows_of_tokens = np.split(part.stored.tokens(part.rows_N), np.cumsum(part.lengths_N)[:-1])
    boundaries_N = part.stored.boundaries(part.rows_N)
    labels_N = part.stored.scalars("target", part.rows_N)
    return [
        {
            "input_ids": tokens.tolist(),
            "token_type_ids": [0] * int(boundary) + [1] * (len(tokens) - int(boundary)),
            "labels": int(label),
        }
        for tokens, boundary, label in zip(rows_of_tokens, boundaries_N, labels_N, strict=True)
    ]


def subset(part: Any, count: int) -> Any:
    """Return `count` examples of a set, evenly spread over it, so that their lengths are the whole set's."""
    import numpy as np

    # Not the first rows: a file may be sorted, and lengths decide what a row costs.
    chosen_N = np.linspace(0, len(part) - 1, min(count, len(part))).astype(np.int64)
    return part.some(np.unique(chosen_N))


def peer_model(size: str) -> Any:
    """Return transformers' classifier of a size, seeded, with the attention that transformers chooses by itself."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    sizes = SIZES[size]
    torch.manual_seed(0)
    # The same number of rows as our table of words, or the embeddings of the two sides would differ in size.
    config = BertConfig(
        vocab_size=len(vocab_path().read_bytes().removesuffix(b"\n").split(b"\n")), hidden_size=sizes["hidden"],
        num_hidden_layers=sizes["layers"], num_attention_heads=sizes["heads"],
        intermediate_size=sizes["intermediate"], num_labels=2, attn_implementation="sdpa",
    )  # fmt: skip
    return BertForSequenceClassification(config)


class PadTo:
    """The peer's collator: pads to the longest row of the batch."""

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        import torch

        # Padded by hand, since the rows are already tokenized by our side: both compute the same tokens.
        width = max(len(row["input_ids"]) for row in rows)
        tokens_BL = torch.zeros(len(rows), width, dtype=torch.long)
        segments_BL, mask_BL = torch.zeros_like(tokens_BL), torch.zeros_like(tokens_BL)
        for number, row in enumerate(rows):
            length = len(row["input_ids"])
            tokens_BL[number, :length] = torch.tensor(row["input_ids"])
            segments_BL[number, :length] = torch.tensor(row["token_type_ids"])
            mask_BL[number, :length] = 1
        labels_B = torch.tensor([row["labels"] for row in rows])
        return {"input_ids": tokens_BL, "token_type_ids": segments_BL, "attention_mask": mask_BL, "labels": labels_B}


def peer_arguments(*, batch_size: int, device: str, bf16: bool, **more: Any) -> Any:
    """Return TrainingArguments with the same batch, precision, rate and clipping as the native side's."""
    from transformers import TrainingArguments

    return TrainingArguments(
        output_dir=str(scratch_folder()), per_device_train_batch_size=batch_size,
        per_device_eval_batch_size=batch_size, bf16=bf16, use_cpu=device == "cpu", learning_rate=1e-5,
        weight_decay=0.01, lr_scheduler_type="constant", max_grad_norm=1.0, logging_steps=10, save_strategy="no",
        eval_strategy="no", report_to="none", disable_tqdm=True, seed=1, **more,
    )  # fmt: skip


def silent(trainer: Any) -> Any:
    """Return the peer's trainer without its printing."""
    from transformers import PrinterCallback

    trainer.remove_callback(PrinterCallback)
    return trainer
