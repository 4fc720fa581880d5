"""model.trim_vocab: a run with fewer word vectors computes the same, and keeps its vocabulary when it continues."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import nlu
from nlu.data.tokenizing import load_tokenizer
from tests.inference.hubs import KINDS, save
from tests.inference.runs import STEPS
from tests.training.in_process import NO_DROPOUT, STANDING_STILL, train
from tests.training.kinds import TASKS, Kind

TRIMMED = "model.trim_vocab=true"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: Any) -> Path:
    folder: Path = tmp_path_factory.mktemp("hub") / "unigram"
    save(folder, KINDS["unigram"]())
    return folder


def overrides_of(hub: Path, folder: Path, name: str, *more: str) -> tuple[str, ...]:
    model = ("model=bert", f"model.pretrained={hub}", "data.max_len=32", *NO_DROPOUT)
    return *Kind(TASKS[name].options, TASKS[name].row, model).overrides(folder), *STEPS, *more


def vectors(run: Path, texts: list[str]) -> np.ndarray:
    """What the head reads, which does not depend on its random weights."""
    return nlu.load(run, device="cpu").encode(texts)


def test_a_trimmed_run_computes_what_the_whole_one_does_for_texts_of_its_pieces(hub: Path, tmp_path: Path) -> None:
    overrides = overrides_of(hub, tmp_path, "classify", *STANDING_STILL)
    for name, more in (("whole", ()), ("trimmed", (TRIMMED,))):
        train(*overrides, *more, f"hydra.run.dir={tmp_path}/{name}")
    small, whole = (load_tokenizer(tmp_path / name / "checkpoints/best-1", None) for name in ("trimmed", "whole"))
    assert small is not None and whole is not None
    assert "北京" in whole.vocabulary and "北京" not in small.vocabulary and "京" in small.vocabulary
    table = "backbone.embeddings.word_embeddings.weight"
    found = load_file(tmp_path / "trimmed/checkpoints/best-1/model.safetensors")[table]
    theirs = load_file(hub / "model.safetensors")["embeddings.word_embeddings.weight"]
    assert len(found) == small.vocab_size < whole.vocab_size < len(theirs)
    for piece, number in small.vocabulary.items():
        np.testing.assert_allclose(found[number], theirs[whole.vocabulary[piece]], atol=1e-7, err_msg=piece)
    # Their pieces are kept in the first three; the last one is cut into characters.
    texts = ["a b h", "c d e f", "g a", "北京"]
    same, other = (vectors(tmp_path / name, texts) for name in ("trimmed", "whole"))
    np.testing.assert_allclose(same[:3], other[:3], atol=1e-6)
    assert np.isfinite(same).all() and np.abs(same[3] - other[3]).max() > 1e-3


@pytest.mark.thorough
def test_the_folds_of_a_run_share_a_trimmed_vocabulary(hub: Path, tmp_path: Path) -> None:
    train(*overrides_of(hub, tmp_path, "classify", TRIMMED, "folds.count=2"), f"hydra.run.dir={tmp_path}/run")
    found = {path.read_bytes() for path in (tmp_path / "run").rglob("best-1/tokenizer.json")}
    assert len(found) == 1


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (("model.pretrained=null",), "model.trim_vocab is true, but model.pretrained is null"),
        (("tokenizer.vocab=vocab.txt",), "model.trim_vocab is true, but tokenizer.vocab is"),
    ],
    ids=["no weights", "another vocabulary"],
)
def test_a_vocabulary_that_is_not_that_of_weights_is_not_trimmed(
    hub: Path, tmp_path: Path, capsys: Any, more: tuple[str, ...], reason: str
) -> None:
    (tmp_path / "vocab.txt").write_text("[UNK]\n[CLS]\n[SEP]\na\n")
    more = tuple(one.replace("vocab.txt", str(tmp_path / "vocab.txt")) for one in more)
    train(*overrides_of(hub, tmp_path, "classify", TRIMMED, *more), f"hydra.run.dir={tmp_path}/run", status=2)
    assert reason in capsys.readouterr().err
