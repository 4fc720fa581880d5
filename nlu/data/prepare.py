"""Raw files to an opened data store: built once, found again by the fingerprint of everything that shaped it."""

import hashlib
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nlu.config.errors import DataError, UserError
from nlu.config.layouts import Layout
from nlu.data.charset import not_utf_8
from nlu.data.dataset import Files, SourceFile
from nlu.data.encoding import Encoded, check_text, check_tokens, encode_pair, encode_single, encode_units
from nlu.data.folds import Fold, clusters_of, fold_numbers
from nlu.data.labels import ClassLabels, TagLabels, require_labels, tags_of_spans
from nlu.data.ragged import flatten
from nlu.data.readers import BadRow, Row, read_rows
from nlu.data.repeats import among, repeated
from nlu.data.seeds import text_hash
from nlu.data.store import FORMAT_VERSION, Examples, SetWriter, StoredSet
from nlu.data.tokenizing import Tokenizer, WordPiece, load_tokenizer
from nlu.storage.cache import cache_dir, file_digest, staging_folder

log = logging.getLogger(__name__)

CHUNK_ROWS = 4096
LISTED_BAD_ROWS = 20
LISTED_GROUPS = 100
SEPARATOR = "\x1f"
ProgressBar = Callable[[str], AbstractContextManager[Callable[[int], None]]]


@dataclass
class Store:
    """An opened data store: examples of each set, the labels and the tokenizer that made it."""

    folder: Path
    sets: dict[str, Examples]
    labels: list[str]
    tokenizer: Tokenizer
    meta: dict[str, Any]
    digests: dict[str, str] = field(default_factory=dict)
    """of each set: its content, what shaped it and which rows take part; the other sets have no share in it"""


def quiet(description: str) -> AbstractContextManager[Callable[[int], None]]:
    """Stand in for a progress bar where nobody is looking."""
    return nullcontext(lambda rows: None)


def prepare(
    files: Files, tokenizing: WordPiece, layout: Layout, *, pretrained: Path | None, vocab: Path | None,
    progress: ProgressBar = quiet, group_by: str | int | None = None, fold: Fold | None = None,
) -> Store:  # fmt: skip
    """Open the store of these files, tokenizer and layout, building it first where it does not exist.

    `group_by` is the column of the training rows that says which belong together; `fold` holds one fold of them out.
    Two processes may build the same store at once; one of the two identical results stays. Raises DataError for
    anything in the files that cannot be used, before any of it takes its place.
    """
    sets = files.sets()
    tokenizer = tokenizing.given(vocab, pretrained)
    tokenized_by = tokenizer.digest if tokenizer else tokenizing.settings()
    folder = cache_dir() / "stores" / _fingerprint(files, sets, layout, tokenized_by, group_by)
    if not (folder / "COMPLETE").is_file():
        _build(folder, files, sets, tokenizer or tokenizing, layout, progress, group_by)
    else:
        log.info("data store %s: found", folder)
    store = open_store(folder, files, tokenizer, fold, group_by)
    for name, part in store.sets.items():
        origin = "train" if part.stored is store.sets["train"].stored else name
        shaped_by = _fingerprint(files, {origin: sets[origin]}, layout, tokenized_by, group_by)
        store.digests[name] = hashlib.sha256(shaped_by.encode() + part.rows_N.tobytes()).hexdigest()[:24]
    return store


def _fingerprint(
    files: Files, sets: dict[str, list[SourceFile]], layout: Layout, tokenizer: str | dict[str, object],
    group_by: str | int | None,
) -> str:  # fmt: skip
    shaped_by = {
        "format_version": FORMAT_VERSION,
        "sets": {name: [(file_digest(f.path), f.label) for f in sources] for name, sources in sets.items()},
        "reader": [files.fields, files.format, files.header, files.on_bad_row, files.max_rows],
        "suffixes": [[f.path.suffix for f in sources] for sources in sets.values()],
        "group_by": group_by,
        "labels": files.labels,
        "max_len": files.max_len,
        "layout": layout,
        "tokenizer": tokenizer,
    }
    return hashlib.sha256(json.dumps(shaped_by, sort_keys=True).encode()).hexdigest()[:24]


