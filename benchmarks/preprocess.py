"""Preprocessing speed, raw file to training-ready store on disk, against `datasets`: load_dataset and a batched map.

    python benchmarks/preprocess.py
    python benchmarks/preprocess.py --rows 50000 --files afqmc.json

AFQMC's pairs (jsonl) and TNEWS's titles (csv) are written out to `--rows` rows, made distinct by a number at the end.
Both sides use BERT's WordPiece with the same vocabulary through the tokenizers library, cut at 128 tokens, and write
Arrow files; the peer maps with one process for each core. Ours also checks every row, hashes its text and remembers its
place in the file. A turn starts from an empty cache, imports and the tokenizer's code being warm on both sides.
"""

import argparse
import csv
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from afqmc import options
from inputs import training_files, vocab_path
from table import Row, show
from turns import Side, Turns, alternate

from nlu.config.errors import DataError

TARGET = 2.0
ROWS = 100_000
MAX_LENGTH = 128
FIELDS = {
    "afqmc.json": {"text_a": "sentence1", "text_b": "sentence2", "label": "label"},
    "tnews.csv": {"text": "title", "label": "label"},
    "reviews.csv": {"text": "review", "label": "label"},
}
SETS = {"afqmc.json": "afqmc", "tnews.csv": "tnews", "reviews.csv": "reviews"}
REVIEWS = "reviews.csv"
"""stands in for missing sets"""


def write_files(folder: Path, names: list[str], rows: int) -> list[Path]:
    """Write the data sets' rows again and again, each round with its number at the end of the text; returns the files.

    For a data set that cannot be had the reviews are written, which is said.
    """
    found: list[str] = []
    for name in names:
        try:
            training_files(SETS[name])
        except DataError as error:
            print(f"{name} is skipped, {REVIEWS} stands in, for which no target was set: {error}", flush=True)
            name = REVIEWS
        found += [name] * (name not in found)
    for name in found:
        texts = list(texts_of(name))
        if name == REVIEWS:
            # Each of its files holds one label.
            random.Random(0).shuffle(texts)
        with (folder / name).open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(FIELDS[name].values()))
            if name.endswith(".csv"):
                writer.writeheader()
            for number in range(rows):
                turn, row = divmod(number, len(texts))
                *others, last, label = texts[row]
                # Distinct texts: our side would find repeated ones, and a cache of the tokenizer would answer for them.
                cells = (*others, last + (str(turn) if turn else ""), label)
                record = dict(zip(FIELDS[name].values(), cells, strict=True))
                if name.endswith(".csv"):
                    writer.writerow(record)
                else:
                    file.write(json.dumps(record, ensure_ascii=False) + "\n")
    return [folder / name for name in found]


def texts_of(name: str) -> Iterator[tuple[str, ...]]:
    """Give text, or both texts, and label of each training row."""
    for path, label in training_files(SETS[name]):
        with path.open(encoding="utf-8", newline="\n") as lines:
            for line in lines:
                if name == "afqmc.json":
                    record = json.loads(line)
                    yield record["sentence1"], record["sentence2"], record["label"]
                elif name == "tnews.csv":
                    text, label = line.rstrip("\n").split("\t")[:2]
                    yield text, label
                elif line.strip():
                    yield line.strip(), label or ""


def native(turns: Turns, *, path: Path, rows: int, threads: int) -> None:
    """nlu's side: `nlu.data.prepare.prepare`, which builds and opens the store."""
    # Before the import, since the tokenizers library reads it once.
    os.environ["RAYON_NUM_THREADS"] = str(threads)
    from nlu.data.dataset import Files
    from nlu.data.prepare import prepare
    from nlu.data.store_plan import plan_of
    from nlu.data.tokenizing import WordPiece

    fields = FIELDS[path.name]
    files = Files(train=str(path), fields=fields, dev_fraction=0.01, max_len=MAX_LENGTH)
    layouts, target = ("single", "pair"), "nlu.data.targets.Classes"
    while True:
        with tempfile.TemporaryDirectory() as cache:
            os.environ["NLU_CACHE"] = cache
            turns.wait()
            began_s = time.perf_counter()
            store = prepare(plan_of(files, WordPiece(), target, layouts, pretrained=None, vocab=vocab_path()))
            elapsed_s = time.perf_counter() - began_s
            assert sum(len(part) for part in store.sets.values()) == rows
            del store
        turns.report(rows_per_s=rows / elapsed_s)


def peer(turns: Turns, *, path: Path, rows: int, threads: int) -> None:
    """The peer's side: load_dataset and map, as its documentation shows it, with several processes."""
    import datasets
    from transformers import BertTokenizerFast

    datasets.disable_progress_bars()
    vocab = vocab_path().read_bytes().decode().removesuffix("\n").split("\n")
    tokenizer = BertTokenizerFast(vocab={token: number for number, token in enumerate(vocab)})
    assert tokenizer("蚂蚁花呗")["input_ids"].count(tokenizer.unk_token_id) == 0, "the tokenizer knows no Chinese"
    columns = [name for role, name in FIELDS[path.name].items() if role != "label"]

    def encode(batch: dict[str, list[Any]]) -> Any:
        return tokenizer(*(batch[name] for name in columns), truncation=True, max_length=MAX_LENGTH)

    while True:
        with tempfile.TemporaryDirectory() as cache:
            turns.wait()
            began_s = time.perf_counter()
            kind = path.suffix.removeprefix(".")
            loaded = datasets.load_dataset(kind, data_files=str(path), cache_dir=cache, split="train")
            mapped = loaded.map(encode, batched=True, num_proc=threads, remove_columns=columns)
            elapsed_s = time.perf_counter() - began_s
            assert len(mapped) == rows and mapped.cache_files, "the peer's rows are not on disk"
            del loaded, mapped
        turns.report(rows_per_s=rows / elapsed_s)


def compare(path: Path, arguments: argparse.Namespace) -> Row:
    """Measure one file."""
    common = {"path": path, "rows": arguments.rows, "threads": arguments.threads}
    with ExitStack() as stack:
        sides = {name: stack.enter_context(Side(work, **common)) for name, work in (("ours", native), ("peer", peer))}
        # The first build of each side reads the file from the disk and imports what it needs.
        for side in sides.values():
            side.turn()
        medians = alternate(sides, arguments.turns)
    row = Row(
        f"preprocess {path.name}, {arguments.rows:,} rows", f"datasets.map, {arguments.threads} processes", "rows/s",
        medians["peer"]["rows_per_s"], medians["ours"]["rows_per_s"], None if path.name == REVIEWS else TARGET,
    )  # fmt: skip
    show([row])
    return row


def parser() -> argparse.ArgumentParser:
    out = options(__doc__)
    out.add_argument("--files", nargs="+", choices=list(FIELDS), default=["afqmc.json", "tnews.csv"])
    out.add_argument("--rows", type=int, default=ROWS)
    return out


def measure(*words: str) -> list[Row]:
    """Measure every asked-for file; `words` are as on the command line."""
    arguments = parser().parse_args(words)
    vocab_path()
    with tempfile.TemporaryDirectory() as name:
        files = write_files(Path(name), arguments.files, arguments.rows)
        return [compare(path, arguments) for path in files]


if __name__ == "__main__":
    measure(*sys.argv[1:])
