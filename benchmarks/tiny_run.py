"""A run so small that it is over in seconds, for benchmarks of what happens around training."""

import random
from pathlib import Path

WORDS = [f"w{number}" for number in range(60)]


def write_data(folder: Path, train_rows: int = 160, dev_rows: int = 41) -> None:
    """Write a small set whose label can be learned: which half of the vocabulary a text's words come from."""
    rng = random.Random(0)
    for name, rows in (("train", train_rows), ("dev", dev_rows)):
        lines = []
        for _ in range(rows):
            label = rng.randrange(2)
            words = [rng.choice(WORDS[label * 25 : label * 25 + 35]) for _ in range(rng.randint(3, 20))]
            lines.append(f"{' '.join(words)}\t{label}\n")
        (folder / f"{name}.tsv").write_text("".join(lines))


def overrides(data: Path) -> list[str]:
    """Return the overrides that train a tiny BERT on what `write_data` wrote there."""
    return [
        "model=bert_tiny", "model.hidden_size=24", "model.heads=2", "model.layers=2", "model.intermediate_size=48",
        "data=files", f"data.train={data}/train.tsv", f"data.dev={data}/dev.tsv", "data.fields={text: 0, label: 1}",
        "trainer.batch_size=8", "trainer.device=cpu",
    ]  # fmt: skip
