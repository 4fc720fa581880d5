"""A trained run as a teacher: loaded, checked against the student, and its logits for rows of texts.

A teacher has no dropout and its logits for a row depend on that row only, so those of every epoch are the same numbers:
one pass over the training set replaces one in each epoch. They are kept in the cache under a name of all that they
depend on, so the ranks of a run, its seeds and its continuation after a kill share one pass; each fold has its own
rows. They can also be read from a file of predictions.

Axes: N rows or examples, U units of a row, R rows of logits (examples or units), C labels.
"""

import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nlu.config.addresses import Reference
from nlu.config.errors import DataError, UserError, keys_called
from nlu.config.sentences import counted, listed
from nlu.data.dataset import find_file
from nlu.data.examples import Examples
from nlu.data.layouts import Layout, Values
from nlu.data.opening import Store
from nlu.data.reader import BadRow, Row
from nlu.data.readers import Fields, column_names, read_rows
from nlu.data.seeds import text_hash
from nlu.distillation.keys import with_head
from nlu.inference.cells import LOGITS
from nlu.inference.input_rows import either
from nlu.inference.locate import digests_of, locate_all
from nlu.inference.predictor import Predictor
from nlu.inference.trained import Trained, load_trained
from nlu.methods.method import Context
from nlu.storage.cache import Entry
from nlu.training.ranks import Ranks
from nlu.training.resuming import machine_of

log = logging.getLogger(__name__)

KEY = "method.teacher"
SAID_OF_TEACHERS = {
    "run is ": f"{KEY} is ",
    "; set checkpoint": f"; write {KEY}=RUN/NAME, with checkpoint",
    "head_name is null": f"{KEY} names no task",
    "; set head_name to one of": f"; write {KEY}=RUN#TASK, with one of",
    "head_name is ": f"the task that {KEY} names is ",
    "; leave out head_name": "; leave out # and what follows",
}
"""words of errors about a run, and those about a teacher"""

LOGITS_KEY = "method.logits"
KIND = "logits"
"""the folder of the cache"""
CHUNK_ROWS = 4096
REMEDY = "the file with python -m nlu.predict run=TEACHER logits=true, or set method.logits=null"


class Teacher:
    """A run that predicts the rows that a student learns from. Its weights are frozen and never drop anything."""

    def __init__(self, trained: Trained, device: torch.device):
        self.trained = trained
        self._predictor = Predictor(trained, device)

    @property
    def name(self) -> str:
        return str(self.trained.located.checkpoint)

    @cached_property
    def digest(self) -> str:
        """The sha256 of all that its logits depend on besides the machine, in hex."""
        checkpoint, config = self.trained.located.checkpoint, self.trained.config
        files = digests_of(checkpoint)
        shaped_by = [files, config.precision, config.data["max_len"], self.trained.layout.settings()]
        if (head := self.trained.located.head_name) is not None:
            shaped_by.append(head)
        if settings := self.trained.lengths.settings():
            shaped_by.append(settings)
        return hashlib.sha256(json.dumps(shaped_by, sort_keys=True).encode()).hexdigest()

    def require_fields(self, layout: Layout) -> None:
        """Raise UserError unless the rows of a student with this layout have the texts that this run reads."""
        needed = self.trained.layout.alternatives
        if not any(set(roles) <= set(present) for roles in needed for present in layout.alternatives):
            raise UserError(
                f"{KEY} is {self.name}, which reads {either(needed)}, but this run reads {either(layout.alternatives)}"
                "; name a teacher of such rows"
            )

    def order_of(self, names: Sequence[str]) -> list[int]:
        """Return the number that each label of the student has in this run.

        Raises UserError, with the labels, unless both have the same ones; their order may differ.
        """
        own = self.trained.labels
        unknown, missing = [name for name in names if name not in own], [name for name in own if name not in names]
        if unknown or missing:
            parts = [f"it lacks {listed(unknown)}"] if unknown else []
            parts += [f"this run lacks {listed(missing)}"] if missing else []
            raise UserError(
                f"{KEY} is {self.name}, whose labels are not those of this run: {', and '.join(parts)}; name a teacher "
                "that was trained with the same labels, in any order"
            )
        return [own.index(name) for name in names]

    def logits(self, rows: Sequence[Values], numbers: Sequence[int]) -> list[np.ndarray]:
        """Return the logits of each row, float32: (C,), or (U, C) where units are labelled.

        They depend on the row only. `numbers` of the rows in their file name them in errors. Raises DataError for a row
        that this run cannot read.
        """
        for row, number in zip(rows, numbers, strict=True):
            if (problem := self.trained.layout.problem(row)) is not None:
                raise DataError(f"row {number} of train: {problem[0]} {problem[1]}, so {self.name} cannot read it")
        return self._predictor.logits(self._predictor.encode(rows))