def _build(
    folder: Path, files: Files, sets: dict[str, list[SourceFile]], tokenizer: Tokenizer | WordPiece,
    layout: Layout, progress: ProgressBar, group_by: str | int | None,
) -> None:  # fmt: skip
    with staging_folder() as staging:
        temporary = staging / "store"
        temporary.mkdir()
        if isinstance(tokenizer, WordPiece):
            with progress("vocabulary") as advance:
                tokenizer = tokenizer.build(_texts(files, sets["train"], layout, advance))
        builder = _Builder(temporary, files, tokenizer, layout, group_by)
        for name, sources in sets.items():
            with progress(f"tokenizing {name}") as advance:
                builder.add_set(name, sources, advance)
        tokenizer.save(temporary)
        meta = json.dumps(builder.meta(sets), ensure_ascii=False, indent=1)
        (temporary / "meta.json").write_text(meta, encoding="utf-8")
        (temporary / "COMPLETE").touch()
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.rename(folder)
        except OSError:
            if not (folder / "COMPLETE").is_file():
                raise
        log.info("data store %s: built", folder)


def _texts(
    files: Files, sources: list[SourceFile], layout: Layout, advance: Callable[[int], None]
) -> Iterator[list[str]]:
    for chunk in _chunks(files, sources):
        rows = [row.values for _, row in chunk if isinstance(row, Row)]
        if layout == "units":
            lists = [_units(row) for row in rows]
            yield [unit for units in lists if check_tokens(units) is None for unit in units]
        else:
            roles = ("text_a", "text_b") if layout == "pair" else ("text",)
            yield [row[role] for row in rows for role in roles if check_text(row[role]) is None]
        advance(len(chunk))


def _chunks(
    files: Files, sources: list[SourceFile], group_by: str | int | None = None
) -> Iterator[list[tuple[int, Row | BadRow]]]:
    fields = files.fields if group_by is None else {**files.fields, "group": group_by}
    chunk: list[tuple[int, Row | BadRow]] = []
    for number, source in enumerate(sources):
        taken = 0
        try:
            for row in read_rows(source.path, files.format, fields, files.header):
                if isinstance(row, Row) and source.label is not None:
                    row.values["label"] = source.label
                chunk.append((number, row))
                taken += 1
                if len(chunk) == CHUNK_ROWS:
                    yield chunk
                    chunk = []
                if taken == files.max_rows:
                    break
        except UnicodeDecodeError as error:
            raise not_utf_8(source.path, error) from None
    if chunk:
        yield chunk


def _units(values: dict[str, Any]) -> Any:
    """Return the units of a row, its tokens or the characters of its text; what is neither comes back as it is."""
    units = values["tokens"] if "tokens" in values else values["text"]
    return list(units) if isinstance(units, str) and "tokens" not in values else units


