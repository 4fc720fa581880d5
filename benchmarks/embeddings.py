"""Training embeddings against sentence-transformers: LCQMC as retrieval, from the weights of e5_small.

    python benchmarks/embeddings.py                    three seeds, an epoch of 4,402 pairs (25 minutes on 2 cores)
    python benchmarks/embeddings.py --seeds 1 --steps 10

Both train on the matching pairs of LCQMC's dev set with in-batch negatives, batch 64, the same steps, rate, schedule,
temperature, prompts and Matryoshka dimensions, in turns by seed. The peer's loss is MultipleNegativesRankingLoss in
MatryoshkaLoss without duplicates in a batch, its precision the faster one of bf16 and fp32. Real tokens (without
padding) per second are those of the training loops. MRR@10: each first text of a matching pair of the test set looks
for its second text among all second texts; one function computes it from the vectors of both.
"""

import argparse
import csv
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from inputs import composed

from nlu.runs.records import read_rows
from nlu.storage.locations import data_folder

BATCH, RATE, WARM_UP, SCALE, DIMS, MAX_LEN, PROMPT = 64, 5e-5, 0.1, 20.0, (384, 64), 64, "query: "


def pairs_of(part: str) -> list[tuple[str, str]]:
    """Return the pairs of a set that match."""
    with (data_folder() / "LCQMC" / f"{part}.txt").open(encoding="utf-8") as file:
        return [(a, b) for a, b, label in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE) if label == "1"]


def mrr_10(encode: Any) -> dict[int, float]:
    """Return the mean reciprocal rank by dimension; `encode(texts)` gives vectors of all dimensions."""
    pairs = pairs_of("test")
    corpus = sorted({second for _, second in pairs})
    place = {text: number for number, text in enumerate(corpus)}
    queries = sorted({first for first, _ in pairs})
    wanted: dict[str, list[int]] = {}
    for first, second in pairs:
        wanted.setdefault(first, []).append(place[second])
    whole = encode(queries), encode(corpus)
    found = {}
    for dims in DIMS:
        queries_QD, corpus_KD = (
            each[:, :dims] / np.linalg.norm(each[:, :dims], axis=1, keepdims=True) for each in whole
        )
        scores_QK = queries_QD @ corpus_KD.T
        for row, query in enumerate(queries):
            # A text does not look for itself, unless it is the only answer.
            if query in place and wanted[query] != [place[query]]:
                scores_QK[row, place[query]] = -np.inf
        best_Q = np.array([scores_QK[row, wanted[query]].max() for row, query in enumerate(queries)])
        rank_Q = 1 + (scores_QK > best_Q[:, None]).sum(1)
        found[dims] = float(np.where(rank_Q <= 10, 1 / rank_Q, 0).mean())
    return found


