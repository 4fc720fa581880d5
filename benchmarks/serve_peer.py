"""A server as it is usually written with FastAPI and transformers: a request at a time, each in a thread of the pool.

python benchmarks/serve_peer.py EXPORT PORT THREADS
"""

import sys

import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from transformers import AutoModelForSequenceClassification, AutoTokenizer

export, port, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(threads)
app = FastAPI()
tokenizer = AutoTokenizer.from_pretrained(export)
model = AutoModelForSequenceClassification.from_pretrained(export).eval()


class Pair(BaseModel):
    """A row."""

    text_a: str
    text_b: str


class Rows(BaseModel):
    """The body of a request."""

    rows: list[Pair]


@app.post("/predict")
def predict(body: Rows) -> dict[str, list[dict[str, str | float]]]:
    """Predict the rows of a request as one padded batch."""
    firsts, seconds = [row.text_a for row in body.rows], [row.text_b for row in body.rows]
    inputs = tokenizer(firsts, seconds, truncation=True, max_length=128, padding=True, return_tensors="pt")
    with torch.inference_mode():
        best = model(**inputs).logits.softmax(-1).max(-1)
    names = [model.config.id2label[number] for number in best.indices.tolist()]
    found = zip(names, best.values.tolist(), strict=True)
    return {"rows": [{"prediction": name, "probability": value} for name, value in found]}


@app.get("/health")
def health() -> dict[str, str]:
    """Say that the server answers."""
    return {"status": "ok"}


uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")
