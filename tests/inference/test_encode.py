"""python -m nlu.encode, and nlu.predict vectors=true: vectors of the texts of files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import nlu
from nlu.inference import predict_files
from tests.inference.runs import encode, predict
from tests.inference.test_export_elsewhere import saved
from tests.training.kinds import read, write

pytest.importorskip("transformers")

TEXTS = ["a b c", "h", "g a b e f", "b", "a b c d e f g h", "c b a"]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("weights") / "hub")


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    write(tmp_path / "rows.jsonl", [{"id": number, "text": text} for number, text in enumerate(TEXTS)])
    return tmp_path / "rows.jsonl"


def by_weights(hub: Path) -> tuple[str, ...]:
    return ("model=bert", f"model.pretrained={hub}")


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "binary"])
def test_every_format_holds_the_same_vectors_of_the_type(dtype: str, hub: Path, rows: Path, tmp_path: Path) -> None:
    quantize = pytest.importorskip("sentence_transformers").quantize_embeddings
    vectors_ND = nlu.load(hub, device="cpu").encode(TEXTS)
    expected_ND = {
        "float32": vectors_ND,
        "float16": vectors_ND.astype(np.float16),
        "int8": np.rint(vectors_ND * 127).astype(np.int8),
        "binary": quantize(vectors_ND, "ubinary"),
    }[dtype]
    (tmp_path / "rows.csv").write_text("text\n" + "\n".join(TEXTS) + "\n")
    for given, written in (("jsonl", "npy"), ("jsonl", "jsonl"), ("csv", "parquet")):
        encode(*by_weights(hub), f"dtype={dtype}", f"input={tmp_path}/rows.{given}", f"output={tmp_path}/out.{written}")
    array = np.load(tmp_path / "out.npy")
    assert array.dtype == expected_ND.dtype and np.array_equal(array, expected_ND)
    records = read(tmp_path / "out.jsonl")
    assert [one["id"] for one in records] == list(range(len(TEXTS)))
    assert np.array_equal(np.array([one["vector"] for one in records], expected_ND.dtype), expected_ND)
    table = pq.read_table(tmp_path / "out.parquet")
    assert table["text"].to_pylist() == TEXTS
    assert np.array_equal(np.array(table["vector"].to_pylist(), expected_ND.dtype), expected_ND)


def test_a_text_file_has_a_text_in_each_line_and_a_prompt_before_it(hub: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    encode(*by_weights(hub), "prompt='d e '", "dims=5", f"input={tmp_path}/texts.txt", f"output={tmp_path}/out.npy")
    expected_ND = nlu.load(hub, device="cpu").encode(TEXTS, prompt="d e ", dims=5)
    assert np.array_equal(np.load(tmp_path / "out.npy"), expected_ND) and expected_ND.shape == (6, 5)


def test_a_killed_command_continues_to_the_bytes_of_one_process(
    hub: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predict_files, "CHUNK_ROWS", 2)
    whole, half = (
        (*by_weights(hub), f"input={rows}", f"output={tmp_path}/{name}.npy", f"batch_size={size}")
        for name, size in (("whole", 64), ("half", 1))
    )
    encode(*whole)
    computed: list[bytes] = []
    piece, limit = predict_files.Work.piece, [2]

    def killed(self: Any, chunk: Any) -> bytes:
        if len(computed) == limit[0]:
            raise KeyboardInterrupt
        computed.append(piece(self, chunk))
        return computed[-1]

    monkeypatch.setattr(predict_files.Work, "piece", killed)
    encode(*half, status=130)
    encode(*half, "prompt='d '", status=2)
    limit[0] = 3
    encode(*half[:-1], "batch_size=3")
    assert len(computed) == 3
    assert (tmp_path / "half.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()


def test_a_row_that_cannot_be_used_has_no_vector(hub: Path, rows: Path, tmp_path: Path) -> None:
    write(rows, [{"text": "a"}, {"text": ""}, {"text": "b"}])
    encode(*by_weights(hub), f"input={rows}", f"output={tmp_path}/out.npy", status=2)
    encode(*by_weights(hub), f"input={rows}", f"output={tmp_path}/out.npy", "on_bad_row=skip")
    found_ND = np.load(tmp_path / "out.npy")
    assert np.isnan(found_ND).all(1).tolist() == [False, True, False]


@pytest.mark.parametrize("name", ["classify", "match", "tag"])
def test_predictions_may_have_the_vectors_that_the_head_reads(
    name: str, run_of: Callable[[str], Path], tmp_path: Path
) -> None:
    run = run_of(name)
    texts = [{"text_a": text, "text_b": "c"} for text in TEXTS] if name == "match" else [{"text": one} for one in TEXTS]
    write(tmp_path / "rows.jsonl", texts)
    asked = (f"run={run}", f"input={tmp_path}/rows.jsonl", "vectors=true")
    predict(*asked, f"output={tmp_path}/out.jsonl", "dims=6")
    predict(*asked, f"output={tmp_path}/out.npy")
    predictor = nlu.load(run, device="cpu").predictor
    expected_ND = predictor.vectors(predictor.encode(texts))
    assert np.array_equal(np.load(tmp_path / "out.npy"), expected_ND)
    records = read(tmp_path / "out.jsonl")
    assert np.array_equal(np.array([one["vector"] for one in records], np.float32), expected_ND[:, :6])
    assert all("prediction" in one for one in records)


def test_what_asks_for_no_vectors_or_for_two_models_is_refused(
    run_of: Callable[[str], Path], hub: Path, rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = (f"input={rows}", f"output={tmp_path}/out.npy")
    refused = {
        "neither run nor model is set": (),
        "run and model are both set": (f"run={hub}", *by_weights(hub)),
        "model is textcnn, which has no pretrained weights": ("model=textcnn",),
        "dims is 17, but vectors of this model have 16 numbers": (*by_weights(hub), "dims=17"),
        "dtype is int8, which holds numbers from -1 to 1": (*by_weights(hub), "dtype=int8", "normalize=false"),
    }
    for words, overrides in refused.items():
        encode(*overrides, *files, status=2)
        assert words in " ".join(capsys.readouterr().err.split())
    run = run_of("classify")
    for words, asked in {"which holds vectors only": files, "but vectors is false": (*files, "dims=3")}.items():
        predict(f"run={run}", *asked, status=2)
        assert words in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out.npy").exists()
