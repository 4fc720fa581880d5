"""Speed of predicting a csv to a csv against transformers: its text-classification pipeline, and its Trainer.

    python benchmarks/predict_files.py
    python benchmarks/predict_files.py --sizes "4 x 312" --rows 1000

A turn reads the same pairs from a file and writes them with prediction and probability; models are loaded before. Ours
is what `python -m nlu.predict` does, which also looks for rows that cannot be used, and keeps pieces from which it can
continue after a kill. The peers have the same weights, exported by `nlu.export`: `pipeline(batch_size=32)`, and
`Trainer.predict` behind its tokenizer, with the same batch. All sides say what they predict for the first rows, which
must agree.
"""

import argparse
import csv
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import options
from afqmc import PadTo, built, native_config, peer_arguments, scratch_folder, silent, subset
from inputs import CHOSEN, STAND_IN, announce
from table import Row, show
from turns import Side, Turns, alternate

TARGETS = {"pipeline(batch_size=32)": 2.5, "Trainer.predict": 1.5}
ROWS = {"BERT-base": 256, "4 x 312": 2000}
BATCH_SIZE = 32


def prepare(size: str, rows: int, precision: str) -> tuple[Path, Path, Path]:
    """Write a run with random weights, its export and a file of pairs; returns run, export and file."""
    from nlu.inference.exports.huggingface import write
    from nlu.inference.locate import locate
    from nlu.inference.trained import load_trained
    from nlu.runs.folder import write_config
    from nlu.runs.state import Best

    if os.environ.get(CHOSEN) == STAND_IN:
        # They are single texts, and the peers read pairs.
        raise SystemExit(
            "predict_files.py needs the pairs of AFQMC, which were not found; set NLU_DATA to a folder that holds AFQMC"
        )
    config = native_config(size, f"precision={precision}", "trainer.device=cpu")
    run = built(config)
    write_config(run.run_dir, config.to_config())
    # A checkpoint as an evaluation saves it, without training: values of weights do not change the cost.
    best = Best(step=0, examples=0, epoch=0.0, value=0.0, metrics={"dev": {}})
    run.checkpoints.save_best(run.stepper.model.state_dict(), [best])
    run.checkpoints.arrange([best])
    export = scratch_folder() / "export"
    export.mkdir()
    write(load_trained(locate(str(run.run_dir))), export)
    path = scratch_folder() / "pairs.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        fields = run.store.meta["fields"]
        writer.writerow([fields.get("text_a", "text_a"), fields.get("text_b", "text_b")])
        part = subset(run.store.sets["dev"], rows)
        writer.writerows([texts["text_a"], texts["text_b"]] for texts in part.texts() if texts)
    return run.run_dir, export, path


def native(turns: Turns, *, run: str, path: str, threads: int) -> None:
    """nlu's side: what its command does once the run is loaded."""
    import torch

    from nlu.config.inference import Input, Predict
    from nlu.inference.locate import locate
    from nlu.inference.prediction import work_of
    from nlu.inference.trained import load_trained
    from nlu.training.ranks import Ranks

    torch.set_num_threads(threads)
    trained, ranks, folder = load_trained(locate(run)), Ranks(0, 1, torch.device("cpu")), scratch_folder()

    def predict(number: int) -> Path:
        output = folder / f"{number}.csv"
        config = Predict(run=run, input=Input(path=path), output=str(output), batch_size=BATCH_SIZE)
        work_of(config, trained, Path(path), ranks).run(ranks)
        return output

    measure_turns(turns, predict)


def rows_of(path: str) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_rows(path: Path, rows: list[dict[str, str]], predictions: list[tuple[str, float]]) -> Path:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*rows[0], "prediction", "probability"])
        writer.writerows([*row.values(), *one] for row, one in zip(rows, predictions, strict=True))
    return path


