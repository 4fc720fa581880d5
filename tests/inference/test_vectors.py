"""Vectors of texts: by runs and by pretrained weights, with prompts, compared with numpy and sentence-transformers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nlu
from nlu.config.errors import DataError, UserError
from nlu.inference import nearest as searching
from nlu.inference.attribution import explaining
from nlu.inference.nearest import nearest
from nlu.inference.text_vectors import prompts_of_run
from tests.inference.runs import export, kept, trained
from tests.inference.test_export_elsewhere import native, saved
from tests.training.in_process import train
from tests.training.kinds import TASKS, Kind, pair_of_classes

library = pytest.importorskip("sentence_transformers")
models = pytest.importorskip("sentence_transformers.models")

TEXTS = ["a b c", "h", "g a b e f", "b", "a b c d e f g h", "c b a"]
PROMPTS = {"query": "d e ", "passage": "f "}
COSINES = ("task=siamese", "loss=contrastive", "model.pooling=null", "data.prompts={text_a: 'd e ', text_b: 'f '}")


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("weights") / "hub")


@pytest.fixture
def folder(hub: Path, tmp_path: Path) -> Callable[..., Path]:
    """Return a function that saves random weights with these modules as sentence-transformers does."""

    def save(mode: str, *modules: Any, **options: Any) -> Path:
        parts = [models.Transformer(str(hub), max_seq_length=12), models.Pooling(16, pooling_mode=mode), *modules]
        library.SentenceTransformer(modules=parts, device="cpu", **options).save_pretrained(str(tmp_path / "whole"))
        return tmp_path / "whole"

    return save


@pytest.fixture(scope="module")
def compared(hub: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that compares cosines of queries and passages, with a prompt before each."""
    return trained(native(Kind(COSINES, pair_of_classes), hub), tmp_path_factory.mktemp("compared"))


@pytest.mark.parametrize(
    ("mode", "modules"),
    [
        ("mean", [models.Normalize]),
        ("lasttoken", []),
        ("cls", [lambda: models.Dense(16, 8), models.Normalize]),
    ],
)
def test_pretrained_weights_give_the_vectors_of_their_library(mode: str, modules: list[Any], folder: Any) -> None:
    path = folder(mode, *(make() for make in modules), prompts=PROMPTS, default_prompt_name="query")
    loaded, theirs = nlu.load(path, device="cpu"), library.SentenceTransformer(str(path), device="cpu")
    for prompt in ("query", "passage", None):
        expected_ND = theirs.encode(TEXTS, prompt_name=prompt)
        np.testing.assert_allclose(loaded.encode(TEXTS, prompt), expected_ND, atol=1e-5)
    np.testing.assert_allclose(loaded.encode(TEXTS, "g "), theirs.encode(TEXTS, prompt="g "), atol=1e-5)
    theirs.truncate_dim = 4
    expected_ND = theirs.encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(loaded.encode(TEXTS, dims=4, normalize=True), expected_ND, atol=1e-5)


def test_weights_that_do_not_say_how_they_read_texts_give_means_of_length_1(hub: Path) -> None:
    theirs = library.SentenceTransformer(modules=[models.Transformer(str(hub)), models.Pooling(16)], device="cpu")
    expected_ND = theirs.encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(nlu.load(hub, device="cpu").encode(TEXTS), expected_ND, atol=1e-5)


def test_pretrained_weights_refuse_to_predict_and_prompts_they_lack(hub: Path) -> None:
    loaded = nlu.load(hub, device="cpu")
    with pytest.raises(UserError, match="are pretrained weights, .*; train a run with model.pretrained="):
        loaded.predict(["a"])
    with pytest.raises(UserError, match="prompt is query, but this model has no prompts; write the text itself"):
        loaded.encode(["a"], prompt="query")
    with pytest.raises(UserError, match="dims is 17, but vectors of this model have 16 numbers"):
        loaded.encode(["a"], dims=17)
    with pytest.raises(DataError, match="text 2: field text: '' is empty"):
        loaded.encode(["a", ""])
    assert str(hub) in repr(loaded)


def test_a_vector_has_the_same_bits_in_every_batch_and_order(hub: Path) -> None:
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(list("abcdefgh"), rng.integers(1, 30))) for _ in range(80)]
    alone_ND = np.concatenate([nlu.load(hub, device="cpu", batch_size=1).encode([text]) for text in texts])
    for batch_size in (7, 64):
        order_N = rng.permutation(len(texts))
        found_ND = nlu.load(hub, device="cpu", batch_size=batch_size).encode([texts[place] for place in order_N])
        assert np.array_equal(found_ND, alone_ND[order_N])


def test_a_run_puts_its_prompts_before_texts_when_it_learns_predicts_and_encodes(compared: Path) -> None:
    loaded, rows = nlu.load(compared, device="cpu"), kept(compared)
    first_ND = loaded.encode([row["text_a"] for row in rows], "query")
    second_ND = loaded.encode([row["text_b"] for row in rows], "passage")
    cosines = (first_ND * second_ND).sum(1).tolist()
    assert cosines == pytest.approx([row["similarity"] for row in rows], abs=1e-6)
    assert loaded.predict(rows[:1])[0]["similarity"] == pytest.approx(cosines[0], abs=1e-6)
    assert np.array_equal(first_ND, loaded.encode([f"d e {row['text_a']}" for row in rows], ""))
    with pytest.raises(UserError, match="prompt is null, .*query .d e ., passage 'f '.* set prompt=query or"):
        loaded.encode(["a"])
    found = loaded.search([rows[0]["text_a"]], [row["text_b"] for row in rows], 3)
    expected_N = np.argsort(-(second_ND @ first_ND[0]), kind="stable")
    assert found.places[0].tolist() == expected_N[:3].tolist()


