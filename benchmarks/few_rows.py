"""Few labelled rows against SetFit, from the same weights and rows: accuracy and processor time over draws.

    python -m venv VENV && VENV/bin/pip install torch==2.13.0 setfit
    python benchmarks/few_rows.py VENV/bin/python sst2:e5_small:8 tnews:simbert_tiny:16 --draws 10

SET:MODEL:ROWS is a data set, an encoder and the rows of each class. SetFit has its own defaults: batches of 16 pairs, a
rate of 2e-5, one epoch over all pairs (oversampling), of which `--max-steps` takes the first steps where there are
more, and scikit-learn's logistic regression. nlu has method=fewshot and its defaults, and method=frozen. Both take
their turns on the same draws. A time is that of one thread, from weights and rows to a model that predicts; imports
and the scoring of test rows are left out on both sides.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from embeddings import weights_for_peer
from inputs import composed

TEST_ROWS = 600
POOLING = {"simbert_tiny": "cls", "e5_small": "mean"}
SETFIT = """
import json, sys, time
from datasets import Dataset
from sentence_transformers import SentenceTransformer, models
from setfit import SetFitModel, Trainer, TrainingArguments
from sklearn.linear_model import LogisticRegression

for line in sys.stdin:
    job, began = json.loads(line), time.process_time()
    body = models.Transformer(job["weights"], max_seq_length=64)
    pooling = models.Pooling(body.get_word_embedding_dimension(), pooling_mode=job["pooling"])
    body = SentenceTransformer(modules=[body, pooling], device="cpu")
    model = SetFitModel(model_body=body, model_head=LogisticRegression())
    arguments = TrainingArguments(
        max_steps=job["max_steps"], seed=job["seed"], report_to="none", output_dir=job["out"], save_strategy="no",
        show_progress_bar=False,
    )
    rows = Dataset.from_list([{"text": text, "label": label} for text, label in job["train"]])
    Trainer(model=model, args=arguments, train_dataset=rows).train()
    taken_s = time.process_time() - began
    found = model.predict([text for text, _ in job["test"]])
    right = sum(str(one) == label for one, (_, label) in zip(found, job["test"]))
    print("RESULT " + json.dumps([right / len(found), taken_s]), flush=True)
"""


def rows_of(name: str) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return training and test rows of a data set, each a text and its label; without dev, some are held out."""
    from nlu.data.dataset import Files

    settings = composed("data", name)
    found = {}
    for set_name, sources in Files(**settings).sets(("train", "dev")).items():
        lines = [(line, one.label) for one in sources for line in one.path.read_text(encoding="utf-8").splitlines()]
        fields = settings.get("fields", {})
        cells = [line.split("\t") for line, label in lines if label is None][bool(settings.get("header")) :]
        rows = [(cell[fields["text"]], cell[fields["label"]]) for cell in cells]
        rows += [(line.strip(), label) for line, label in lines if label is not None and line.strip()]
        found[set_name] = sorted(set(rows))
        random.Random(0).shuffle(found[set_name])
    train, test = found["train"], found.get("dev")
    return (train, test[:TEST_ROWS]) if test else (train[TEST_ROWS:], train[:TEST_ROWS])


def drawn(pool: list[tuple[str, str]], count: int, seed: int) -> list[tuple[str, str]]:
    """Return so many rows of each label."""
    by_label = defaultdict(list)
    for row in random.Random(seed).sample(pool, len(pool)):
        by_label[row[1]].append(row)
    return [row for label in sorted(by_label) for row in by_label[label][:count]]


def native(job: dict[str, Any], folder: Path, method: str) -> tuple[float, float]:
    """Return accuracy and seconds of nlu."""
    import nlu

    train, test = ([{"text": text, "label": label} for text, label in job[name]] for name in ("train", "test"))
    began = time.process_time()
    overrides = [f"method={method}", f"model={job['model']}", "data.max_len=64", f"seed={job['seed']}"]
    loaded = nlu.fit([*overrides, f"hydra.run.dir={folder}"], train=train, dev=train[:: max(1, len(train) // 16)])
    taken_s = time.process_time() - began
    found = loaded.predict(test)
    return sum(one["prediction"] == row["label"] for one, row in zip(found, test, strict=True)) / len(test), taken_s


def peer_weights(model: str, folder: Path) -> Path:
    """Write the weights that all runs begin with as a folder of transformers."""
    if model == "e5_small":
        return weights_for_peer(folder)
    # A frozen run has kept them.
    export = ["-m", "nlu.export", f"run={folder / 'frozen'}", "format=huggingface", f"out={folder / 'weights'}"]
    subprocess.run([sys.executable, *export], check=True, stdout=subprocess.DEVNULL)
    return folder / "weights"


def main() -> None:
    """Measure each comparison, and print a line as JSON for each draw and a summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("setfit", help="python of an environment with setfit")
    parser.add_argument("compared", nargs="+", metavar="SET:MODEL:ROWS")
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--max-steps", type=int, default=-1, help="of SetFit; default: one epoch over all pairs")
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    command = [given.setfit, "-c", SETFIT]
    with (
        tempfile.TemporaryDirectory() as scratch,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as peer,
    ):
        assert peer.stdin is not None and peer.stdout is not None
        for compared in given.compared:
            name, model, count = compared.split(":")
            pool, test = rows_of(name)
            results: dict[str, list[tuple[float, float]]] = defaultdict(list)
            for seed in range(given.draws + 1):
                folder = Path(scratch, f"{compared.replace(':', '-')}-{seed}")
                job = {"model": model, "train": drawn(pool, int(count), seed), "test": test, "seed": seed}
                job |= {"pooling": POOLING[model], "max_steps": given.max_steps, "out": str(folder / "setfit")}
                for method in ("frozen", "fewshot"):
                    results[method].append(native(job, folder / method, method))
                if not seed:
                    weights = str(peer_weights(model, folder))
                job["weights"] = weights
                peer.stdin.write(json.dumps(job) + "\n")
                peer.stdin.flush()
                said = next(line for line in peer.stdout if line.startswith("RESULT "))
                results["setfit"].append(json.loads(said.removeprefix("RESULT ")))
                if not seed:
                    # What each side imports and prepares with its first model.
                    results.clear()
                    continue
                print(compared, seed, {side: found[-1] for side, found in results.items()}, flush=True)
            for side, found in results.items():
                accuracies, seconds = zip(*found, strict=True)
                gains = [one[0] - other[0] for one, other in zip(found, results["setfit"], strict=True)]
                ratio = sum(second for _, second in results["setfit"]) / sum(seconds)
                print(
                    f"{compared} {side}: accuracy {statistics.fmean(accuracies):.4f}, minus SetFit's "
                    f"{statistics.fmean(gains):+.4f}, {statistics.fmean(seconds):.1f} s, {ratio:.1f} times as fast "
                    f"({len(found)} draws)",
                    flush=True,
                )
        peer.stdin.close()


if __name__ == "__main__":
    main()