def load_teachers(references: str | Sequence[str], device: torch.device) -> list[Teacher]:
    """Load the runs that `method.teacher` names; a run over several seeds or folds is several teachers.

    RUN#TASK is the head of a task of a run with several. Raises UserError for a reference without a checkpoint.
    """
    given = [references] if isinstance(references, str) else list(references)
    with keys_called(SAID_OF_TEACHERS):
        found = [
            Teacher(load_trained(located.of_head(head)), device)
            for run, head in map(with_head, given)
            for located in locate_all(run)
        ]
    for teacher in found:
        model = teacher.trained.model
        count = sum(parameter.numel() for parameter in model.parameters())
        log.info("teacher: %s, %s with %s parameters", teacher.name, type(model.backbone).__name__, f"{count:,}")
    return found


@dataclass(frozen=True)
class Logits:
    """Logits of all examples of a set, in order."""

    rows_RC: np.ndarray
    """float32; of examples whose units are labelled, a row for each unit that the teacher has seen"""
    counts_N: np.ndarray
    """the number of rows of each example: 1, or its units"""


def computed(teacher: Teacher, part: Examples, context: Context) -> Logits:
    """Return the logits of a teacher for a set; from the cache, or computed by the first process that needs them.

    Raises DataError for a row that has changed in its file, or that the teacher cannot read.
    """
    entry = Entry.of(KIND, *_identity(teacher, part, context))
    what = Reference(teacher.name, "", None, "the logits of")
    found = entry.computed(what, lambda place: _written(teacher, part, context, place))
    return Logits(np.load(found / "rows.npy", mmap_mode="r"), np.load(found / "counts.npy", mmap_mode="r"))


def _identity(teacher: Teacher, part: Examples, context: Context) -> Iterator[str]:
    yield teacher.digest
    # The texts and not their file or tokens, so that students with different tokenizers share the logits.
    yield hashlib.sha256(part.stored.text_hash_N[part.rows_N].tobytes()).hexdigest()
    yield json.dumps([part.layout.name, type(part.layout).__qualname__, part.layout.settings()], sort_keys=True)
    # Another device, or another number of threads, may round differently.
    yield json.dumps(machine_of(Ranks(0, 1, context.device)), sort_keys=True)


def _written(teacher: Teacher, part: Examples, context: Context, folder: Path) -> Path:
    rows_of = zip(part.texts(), part.stored.scalars("number", part.rows_N).tolist(), strict=True)
    found: list[np.ndarray] = []
    with context.progress.task("logits of the teacher", len(part)) as bar:
        while chunk := list(islice(rows_of, CHUNK_ROWS)):
            rows: list[Values] = []
            for values, number in chunk:
                if values is None:
                    raise DataError(
                        f"row {number} of {part.name} is no longer in its file as it was tokenized, so the teacher "
                        "cannot read it; restore the file, or start the run again"
                    )
                rows.append(values)
            found += teacher.logits(rows, [number for _, number in chunk])
            bar.advance(len(chunk))
    logits = _joined(found, len(teacher.trained.labels) or 1)
    np.save(folder / "rows.npy", logits.rows_RC)
    np.save(folder / "counts.npy", logits.counts_N)
    return folder


