"""Forward and backward of the native BERT against transformers' BertModel: the same weights, rows, batches and threads.

    python benchmarks/encoder.py

Rows have the lengths of question pairs (14 to 60 tokens); batches are sorted by length on both sides, so that the peer
pads little. Prints real tokens (without padding) per second of both, the ratio, and the largest difference of outputs.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from transformers import BertConfig, BertModel

from nlu.data.collate import Batch
from nlu.data.ragged import ranges, starts_of
from nlu.models.bert import Bert

SIZES = {"4 x 312": (312, 4, 12, 1200), "BERT-base": (768, 12, 12, 3072)}
VOCAB_SIZE = 21_128


def batches(count: int, batch_size: int) -> list[Batch]:
    """Return packed batches of random tokens with lengths drawn once, sorted over all batches."""
    rng = np.random.default_rng(0)
    lengths_N = np.sort(np.clip(rng.normal(30, 8, count * batch_size).astype(np.int64), 14, 60))
    out = []
    for start in range(0, len(lengths_N), batch_size):
        lengths_B = lengths_N[start : start + batch_size]
        tokens_T = torch.from_numpy(rng.integers(5, VOCAB_SIZE, int(lengths_B.sum())))
        starts_B = torch.from_numpy(starts_of(lengths_B))
        positions_T = torch.from_numpy(ranges(np.zeros_like(lengths_B), lengths_B))
        empty = np.zeros(0, np.int64)
        out.append(
            Batch(empty, lengths_B.tolist(), tokens_T, torch.zeros_like(tokens_T), positions_T, starts_B, starts_B)
        )
    return out


def native_model(peer: BertModel, hidden: int, layers: int, heads: int, intermediate: int) -> Bert:
    """Return our encoder with the peer's weights."""
    model = Bert(
        VOCAB_SIZE, None, pretrained=None, hidden_size=hidden, layers=layers, heads=heads,
        intermediate_size=intermediate, dropout=0.0, attention_dropout=0.0,
    )  # fmt: skip
    named = model.checkpoint_names(dict(peer.state_dict()))
    missing = model.load_state_dict({name: named[name] for name in model.state_dict()})
    assert not missing.missing_keys
    return model


def padded(batch: Batch) -> dict[str, torch.Tensor]:
    """Return the same batch as the peer takes it."""
    rows = torch.nn.utils.rnn.pad_sequence(batch.tokens_T.split(batch.lengths), batch_first=True)
    mask = torch.arange(rows.shape[1]) < torch.tensor(batch.lengths)[:, None]
    return {"input_ids": rows, "attention_mask": mask.long()}


def seconds(step: Callable[[], torch.Tensor], model: torch.nn.Module) -> float:
    """Return the time of one forward and backward pass."""
    began_s = time.perf_counter()
    step().sum().backward()
    elapsed_s = time.perf_counter() - began_s
    model.zero_grad(set_to_none=True)
    return elapsed_s


def compare(name: str, count: int, batch_size: int) -> None:
    """Print the comparison for one size."""
    hidden, layers, heads, intermediate = SIZES[name]
    config = BertConfig(
        vocab_size=VOCAB_SIZE, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=intermediate, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    peer = BertModel(config, add_pooling_layer=False)
    model = native_model(peer, hidden, layers, heads, intermediate)
    ours_s, theirs_s, difference = [], [], 0.0
    for number, batch in enumerate(batches(count + 1, batch_size)):
        inputs = padded(batch)
        with torch.no_grad():
            outputs = peer(**inputs).last_hidden_state[:, 0] - model.pooled(batch)
        difference = max(difference, float(outputs.abs().max()))
        ours = seconds(lambda batch=batch: model.pooled(batch), model)
        theirs = seconds(lambda inputs=inputs: peer(**inputs).last_hidden_state[:, 0], peer)
        if number:
            ours_s.append(ours / batch.num_tokens)
            theirs_s.append(theirs / batch.num_tokens)
    ours_speed, theirs_speed = 1 / statistics.median(ours_s), 1 / statistics.median(theirs_s)
    print(
        f"{name}: transformers {theirs_speed:,.0f}, nlu {ours_speed:,.0f} real tokens/s, ratio "
        f"{ours_speed / theirs_speed:.2f}; largest difference of outputs {difference:.1e}",
        flush=True,
    )


def main() -> None:
    """Compare every size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=7)
    parser.add_argument("--batch-size", type=int, default=32)
    arguments = parser.parse_args()
    for name in SIZES:
        compare(name, arguments.batches, arguments.batch_size)


if __name__ == "__main__":
    main()
