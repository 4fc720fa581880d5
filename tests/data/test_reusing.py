"""A corpus that grows encodes only its new files, to the same bytes as one that is encoded as a whole."""

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nlu.data import reading as reading_module
from nlu.data import store as store_module
from nlu.data.building import Builder
from nlu.data.opening import Store
from nlu.data.tokenizing import SPECIALS, WordPiece
from nlu.storage.cache import cache_dir

WORDS = ["a", "b", "c", "d", "##c"]
Rows = list[dict[str, Any]]


def singles(start: int, count: int) -> Rows:
    # Every third row is cut to max_len, and texts occur in several files.
    return [
        {"text": " ".join("abcd"[(n + k) % 4] for k in range(3 + 9 * (n % 3 == 0))), "label": "xyz"[n % 3]}
        for n in range(start, start + count)
    ]


def pairs(start: int, count: int) -> Rows:
    rows = singles(start, count)
    return [{"text_a": row["text"], "text_b": "b c", "label": row["label"]} for row in rows]


def tokens(start: int, count: int) -> Rows:
    lengths = [4 - n % 4 for n in range(start, start + count)]
    return [{"tokens": list("abcd"[-length:]), "tags": ["B-p", *["O"] * (length - 1)]} for length in lengths]


def spans(start: int, count: int) -> Rows:
    return [{"text": f"a b{n % 4 * ' c'}", "spans": {"p": {"b": [[2, 2]]}}} for n in range(start, start + count)]


