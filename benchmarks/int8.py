"""Predicting in int8 against fp32 and bf16, and against int8 of onnxruntime and OpenVINO: texts/s, one text, size.

    python benchmarks/int8.py outputs/mine new.jsonl
    python benchmarks/int8.py outputs/mine new.jsonl --field sentence --rows 2000 --turns 5

All sides have the weights of the same run and get the same tokens, in the order of the file, of mixed lengths. The
peers pad each batch of 32 to its longest text. A second time they get the texts sorted by length, so that they pad
little; their predictions then come in another order. onnx-int8 is what `nlu.export` writes (dynamic quantization).
OpenVINO's is the ONNX export quantized by NNCF for transformers, with 300 of the texts for calibration, as
sentence-transformers does for its openvino-qint8. It is left out where openvino and nncf are not installed.

Each side is a process with the same number of threads; nlu's int8_compiled needs a C compiler. A turn predicts all
texts once, then 100 of them one by one; the sides take turns. The share of texts that get the class of fp32 is counted
for all.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from afqmc import options, scratch_folder
from table import description
from turns import Side, Turns, alternate

BATCH_SIZE = 32
ONE_BY_ONE = 100
CALIBRATED = 300
OURS = ("fp32", "bf16", "int8", "int8_compiled")
Tokens = dict[str, np.ndarray]
Compute = Callable[[Tokens], np.ndarray]


def texts_of(path: str, field: str, count: int) -> list[str]:
    """Return texts of a file of JSON lines."""
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line)[field] for _, line in zip(range(count), lines, strict=False)]


def encoded_of(run: str, texts: Sequence[str]) -> list[np.ndarray]:
    """Return the tokens of each text, as the run cuts them."""
    import nlu

    found = nlu.load(run, device="cpu").predictor.encode([{"text": text} for text in texts])
    return np.split(found.tokens, np.cumsum(found.lengths_N)[:-1])


def padded(rows: Sequence[np.ndarray]) -> Tokens:
    """Return the inputs of an export for a batch."""
    longest = max(map(len, rows))
    ids = np.array([np.pad(row, (0, longest - len(row))) for row in rows], np.int64)
    mask = np.array([[1] * len(row) + [0] * (longest - len(row)) for row in rows], np.int64)
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


def ours(turns: Turns, *, run: str, texts: list[str], precision: str, threads: int, checked: str) -> None:
    """nlu's side, from tokens to predictions."""
    import torch

    import nlu
    from nlu.training.ranks import keep_freed_memory

    torch.set_num_threads(threads)
    # As nlu.predict and nlu.serve do.
    keep_freed_memory()
    predictor = nlu.load(run, device="cpu", precision=precision).predictor
    everything = predictor.encode([{"text": text} for text in texts])
    singles = [predictor.encode([{"text": text}]) for text in texts[:ONE_BY_ONE]]
    one_by_one = [partial(predictor.predict, one) for one in singles]
    found = [one["prediction"] for one in predictor.predict(everything)]
    Path(checked).write_text(json.dumps(found), encoding="utf-8")
    measure(turns, len(texts), lambda: predictor.predict(everything), one_by_one)


def measure(turns: Turns, count: int, predict: Callable[[], Any], one_by_one: Sequence[Callable[[], Any]]) -> None:
    """Predict everything, then texts one by one, once a turn."""
    predict()
    while True:
        turns.wait()
        began_s = time.perf_counter()
        predict()
        elapsed_s = time.perf_counter() - began_s
        times_s = []
        for one in one_by_one:
            began_s = time.perf_counter()
            one()
            times_s.append(time.perf_counter() - began_s)
        turns.report(texts_per_s=count / elapsed_s, one_ms=statistics.median(times_s) * 1e3)


def peer(
    turns: Turns,
    *,
    model: str,
    kind: str,
    rows: list[np.ndarray],
    is_sorted: bool,
    threads: int,
    labels: list[str],
    checked: str,
) -> None:
    """onnxruntime or OpenVINO, from tokens to labels."""
    compute = {"onnxruntime": onnxruntime_of, "openvino": openvino_of}[kind](model, threads)
    order = np.argsort([len(row) for row in rows], kind="stable") if is_sorted else np.arange(len(rows))
    batches = [order[start : start + BATCH_SIZE] for start in range(0, len(rows), BATCH_SIZE)]

    def predict() -> list[str]:
        found = [""] * len(rows)
        for batch in batches:
            for place, best in zip(batch, compute(padded([rows[place] for place in batch])).argmax(1), strict=True):
                found[place] = labels[best]
        return found

    Path(checked).write_text(json.dumps(predict()), encoding="utf-8")
    measure(turns, len(rows), predict, [lambda row=row: compute(padded([row])).argmax(1) for row in rows[:ONE_BY_ONE]])


def onnxruntime_of(model: str, threads: int) -> Compute:
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    return lambda inputs: session.run(None, {name: inputs[name] for name in names})[0]


