"""A store that several jobs build in parts: the same bytes as one job's, for any last job and any missing part."""

import json
from pathlib import Path

import pytest

from nlu import preprocess
from nlu.config.errors import UserError
from nlu.data import reading
from nlu.data.layouts import LAYOUTS
from nlu.preprocess import part_of
from nlu.storage.cache import cache_dir
from tests.training.in_process import MODEL, program

ROWS = 57


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Of a training set of twelve chunks and a dev set of two, with rows that cannot be used."""
    monkeypatch.setattr(reading, "CHUNK_ROWS", 5)
    texts = [f"word{number % 7} text {number}" for number in range(ROWS)]
    rows = [{"text": text, "label": "ab"[number % 2], "query": f"q{number % 9}"} for number, text in enumerate(texts)]
    rows[13]["text"] = rows[14]["label"] = ""
    rows[20]["query"] = None
    for name, some in (("train", rows), ("dev", [{**row, "label": "abc"[n % 3]} for n, row in enumerate(rows[:9])])):
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in some))
    return (
        *MODEL, "data=files", f"data.train={tmp_path}/train.jsonl", f"data.dev={tmp_path}/dev.jsonl",
        "data.fields={text: text, label: label}", "data.on_bad_row=skip", "folds=3", "folds.group_by=query",
    )  # fmt: skip


def built(*overrides: str) -> dict[str, bytes]:
    """The files of the one store of the cache, after a command, if it built one."""
    program(preprocess.main, "preprocess", *overrides)
    stores = list((cache_dir() / "stores").glob("*")) if (cache_dir() / "stores").is_dir() else []
    (folder,) = stores or [Path("none")]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def whole(keys: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """The store as one job builds it, in another cache."""
    with monkeypatch.context() as patched:
        patched.setenv("NLU_CACHE", str(tmp_path / "another"))
        return built(*keys)


@pytest.mark.thorough
@pytest.mark.parametrize("order", [(2, 0, 1), pytest.param((0, 1, 2), marks=pytest.mark.thorough)])
def test_the_last_part_joins_all_to_the_same_bytes(
    keys: tuple[str, ...], whole: dict[str, bytes], order: tuple[int, ...], empty_cache: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    for number in order[:2]:
        assert built(*keys, "data.parts=3", f"data.part={number}") == {}
        assert json.loads(capsys.readouterr().out) == {"part": number, "parts": 3}
        assert list((empty_cache / "parts").rglob("*.npz"))
    assert built(*keys, "data.parts=3", f"data.part={order[2]}") == whole
    assert not list(empty_cache.rglob("*.npz"))
    assert built(*keys, "data.parts=3", "data.part=1") == whole, "one that comes late finds it"


@pytest.mark.thorough
def test_one_command_runs_all_parts(keys: tuple[str, ...], whole: dict[str, bytes], empty_cache: Path, tmp_path: Path):
    assert built("--multirun", *keys, "data.parts=2", "data.part=0,1", f"hydra.sweep.dir={tmp_path / 'jobs'}") == whole


@pytest.mark.thorough
def test_a_missing_part_is_built_by_the_command_that_needs_the_store(
    keys: tuple[str, ...], whole: dict[str, bytes], empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert built(*keys, "data.parts=4", "data.part=3") == {}
    damaged = sorted((empty_cache / "parts").rglob("train-*.npz"))[0]
    damaged.write_bytes(damaged.read_bytes()[:100])
    encoded = []
    layout = type(LAYOUTS["single"])
    encode = layout.encode
    monkeypatch.setattr(layout, "encode", lambda self, *values: encoded.append(1) or encode(self, *values))
    assert built(*keys) == whole
    assert 0 < len(encoded) < 14 and not list(empty_cache.rglob("*.npz"))


@pytest.mark.parametrize(
    ("part", "parts", "says"), [(0, None, "set both"), (None, 3, "set both"), (3, 3, "the last of 3 parts is 2")]
)
def test_a_part_that_is_none_is_refused(part: int | None, parts: int | None, says: str) -> None:
    with pytest.raises(UserError, match=says):
        part_of({"part": part, "parts": parts})