def _joined(found: list[np.ndarray], width: int) -> Logits:
    """Return the logits of rows, given one array for each: (C,), or (U, C)."""
    counts_N = np.array([1 if one.ndim == 1 else len(one) for one in found], np.int64)
    return Logits(np.concatenate([one.reshape(-1, width) for one in found]).astype(np.float32, copy=False), counts_N)


def from_file(path: str, teacher: Teacher, part: Examples, store: Store) -> Logits:
    """Return the logits that `python -m nlu.predict logits=true` wrote to a file, for the examples of a set.

    A row of the file belongs to all examples with its texts, so the file may have more rows, in any order. Raises
    DataError for an example without logits in the file, and for logits of another number of labels.
    """
    local = find_file(LOGITS_KEY, path)
    columns = store.meta["fields"]
    fields = _fields(local, {role: column for role, column in columns.items() if role in _roles(part)})
    # A run that predicts a number has no labels.
    width = len(teacher.trained.labels) or 1
    known: dict[int, np.ndarray] = {}
    for row in read_rows(local, "auto", fields, None):
        # A row without a prediction: one that nlu.predict could not use, or a mark between documents.
        if not isinstance(row, Row) or row.values.get(LOGITS) in (None, ""):
            continue
        if part.layout.problem(row.values) is None:
            known[text_hash(part.layout.identity(row.values))] = _of(row, width, local, part.layout.name == "units")
    hashes_N = part.stored.text_hash_N[part.rows_N]
    if absent := [place for place, one in enumerate(hashes_N.tolist()) if one not in known]:
        number = part.stored.scalars("number", part.rows_N[absent[:1]])[0]
        raise DataError(
            f"{LOGITS_KEY} is {path}, which has no logits for {len(absent):,} of the {len(part):,} training examples, "
            f"such as row {number}; write it with python -m nlu.predict run={teacher.trained.located.run_dir} "
            "logits=true from the files of data.train"
        )
    return _joined([known[one] for one in hashes_N.tolist()], width)


def _roles(part: Examples) -> set[str]:
    return {role for roles in part.layout.alternatives for role in roles}


def _fields(path: Path, columns: Fields) -> Fields:
    """Return the columns of the texts and of the logits in a file of predictions."""
    names = column_names(path, "auto")
    # A table without a header becomes column_0, column_1, ... in a format whose fields have names; in a table without
    # a header the logits are the last column.
    found = {
        role: f"column_{column}" if isinstance(column, int) and f"column_{column}" in names else column
        for role, column in columns.items()
    }
    is_named = any(isinstance(column, str) for column in found.values())
    if is_named and (absent := [name for name in (*found.values(), LOGITS) if name not in names]):
        raise DataError(
            f"{LOGITS_KEY} is {path}, which lacks the column {listed([str(name) for name in absent])}; it has "
            f"{listed(names)}; write it with python -m nlu.predict logits=true, with the columns of the training file"
        )
    return {**found, LOGITS: LOGITS if is_named else len(names) - 1}


def _of(row: Row, width: int, path: Path, are_units: bool) -> np.ndarray:
    """Return the logits of a row. Raises DataError, naming file, row and field, for anything else."""
    value: Any = row.values[LOGITS]
    try:
        found = np.array(json.loads(value) if isinstance(value, str) else value, np.float32)
    except (ValueError, TypeError, RecursionError):
        found = np.zeros(0, np.float32)
    # A row of units that are all cut off has no logits.
    if are_units and not found.size:
        found = found.reshape(0, width)
    if found.ndim != 1 + are_units or found.shape[-1] != width:
        each = ", for each unit" if are_units else ""
        numbers = counted(width, "number")
        rule = f"is not a list of {numbers}, one for each label of the teacher{each}; write {REMEDY}"
        raise DataError(BadRow.of(row.number, LOGITS, value, rule).describe(path))
    if not np.isfinite(found).all():
        rule = f"has a number that is not finite in float32; write {REMEDY}"
        raise DataError(BadRow.of(row.number, LOGITS, value, rule).describe(path))
    return found