class _Builder:
    """Encodes sets in order, train first, since it decides the labels."""

    def __init__(
        self, folder: Path, files: Files, tokenizer: Tokenizer, layout: Layout, group_by: str | int | None
    ):  # fmt: skip
        self._folder = folder
        self._files = files
        self._tokenizer = tokenizer
        self._layout = layout
        self._group_by = group_by
        self._groups: dict[str, None] = {}
        self._labels: ClassLabels | TagLabels = (
            TagLabels(files.labels, files.max_rows) if layout == "units" else ClassLabels(files.labels, files.max_rows)
        )
        self._names: list[str] = []
        self._remap: list[int] = []
        self._counts: dict[str, dict[str, Any]] = {}

    def add_set(self, name: str, sources: list[SourceFile], advance: Callable[[int], None]) -> None:
        writer = SetWriter(self._folder / name)
        bad: list[str] = []
        counts = {"bad_rows": 0, "cut": 0}
        for chunk in _chunks(self._files, sources, self._group_by if name == "train" else None):
            good = []
            for source, row in chunk:
                target = self._read(row) if isinstance(row, Row) else row
                if isinstance(row, Row) and not isinstance(target, BadRow):
                    good.append((source, row, target))
                    continue
                counts["bad_rows"] += 1
                if len(bad) < LISTED_BAD_ROWS:
                    bad.append(target.describe(sources[source].path))
            if counts["bad_rows"] and self._files.on_bad_row == "error":
                total, read = counts["bad_rows"], writer.rows + len(chunk)
                summary = f"{total:,} of the first {read:,} rows of {name} are bad; {len(bad)} of them:"
                raise DataError(
                    *bad,
                    summary=summary if total > len(bad) else "",
                    remedy="mend these rows, or set data.on_bad_row=skip to leave such rows out and count them",
                )
            if good:
                encoded = self._encode([row.values for _, row, _ in good])
                counts["cut"] += int(encoded.cut_N.sum())
                writer.add(encoded, self._targets(good))
            advance(len(chunk))
        writer.close()
        if not writer.rows:
            where = ", ".join(str(source.path) for source in sources)
            key = self._files.sources()[name][0]
            raise DataError(
                *bad,
                summary=f"the set {name} is empty: {where} holds no usable row",
                remedy=f"set {key} to a file with rows",
            )
        if name == "train":
            self._names, self._remap = self._labels.close()
            require_labels(self._names, 2)
        self._counts[name] = {"rows": writer.rows, **counts, "listed_bad_rows": bad}

    def meta(self, sets: dict[str, list[SourceFile]]) -> dict[str, Any]:
        paths = {name: [str(source.path) for source in sources] for name, sources in sets.items()}
        return {
            "labels": self._names, "remap": self._remap, "sets": self._counts, "files": paths,
            "max_len": self._files.max_len, "groups": list(self._groups),
        }  # fmt: skip

    def _read(self, row: Row) -> Any:
        """Return the row's target as numbers, or a BadRow."""
        values = row.values
        for role in ("text", "text_a", "text_b"):
            if role in values and (rule := check_text(values[role])):
                return BadRow(row.number, self._column(role), str(values[role]), rule)
        if "tokens" in values and (rule := check_tokens(values["tokens"])):
            return BadRow(row.number, self._column("tokens"), str(values["tokens"]), rule)
        if "group" in values and (values["group"] is None or not str(values["group"]).strip()):
            return BadRow(row.number, str(self._group_by), str(values["group"]), "is no group (folds.group_by)")
        if self._layout != "units":
            target, rule = self._labels.read(values.get("label"))
            return target if rule is None else BadRow(row.number, self._column("label"), str(values.get("label")), rule)
        role, tags, rule = self._tags(values)
        if rule is None and len(tags) != len(_units(values)):
            rule = f"has {len(tags)} tags for {len(_units(values))} tokens"
        if rule is None:
            target, rule = self._labels.read(tags)
        return target if rule is None else BadRow(row.number, self._column(role), str(values.get(role)), rule)

    def _tags(self, values: dict[str, Any]) -> tuple[str, Any, str | None]:
        if "spans" in values and "text" in values:
            return "spans", *tags_of_spans(values["text"], values["spans"])
        return "tags", values.get("tags"), None if isinstance(values.get("tags"), list) else "is not a list of tags"

    def _column(self, role: str) -> str:
        column = self._files.fields.get(role, role)
        return f"{role} (column {column})" if isinstance(column, int) else str(column)

    def _encode(self, rows: list[dict[str, Any]]) -> Encoded:
        max_len = self._files.max_len
        if self._layout == "single":
            return encode_single(self._tokenizer, [row["text"] for row in rows], max_len)
        if self._layout == "pair":
            firsts, seconds = [row["text_a"] for row in rows], [row["text_b"] for row in rows]
            return encode_pair(self._tokenizer, firsts, seconds, max_len)
        return encode_units(self._tokenizer, [_units(row) for row in rows], max_len)

    def _targets(self, good: list[tuple[int, Row, Any]]) -> dict[str, np.ndarray]:
        targets: dict[str, np.ndarray] = {}
        if self._layout == "units":
            targets["tags"], targets["tag_counts_N"] = flatten([target for _, _, target in good])
            targets["label_N"] = np.full(len(good), -1)
        else:
            targets["label_N"] = np.array([target for _, _, target in good])
        targets["text_hash_N"] = np.array([text_hash(self._identity(row.values)) for _, row, _ in good], np.int64)
        targets["group_N"] = np.array([self._group(row.values.get("group")) for _, row, _ in good], np.int64)
        targets["file_N"] = np.array([source for source, _, _ in good])
        targets["number_N"] = np.array([row.number for _, row, _ in good], np.int64)
        return targets

    def _group(self, value: Any) -> int:
        """Return a number that identifies a group, 0 where there are none; the first names are kept for messages."""
        if value is None:
            return 0
        if len(self._groups) < LISTED_GROUPS:
            self._groups[str(value)] = None
        return text_hash(str(value))

    def _identity(self, values: dict[str, Any]) -> str:
        if self._layout == "pair":
            return values["text_a"] + SEPARATOR + values["text_b"]
        return SEPARATOR.join(values["tokens"]) if "tokens" in values else values["text"]


