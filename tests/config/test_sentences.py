"""Sentences name the originals of copies, and change nothing else."""

from pathlib import Path

import pytest

from nlu.config import sentences
from nlu.config.sentences import called, path_text, show_as, with_origins

CACHE = "/root/.cache/nlu"


@pytest.fixture(autouse=True)
def copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentences, "_origins", {})
    monkeypatch.setattr(sentences, "_lengths", set())
    show_as(Path(f"{CACHE}/f"), "s3://b/f")
    show_as(Path(f"{CACHE}/f/part"), "s3://b/other")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("~/f:3: bad", "s3://b/f:3: bad"), ("~/f/x.csv is empty.", "s3://b/f/x.csv is empty."),
        ("'~/f' and (~/f), ~/f. ~/f/part/~/f", "'s3://b/f' and (s3://b/f), s3://b/f. s3://b/other/~/f"),
        ("data.train=~/f", "data.train=s3://b/f"), ("~/f", "s3://b/f"), ("", ""),
    ],
)  # fmt: skip
def test_a_copy_and_its_files_are_named_by_their_origin(text: str, told: str) -> None:
    assert with_origins(text.replace("~", CACHE)) == told.replace("~", CACHE)


@pytest.mark.parametrize(
    "text",
    [
        "/mnt/snap~/f/x", "../x~/f", "s3:/~/f", "~/f.lock is locked; remove it", "~/f.part", "~/f-1", "~/f2",
        "~/f/../other", "~/g",
    ],
)  # fmt: skip
def test_a_similar_path_keeps_its_name(text: str) -> None:
    assert with_origins(text.replace("~", CACHE)) == text.replace("~", CACHE)


def test_a_copy_of_several_originals_names_all_of_them() -> None:
    show_as(Path(f"{CACHE}/f"), "s3://b/f")
    show_as(Path(f"{CACHE}/f"), "http://h/dev/rows.csv")
    assert called(Path(f"{CACHE}/f")) == path_text(Path(f"{CACHE}/f")) == "s3://b/f or http://h/dev/rows.csv"
