"""Speed of pretraining against the HF Trainer: real tokens (without padding) per second on masked Chinese sentences.

    python benchmarks/train_mlm.py
    python benchmarks/train_mlm.py --turns 7 --steps 40

Ours is `python -m nlu.train task=mlm data=corpus` with its environment and its defaults; the peer is `Trainer.train`
with BertForMaskedLM and DataCollatorForLanguageModeling(whole_word_mask=True), into which transformers 5 turned
DataCollatorForWholeWordMask. Both take the same token rows, one sentence each, with the same model size, vocabulary,
batch, precision, optimizer, clipping and threads, mask 15% of the tokens, and group batches by length. What differs
beside the loops: the peer scores every token of the vocabulary at every place, ours only at masked places; whole words
are always [MASK] with the peer. Turns, warm-up and the machine's limit are those of train.py.
"""

import argparse
import sys
from contextlib import ExitStack
from typing import Any

import options
from afqmc import SIZES, peer_arguments
from inputs import announce, vocab_path
from machine import matmul_rates
from table import Row, show
from train import ENDLESS, STEPS, paced_command, paced_trainer, pacer_of
from turns import Side, Turns, alternate

from nlu.storage.places import data_folder

CORPUS = "zh_mlm_corpus/tnews_train_titles.txt"
MAX_LENGTH = 64
TARGET = 1.5
FILLERS: dict[str, Any] = {
    "input_ids": 0, "token_type_ids": 0, "attention_mask": 0, "special_tokens_mask": 1, "offset_mapping": (0, 0),
}  # fmt: skip
"""what the peer's rows are padded with"""


def overrides_of(size: str) -> list[str]:
    """Return what is set of nlu's command: the corpus, random weights of a size, and the peer's vocabulary."""
    return [
        f"model={SIZES[size]['choice']}", "task=mlm", "data=corpus", f"data.train={data_folder() / CORPUS}",
        "data.break_mode=eos", f"data.max_len={MAX_LENGTH}", f"tokenizer.vocab={vocab_path()}",
        "scheduler=constant", "optimizer.lr=1e-5",
    ]  # fmt: skip


def native(turns: Turns, *, size: str, steps: int, batch_size: int, threads: int, device: str, precision: str) -> None:
    """nlu's side."""
    overrides = [
        *overrides_of(size), f"precision={precision}", f"trainer.device={device}", f"trainer.batch_size={batch_size}",
        f"trainer.max_duration={ENDLESS}st", "trainer.eval_interval=0", "trainer.save_interval=0",
    ]  # fmt: skip
    paced_command(pacer_of(turns, size, steps, device), overrides, threads)


def peer(turns: Turns, *, size: str, steps: int, batch_size: int, threads: int, device: str, precision: str) -> None:
    """The peer's side, on the sentences of the same file."""
    import torch
    from transformers import BertConfig, BertForMaskedLM, BertTokenizerFast, DataCollatorForLanguageModeling

    torch.set_num_threads(threads)
    tokenizer = BertTokenizerFast(vocab=str(vocab_path()))
    # An argument of another name is ignored without a word.
    assert len(tokenizer) > 10_000
    lines = (data_folder() / CORPUS).read_text(encoding="utf-8").split("\n")
    found = tokenizer(
        [line for line in lines if line.strip()], truncation=True, max_length=MAX_LENGTH,
        return_offsets_mapping=True, return_special_tokens_mask=True,
    )  # fmt: skip
    rows = [dict(zip(found.keys(), values, strict=True)) for values in zip(*found.values(), strict=True)]
    masking = DataCollatorForLanguageModeling(
        tokenizer, whole_word_mask=True, mask_replace_prob=1, random_replace_prob=0
    )

    def collate(chosen: list[dict[str, Any]]) -> dict[str, Any]:
        # The tokenizer does not pad offsets, without which there are no whole words.
        width = max(len(row["input_ids"]) for row in chosen)
        padded = [
            {name: values + [FILLERS[name]] * (width - len(values)) for name, values in row.items()} for row in chosen
        ]
        return {**masking(padded), "real_tokens": sum(len(row["input_ids"]) for row in chosen)}

    sizes = SIZES[size]
    torch.manual_seed(0)
    model = BertForMaskedLM(BertConfig(
        vocab_size=len(tokenizer), hidden_size=sizes["hidden"], num_hidden_layers=sizes["layers"],
        num_attention_heads=sizes["heads"], intermediate_size=sizes["intermediate"], attn_implementation="sdpa",
    ))  # fmt: skip
    arguments = peer_arguments(
        batch_size=batch_size, device=device, bf16=precision == "bf16", max_steps=ENDLESS, remove_unused_columns=False,
        train_sampling_strategy="group_by_length",
    )  # fmt: skip
    paced_trainer(
        pacer_of(turns, size, steps, device), model=model, args=arguments, data_collator=collate, train_dataset=rows
    )


def compare(size: str, arguments: argparse.Namespace) -> list[Row]:
    """Measure one size."""
    common = {
        "size": size, "steps": arguments.steps or STEPS[size] // 2, "batch_size": arguments.batch_size,
        "threads": arguments.threads, "device": arguments.device, "precision": arguments.precision,
    }  # fmt: skip
    with ExitStack() as stack:
        sides = {
            "ours": stack.enter_context(Side(native, **common)),
            "peer": stack.enter_context(Side(peer, **common)),
            "rate": stack.enter_context(Side(matmul_rates, threads=arguments.threads, device=arguments.device)),
        }
        medians = alternate(sides, arguments.turns)
    print("machine: " + ", ".join(f"{name} {value:,.0f} GFLOP/s" for name, value in medians["rate"].items()))
    name = f"HF Trainer, {arguments.precision}, whole words, group_by_length"
    found = [Row(
        f"pretrain {size}", name, "real tokens/s", medians["peer"]["real_tokens_per_s"],
        medians["ours"]["real_tokens_per_s"], TARGET,
    )]  # fmt: skip
    show(found)
    return found


def measure(*words: str) -> list[Row]:
    """Measure every asked-for size; `words` are as on the command line."""
    parser = options.parser(__doc__, steps_on_a_device=True)
    parser.add_argument("--steps", type=int, help="of a turn; by default enough for some seconds")
    arguments = parser.parse_args(words)
    announce()
    return [row for size in arguments.sizes for row in compare(size, arguments)]


if __name__ == "__main__":
    measure(*sys.argv[1:])
