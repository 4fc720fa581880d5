"""Retrieve, then rerank: LCQMC's questions by e5_small, their candidates by a cross-encoder, nlu's and the peer's.

    python benchmarks/rerank.py                              three seeds of 300 steps on all rows
    python benchmarks/rerank.py --rows 1500 --steps 100 --seeds 1

Each question with a match is a query, all second texts of its set are the corpus, and e5_small finds its 20 nearest.
Both train the weights of simbert_tiny on the dev set, with the same lists of candidates (the matches and the nearest
others, 6 in all), 8 queries a step, steps, rate and warm-up, and rank the 20 candidates of the test set. The peer is
CrossEncoder of sentence-transformers with ListNetLoss, in turns by seed. NDCG@10 counts all matches of a query, also
those that were not found.
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
"""its text, its candidates, best first, a label for each, and the number of its matches"""


def queries_of(part: str, rows: int) -> list[Query]:
    """Return the queries of a set with what e5_small finds for them."""
    import nlu

    with (data_folder() / "LCQMC" / f"{part}.txt").open(encoding="utf-8") as file:
        pairs = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[:rows]
    corpus, matches = sorted({second for _, second, _ in pairs}), {}
    for first, second, label in pairs:
        if label == "1" and first != second:
            matches.setdefault(first, set()).add(second)
    vectors = nlu.load(composed("model", "e5_small")["pretrained"])
    sides = (vectors.encode(texts, prompt="query: ", normalize=True) for texts in (list(matches), corpus))
    nearest = vectors.search(*sides, k=FOUND + 1).places
    found = []
    for (first, answers), places in zip(matches.items(), nearest, strict=True):
        texts = [corpus[place] for place in places if corpus[place] != first][:FOUND]
        labels = [int(text in answers) for text in texts]
        found.append({"text_a": first, "candidates": texts, "label": labels, "matches": sorted(answers)})
    return found


def lists_to_train(queries: list[Query]) -> list[Query]:
    """Return for each query its matches and the nearest other candidates."""
    found = []
    for one in queries:
        others = [text for text, label in zip(one["candidates"], one["label"], strict=True) if not label]
        texts = [*one["matches"], *others][:TRAINED_ON]
        labels = [int(text in one["matches"]) for text in texts]
        found.append({"text_a": one["text_a"], "candidates": texts, "label": labels})
    return found


def ndcg_10(queries: list[Query], scores: list[list[float]]) -> float:
    """Return the mean over queries; without scores, of the order in which candidates were found."""
    discount_K, total = 1 / np.log2(np.arange(2, 12)), 0.0
    for one, own in zip(queries, scores, strict=True):
        gain_K = np.array(one["label"])[np.argsort(-np.array(own), kind="stable")][:10]
        total += gain_K @ discount_K[: len(gain_K)] / discount_K[: min(10, len(one["matches"]))].sum()
    return total / len(queries)


def ours(folder: Path, test: list[Query], seed: int, steps: int) -> tuple[float, list[list[float]]]:
    """Train and rank by the commands; return the seconds of training and the scores."""
    import nlu

    run = folder / f"run-{seed}"
    command = [
        sys.executable, "-m", "nlu.train", "model=simbert_tiny", "task=rerank", "data=files", f"seed={seed}",
        f"data.train={folder}/train.jsonl", f"data.dev={folder}/dev.jsonl", f"data.max_len={MAX_LEN}",
        f"trainer.batch_size={BATCH}", f"trainer.max_duration={steps}st", "trainer.eval_interval=0",
        f"optimizer.lr={RATE}", f"scheduler.warmup={WARM_UP}", f"hydra.run.dir={run}",
    ]  # fmt: skip
    subprocess.run(command, check=True)
    train_s = json.loads((run / "result.json").read_text(encoding="utf-8"))["train_s"]
    loaded = nlu.load(run)
    rows = [(one["text_a"], text) for one in test for text in one["candidates"]]
    return train_s, in_lists(test, [one["score"] for one in loaded.predict(rows)])


def in_lists(test: list[Query], scores: Any) -> list[list[float]]:
    """Return the scores of all candidates as a list for each query."""
    left = iter(map(float, scores))
    return [[next(left) for _ in one["candidates"]] for one in test]


def peer(folder: Path, lists: list[Query], test: list[Query], seed: int, steps: int) -> tuple[float, list[list[float]]]:
    """Do the same by sentence-transformers."""
    from datasets import Dataset
    from sentence_transformers.cross_encoder import (
        CrossEncoder,
        CrossEncoderTrainer,
        CrossEncoderTrainingArguments,
        losses,
    )

    model = CrossEncoder(str(weights_for_peer(folder)), num_labels=1, max_length=MAX_LEN, device="cpu")
    arguments = CrossEncoderTrainingArguments(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=BATCH, max_steps=steps, learning_rate=RATE,
        warmup_steps=round(WARM_UP * steps), weight_decay=0.01, seed=seed, use_cpu=True, save_strategy="no",
        report_to="none", disable_tqdm=True,
    )  # fmt: skip
    names = {"query": "text_a", "docs": "candidates", "labels": "label"}
    data = Dataset.from_dict({name: [one[own] for one in lists] for name, own in names.items()})
    trainer = CrossEncoderTrainer(model, arguments, train_dataset=data, loss=losses.ListNetLoss(model))
    began_s = time.perf_counter()
    trainer.train()
    train_s = time.perf_counter() - began_s
    rows = [(one["text_a"], text) for one in test for text in one["candidates"]]
    return train_s, in_lists(test, model.predict(rows, show_progress_bar=False))


def weights_for_peer(folder: Path) -> Path:
    """Write a folder of transformers with the weights of simbert_tiny, of ELECTRA's layout, and its vocabulary."""
    from transformers import BertTokenizerFast, ElectraConfig, ElectraForSequenceClassification

    from nlu.models.formats.pretrained import open_pretrained

    source = open_pretrained(composed("model", "simbert_tiny")["pretrained"])
    tensors, vocabulary = dict(source.tensors()), (source.folder / "vocab.txt").read_text(encoding="utf-8")
    model = ElectraForSequenceClassification(ElectraConfig(**{**source.config, "num_labels": 1}))
    lacking = model.electra.load_state_dict(tensors, strict=False)
    assert not lacking.missing_keys, lacking
    model.save_pretrained(folder / "weights")
    tokens = {token: number for number, token in enumerate(vocabulary.rstrip("\n").split("\n"))}
    BertTokenizerFast(vocab=tokens, do_lower_case=True).save_pretrained(folder / "weights")
    return folder / "weights"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rows", 10**6), ("steps", 300), ("seeds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        lists, test = lists_to_train(queries_of("dev", asked.rows)), queries_of("test", asked.rows)
        for name, rows in (("train", lists), ("dev", lists[:50])):
            lines = [json.dumps(row, ensure_ascii=False) for row in rows]
            (folder / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
        alone = ndcg_10(test, [[-place for place in range(len(one["label"]))] for one in test])
        print(
            f"{len(lists)} queries to train on, {len(test)} to rank; NDCG@10 of e5_small alone {alone:.4f}", flush=True
        )
        for seed in range(1, asked.seeds + 1):
            for name, (train_s, scores) in (
                ("nlu", ours(folder, test, seed, asked.steps)),
                ("sentence-transformers", peer(folder, lists, test, seed, asked.steps)),
            ):
                print(
                    f"seed {seed}: {name}: NDCG@10 {ndcg_10(test, scores):.4f}, {train_s:.0f} s of training", flush=True
                )


if __name__ == "__main__":
    main()