def test_an_export_for_sentence_transformers_has_prompts_and_normalization(compared: Path, tmp_path: Path) -> None:
    export(f"run={compared}", "format=sentence_transformers", f"out={tmp_path}/out")
    theirs, loaded = library.SentenceTransformer(str(tmp_path / "out"), device="cpu"), nlu.load(compared, device="cpu")
    assert type(theirs[-1]).__name__ == "Normalize"
    for ours, name in (("query", "query"), ("passage", "document")):
        np.testing.assert_allclose(loaded.encode(TEXTS, ours), theirs.encode(TEXTS, prompt_name=name), atol=1e-5)
    again = nlu.load(tmp_path / "out", device="cpu")
    np.testing.assert_allclose(again.encode(TEXTS, "query"), loaded.encode(TEXTS, "query"), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "prompts", "words"),
    [("tag", "{text: 'a '}", "tags characters"), ("classify", "{text_a: 'a '}", "the task reads text; give prompts")],
)
def test_prompts_that_the_task_cannot_use_are_refused(
    name: str, prompts: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = TASKS[name].overrides(tmp_path)
    train(*overrides, f"data.prompts={prompts}", f"hydra.run.dir={tmp_path}/run", status=2)
    assert words in " ".join(capsys.readouterr().err.split())


def test_a_prompt_counts_as_part_of_the_text_but_not_in_explanations(hub: Path, tmp_path: Path) -> None:
    run = trained(native(TASKS["classify"], hub), tmp_path, "data.prompts={text: 'd e '}")
    loaded = nlu.load(run, device="cpu")
    assert np.array_equal(loaded.encode(["a b"]), loaded.encode(["d e a b"], ""))
    steps = explaining(loaded.predictor, {"text": "a b"}, None, None)
    with pytest.raises(StopIteration) as end:
        while True:
            next(steps)
    assert [(mark.start, mark.end) for mark in end.value.value.marks] == [(0, 1), (2, 3)]


@pytest.mark.parametrize("k", [1, 5, 40, 1000])
def test_the_nearest_are_those_of_numpy_and_equal_ones_in_order(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "QUERIES", 3)
    monkeypatch.setattr(searching, "CORPUS", 16)
    rng = np.random.default_rng(0)
    # Few values, so that many products are equal, of either sign and 0.
    queries_QD = rng.integers(-1, 2, (7, 4)).astype(np.float32)
    corpus_ND = rng.integers(-1, 2, (90, 4)).astype(np.float32)
    scores_QN = queries_QD @ corpus_ND.T
    places_QN = np.argsort(-scores_QN, axis=1, kind="stable")[:, :k]
    found = nearest(queries_QD, corpus_ND, k)
    assert np.array_equal(found.places, places_QN)
    assert np.array_equal(found.scores, np.take_along_axis(scores_QN, places_QN, 1))


def test_a_search_reads_vectors_from_a_file_and_refuses_other_widths(tmp_path: Path, hub: Path) -> None:
    loaded = nlu.load(hub, device="cpu")
    np.save(tmp_path / "corpus.npy", loaded.encode(TEXTS))
    corpus_ND = np.load(tmp_path / "corpus.npy", mmap_mode="r")
    found = loaded.search(TEXTS, corpus_ND, 1)
    assert found.places[:, 0].tolist() == list(range(len(TEXTS)))
    assert found.scores[:, 0] == pytest.approx(np.ones(len(TEXTS)), abs=1e-6)
    with pytest.raises(UserError, match=r"shape \(6, 4\) and the corpus \(6, 16\); give both"):
        nearest(corpus_ND[:, :4], corpus_ND, 1)
    with_gap_ND = np.insert(corpus_ND, 0, np.nan, axis=0)
    places_Q = loaded.search(TEXTS, with_gap_ND, len(with_gap_ND)).places
    assert (places_Q[:, 0] == np.arange(1, 7)).all() and (places_Q[:, -1] == 0).all(), "a text without a vector is last"
    with pytest.raises(UserError, match="k is 0"):
        nearest(corpus_ND, corpus_ND, 0)


def test_a_text_that_is_too_long_behind_its_prompt_is_refused(compared: Path) -> None:
    loaded = nlu.load(compared, device="cpu", long="error")
    around = loaded.trained.tokenizer.single
    longest = loaded.trained.lengths.max_len - len(around.before) - len(around.after)
    text = " ".join("a" * longest)
    assert len(loaded.encode([text], "")) == 1
    with pytest.raises(DataError, match=f"text 1: .* has {longest + 4} tokens, more than data.max_len"):
        loaded.encode([text], "query")


def test_a_mistyped_name_of_a_prompt_is_not_taken_for_its_text():
    prompts = prompts_of_run({"text_a": "query: ", "text_b": "passage: "})
    assert [prompts.of(given) for given in ("query", "document", "query: ", "")] == [
        "query: ",
        "passage: ",
        "query: ",
        "",
    ]
    with pytest.raises(UserError, match="prompt is quary, which is no name of a prompt; nearest: query"):
        prompts.of("quary")
