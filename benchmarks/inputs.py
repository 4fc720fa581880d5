"""What the benchmarks read, and what stands in for it where it cannot be had.

AFQMC, TNEWS and BERT's Chinese vocabulary are looked for in NLU_DATA, the data sets in the cache and behind their
public URLs too. If one is missing, what `make train` fetches from a package index takes its place: the reviews,
and the vocabulary of SimBERT-tiny. `announce` decides once for all processes of a benchmark and says so.
"""

import json
import os
import random
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from nlu.config.choices import conf_dir
from nlu.config.errors import DataError
from nlu.storage.locations import data_folder

CHOSEN, VOCAB = "NLU_BENCH_DATA", "NLU_BENCH_VOCAB"
"""Variables that tell the processes of a benchmark what was chosen."""
OVERRIDES = {"afqmc": ("data=afqmc", "task=match"), "reviews": ("data=reviews", "task=classify")}
STAND_IN = "reviews"
"""its files are fetched from a package index"""
SYNTHETIC, FOLDER = "synthetic", "NLU_BENCH_FOLDER"
"""pairs that `write_synthetic` wrote, where nothing may be fetched, and the variable that says where"""
SYNTHETIC_ROWS = {"train": 20_000, "dev": 4_400}
VOCABULARY = 21_128
"""tokens of BERT's Chinese vocabulary"""


def composed(group: str, choice: str) -> dict[str, Any]:
    """Return what a choice of a group says by itself."""
    content = yaml.safe_load((conf_dir() / group / f"{choice}.yaml").read_text(encoding="utf-8"))
    return {key: value for key, value in content.items() if key not in ("defaults", "_target_")}


def training_files(choice: str) -> tuple[tuple[Path, str | None], ...]:
    """Return the training files of a data set with the label of each, fetched where need be. Raises DataError."""
    found = _looked_for(choice)
    if isinstance(found, DataError):
        raise found
    return found


@cache
def _looked_for(choice: str) -> tuple[tuple[Path, str | None], ...] | DataError:
    """The files, or why they are missing: each server is asked once."""
    from nlu.data.dataset import Files

    settings = composed("data", choice)
    try:
        sets = Files(**settings).sets()
    except DataError as error:
        return DataError(error.problems[0])
    return tuple((file.path, file.label) for file in sets["train"])


def vocab_path() -> Path:
    """Return the vocabulary that both sides use: BERT's, or SimBERT-tiny's. Raises DataError where neither is there.

    Processes that are started later take the one that was found first, even with another cache.
    """
    if VOCAB not in os.environ:
        path = (data_folder() / "bert_base_chinese_vocab" / "vocab.txt").resolve()
        os.environ[VOCAB] = str(path if path.is_file() else _vocab_of_simbert())
    return Path(os.environ[VOCAB])


def _vocab_of_simbert() -> Path:
    from nlu.storage.resources import fetch

    reference = composed("model", "simbert_tiny")["pretrained"]
    found = sorted(fetch(reference, what="the vocabulary").rglob("vocab.txt"))
    if not found:
        raise DataError(f"{reference} holds no vocab.txt; set NLU_DATA to a folder that holds bert_base_chinese_vocab")
    print(f"{data_folder()} holds no bert_base_chinese_vocab: the vocabulary is SimBERT-tiny's", flush=True)
    return found[0]


def announce() -> None:
    """Choose the data for this process and those that it starts, and print which data stand in for which, and why.

    Raises DataError where nothing can be had.
    """
    if CHOSEN in os.environ:
        return
    chosen = "afqmc"
    try:
        training_files(chosen)
    except DataError as error:
        chosen = STAND_IN
        training_files(chosen)
        print(f"AFQMC is skipped, {chosen} stand in, for which no target was set: {error}", flush=True)
    vocab_path()
    # In the environment, which every process of the benchmark inherits, so that all of them measure the same data.
    os.environ[CHOSEN] = chosen


def data_overrides() -> tuple[str, ...]:
    """Return the overrides that choose the data of `announce`."""
    if os.environ[CHOSEN] == SYNTHETIC:
        folder = Path(os.environ[FOLDER])
        return ("data=files", "task=match", f"data.train={folder}/train.jsonl", f"data.dev={folder}/dev.jsonl")
    return OVERRIDES[os.environ[CHOSEN]]


def write_synthetic(folder: Path, rng: random.Random) -> dict[str, str]:
    """Write pairs about as long as AFQMC's, a vocabulary as large as BERT's; returns the variables that name them."""
    folder.mkdir(parents=True)
    words = [f"w{number}" for number in range(VOCABULARY - 5)]
    vocab = folder / "vocab.txt"
    vocab.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]) + "\n")
    for name, rows in SYNTHETIC_ROWS.items():
        with (folder / f"{name}.jsonl").open("w") as file:
            for _ in range(rows):
                # Half of AFQMC's texts have at most 12 tokens, one in twenty more than 25.
                texts = [" ".join(rng.choices(words, k=min(60, max(4, round(rng.lognormvariate(2.48, 0.45))))))
                         for _ in range(2)]  # fmt: skip
                file.write(json.dumps({"text_a": texts[0], "text_b": texts[1], "label": rng.choice("01")}) + "\n")
    return {CHOSEN: SYNTHETIC, VOCAB: str(vocab), FOLDER: str(folder)}
