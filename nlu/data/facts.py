"""Facts of the data that matter before training: balance, lengths, duplicates, conflicts, overlap.

Axes: N examples of a set, C labels.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from nlu.config.sentences import counted, listed
from nlu.config.types import Config
from nlu.data.arrays import among, repeated
from nlu.data.examples import Examples
from nlu.data.findings import Finding, of_balance
from nlu.data.mixture import MixedStore
from nlu.data.opening import Store
from nlu.data.store import chunks_of
from nlu.data.tokenizing import Tokenizer

MUCH_UNKNOWN, COUNTED_ROWS = 0.01, 8_192
"""share of unknown tokens that is logged, and the rows of a set, at even distances, in which they are counted"""
FEW_ROWS, FEW_TRAINED = 250, 2000
"""rows of a set whose scores are uncertain by 5 points or more, and training rows of which folds are cheap: fewer"""


def describe(store: Store) -> dict[str, Any]:
    """Return the facts of every set, the content of data.json.

    `duplicates` counts examples whose text occurred before in the same set, `conflicts` texts with several labels or
    tags, and `in_train` examples whose text is also a training text. `unknown_share` is that of [UNK] among the tokens
    of texts, without special ones, in a large set of COUNTED_ROWS rows. `bad_rows`, the first of which are listed, and
    `cut_to_max_len` count rows of the set's files; a dev set that was split off train has none.
    """
    if isinstance(store, MixedStore):
        return _describe_mixture(store)
    # Sorted once, and searched for every other set.
    is_growing = store.sets["train"].is_growing
    of_train_S = None if is_growing else np.sort(_hashes(store.sets["train"]))
    # Of rows that are still written, nothing is known that stays true.
    known = {name: part for name, part in store.sets.items() if not part.is_growing}
    sets = {name: _describe_set(store, part, of_train_S) for name, part in known.items()}
    return {
        "store": store.folder.name,
        "labels": store.labels,
        "target": {"kind": store.target.kind, **store.target.about()},
        "layout": store.layout.key,
        "vocab_size": store.tokenizer.vocab_size,
        "dropped_duplicates": store.meta["dropped_duplicates"],
        "sets": sets,
    }


def _describe_mixture(store: MixedStore) -> dict[str, Any]:
    """Return the facts of several training sets: `members` has those of each by itself."""
    members = {name: describe(one) for name, one in store.members.items()}
    return {
        "store": store.folder.name,
        "labels": store.labels,
        "vocab_size": store.tokenizer.vocab_size,
        "dropped_duplicates": sum(facts["dropped_duplicates"] for facts in members.values()),
        "sets": {
            part.name: members[part.member]["sets"][part.name.removesuffix(f"-{part.member}")]
            for part in store.sets.values()
        },
        "members": members,
    }


def _describe_set(store: Store, part: Examples, of_train_S: np.ndarray | None) -> dict[str, Any]:
    sorted_S = of_train_S if part.name == "train" and of_train_S is not None else np.sort(_hashes(part))
    lengths = np.percentile(part.lengths_N, [50, 95, 100]).astype(int).tolist()
    read = store.meta["sets"].get(part.name, {})
    facts = {
        "examples": len(part),
        "bad_rows": read.get("bad_rows", 0),
        "document_marks": read.get("document_marks", 0),
        "listed_bad_rows": read.get("listed_bad_rows", []),
        "cut_to_max_len": read.get("cut"),
        "findings": read.get("findings", []),
        "length_median": lengths[0],
        "length_95_percent": lengths[1],
        "length_max": lengths[2],
        "unknown_share": _unknown_share(part, store.tokenizer),
        "duplicates": int((sorted_S[1:] == sorted_S[:-1]).sum()),
        "conflicts": _conflicts(part, repeated(sorted_S)),
        **part.target.facts(part.stored, part.rows_N),
    }
    if part.name != "train" and of_train_S is not None:
        facts["in_train"] = int(among(sorted_S, of_train_S).sum())
    return facts


def _unknown_share(part: Examples, tokenizer: Tokenizer) -> float:
    counted_N = np.linspace(0, len(part) - 1, min(len(part), COUNTED_ROWS)).astype(np.int64)
    unknown = words = 0
    for rows_B in chunks_of(part.rows_N[counted_N]):
        tokens = part.stored.tokens(rows_B)
        is_unknown = tokenizer.is_unknown(tokens)
        unknown += int(is_unknown.sum())
        words += int((is_unknown | ~np.isin(tokens, tokenizer.special_ids)).sum())
    return round(unknown / words, 6) if words else 0.0


def _hashes(part: Examples) -> np.ndarray:
    return part.stored.text_hash_N[part.rows_N]


def _conflicts(part: Examples, repeated_S: np.ndarray) -> int:
    """Return the number of texts with several targets; only targets of repeated texts are read."""
    hash_N = _hashes(part)
    twice_N = np.flatnonzero(among(hash_N, repeated_S))
    # Rows with equal texts become neighbors, ordered by target, so neighbors with other targets are conflicts.
    hash_N, target_N = hash_N[twice_N], part.target.identities(part.stored, part.rows_N[twice_N])
    order_N = np.lexsort((target_N, hash_N))
    hash_N, target_N = hash_N[order_N], target_N[order_N]
    # A text with three targets has two clashes, but counts once.
    clash = (hash_N[1:] == hash_N[:-1]) & (target_N[1:] != target_N[:-1])
    return len(np.unique(hash_N[1:][clash]))


def lines(facts: Config) -> list[str]:
    """Return the facts as log lines."""
    out = []
    # The facts of a mixture are those of its sets, each behind the name of the set.
    for name, own in facts.get("members", {}).items():
        out += [line.replace("data: ", f"data: {name}: ", 1) for line in lines(own)]
    if out:
        return out
    if facts["dropped_duplicates"]:
        out.append(
            f"data: {counted(facts['dropped_duplicates'], 'exact duplicate')} (text and label) dropped before splitting"
        )
    if facts.get("target", {}).get("scheme") == "classes":
        out.append(
            f"data: the tags ({listed(facts['labels'])}) fit no scheme of spans, so that they are classes of tokens, "
            "scored by accuracy and f1_macro; if they are types of spans, write B- and I- before them"
        )
    if cut := facts.get("layout", "").partition("/")[2]:
        out.append(f"data: spans begin or end within words, so that the units of a text are {cut} (docs/tasks.md)")
    for name, part in facts["sets"].items():
        out.append(
            f"data: {name}: {counted(part['examples'], 'example')}; tokens: median {part['length_median']}, 95 % "
            f"{part['length_95_percent']}, most {part['length_max']}"
        )
        if name != "train" and part["examples"] < FEW_ROWS and part.get("labels"):
            points = 196 * math.sqrt(0.8 * 0.2 / part["examples"])
            is_small = facts["sets"].get("train", {}).get("examples", FEW_TRAINED) < FEW_TRAINED
            rest = "; folds=5 scores each training row once" if is_small else ""
            out.append(
                f"data: {name}: scores rest on {counted(part['examples'], 'row')}: an accuracy of 80 % measured there "
                f"may be off by {points:.0f} points{rest}"
            )
        if part.get("unknown_share", 0) > MUCH_UNKNOWN:
            out.append(
                f"data: {name}: {part['unknown_share']:.1%} of the tokens are [UNK], as the vocabulary lacks the words"
            )
        out += [f"data: {name}: {line}" for line in _target_lines(name, part)]
        out += [f"data: {name}: warning: {Finding(**one)}" for one in part.get("findings", ())]
        for key, noun, rest in (
            ("duplicates", "example", "seen before in the same set"),
            ("conflicts", "text", "with several labels"),
            ("in_train", "example", "whose text is a training text too: scores on these are optimistic"),
            ("document_marks", "line", "-DOCSTART- left out"),
            ("inexpressible", "span", "that begin or end within a unit, which no prediction equals (docs/tasks.md)"),
            ("bad_rows", "bad row", "left out (data.on_bad_row=skip):"),
        ):
            if part.get(key):
                out.append(f"data: {name}: {counted(part[key], noun)} {rest}")
        out += [f"  {row}" for row in part["listed_bad_rows"]]
    return out


def _target_lines(name: str, part: Config) -> Iterator[str]:
    if numbers := part.get("numbers"):
        yield "numbers: " + ", ".join(f"{key} {value:.6g}" for key, value in numbers.items())
    if (labels := part.get("labels")) is None:
        return
    total = max(1, sum(labels.values()))
    yield _balance_line(labels, total) + (f"; {part['without']:,} without a label" if "without" in part else "")
    are_classes = "without" not in part and "O" not in labels and len(labels) > 1
    yield from (
        f"warning: {doubt}" for doubt in of_balance(labels, total, is_train=name == "train", are_classes=are_classes)
    )


def _balance_line(labels: dict[str, int], total: int) -> str:
    shares = sorted(labels.items(), key=lambda item: -item[1])
    shown = ", ".join(f"{label}: {count:,} ({count / total:.1%})" for label, count in shares[:12])
    return shown + (f", and {counted(len(shares) - 12, 'more label')}" if len(shares) > 12 else "")


def length_histograms(store: Store) -> dict[str, list[int]]:
    """Return the number of examples with 0, 1, 2, ... tokens for every set that is complete."""
    return {name: np.bincount(part.lengths_N).tolist() for name, part in store.sets.items() if not part.is_growing}