def by_pipeline(turns: Turns, *, export: str, path: str, threads: int) -> None:
    """The pipeline of transformers."""
    import torch
    from transformers import pipeline

    torch.set_num_threads(threads)
    classify, folder = pipeline("text-classification", model=export, device="cpu"), scratch_folder()

    def predict(number: int) -> Path:
        rows = rows_of(path)
        texts = [dict(zip(("text", "text_pair"), row.values(), strict=True)) for row in rows]
        found = classify(texts, batch_size=BATCH_SIZE, truncation=True, max_length=128)
        return write_rows(folder / f"{number}.csv", rows, [(one["label"], one["score"]) for one in found])

    measure_turns(turns, predict)


def by_trainer(turns: Turns, *, export: str, path: str, threads: int) -> None:
    """`Trainer.predict` of transformers, behind its tokenizer."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer

    torch.set_num_threads(threads)
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(export), AutoTokenizer.from_pretrained(export)
    arguments = peer_arguments(batch_size=BATCH_SIZE, device="cpu", bf16=False)
    trainer, folder = silent(Trainer(model=model, args=arguments, data_collator=PadTo())), scratch_folder()

    def predict(number: int) -> Path:
        rows = rows_of(path)
        firsts, seconds = zip(*(row.values() for row in rows), strict=True)
        encoded = tokenizer(list(firsts), list(seconds), truncation=True, max_length=128)
        pairs = zip(encoded["input_ids"], encoded["token_type_ids"], strict=True)
        inputs = [{"input_ids": ids, "token_type_ids": types, "labels": 0} for ids, types in pairs]
        probability_NC = torch.from_numpy(trainer.predict(inputs).predictions).softmax(-1)
        best = probability_NC.max(-1)
        names = [model.config.id2label[number] for number in best.indices.tolist()]
        return write_rows(folder / f"{number}.csv", rows, list(zip(names, best.values.tolist(), strict=True)))

    measure_turns(turns, predict)


def measure_turns(turns: Turns, predict: Any) -> None:
    """Predict once to warm up, then once a turn; say what the first rows were given."""
    predict(0)
    number = 0
    while True:
        turns.wait()
        number += 1
        began_s = time.perf_counter()
        output = predict(number)
        elapsed_s = time.perf_counter() - began_s
        rows = rows_of(str(output))
        first = sum(float(row["probability"]) for row in rows[:50])
        turns.report(rows_per_s=len(rows) / elapsed_s, first_probabilities=first)


def compare(size: str, arguments: argparse.Namespace) -> list[Row]:
    """Measure one size."""
    run, export, path = prepare(size, arguments.rows or ROWS[size], arguments.precision)
    common = {"path": str(path), "threads": arguments.threads}
    with ExitStack() as stack:
        sides = {
            "ours": stack.enter_context(Side(native, run=str(run), **common)),
            "pipeline(batch_size=32)": stack.enter_context(Side(by_pipeline, export=str(export), **common)),
            "Trainer.predict": stack.enter_context(Side(by_trainer, export=str(export), **common)),
        }
        medians = alternate(sides, arguments.turns)
    ours = medians["ours"]
    rows = []
    for name, target in TARGETS.items():
        difference = abs(medians[name]["first_probabilities"] - ours["first_probabilities"])
        # The sides have the same weights but other kernels, so sums of 50 probabilities may differ by rounding only.
        assert difference < 0.01, f"{name} predicts otherwise, by {difference} over 50 rows"
        rows.append(
            Row(f"predict a csv, {size}", name, "rows/s", medians[name]["rows_per_s"], ours["rows_per_s"], target)
        )
    show(rows)
    return rows


def parser() -> argparse.ArgumentParser:
    out = options.parser(__doc__)
    out.add_argument("--sizes", nargs="+", choices=list(ROWS), default=list(ROWS))
    out.add_argument("--rows", type=int, help="of the file; by default 256 with BERT-base, 2,000 with 4 x 312")
    out.set_defaults(precision="fp32")
    return out


def measure(*words: str) -> list[Row]:
    """Measure every asked-for size; `words` are as on the command line."""
    arguments = parser().parse_args(words)
    announce()
    return [found for size in arguments.sizes for found in compare(size, arguments)]


if __name__ == "__main__":
    measure(*sys.argv[1:])
