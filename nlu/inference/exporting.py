"""A run to a folder of another format, read back and held against the run's own logits before it takes its place.

Axes: N texts, T tokens of the longest, C outputs, D width.
"""

import logging
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nlu.config.errors import UserError
from nlu.config.inference import Export
from nlu.data.encoding import encode_pair, encode_single
from nlu.display.progress import Progress
from nlu.display.tables import metric_text, print_table, table_of
from nlu.inference.exports.formats import FORMATS, Compute, Format, require_packages
from nlu.inference.exports.padded import Inputs, padded_inputs
from nlu.inference.exports.sentences import FORMAT as SENTENCES
from nlu.inference.locate import Located
from nlu.inference.predictor import Predictor
from nlu.inference.trained import Trained, load_trained
from nlu.runs import logs
from nlu.runs.predictions import evaluation_sets, predictions_of
from nlu.storage.files import write_json
from nlu.storage.outputs import output_folder
from nlu.tasks.classify import class_predictions

log = logging.getLogger(__name__)

CHECK_BATCH = 32
ABOUT = "export.json"
TIMED_S = 1.0
"""how long each latency is measured"""
TEXTS = ("text", "text_a", "text_b", "tokens")


@dataclass
class Checked:
    """What came of reading an export back."""

    format: str
    rows: int
    largest_difference: float
    """between its logits and the run's, over all rows"""
    same: float
    """share of rows for which both predict the same"""
    accuracy: float | None
    """of its predictions on these rows, where they are classes"""
    size_mb: float
    latency_1_ms: float
    latency_32_ms: float


def run_export(config: Export, located: Located) -> int:
    """Export, check and print a table; returns the exit status. Raises UserError for whatever the user must change."""
    logs.set_up(None, 0)
    asked = [config.format] if isinstance(config.format, str) else config.format
    if not asked:
        raise UserError(f"format is [], so there is nothing to export; set it to some of {', '.join(FORMATS)}")
    formats = [FORMATS[name] for name in dict.fromkeys(asked)]
    for one in formats:
        require_packages(one)
    trained = load_trained(located)
    rows = rows_to_check(trained, config.max_rows)
    found = []
    with (
        output_folder(config.out, "out", last=ABOUT) as staging,
        Progress() as progress,
        progress.task("exporting", len(formats)) as bar,
    ):
        for one in formats:
            folder = staging if len(formats) == 1 else staging / one.name
            folder.mkdir(exist_ok=True)
            with _quiet():
                one.write(trained, folder)
                found.append(check(one, trained, folder, rows))
            bar.advance()
        own = _of_run(trained, rows)
        write_json(staging / ABOUT, _about(trained, [own, *found]))
    _print([own, *found])
    print_table("", config.out)
    return 0


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep others' warnings and bars of progress away: what counts is compared."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def rows_to_check(trained: Trained, count: int) -> list[dict[str, Any]]:
    """Return the texts of the first rows of the run's first evaluation set, as it kept them with its predictions.

    Raises UserError where it kept none.
    """
    run_dir = trained.located.run_dir
    found: list[dict[str, Any]] = []
    for name in evaluation_sets(run_dir):
        with_text = (
            {key: one[key] for key in (*TEXTS, "label") if key in one} for one in predictions_of(run_dir, name)
        )
        found += islice((row for row in with_text if len(row) > 1), count - len(found))
    if not found:
        raise UserError(f"{run_dir} keeps no texts in predictions/ to hold an export against; give another run")
    return found


