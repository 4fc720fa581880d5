"""Stores that several machines use, shared in an object store.

    STORES/FINGERPRINT/COMPLETE             {"folder": ..., "files": {name: {"size": bytes, "sha256": ...}}}
    STORES/FINGERPRINT/FOLDER/NAME          a file of the store

A builder uploads all files to a new folder and then writes COMPLETE on the condition that it does not exist yet. If
several machines build the same store, the first COMPLETE counts and the others delete their folders. Sharing only saves
time: a machine that cannot reach the object store builds for itself.

What a store is made of, found and checked before a row is read, and the fingerprint by which it is found again.
"""

import hashlib
import json
import logging
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nlu.config.errors import DataError
from nlu.config.targets import TARGET
from nlu.config.targets import build as build_target
from nlu.config.types import Config
from nlu.data.dataset import Files, SourceFile
from nlu.data.dialect import PLAIN
from nlu.data.layouts import Layout
from nlu.data.pieces import CUTS
from nlu.data.reader import Reader
from nlu.data.reading import Reading, fields_of, layout_of
from nlu.data.store import FORMAT_VERSION
from nlu.data.targets import Target
from nlu.data.tokenizing import Tokenizer, Vocabulary
from nlu.storage.cache import cache_dir, file_digest, staging_folder
from nlu.storage.files import inside, read_digest
from nlu.storage.objects import ObjectStore
from nlu.storage.refusals import Unreachable
from nlu.storage.settle import MARKER, settle
from nlu.storage.transfer_in_parts import download_progress

log = logging.getLogger(__name__)


class SharedStores:
    """Stores in a folder of a bucket. Raises UserError for an invalid address, and for credentials that are refused."""

    def __init__(self, url: str):
        self.store = ObjectStore(url, "stores")

    def fetch(self, name: str, folder: Path) -> bool:
        """Download the store with this fingerprint into a folder; returns whether it was found."""
        try:
            manifest = self._complete(name)
            if manifest is None:
                return False
            with staging_folder() as staging:
                self._receive(name, manifest, staging / "store")
                settle(staging / "store", folder)
        # A damaged manifest raises one of these too. After any of them the store can still be built.
        except (Unreachable, FileNotFoundError, DataError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("the data store %s of %s cannot be fetched and is built: %s", name, self.store.shown, error)
            return False
        log.info("data store %s: fetched from %s", folder, self.store.shown)
        return True

    def push(self, name: str, folder: Path) -> None:
        """Upload the store in this folder unless the bucket has it."""
        try:
            if self._complete(name) is None:
                self._send(name, folder)
        except (Unreachable, ValueError) as error:
            log.warning("the data store %s is not shared: %s", folder, error)

    def _complete(self, name: str) -> dict[str, Any] | None:
        try:
            return json.loads(self.store.get(f"{name}/{MARKER}"))
        except FileNotFoundError:
            return None

    def _receive(self, name: str, manifest: Config, new: Path) -> None:
        files = manifest["files"]
        with download_progress(name, sum(entry["size"] for entry in files.values())) as advance:
            for file, entry in files.items():
                path = inside(new, file, self.store.shown)
                path.parent.mkdir(parents=True, exist_ok=True)
                digest = self.store.get_file(f"{name}/{manifest['folder']}/{file}", path, advance)
                if digest != entry["sha256"]:
                    raise DataError(f"{file} is damaged: its sha256 is {digest}, not {entry['sha256']}")

    def _send(self, name: str, folder: Path) -> None:
        # A new folder for each machine, since several may build at the same time and must not overwrite each other's
        # files.
        own = uuid.uuid4().hex
        paths = {
            path.relative_to(folder).as_posix(): path
            for path in sorted(folder.rglob("*"))
            if path.is_file() and path.name != MARKER
        }
        # COMPLETE is written after all files, so readers never meet a part of a store.
        for file, path in paths.items():
            self.store.put_file(f"{name}/{own}/{file}", path)
        files = {file: {"size": path.stat().st_size, "sha256": read_digest(path)} for file, path in paths.items()}
        self.store.put_new(f"{name}/{MARKER}", json.dumps({"folder": own, "files": files}).encode())
        # Read back, because the answer to put_new may have been lost.
        complete = self._complete(name)
        if complete is not None and complete.get("folder") == own:
            log.info("data store %s: shared in %s", folder, self.store.shown)
            return
        for file in paths:
            self.store.delete(f"{name}/{own}/{file}")


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