@pytest.fixture(autouse=True)
def small(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks and shards of a few rows, which do not end where files end."""
    monkeypatch.setattr(reading_module, "CHUNK_ROWS", 5)
    monkeypatch.setattr(store_module, "SHARD_ROWS", 16)


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows in each call that encodes some."""
    calls: list[int] = []
    encode = Builder._encode

    def counting(self: Builder, rows: Rows) -> Any:
        calls.append(len(rows))
        return encode(self, rows)

    monkeypatch.setattr(Builder, "_encode", counting)
    return calls


@pytest.fixture
def opened(tmp_path: Path, open_files: Callable[..., Store], write: Callable[[str, str], Path]) -> Callable[..., Store]:
    """Open the store of some files, each a list of rows, with a given vocabulary."""
    vocab = write("vocab.txt", "\n".join([*SPECIALS, *WORDS]))

    def of(*files: Rows, **settings: Any) -> Store:
        paths = [
            str(write(f"{n}.jsonl", "".join(json.dumps(row) + "\n" for row in own))) for n, own in enumerate(files)
        ]
        fields = {key: key for key in files[0][0]}
        return open_files(
            **{"train": paths, "fields": fields, "vocab": vocab, "max_len": 8, "dev_fraction": 0, **settings}
        )

    return of


def content(store: Store) -> dict[str, bytes]:
    files = (path for path in store.folder.rglob("*") if path.is_file())
    return {path.relative_to(store.folder).as_posix(): path.read_bytes() for path in files}


def from_scratch(build: Callable[[], Store], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Store:
    """What `build` opens where no earlier store is."""
    with monkeypatch.context() as patched:
        patched.setenv("NLU_CACHE", str(tmp_path / "another"))
        return build()


@pytest.mark.parametrize(
    ("rows", "settings"),
    [
        (singles, {}), (pairs, {"layout": "pair"}), (pairs, {"layout": "sides"}),
        (tokens, {"layout": "units"}), (spans, {"layout": "units"}),
    ],
    ids=["single", "pair", "sides", "tokens", "spans"],
)  # fmt: skip
def test_a_new_file_alone_is_encoded_and_the_bytes_are_those_of_a_whole(
    opened: Callable[..., Store], encoded: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    rows: Callable[[int, int], Rows], settings: dict[str, Any],
) -> None:  # fmt: skip
    first, second, new = rows(0, 13), rows(4, 21), rows(7, 9)
    opened(first, second, **settings)
    assert sum(encoded) == 34
    for files, expected in (((first, second, new), 9), ((new, second, first), 0), ((second,), 0)):
        encoded.clear()
        grown = opened(*files, **settings)
        assert sum(encoded) == expected
        whole = from_scratch(lambda files=files: opened(*files, **settings), monkeypatch, tmp_path)  # type: ignore[misc]
        assert grown.folder.name == whole.folder.name and content(grown) == content(whole)


def test_only_a_changed_file_is_encoded_again(opened: Callable[..., Store], encoded: list[int]) -> None:
    first, second = singles(0, 13), singles(4, 21)
    opened(first, second)
    encoded.clear()
    opened(first[:-1], second)
    assert sum(encoded) == 12
    encoded.clear()
    opened(first, second, max_len=9)
    assert sum(encoded) == 34


def test_duplicates_across_files_and_held_out_rows_are_found_as_in_a_whole(
    opened: Callable[..., Store], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first, new = singles(0, 13), singles(9, 24)
    opened(first, drop_duplicates=True, dev_fraction=0.3)
    grown = opened(first, new, drop_duplicates=True, dev_fraction=0.3)
    whole = from_scratch(lambda: opened(first, new, drop_duplicates=True, dev_fraction=0.3), monkeypatch, tmp_path)
    assert grown.meta["dropped_duplicates"] == whole.meta["dropped_duplicates"] > 0
    assert {name: part.rows_N.tolist() for name, part in grown.sets.items()} == {
        name: part.rows_N.tolist() for name, part in whole.sets.items()
    }


def test_rows_that_were_bad_before_are_encoded_now(
    opened: Callable[..., Store], encoded: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = singles(0, 12)
    assert len(opened(rows, labels=["x", "y"], on_bad_row="skip").sets["train"].stored) == 8
    encoded.clear()
    grown = opened(rows)
    assert 4 <= sum(encoded) <= 12 and len(grown.sets["train"].stored) == 12
    whole = from_scratch(lambda: opened(rows), monkeypatch, tmp_path)
    assert content(grown) == content(whole)


def test_a_vocabulary_that_changes_with_the_corpus_encodes_all_and_says_why(
    opened: Callable[..., Store], encoded: list[int], caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    caplog.set_level(logging.INFO, "nlu")
    first, same = singles(0, 13), singles(4, 8)
    other = [{"text": "e f e f", "label": "x"}, *singles(0, 3)]
    build = {"vocab": None, "tokenizing": WordPiece(min_count=1)}
    opened(first, **build)
    encoded.clear()
    opened(first, same, **build)
    assert sum(encoded) == 8 and "13 of 21 rows have their tokens from earlier stores" in caplog.text
    encoded.clear()
    grown = opened(first, other, **build)
    assert sum(encoded) == 17 and "since the vocabulary is built from the training rows and has changed" in caplog.text
    whole = from_scratch(lambda: opened(first, other, **build), monkeypatch, tmp_path)
    assert content(grown) == content(whole)


@pytest.mark.parametrize("damage", ["removed", "a shard", "cut.npy", "meta.json", "unmarked"])
def test_an_earlier_store_that_is_gone_or_damaged_is_not_used(
    opened: Callable[..., Store], encoded: list[int], damage: str
) -> None:
    first, new = singles(0, 40), singles(4, 8)
    folder = opened(first).folder
    if damage == "removed":
        shutil.rmtree(folder)
    elif damage == "unmarked":
        (folder / "COMPLETE").unlink()
    else:
        path = next(folder.rglob({"a shard": "00001.arrow"}.get(damage, damage)))
        path.write_bytes(path.read_bytes()[:50])
    encoded.clear()
    assert len(opened(first, new).sets["train"].stored) == 48
    assert sum(encoded) == 48


def test_a_store_is_complete_without_the_one_whose_rows_it_took(opened: Callable[..., Store]) -> None:
    first, new = singles(0, 13), singles(4, 8)
    shutil.rmtree(opened(first).folder)
    opened(first, new)
    folders = list((cache_dir() / "stores").glob("*"))
    assert len(folders) == 1 and len(opened(first, new).sets["train"].stored) == 21