def check(chosen: Format, trained: Trained, folder: Path, rows: Sequence[dict[str, Any]]) -> Checked:
    """Read an export back and hold it against the run: the tokens of its tokenizer, its logits, what they decide.

    Raises UserError where its tokenizer gives other tokens, which would make it another model.
    """
    compute = chosen.read(folder, trained)
    if chosen.name == SENTENCES:
        compute = _cosines(compute)
    predictor = Predictor(trained, torch.device("cpu"), batch_size=CHECK_BATCH)
    largest, same, right = 0.0, 0, 0
    for batch in _batches(rows, CHECK_BATCH):
        inputs = inputs_of(trained, predictor, batch)
        own = _own_logits(trained, predictor, batch)
        theirs = _rows_of_logits(compute(inputs), trained, predictor, batch)
        for mine, other in zip(own, theirs, strict=True):
            # NaN stays NaN.
            largest = float(np.maximum(largest, np.abs(mine - other).max(initial=0.0)))
            same += _decided(mine, trained) == _decided(other, trained)
        right += sum(_decided(other, trained) == row.get("label") for other, row in zip(theirs, batch, strict=True))
    _require_same_tokens(trained, chosen.tokenizer(folder), rows)
    size_mb = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6
    latencies = [_latency_ms(partial(compute, some)) for some in _timed(trained, predictor, rows)]
    accuracy = right / len(rows) if _has_accuracy(trained) else None
    return Checked(chosen.name, len(rows), largest, same / len(rows), accuracy, size_mb, *latencies)


def _of_run(trained: Trained, rows: Sequence[dict[str, Any]]) -> Checked:
    """The same of the run itself."""
    predictor = Predictor(trained, torch.device("cpu"), batch_size=CHECK_BATCH)
    size_mb = sum(path.stat().st_size for path in trained.located.checkpoint.glob("model.safetensors")) / 1e6
    encoded = [predictor.encode(batch) for batch in _timed_rows(rows)]
    latencies = [_latency_ms(partial(predictor.predict, some)) for some in encoded]
    accuracy = None
    if _has_accuracy(trained):
        found = predictor.predict(predictor.encode(rows))
        accuracy = sum(one["prediction"] == row["label"] for one, row in zip(found, rows, strict=True)) / len(rows)
    return Checked("the run itself", len(rows), 0.0, 1.0, accuracy, size_mb, *latencies)


def _has_accuracy(trained: Trained) -> bool:
    return trained.target.kind == "classes" and trained.layout.name != "sides"


def inputs_of(trained: Trained, predictor: Predictor, rows: Sequence[dict[str, Any]]) -> Inputs:
    """Return the padded inputs of rows; where texts are encoded apart, all first texts before all second ones."""
    pad = trained.tokenizer.backend.token_to_id("[PAD]") or 0
    if trained.layout.name != "sides":
        return padded_inputs(predictor.encode(rows), pad)
    texts = [row["text_a"] for row in rows] + [row["text_b"] for row in rows]
    return padded_inputs(encode_single(trained.tokenizer, texts, trained.config.data["max_len"]), pad)


def _own_logits(trained: Trained, predictor: Predictor, rows: Sequence[dict[str, Any]]) -> list[np.ndarray]:
    found = predictor.predict(predictor.encode(rows), with_logits=True)
    if trained.layout.name == "sides":
        # What an exported encoder gives are vectors; a head over them is not part of it.
        return [np.array([cosine]) for cosine in predictor.cosines(rows)]
    logits = [np.array(one["logits"]) for one in found]
    if trained.target.kind == "number":
        target: Any = trained.target
        return [target.unscaled(one) for one in logits]
    return logits


def _rows_of_logits(
    found: np.ndarray, trained: Trained, predictor: Predictor, rows: Sequence[dict[str, Any]]
) -> list[np.ndarray]:
    """Return the logits of each row; of a tagger those of the first token of each unit."""
    if trained.target.kind != "tags":
        return list(found)
    encoded = predictor.encode(rows)
    assert encoded.words is not None and encoded.word_counts_N is not None
    ends = np.cumsum(encoded.word_counts_N)[:-1]
    return [logits[places] for logits, places in zip(found, np.split(encoded.words, ends), strict=True)]


