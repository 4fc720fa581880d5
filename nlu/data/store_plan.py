"""Stores that several machines use, shared in an object store: STORES/FINGERPRINT is a copy of the folder.

COMPLETE is sent last. Machines that build the same store send the same files. Sharing only saves time: a machine that
cannot reach the object store, or gets a damaged shard, builds for itself.

What a store is made of, found and checked before a row is read, and the fingerprint by which it is found again.
"""

import hashlib
import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nlu.config.addresses import object_reference
from nlu.config.errors import DataError
from nlu.config.targets import TARGET
from nlu.config.targets import build as build_target
from nlu.data.dataset import Files, SourceFile
from nlu.data.dialect import PLAIN
from nlu.data.layouts import Layout
from nlu.data.pieces import CUTS
from nlu.data.reader import Reader
from nlu.data.reading import Reading, fields_of, layout_of
from nlu.data.store import FORMAT_VERSION
from nlu.data.targets import Target
from nlu.data.tokenizing import Tokenizer, Vocabulary
from nlu.storage.access import stat
from nlu.storage.cache import cache_dir, file_digest, staging_folder
from nlu.storage.locations import Place, parse_place
from nlu.storage.refusals import Unreachable
from nlu.storage.settle import MARKER, settle
from nlu.storage.transfer import plan_copy, run_copies

log = logging.getLogger(__name__)


class SharedStores:
    """Stores in a folder of a bucket. Raises UserError for an invalid address, and for credentials that are refused."""

    def __init__(self, url: str):
        self._shown = object_reference(url, "stores").shown.rstrip("/")

    def _place(self, name: str) -> Place:
        return parse_place(f"{self._shown}/{name}", "stores", writes=True)

    def fetch(self, name: str, folder: Path) -> bool:
        """Download the store with this fingerprint into a folder; returns whether it was found."""
        try:
            if stat(self._place(name).within(MARKER)) is None:
                return False
            with staging_folder() as staging:
                copied = Place("", "", str(staging / "store"))
                run_copies(plan_copy(self._place(name), copied, recursive=True).copied, name)
                settle(staging / "store", folder)
        # After any of them the store can still be built.
        except (Unreachable, FileNotFoundError, DataError) as error:
            log.warning("the data store %s of %s cannot be fetched and is built: %s", name, self._shown, error)
            return False
        log.info("data store %s: fetched from %s", folder, self._shown)
        return True

    def push(self, name: str, folder: Path) -> None:
        """Upload the store in this folder unless the bucket has it."""
        try:
            if stat(self._place(name).within(MARKER)) is not None:
                return
            source = Place("", "", str(folder))
            run_copies(plan_copy(source, self._place(name), recursive=True).copied, name)
        except (Unreachable, DataError) as error:
            log.warning("the data store %s is not shared: %s", folder, error)
            return
        log.info("data store %s: shared in %s", folder, self._shown)


KNOWN_CODE = ("nlu", "builtins", "typing", "abc")