def ours(folder: Path, seed: int, steps: int) -> dict[str, Any]:
    """Train by the command `nlu.train`, and return tokens per second and scores."""
    import nlu

    for name, rows in (("train", pairs_of("dev")), ("dev", pairs_of("test")[:50])):
        lines = [json.dumps({"text_a": a, "text_b": b}, ensure_ascii=False) for a, b in rows]
        (folder / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    run = folder / f"run-{seed}"
    subprocess.run(
        [
            sys.executable, "-m", "nlu.train", "model=e5_small", "task=retrieve", "data=files",
            f"data.train={folder}/train.jsonl", f"data.dev={folder}/dev.jsonl", f"data.max_len={MAX_LEN}",
            f"data.prompts={{text_a: '{PROMPT}', text_b: '{PROMPT}'}}", f"task.dims={list(DIMS[1:])}",
            f"loss.temperature={1 / SCALE}", f"trainer.batch_size={BATCH}", f"trainer.max_duration={steps}st",
            "trainer.eval_interval=0", "precision=auto", f"optimizer.lr={RATE}", f"scheduler.warmup={WARM_UP}",
            f"seed={seed}", f"hydra.run.dir={run}",
        ],
        check=True,
    )  # fmt: skip
    rates = [float(row["real_tokens_per_s"]) for row in read_rows(run / "train.tsv")]
    loaded = nlu.load(run)
    scores = mrr_10(lambda texts: loaded.encode(texts, prompt=PROMPT))
    return {"tokens_per_s": statistics.median(rates), "mrr_10": scores}


def peer(weights: Path, seed: int, steps: int, precision: str, scores: bool = True) -> dict[str, Any]:
    """Train by the trainer of sentence-transformers, and return tokens per second and scores."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer import losses, modules

    body = modules.Transformer(str(weights), max_seq_length=MAX_LEN)
    model = SentenceTransformer(modules=[body, modules.Pooling(384), modules.Normalize()])
    pairs = pairs_of("dev")
    texts = [PROMPT + text for pair in pairs for text in pair]
    tokens = sum(min(MAX_LEN, len(ids)) for ids in model.tokenizer(texts)["input_ids"]) / len(pairs)
    loss = losses.MultipleNegativesRankingLoss(model, scale=SCALE)
    arguments = SentenceTransformerTrainingArguments(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=BATCH, max_steps=steps, learning_rate=RATE,
        warmup_steps=round(WARM_UP * steps), weight_decay=0.01, seed=seed, batch_sampler="no_duplicates", use_cpu=True,
        bf16=precision == "bf16", save_strategy="no", report_to="none", prompts=PROMPT, disable_tqdm=True,
    )  # fmt: skip
    data = Dataset.from_dict({"anchor": [a for a, _ in pairs], "positive": [b for _, b in pairs]})
    trainer = SentenceTransformerTrainer(
        model, arguments, train_dataset=data, loss=losses.MatryoshkaLoss(model, loss, list(DIMS))
    )
    began_s = time.perf_counter()
    trainer.train()
    rate = steps * BATCH * tokens / (time.perf_counter() - began_s)

    if not scores:
        return {"tokens_per_s": rate}
    return {"tokens_per_s": rate, "mrr_10": mrr_10(partial(model.encode, prompt=PROMPT, show_progress_bar=False))}


def weights_for_peer(folder: Path) -> Path:
    """Write a folder of transformers with the weights of e5_small."""
    from safetensors.torch import save_file

    from nlu.models.formats.pretrained import open_pretrained

    source = open_pretrained(composed("model", "e5_small")["pretrained"])
    shutil.copytree(source.folder, folder / "weights")
    names = {"bos": "<s>", "eos": "</s>", "cls": "<s>", "sep": "</s>", "pad": "<pad>", "unk": "<unk>"}
    special = {f"{name}_token": token for name, token in names.items()}
    described = json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **special})
    (folder / "weights" / "tokenizer_config.json").write_text(described, encoding="utf-8")
    save_file(source.tensors(), folder / "weights" / "model.safetensors", {"format": "pt"})
    return folder / "weights"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=len(pairs_of("dev")) // BATCH)
    given = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {"nlu": [], "sentence-transformers": []}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        weights = weights_for_peer(folder)
        trial = {each: peer(weights, 0, 5, each, scores=False)["tokens_per_s"] for each in ("fp32", "bf16")}
        precision = max(trial, key=lambda each: trial[each])
        print(f"sentence-transformers is fastest in {precision}: {trial}", flush=True)
        for seed in range(1, given.seeds + 1):
            found["nlu"].append(ours(folder, seed, given.steps))
            found["sentence-transformers"].append(peer(weights, seed, given.steps, precision))
            print({name: runs[-1] for name, runs in found.items()}, flush=True)
    for name, runs in found.items():
        rates = [run["tokens_per_s"] for run in runs]
        print(f"{name}: {statistics.median(rates):,.0f} tokens/s; MRR@10 by dimension:")
        for dims in DIMS:
            scores = [100 * run["mrr_10"][dims] for run in runs]
            print(f"  {dims}: {statistics.mean(scores):.2f} ({', '.join(f'{score:.2f}' for score in scores)})")
    rates = {name: statistics.median(run["tokens_per_s"] for run in runs) for name, runs in found.items()}
    print(f"ratio: {rates['nlu'] / rates['sentence-transformers']:.2f}")


if __name__ == "__main__":
    main()
