"""Generated mistakes of users, for all commands: keys, values and files that must be refused."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

from tiny_run import overrides

Mistake = tuple[str, list[str]]
"""what is wrong, and the command after `python -m`"""

NUMBERS = [
    "trainer.batch_size", "trainer.max_duration", "trainer.eval_interval", "trainer.accumulation", "trainer.keep_best",
    "trainer.clip_norm", "optimizer.lr", "optimizer.weight_decay", "model.layers", "model.heads", "model.hidden_size",
    "data.max_len", "seed", "folds.count", "seeds", "trainer.ema_decay", "trainer.devices", "scheduler.warmup",
]  # fmt: skip
GROUPS = [
    "model", "task", "loss", "optimizer", "scheduler", "data", "method", "head", "precision", "tokenizer", "adapter",
]  # fmt: skip
NEVER_VALID = {
    "trainer.max_duration": ["-1", "0", "5", "3 epochs", "ep"], "trainer.devices": ["-1", "0", "two"],
    "data.max_len": ["0", "-5", "1.5"], "folds.count": ["1", "-2", "x"],
}  # fmt: skip


def misspelt(rng: random.Random, word: str) -> str:
    """Return a word with a letter too many, too few, or another one."""
    place = rng.randrange(1, len(word))
    before, after = word[:place], word[place + 1 :]
    return rng.choice([before + after, f"{before}q{word[place:]}", f"{before}q{after}"])


def broken_file(rng: random.Random, good: Path, folder: Path, number: int) -> tuple[str, Path]:
    """Write a file of rows that cannot be read."""
    lines = good.read_text().splitlines()
    place = rng.randrange(len(lines))
    kinds: dict[str, Callable[[], bytes]] = {
        "empty": lambda: b"",
        "blank lines": lambda: b"\n\n\n",
        "not UTF-8": lambda: b"\xff\xfe\x00rows",
        "a line that is not JSON": lambda: "\n".join([*lines[:place], "{not json", *lines[place:]]).encode(),
        "a row without text": lambda: "\n".join([*lines[:place], json.dumps({"label": "0"}), *lines[place:]]).encode(),
        "a row without label": lambda: "\n".join([*lines[:place], json.dumps({"text": "w1"}), *lines[place:]]).encode(),
        "a row that is a list": lambda: "\n".join([*lines[:place], "[1]", *lines[place:]]).encode(),
        "binary": lambda: bytes(rng.randrange(256) for _ in range(200)),
        "one class": lambda: "\n".join(json.dumps({"text": "w1 w2", "label": "0"}) for _ in range(9)).encode(),
    }
    kind = rng.choice(list(kinds))
    path = folder / f"{number}.jsonl"
    path.write_bytes(kinds[kind]())
    return kind, path


def generated(rng: random.Random, data: Path, run: Path, folder: Path, count: int) -> Iterator[Mistake]:
    """Yield so many mistakes."""
    folder.mkdir()
    train = ["nlu.train", *overrides(data), f"hydra.run.dir={folder}/run"]
    of_run = {
        "nlu.predict": [f"run={run}", f"input={data}/dev.jsonl", f"output={folder}/out.jsonl"],
        "nlu.evaluate": [f"run={run}"],
        "nlu.export": [f"run={run}", f"output={folder}/exported"],
        "nlu.prune": [f"run={run}"],
    }

    def bad_value() -> Mistake:
        key = rng.choice(list(NEVER_VALID))
        value = rng.choice(NEVER_VALID[key])
        return f"{key}={value}", [*train, f"{key}={value}"]

    def absurd_value() -> Mistake:
        key, value = rng.choice(NUMBERS), rng.choice(["none", "[1,2]", "{a: 1}", "x y", "-1e400", "../x"])
        return f"{key}={value!r}", [*train, f"{key}={value}"]

    def unknown_key() -> Mistake:
        group, _, name = rng.choice([key for key in NUMBERS if "." in key]).partition(".")
        key = f"{group}.{misspelt(rng, name)}"
        return f"unknown key {key}", [*train, f"{key}=1"]

    def unknown_choice() -> Mistake:
        group, name = rng.choice(GROUPS), rng.choice(["nothing", "bertt", "../bert", "x.yaml"])
        return f"unknown choice of {group}", [*train, f"{group}={name}"]

    def bad_file() -> Mistake:
        kind, path = broken_file(rng, data / "train.jsonl", folder, rng.randrange(10**9))
        return f"training file: {kind}", [*train, f"data.train={path}"]

    def missing_file() -> Mistake:
        key = rng.choice(["data.train", "data.dev", "model.pretrained", "tokenizer.vocab"])
        return f"{key} does not exist", [*train, f"{key}={folder}/nothing/{rng.randrange(99)}"]

    def bad_command() -> Mistake:
        command, arguments = rng.choice(list(of_run.items()))
        return f"{command}: unknown key", [command, *arguments, f"{misspelt(rng, 'checkpoint')}=best"]

    def no_run() -> Mistake:
        command, arguments = rng.choice(list(of_run.items()))
        wrong = rng.choice([f"{folder}/nothing", str(data), "", f"{run}/best-9", f"{run}/checkpoints/nowhere"])
        return f"{command}: run={wrong}", [command, *[f"run={wrong}" if a.startswith("run=") else a for a in arguments]]

    def bad_input() -> Mistake:
        kind, path = broken_file(rng, data / "dev.jsonl", folder, rng.randrange(10**9))
        # Rows to be predicted need no label, and one class is enough.
        if kind in ("a row without label", "one class"):
            return bad_file()
        arguments = [f"run={run}", f"input={path}", f"output={folder}/{path.name}.out"]
        return f"nlu.predict: {kind}", ["nlu.predict", *arguments]

    makers = [
        bad_value, absurd_value, unknown_key, unknown_choice, bad_file, missing_file, bad_command, no_run, bad_input,
    ]  # fmt: skip
    for number in range(count):
        yield makers[number % len(makers)]()