@dataclass
class Plan:
    """Everything that shapes a store, once its files are found."""

    files: Files
    sets: dict[str, list[SourceFile]]
    reading: Reading
    layout: Layout
    target: Target
    tokenizer: Tokenizer | None
    """None: built from the training texts"""
    tokenizing: Vocabulary | None
    """how to build a tokenizer; None: there is one"""
    is_trained: bool = False
    """whether the target is closed, because weights were trained for it"""
    shared: SharedStores | None = None
    """where other machines look for the store too"""

    def fingerprint(self, sets: dict[str, list[SourceFile]]) -> str:
        """Return 24 hex digits that identify the content of some of the sets.

        A change of the names or the order of the entries here would make all stores be built again.
        """
        files, reading, target = self.files, self.reading, self.target
        shaped_by = {
            "format_version": FORMAT_VERSION,
            # Contents, not paths: a copied or renamed file finds the same store.
            "sets": {name: [(file_digest(f.path), f.label) for f in sources] for name, sources in sets.items()},
            "reader": [reading.fields, files.format, files.header, files.on_bad_row, files.max_rows],
            "suffixes": [[f.path.suffix for f in sources] for sources in sets.values()],
            "group_by": reading.group_by,
            "target": [type(target).__module__, type(target).__qualname__, target.kind, str(target.column())],
            # A trained target has its labels, so the file that once listed them may be gone.
            "labels": [files.given_labels if self.is_trained else files.labels, files.label_separator],
            "max_len": files.max_len,
            "layout": self.layout.name,
            "tokenizer": self.tokenizer.digest if self.tokenizer else self._settings(),
        }
        # Only these stores depend on what a word is.
        if self.layout.name == "units" and "tokens" not in reading.fields:
            shaped_by["units"] = [cut.pattern for cut in CUTS.values()]
            if self.is_trained and self.layout.key != self.layout.name:
                shaped_by["cut"] = self.layout.key
        # Entries of later features are added only if they are used, so that older stores keep their names.
        if reading.dialect != PLAIN:
            shaped_by["dialect"] = reading.dialect.settings()
        if reading.dialect.reader is not None:
            shaped_by["own_reader"] = _named(reading.dialect.reader)
        if settings := files.lengths.settings():
            shaped_by["long"] = settings
        if files.layout is not None:
            shaped_by["own_layout"] = _named(self.layout)
        if self.is_trained:
            shaped_by["trained"] = target.meta()
        if own_code := _code_outside_nlu(type(target), type(self.tokenizing), *self._own_classes):
            shaped_by["code"] = own_code
        return hashlib.sha256(json.dumps(shaped_by, sort_keys=True).encode()).hexdigest()[:24]

    def folder(self) -> Path:
        """Return the folder of the store on this machine, whether it exists or not."""
        return cache_dir() / "stores" / self.fingerprint(self.sets)

    @property
    def _own_classes(self) -> list[type]:
        reader = self.reading.dialect.reader
        return [type(self.layout)] if reader is None else [type(reader), type(self.layout)]

    def _settings(self) -> dict[str, object]:
        assert self.tokenizing is not None, "a plan has a tokenizer or a way to build one"
        return self.tokenizing.settings()


def _named(part: Reader | Layout) -> list[Any]:
    return [type(part).__module__, type(part).__qualname__, part.settings()]


def _code_outside_nlu(*classes: type) -> list[str]:
    """Return the digests of the files that define a user's own classes; FORMAT_VERSION stands for nlu's own code."""
    # A user's class may take its behavior from a base in another file.
    modules = dict.fromkeys(base.__module__ for kind in classes for base in kind.__mro__)
    own = [sys.modules.get(name) for name in modules if name.partition(".")[0] not in KNOWN_CODE]
    files = [Path(file) for module in own if (file := getattr(module, "__file__", None))]
    return [file_digest(file) for file in files if file.is_file()]


def plan_of(
    files: Files,
    tokenizing: Vocabulary,
    target: str,
    layouts: Sequence[str],
    *,
    pretrained: Path | None,
    vocab: Path | None,
    group_by: str | int | None = None,
    shared: str | None = None,
) -> Plan:
    """Find the files, fields, layout and tokenizer of a store.

    Args:
        files: the sets and how they are read.
        tokenizing: builds a vocabulary from the training texts if neither `vocab` nor `pretrained` has one.
        target: dotted name of a class, of nlu or of a trusted package.
        layouts: names of layouts, the preferred one first; the first whose texts are among the fields is used.
        pretrained: folder of the weights that training starts from.
        vocab: file of a vocabulary.
        group_by: column of the training rows; rows with the same value are never split.
        shared: URL of an object store that has stores of other machines; a store that is built is added to it.

    Raises DataError for files, columns and vocabularies that cannot be used.
    """
    sets = files.sets()
    empty: Target = build_target({TARGET: target}, files)
    roles = type(empty).roles
    fields = fields_of(files, sets["train"], roles)
    layout = layout_of(fields, layouts, roles, files, sets["train"])
    tokenizer = tokenizing.given(vocab, pretrained)
    shared_stores = SharedStores(shared) if shared else None
    reading = Reading.of(files, fields, group_by)
    return Plan(files, sets, reading, layout, empty, tokenizer, tokenizing, shared=shared_stores)