def openvino_of(model: str, threads: int) -> Compute:
    import openvino

    compiled = openvino.Core().compile_model(
        model, "CPU", {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    )
    names = [each.get_any_name() for each in compiled.inputs]
    return lambda inputs: compiled({name: inputs[name] for name in names})[0]


def by_nncf(model: Path, rows: Sequence[np.ndarray], to: Path) -> Path:
    """Write OpenVINO's int8 of an ONNX model, weights and activations."""
    import nncf
    import openvino

    read = openvino.Core().read_model(model)
    names = {each.get_any_name() for each in read.inputs}
    samples = [{name: value for name, value in padded([row]).items() if name in names} for row in rows[:CALIBRATED]]
    found = nncf.quantize(read, nncf.Dataset(samples), model_type=nncf.ModelType.TRANSFORMER, subset_size=len(samples))
    openvino.save_model(found, to, compress_to_fp16=False)
    return to


def size_mb(*paths: Path) -> float:
    return sum(path.stat().st_size for path in paths) / 1e6


def size_in_memory_mb(run: str, precision: str) -> float:
    """Return the size of the weights that a run predicts with; those of bf16 stay fp32 beside their copies."""
    import nlu
    from nlu.inference.int8.compiled import CompiledBert
    from nlu.inference.int8.int8_linear import QuantizedLinear

    model = nlu.load(run, device="cpu", precision=precision).trained.model
    kept = [each.integers() for each in model.modules() if isinstance(each, QuantizedLinear)]
    rounded = sum(each.numel() * each.element_size() for parts in kept for each in parts)
    # C has copies in a layout of its own.
    rounded *= 2 if isinstance(model.backbone, CompiledBert) else 1
    return (rounded + sum(each.numel() * each.element_size() for each in model.parameters())) / 1e6


def main(arguments: argparse.Namespace) -> None:
    """Measure and print the table."""
    import nlu
    from nlu.inference.exports.formats import FORMATS, MODEL
    from nlu.inference.locate import locate
    from nlu.inference.trained import load_trained

    texts = texts_of(arguments.texts, arguments.field, arguments.rows)
    rows, folder = encoded_of(arguments.run, texts), scratch_folder()
    labels = nlu.load(arguments.run, device="cpu").labels
    exports = {name: folder / name for name in ("onnx", "onnx-int8")}
    for name, path in exports.items():
        path.mkdir()
        FORMATS[name].write(load_trained(locate(arguments.run)), path)
    models = {"onnx-int8": ("onnxruntime", exports["onnx-int8"] / MODEL["onnx-int8"])}
    if find_spec("openvino") and find_spec("nncf"):
        models["openvino-int8"] = (
            "openvino",
            by_nncf(exports["onnx"] / MODEL["onnx"], rows, folder / "ov.xml"),
        )
    sizes = {f"nlu {name}": size_in_memory_mb(arguments.run, name) for name in OURS}
    common = {"threads": arguments.threads}
    with ExitStack() as stack:
        sides: dict[str, Side] = {}
        for name in OURS:
            checked = str(folder / f"nlu {name}.json")
            sides[f"nlu {name}"] = stack.enter_context(
                Side(ours, run=arguments.run, texts=texts, precision=name, checked=checked, **common)
            )
        for name, (kind, model) in models.items():
            for is_sorted in (False, True):
                full = f"{name}, sorted" if is_sorted else name
                files = [model, model.with_suffix(".bin")] if kind == "openvino" else [model]
                sizes[full] = size_mb(*files)
                sides[full] = stack.enter_context(
                    Side(peer, model=str(model), kind=kind, rows=rows, is_sorted=is_sorted, labels=labels,
                         checked=str(folder / f"{full}.json"), **common)
                )  # fmt: skip
        medians = alternate(sides, arguments.turns)
    said = {name: json.loads((folder / f"{name}.json").read_text(encoding="utf-8")) for name in sides}
    print(description(arguments.threads))
    tokens = sum(map(len, rows)) / len(rows)
    print(f"{len(texts):,} texts of {min(map(len, rows))} to {max(map(len, rows))} tokens, {tokens:.1f} on average")
    print("side                     texts/s  compiled   1 text, ms     MB  class of fp32")
    fastest = medians["nlu int8_compiled"]["texts_per_s"]
    for name, found in medians.items():
        same = np.mean([one == other for one, other in zip(said[name], said["nlu fp32"], strict=True)])
        rate = found["texts_per_s"]
        print(f"{name:24}{rate:8,.0f} {fastest / rate:7.2f}x {found['one_ms']:12.2f} {sizes[name]:7.1f} {same:13.2%}")


def parser() -> argparse.ArgumentParser:
    out = options(__doc__)
    out.add_argument("run", help="a trained classifier of single texts")
    out.add_argument("texts", help="a file of JSON lines")
    out.add_argument("--field", default="text", help="the key of the text")
    out.add_argument("--rows", type=int, default=2000)
    return out


if __name__ == "__main__":
    main(parser().parse_args(sys.argv[1:]))
