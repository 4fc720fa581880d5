"""Read an export back and compare it with the run: tokens, logits, decisions and times.

Axes: N texts, T tokens of the longest, C outputs, D width.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from nlu.config.errors import UserError
from nlu.data.layouts import encode_pair, encode_single
from nlu.data.targets import Number
from nlu.inference.exports.export_decisions import Decision, Row, by_rule, is_same, of_run
from nlu.inference.exports.formats import Format
from nlu.inference.exports.padded import Inputs, padded_inputs
from nlu.inference.predictor import Predictor
from nlu.inference.trained import Trained
from nlu.losses.bce import Bce
from nlu.training import keys as schemas
from nlu.training.precision import Precision

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CHECK_BATCH = 32
TIMED_S = 1.0
"""how long each latency is measured"""
OWN_ENCODER = (
    "an encoder of your own must compute with lengths as tensors, since its graph keeps every number of Python (len, "
    "item, numpy) of the text that it was traced with; docs/exporting.md"
)
TEXTS = ("text", "text_a", "text_b", "tokens")


@dataclass
class Checked:
    """The comparison of an export with the run."""

    format: str
    decided_by: str
    """the rule or program that decides about rows"""
    rows: int
    largest_difference: float
    """the largest difference between the logits of the export and of the run"""
    same: float
    """the share of rows with the same prediction"""
    accuracy: float | None
    """the accuracy of the export on these rows, if it predicts classes"""
    size_mb: float
    latency_1_ms: float
    latency_32_ms: float
    same_by_rule: float | None = None
    """of a tagger, the share of rows with the same prediction by the largest logit of each unit's first token"""


def check(chosen: Format, trained: Trained, folder: Path, rows: Sequence[Row], run: Trained | None = None) -> Checked:
    """Read an export back and compare its tokens, logits and decisions with those of the run.

    `trained` is the exported model; `run` is the same with its adapter, None if it has none. Raises UserError if the
    tokens differ, or if the difference of the logits exceeds the tolerance of the format.
    """
    assert chosen.read is not None, "asked by run_export"
    compute = chosen.read(folder, trained)
    decide = chosen.decide(trained, folder)
    predictor = Predictor(run or trained, torch.device("cpu"), batch_size=CHECK_BATCH)
    exact = _in_fp32(predictor)
    largest, own_decisions, decisions, by_logits = 0.0, list[Decision](), list[Decision](), list[Decision]()
    # First, since other tokens give other logits, and an error about logits would not show the reason.
    _require_same_tokens(trained, chosen.tokenizer(folder), rows)
    for batch in _batches(rows, CHECK_BATCH):
        own = _own_logits(trained, predictor, batch)
        # Exports compute in fp32, so they are compared with the run in fp32, without the rounding of bf16.
        in_fp32 = own if exact is predictor else _own_logits(trained, exact, batch)
        theirs = _rows_of_logits(compute(inputs_of(trained, predictor, batch)), trained, predictor, batch)
        _require_close(chosen, trained, batch, in_fp32, theirs)
        # The table shows the difference from the run as it computes, bf16 included, not only from fp32.
        largest = max(largest, *map(_difference, own, theirs))
        own_decisions += of_run(predictor.predict(predictor.encode(batch)), trained)
        decisions += decide(batch, theirs)
        by_logits += by_rule(trained, folder)(batch, theirs) if trained.target.kind == "tags" else ()
    right = sum(found == row.get("label") for found, row in zip(decisions, rows, strict=True))
    size_mb = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6
    latencies = [_latency_ms(partial(compute, some)) for some in _timed(trained, predictor, rows)]
    return Checked(
        chosen.name,
        chosen.decided_by,
        len(rows),
        largest,
        _share_of_same(own_decisions, decisions),
        right / len(rows) if _has_accuracy(trained) else None,
        size_mb,
        latencies[0],
        latencies[1],
        _share_of_same(own_decisions, by_logits) if by_logits else None,
    )


def _share_of_same(own: Sequence[Decision], theirs: Sequence[Decision]) -> float:
    return sum(map(is_same, own, theirs)) / len(own)


def check_run(trained: Trained, rows: Sequence[Row]) -> Checked:
    """Return size, accuracy and times of the run itself."""
    predictor = Predictor(trained, torch.device("cpu"), batch_size=CHECK_BATCH)
    size_mb = sum(path.stat().st_size for path in trained.located.checkpoint.glob("model.safetensors")) / 1e6
    encoded = [predictor.encode(batch) for batch in _timed_rows(rows)]
    latencies = [_latency_ms(partial(predictor.predict, some)) for some in encoded]
    accuracy = None
    if _has_accuracy(trained):
        found = predictor.predict(predictor.encode(rows))
        accuracy = sum(one["prediction"] == row["label"] for one, row in zip(found, rows, strict=True)) / len(rows)
    return Checked("the run itself", "the run itself", len(rows), 0.0, 1.0, accuracy, size_mb, *latencies)


def _in_fp32(predictor: Predictor) -> Predictor:
    """Return a predictor that computes in fp32; the given one if it already does."""
    if getattr(predictor.precision, "dtype", None) == "float32":
        return predictor
    exact = Predictor(predictor.trained, predictor.device, batch_size=predictor.batch_size)
    exact.precision = Precision(schemas.Precision())
    return exact


