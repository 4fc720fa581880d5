"""Retrieve, then rerank: LCQMC's questions by e5_small, their candidates by a cross-encoder, nlu's and the peer's.

    python benchmarks/rerank.py                              three seeds of 300 steps on all rows
    python benchmarks/rerank.py --rows 4000 --queries 300 --steps 60 --seeds 1

Each question with a match is a query, all second texts of its set are the corpus, and e5_small finds its 20 nearest.
Both train the weights of simbert_tiny with ELECTRA's head on the dev set, with the same lists of candidates (the
matches and the nearest others, 6 in all), 8 queries a step, steps, rate and warm-up, and rank the 20 candidates of the
test set. The peer is CrossEncoder of sentence-transformers with ListNetLoss, in turns by seed. NDCG@10 counts all
matches of a query, also those that were not found.
"""

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from inputs import composed

from nlu.storage.locations import data_folder

FOUND, TRAINED_ON, BATCH, RATE, WARM_UP, MAX_LEN = 20, 6, 8, 1e-4, 0.1, 64
Query = dict[str, Any]
"""its text, the texts that match it, and its candidates, best first"""


def queries_of(part: str, rows: int, most: int) -> list[Query]:
    """Return at most so many queries of the first rows of a set with what e5_small finds for them."""
    import nlu

    with (data_folder() / "LCQMC" / f"{part}.txt").open(encoding="utf-8") as file:
        pairs = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[:rows]
    corpus, matches = sorted({second for _, second, _ in pairs}), dict[str, set[str]]()
    for first, second, label in pairs:
        if label == "1" and first != second:
            matches.setdefault(first, set()).add(second)
    queries = list(matches)[:most]
    vectors = nlu.load(composed("model", "e5_small")["pretrained"])
    sides = [vectors.encode(texts, prompt="query: ", normalize=True) for texts in (queries, corpus)]
    found = []
    for query, places in zip(queries, vectors.search(*sides, k=FOUND + 1).places, strict=True):
        texts = [corpus[place] for place in places if corpus[place] != query][:FOUND]
        found.append({"text_a": query, "candidates": texts, "matches": sorted(matches[query])})
    return found


def list_to_train(query: Query) -> Query:
    """Return a query with its matches and the nearest other candidates, and their labels."""
    matches = query["matches"]
    texts = [*matches, *(text for text in query["candidates"] if text not in matches)][:TRAINED_ON]
    return {"text_a": query["text_a"], "candidates": texts, "label": [int(text in matches) for text in texts]}


def ndcg_10(queries: list[Query], scores_QK: np.ndarray) -> float:
    """Return the mean over queries."""
    discount_K, total = 1 / np.log2(np.arange(2, 12)), 0.0
    for one, score_K in zip(queries, scores_QK, strict=True):
        best = [one["candidates"][place] in one["matches"] for place in np.argsort(-score_K, kind="stable")[:10]]
        total += np.array(best) @ discount_K / discount_K[: len(one["matches"])].sum()
    return float(total / len(queries))


def ours(folder: Path, pairs: list[tuple[str, str]], seed: int, steps: int) -> tuple[float, Any]:
    """Train by `nlu.train`; return the seconds of training and the scores of the pairs."""
    import nlu

    command = [
        sys.executable, "-m", "nlu.train", "model=simbert_tiny", "model.pooling=first", "head=mlp",
        "head.activation=gelu", "task=rerank", "data=files", f"data.train={folder}/train.jsonl",
        f"data.dev={folder}/dev.jsonl", f"data.max_len={MAX_LEN}", f"trainer.batch_size={BATCH}", f"seed={seed}",
        f"trainer.max_duration={steps}st", "trainer.eval_interval=0", f"optimizer.lr={RATE}",
        f"scheduler.warmup={WARM_UP}", f"hydra.run.dir={folder}/run-{seed}",
    ]  # fmt: skip
    subprocess.run(command, check=True)
    result = json.loads((folder / f"run-{seed}" / "result.json").read_text(encoding="utf-8"))
    return result["train_s"], [one["score"] for one in nlu.load(folder / f"run-{seed}").predict(pairs)]


def peer(folder: Path, pairs: list[tuple[str, str]], seed: int, steps: int) -> tuple[float, Any]:
    """Do the same by sentence-transformers."""
    from datasets import Dataset
    from sentence_transformers import cross_encoder

    model = cross_encoder.CrossEncoder(str(folder / "weights"), num_labels=1, max_length=MAX_LEN, device="cpu")
    arguments = cross_encoder.CrossEncoderTrainingArguments(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=BATCH, max_steps=steps, learning_rate=RATE,
        warmup_steps=round(WARM_UP * steps), weight_decay=0.01, seed=seed, use_cpu=True, save_strategy="no",
        report_to="none", disable_tqdm=True,
    )  # fmt: skip
    lists = [json.loads(line) for line in (folder / "train.jsonl").read_text(encoding="utf-8").splitlines()]
    data = Dataset.from_dict({name: [one[name] for one in lists] for name in ("text_a", "candidates", "label")})
    loss = cross_encoder.losses.ListNetLoss(model)
    trainer = cross_encoder.CrossEncoderTrainer(model, arguments, train_dataset=data, loss=loss)
    began_s = time.perf_counter()
    trainer.train()
    return time.perf_counter() - began_s, model.predict(pairs, show_progress_bar=False)


def write_weights(folder: Path) -> None:
    """Write a folder of transformers with the weights of simbert_tiny, of ELECTRA's layout, and its vocabulary."""
    from transformers import BertTokenizerFast, ElectraConfig, ElectraForSequenceClassification

    from nlu.models.formats.pretrained import open_pretrained

    source = open_pretrained(composed("model", "simbert_tiny")["pretrained"])
    model = ElectraForSequenceClassification(ElectraConfig(**{**source.config, "num_labels": 1}))
    assert not model.electra.load_state_dict(dict(source.tensors()), strict=False).missing_keys
    model.save_pretrained(folder)
    vocabulary = (source.folder / "vocab.txt").read_text(encoding="utf-8").rstrip("\n").split("\n")
    tokens = {token: number for number, token in enumerate(vocabulary)}
    BertTokenizerFast(vocab=tokens, do_lower_case=True).save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rows", 10**6), ("queries", 10**6), ("steps", 300), ("seeds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write_weights(folder / "weights")
        lists = [list_to_train(one) for one in queries_of("dev", asked.rows, BATCH * asked.steps)]
        for name, rows in (("train", lists), ("dev", lists[:50])):
            lines = [json.dumps(row, ensure_ascii=False) for row in rows]
            (folder / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
        test = queries_of("test", asked.rows, asked.queries)
        alone = ndcg_10(test, np.tile(-np.arange(FOUND), (len(test), 1)))
        print(
            f"{len(lists)} queries to train on, {len(test)} to rank: NDCG@10 of e5_small alone {alone:.4f}", flush=True
        )
        pairs = [(one["text_a"], text) for one in test for text in one["candidates"]]
        for seed in range(1, asked.seeds + 1):
            for name, work in (("nlu", ours), ("sentence-transformers", peer)):
                train_s, scores = work(folder, pairs, seed, asked.steps)
                found = ndcg_10(test, np.array(scores).reshape(len(test), FOUND))
                print(f"seed {seed}: {name}: NDCG@10 {found:.4f}, {train_s:.0f} s of training", flush=True)


if __name__ == "__main__":
    main()