def open_store(
    folder: Path, files: Files, tokenizer: Tokenizer | None = None, fold: Fold | None = None,
    group_by: str | int | None = None,
) -> Store:  # fmt: skip
    """Open a complete store, drop duplicates and split off a dev set as `files` or the fold says.

    A fold takes the place of every dev set: what it holds out of the training rows is `dev`, the declared ones are
    left out. Without one, the split goes by a hash of the text, so that equal texts land on the same side, whatever
    the seed.
    """
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    names = list(files.sources())
    if fold is not None and (left_out := [name for name in names if name not in ("train", "test")]):
        log.info("data: the held-out rows are dev; data.dev (%s) is left out", ", ".join(left_out))
        names = [name for name in names if name not in left_out]
        meta["sets"] = {name: meta["sets"][name] for name in names}
    # Only the rows of train were written before the labels were in order.
    stored = {name: StoredSet(folder / name, meta["remap"] if name == "train" else None) for name in names}
    train_rows_N = _first_of_equals(stored["train"]) if files.drop_duplicates else np.arange(len(stored["train"]))
    meta["dropped_duplicates"] = len(stored["train"]) - len(train_rows_N)
    rows = {name: np.arange(len(part)) for name, part in stored.items()}
    rows["train"] = train_rows_N
    is_dev_N = None
    if fold is not None:
        is_dev_N = _held_out(stored["train"], train_rows_N, fold, group_by, meta)
    elif files.dev is None and files.dev_fraction:
        is_dev_N = stored["train"].text_hash_N[train_rows_N] % 1_000_003 / 1_000_003 < files.dev_fraction
    if is_dev_N is not None:
        rows["dev"], rows["train"] = train_rows_N[is_dev_N], train_rows_N[~is_dev_N]
        stored["dev"] = stored["train"]
    ordered = sorted(rows, key=lambda name: (name != "train") + (name == "test"))
    sets = {name: Examples(name, stored[name], rows[name]) for name in ordered}
    if empty := [name for name, part in sets.items() if not len(part)]:
        raise DataError(
            f"the set {empty[0]} is empty after splitting {len(train_rows_N)} rows with data.dev_fraction="
            f"{files.dev_fraction}; set data.dev to a file or change data.dev_fraction"
        )
    tokenizer = tokenizer or load_tokenizer(folder, None)
    assert tokenizer is not None
    return Store(folder, sets, meta["labels"], tokenizer, meta)


def _held_out(
    stored: StoredSet, rows_N: np.ndarray, fold: Fold, group_by: str | int | None, meta: dict[str, Any]
) -> np.ndarray:
    """Return which of the training rows the fold holds out. Raises UserError where there are more folds than clusters.

    Rows are stratified by label; tagged rows have no one label and are spread by number alone.
    """
    label_N = stored.labels_N[rows_N]
    cluster_N = clusters_of(stored.text_hash_N[rows_N], None if group_by is None else stored.group_N[rows_N])
    if (available := int(cluster_N.max()) + 1) < fold.count:
        names = meta["groups"]
        shown = ", ".join(names) + (", ..." if len(names) == LISTED_GROUPS else "")
        what = f"different texts in {len(rows_N)} rows"
        if group_by is not None:
            what = f"groups of folds.group_by={group_by} that share no text: {shown}"
        raise UserError(
            f"folds.count is {fold.count}, but the training set has {available} {what}; set it to <= {available}"
        )
    counts_C = np.bincount(label_N[label_N >= 0], minlength=len(meta["labels"]))
    if label_N[0] >= 0 and (few := [name for name, n in zip(meta["labels"], counts_C, strict=True) if n < fold.count]):
        log.warning("data: fewer rows than the %d folds have the labels %s; some folds hold none of them out",
                    fold.count, ", ".join(few))  # fmt: skip
    return fold_numbers(cluster_N, label_N, count=fold.count, seed=fold.seed) == fold.number


def _first_of_equals(stored: StoredSet) -> np.ndarray:
    """Return the rows that are the first with their text and label, in file order."""
    hash_N = stored.text_hash_N
    twice_N = np.flatnonzero(among(hash_N, repeated(np.sort(hash_N))))
    hash_N, target_N = hash_N[twice_N], stored.targets(twice_N)
    order_N = np.lexsort((twice_N, target_N, hash_N))
    hash_N, target_N = hash_N[order_N], target_N[order_N]
    equal = (hash_N[1:] == hash_N[:-1]) & (target_N[1:] == target_N[:-1])
    is_first_N = np.ones(len(stored), bool)
    is_first_N[twice_N[order_N[1:][equal]]] = False
    return np.flatnonzero(is_first_N)
