"""Runs over several sets with different tasks: what they are composed of. Shared by the tests of mixtures."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.training.in_process import MODEL, PLAIN
from tests.training.kinds import Row, classes, number, pair_of_classes, tags, write

SIZES = tuple(option for option in MODEL if not option.startswith("data."))
VOCABULARY = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh")


@dataclass(frozen=True)
class Member:
    """A set of a mixture: the choices of its head by group, and what makes its rows."""

    choices: Mapping[str, str]
    row: Callable[[random.Random], Row]
    train_rows: int
    dev_rows: int = 11
    test_rows: int = 0


CLASSES = Member({"task": "classify"}, classes, train_rows=27)
TAGS = Member({"task": "tag"}, tags, train_rows=13, test_rows=7)
TAGS_OF_CRF = Member({"task": "tag", "head": "crf"}, tags, train_rows=13)
PAIRS = Member({"task": "siamese", "loss": "contrastive"}, pair_of_classes, train_rows=21, test_rows=9)
NUMBERS = Member({"task": "regress"}, number, train_rows=9)
KEYS = {"task": "tasks", "loss": "losses", "head": "heads"}


def files_of(folder: Path, member: Member) -> dict[str, Path]:
    """Write the rows of a set and return its files by role."""
    found = {}
    for seed, (role, rows) in enumerate(
        (("train", member.train_rows), ("dev", member.dev_rows), ("test", member.test_rows))
    ):
        if rows:
            rng = random.Random(seed)
            found[role] = folder / f"{role}.jsonl"
            write(found[role], [member.row(rng) for _ in range(rows)])
    return found


def vocabulary(folder: Path) -> Path:
    """Write the vocabulary that all sets share, and return its file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "vocab.txt"
    path.write_text("".join(f"{token}\n" for token in VOCABULARY))
    return path


def mixture(folder: Path, members: Mapping[str, Member], *more: str) -> tuple[str, ...]:
    """Write the sets to `folder` and return the overrides of a run over all of them."""
    options = [*SIZES, *PLAIN, "task=composite", "data=mixture", f"tokenizer.vocab={vocabulary(folder)}"]
    values = []
    for name, member in members.items():
        options.append(f"+data@data.sets.{name}=files")
        options += [f"+{group}@task.{KEYS[group]}.{name}={choice}" for group, choice in member.choices.items()]
        values += [f"data.sets.{name}.{role}={path}" for role, path in files_of(folder / name, member).items()]
        values.append(f"data.sets.{name}.max_len=32")
    return *options, *values, *more


def one_set(folder: Path, name: str, member: Member, *more: str) -> tuple[str, ...]:
    """Return the overrides of a run over one of the sets that `mixture` wrote."""
    files = {role: path for role in ("train", "dev", "test") if (path := folder / name / f"{role}.jsonl").is_file()}
    return (
        *SIZES, *PLAIN, "data=files", f"tokenizer.vocab={folder}/vocab.txt", "data.max_len=32",
        *(f"{group}={choice}" for group, choice in member.choices.items()),
        *(f"data.{role}={path}" for role, path in files.items()), *more,
    )  # fmt: skip