def _difference(own: np.ndarray, theirs: np.ndarray) -> float:
    """Return the largest difference of the logits of a row; infinite if one of them is NaN."""
    largest = float(np.abs(own - theirs).max(initial=0.0))
    return float("inf") if np.isnan(largest) else largest


def _require_close(
    chosen: Format, trained: Trained, rows: Sequence[Row], own: Sequence[np.ndarray], theirs: Sequence[np.ndarray]
) -> None:
    """Raise UserError for a row whose logits differ from those of the run in fp32 by more than rounding explains."""
    # Numbers are learned in units of their standard deviation.
    unit = float(trained.target.sd) if isinstance(trained.target, Number) else 1.0
    for row, mine, other in zip(rows, own, theirs, strict=True):
        shown = repr(next(row[name] for name in TEXTS if name in row))[:60]
        if not np.isfinite(mine).all():
            raise UserError(
                f"{trained.located.checkpoint} itself gives logits that are not finite for {shown}, such as "
                f"{mine[~np.isfinite(mine)][0]}, so its exports cannot be checked; give another checkpoint"
            )
        allowed = chosen.tolerance * max(unit, float(np.abs(mine).max(initial=0.0)))
        # Written with `not`, so that a difference that is NaN is refused too.
        if not (difference := _difference(mine, other)) <= allowed:
            is_ours = type(trained.model.backbone).__module__.startswith("nlu.")
            remedy = chosen.beyond if is_ours else OWN_ENCODER
            raise UserError(
                f"format is {chosen.name}, but its logits for {shown} differ from the run by {difference:.3g}, more "
                f"than the tolerance of {allowed:.3g}, so nothing was written; {remedy}"
            )


def _has_accuracy(trained: Trained) -> bool:
    return trained.target.kind == "classes"


def inputs_of(trained: Trained, predictor: Predictor, rows: Sequence[Row]) -> Inputs:
    """Return the padded inputs of rows."""
    return padded_inputs(predictor.encode(rows), trained.tokenizer)


def _own_logits(trained: Trained, predictor: Predictor, rows: Sequence[Row]) -> list[np.ndarray]:
    """Return the logits that an export should return for rows, with the changes of `own_linear`."""
    found = predictor.predict(predictor.encode(rows), with_logits=True)
    logits = [np.array(one["logits"]) for one in found]
    loss = getattr(trained.task, "loss", None)
    if isinstance(trained.target, Number):
        return [trained.target.unscaled(one) for one in logits]
    if isinstance(loss, Bce):
        for one in logits:
            one[0] = loss.logit_of_first
    return logits


def _rows_of_logits(found: np.ndarray, trained: Trained, predictor: Predictor, rows: Sequence[Row]) -> list[np.ndarray]:
    """Return the logits of each row; for a tagger, those of the first token of each unit."""
    if trained.target.kind != "tags":
        return list(found)
    encoded = predictor.encode(rows)
    assert encoded.words is not None and encoded.word_counts_N is not None
    ends = np.cumsum(encoded.word_counts_N)[:-1]
    return [logits[places] for logits, places in zip(found, np.split(encoded.words, ends), strict=True)]


def _require_same_tokens(trained: Trained, tokenizer: "PreTrainedTokenizerBase", rows: Sequence[Row]) -> None:
    """Raise UserError if the exported tokenizer gives other tokens; not for taggers, which split texts before."""
    if trained.layout.name == "units":
        return
    max_len = trained.config.data["max_len"]
    for row in rows:
        texts = [row[name] for name in TEXTS if name in row]
        if trained.layout.name == "pair":
            encoded = encode_pair(trained.tokenizer, texts[:1], texts[1:], max_len)
        else:
            encoded = encode_single(trained.tokenizer, texts, max_len)
        theirs = tokenizer(*texts, verbose=False)
        own = {name: values[0].tolist() for name, values in padded_inputs(encoded, trained.tokenizer).items()}
        # Both cut long texts, in different ways.
        if not encoded.cut_N[0] and {name: list(theirs[name]) for name in own} != own:
            raise UserError(
                f"the exported tokenizer and that of the run give different tokens for {texts[0]!r}: {dict(theirs)} "
                f"and {own}; please report it, with the tokenizer of the run"
            )


def _batches(rows: Sequence[Row], size: int) -> Iterator[Sequence[Row]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def _timed_rows(rows: Sequence[Row]) -> list[list[Row]]:
    return [[rows[number % len(rows)] for number in range(size)] for size in (1, 32)]


def _timed(trained: Trained, predictor: Predictor, rows: Sequence[Row]) -> list[Inputs]:
    return [inputs_of(trained, predictor, batch) for batch in _timed_rows(rows)]


def _latency_ms(work: Callable[[], object]) -> float:
    """Return the median time of at least three calls, measured for TIMED_S seconds."""
    work()
    times: list[float] = []
    while sum(times) < TIMED_S or len(times) < 3:
        began_s = time.perf_counter()
        work()
        times.append(time.perf_counter() - began_s)
    return statistics.median(times) * 1000