def _decided(logits: np.ndarray, trained: Trained) -> Any:
    """Return what logits of one row decide, as the run decides it."""
    kind = trained.target.kind
    if kind == "classes" and trained.layout.name != "sides":
        loss: Any = trained.task.loss  # type: ignore[attr-defined]
        return class_predictions(loss, trained.labels, logits[None].astype(np.float32))[0]["prediction"]
    if kind == "label_set":
        return ((1 / (1 + np.exp(-logits))) >= trained.decided["threshold"]).tolist()
    if kind == "tags":
        return logits.argmax(-1).tolist()
    if trained.layout.name == "sides" and "threshold" in trained.decided:
        return bool(logits[0] >= trained.decided["threshold"])
    # A number, or a similarity by which is ranked.
    return np.round(logits.astype(np.float64), 3).tolist()


def _cosines(vectors: Compute) -> Compute:
    def compute(inputs: Inputs) -> np.ndarray:
        found_ND = vectors(inputs)
        unit_ND = found_ND / np.linalg.norm(found_ND, axis=1, keepdims=True)
        first_ND, second_ND = np.split(unit_ND, 2)
        return np.asarray((first_ND * second_ND).sum(1, keepdims=True))

    return compute


def _require_same_tokens(trained: Trained, tokenizer: Any, rows: Sequence[dict[str, Any]]) -> None:
    """Hold the exported tokenizer against the run's; of a tagger, whose units come apart already, nothing is held."""
    if trained.layout.name == "units":
        return
    max_len = trained.config.data["max_len"]
    for row in rows:
        texts = [row[name] for name in TEXTS if name in row]
        if trained.layout.name == "pair":
            encoded = encode_pair(trained.tokenizer, texts[:1], texts[1:], max_len)
        else:
            # Of two texts that are encoded apart the first stands for both.
            texts = texts[:1]
            encoded = encode_single(trained.tokenizer, texts, max_len)
        theirs = tokenizer(*texts, verbose=False)
        own = {name: values[0].tolist() for name, values in padded_inputs(encoded, pad=0).items()}
        # A longer text is cut, by each in its own way.
        if not encoded.cut_N[0] and {name: list(theirs[name]) for name in own} != own:
            raise UserError(
                f"the exported tokenizer gives {texts[0]!r} other tokens than the run's: {dict(theirs)} and {own}; "
                "tell us, with the tokenizer of the run"
            )


def _batches(rows: Sequence[dict[str, Any]], size: int) -> Iterator[Sequence[dict[str, Any]]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def _timed_rows(rows: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    return [[rows[number % len(rows)] for number in range(size)] for size in (1, 32)]


def _timed(trained: Trained, predictor: Predictor, rows: Sequence[dict[str, Any]]) -> list[Inputs]:
    return [inputs_of(trained, predictor, batch) for batch in _timed_rows(rows)]


def _latency_ms(work: Callable[[], object]) -> float:
    """Return the median time of a call, from those of TIMED_S seconds, at least three."""
    work()
    times: list[float] = []
    while sum(times) < TIMED_S or len(times) < 3:
        began_s = time.perf_counter()
        work()
        times.append(time.perf_counter() - began_s)
    return statistics.median(times) * 1000


def _about(trained: Trained, found: Sequence[Checked]) -> dict[str, Any]:
    return {
        "run": str(trained.located.run_dir), "checkpoint": trained.located.checkpoint.name, "labels": trained.labels,
        "decided": trained.decided, "checked": [asdict(one) for one in found],
    }  # fmt: skip


def _print(found: Sequence[Checked]) -> None:
    headers = ("format", "rows", "largest difference", "same prediction", "accuracy", "MB", "ms for 1", "ms for 32")
    table = table_of([(header, header != "format") for header in headers])
    for one in found:
        table.add_row(
            one.format, str(one.rows), f"{one.largest_difference:.2g}", f"{one.same:.2%}",
            metric_text(one.accuracy), f"{one.size_mb:.1f}",
            digits(one.latency_1_ms), digits(one.latency_32_ms),
        )  # fmt: skip
    print_table("", table)


def digits(time_ms: float) -> str:
    """Return a time with three digits, or those before its point; no machine measures more twice."""
    return f"{time_ms:,.0f}" if time_ms >= 99.95 else f"{time_ms:#.3g}"
