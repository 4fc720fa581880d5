"""Sentences joined to long texts and read in windows: span F1 and speed against sentence by sentence, and a check.

    python benchmarks/long_texts.py outputs/sentences outputs/documents $NLU_DATA/CLUENER2020/dev.json

The first run was trained on sentences, the second on joined ones; `--write FILE` writes such rows. Speed is that of the
second run, in tokens of the texts per second of CPU time, and both sides take turns. The check computes the logits of
each window of some long rows by itself, and takes those of each unit where its nearest edge is farthest.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

import nlu
from nlu.data.store import EncodedRows
from nlu.data.windows import UNCUT
from nlu.inference.loaded import Loaded

CHECKED = 5
Rows = list[dict[str, Any]]


def joined(rows: Rows, times: int) -> Rows:
    """Return texts of so many sentences, with the spans of these."""
    found = []
    for start in range(0, len(rows), times):
        text, spans = "", dict[str, dict[str, list[list[int]]]]()
        for row in rows[start : start + times]:
            for kind, names in row["label"].items():
                for name, places in names.items():
                    own = spans.setdefault(kind, {}).setdefault(name, [])
                    own += [[first + len(text), last + len(text)] for first, last in places]
            text += row["text"]
        found.append({"text": text, "label": spans})
    return found


def tokens_per_s(run: Loaded, rows: Rows) -> np.ndarray:
    """Return the speed of a prediction, counted in tokens of the texts, and in tokens that are computed."""
    layout, tokenizer = run.trained.layout, run.trained.tokenizer
    own = int((layout.encode(tokenizer, rows, UNCUT).lengths_N - tokenizer.single.size).sum())
    began_s = time.process_time()
    encoded = run.predictor.encode(rows)
    run.predictor.predict(encoded)
    return np.array([own, encoded.lengths_N.sum()]) / (time.process_time() - began_s)


def largest_difference(run: Loaded, row: dict[str, Any]) -> float:
    """Return how far the logits of a row are from those of its windows, each computed by itself."""
    predictor, tokenizer, lengths = run.predictor, run.trained.tokenizer, run.trained.lengths
    single, stride = tokenizer.single, lengths.max_len // 8 if lengths.stride is None else lengths.stride
    whole = run.trained.layout.encode(tokenizer, [row], UNCUT)
    assert whole.words is not None
    tokens = whole.tokens[len(single.before) : len(whole.tokens) - len(single.after)].tolist()
    units = (whole.words - len(single.before)).tolist()
    count, room = 1, lengths.max_len - single.size
    while count * room - (count - 1) * stride < len(tokens):
        count += 1
    each, more = divmod(len(tokens) + (count - 1) * stride, count)
    best: dict[int, tuple[float, np.ndarray]] = {}
    begin = 0
    for number in range(count):
        end = begin + each + (number < more)
        inside = [place for place, first in enumerate(units) if begin <= first < end]
        window = np.array([*single.before, *tokens[begin:end], *single.after], np.int32)
        words = np.array([units[place] - begin + len(single.before) for place in inside], np.int32)
        size, is_cut = np.array([len(window)]), np.zeros(1, bool)
        (logits_UC,) = predictor.logits(EncodedRows(window, size, size, is_cut, words, np.array([len(words)])))
        for place, logits_C in zip(inside, logits_UC, strict=True):
            last = units[place + 1] if place + 1 < len(units) else len(tokens)
            left = units[place] - begin if number else UNCUT
            margin = min(left, end - last if number < count - 1 else UNCUT)
            if place not in best or margin > best[place][0]:
                best[place] = margin, logits_C
        begin = end - stride
    (found_UC,) = predictor.logits(predictor.encode([row]))
    return float(np.abs(found_UC - np.stack([best[place][1] for place in range(len(units))])).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sentences", help="a run that was trained on sentences")
    parser.add_argument("documents", help="a run that was trained on joined sentences")
    parser.add_argument("rows", type=Path, help="rows of sentences with their spans, as CLUENER writes them")
    parser.add_argument("--times", type=int, default=20, help="sentences of a text")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--timed", type=int, default=20, help="long texts that are timed")
    parser.add_argument("--write", type=Path, help="only write the joined rows to this file")
    given = parser.parse_args()
    rows = [json.loads(line) for line in given.rows.read_text(encoding="utf-8").splitlines()]
    long = joined(rows, given.times)
    if given.write:
        given.write.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in long), encoding="utf-8")
        return
    apart, whole = nlu.load(given.sentences), nlu.load(given.documents, long="windows")
    scores = apart.evaluate(rows)["span_f1"], whole.evaluate(long)["span_f1"]
    print(f"span F1: {scores[0]:.4f} sentence by sentence, {scores[1]:.4f} of {given.times} joined")
    few, ratios = long[: given.timed], list[np.ndarray]()
    for _ in range(given.turns):
        ratios.append(tokens_per_s(whole, few) / tokens_per_s(whole, rows[: given.timed * given.times]))
    for what, each in zip(("of the texts", "computed"), zip(*ratios, strict=True), strict=True):
        shown = f"{statistics.median(each):.3f} ({min(each):.3f} to {max(each):.3f} in {given.turns} turns)"
        print(f"tokens {what}, per second of long texts / of sentences: {shown}")
    largest = max(largest_difference(whole, row) for row in long[:CHECKED])
    print(f"largest difference of a logit from windows by themselves: {largest:.2g}")


if __name__ == "__main__":
    main()
