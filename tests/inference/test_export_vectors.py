"""python -m nlu.export without logits: static vectors for model2vec and sentence-transformers, adapters for peft."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import nlu
from tests.inference.runs import export, kept, trained
from tests.inference.test_export_elsewhere import native, of_transformers, saved
from tests.training.in_process import STANDING_STILL
from tests.training.kinds import TASKS, Kind, classes, pair_of_classes

transformers = pytest.importorskip("transformers")

STATIC = ("model=static", "model.embedding_size=8", "data.max_len=32")
TEXTS = ["a b c", "h", "a z b z", "z", "[SEP] a [UNK]", " ".join("abcdefgh" * 9)]
"""with words that no training row has, letters of special tokens, and more tokens than the run reads"""


@pytest.mark.parametrize("kind", [Kind((), classes, STATIC), Kind(("task=siamese",), pair_of_classes, STATIC)])
def test_model2vec_and_sentence_transformers_give_the_vectors_of_the_run(kind: Kind, tmp_path: Path) -> None:
    model2vec = pytest.importorskip("model2vec")
    run = trained(kind, tmp_path)
    export(f"run={run}", "format=model2vec", f"out={tmp_path}/out")
    vectors_ND = model2vec.StaticModel.from_pretrained(tmp_path / "out").encode(TEXTS)
    loaded = nlu.load(run, device="cpu")
    # The run cuts the last text.
    np.testing.assert_allclose(vectors_ND[:-1], loaded.encode(TEXTS[:-1]), atol=1e-6)
    # By hand: letters alone count, each with its weight.
    weights, vocabulary = load_file(run / "checkpoints/best-1/model.safetensors"), loaded.trained.tokenizer.vocabulary
    letters = [vocabulary[letter] for letter in TEXTS[0].split()]
    own_TD = weights["backbone.weights_V"][letters, None] * weights["backbone.word_embeddings.weight"][letters]
    np.testing.assert_allclose(vectors_ND[0], own_TD.mean(0), atol=1e-6)
    assert not vectors_ND[3].any(), "no known word"
    sentence_transformers = pytest.importorskip("sentence_transformers")
    theirs_ND = sentence_transformers.SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(TEXTS)
    # It counts unknown words, whose vectors are zeros, so that only lengths differ.
    known = [0, 1, 5]
    np.testing.assert_allclose(theirs_ND[known], vectors_ND[known], atol=1e-6)
    cosine = theirs_ND[2] @ vectors_ND[2] / np.linalg.norm(theirs_ND[2]) / np.linalg.norm(vectors_ND[2])
    assert cosine == pytest.approx(1, abs=1e-6)


SIAMESE = Kind(("task=siamese", "model.pooling=null"), pair_of_classes)


def test_layers_after_the_pooling_come_back_too(hub: Path, tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    models = pytest.importorskip("sentence_transformers.models")
    modules = [
        models.Transformer(str(hub), max_seq_length=32),
        models.Pooling(16, pooling_mode="mean"),
        models.Dense(16, 8),
        models.Normalize(),
    ]
    library.SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(tmp_path / "whole"))
    run = trained(of_transformers(SIAMESE, tmp_path / "whole"), tmp_path, *STANDING_STILL)
    export(f"run={run}", "format=sentence_transformers", f"out={tmp_path}/out")
    before, after = (library.SentenceTransformer(str(tmp_path / name), device="cpu") for name in ("whole", "out"))
    assert [type(module).__name__ for module in after] == ["Transformer", "Pooling", "Dense", "Normalize"]
    np.testing.assert_allclose(after.encode(TEXTS), before.encode(TEXTS), atol=1e-5)


LORA = ("adapter=lora", "adapter.rank=3", "adapter.alpha=5", "optimizer.lr=3e-2")
TARGETS = "adapter.targets=['*query','*value','*intermediate.dense']"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("weights") / "hub")


@torch.inference_mode()
def first_vectors(model: Any, folder: Path, texts: list[str]) -> np.ndarray:
    """What transformers computes for the first token of each text by itself."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    found = [model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0, 0] for text in texts]
    return np.stack([one.numpy() for one in found])


@pytest.mark.parametrize("of_weights", [native, of_transformers])
def test_peft_loads_the_adapter_of_a_run_over_its_first_weights(of_weights: Any, hub: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    more = (TARGETS,) if of_weights is of_transformers else ()
    run = trained(of_weights(TASKS["classify"], hub), tmp_path, *LORA, *more, "trainer.max_duration=20st")
    export(f"run={run}", "format=peft", f"out={tmp_path}/out")
    assert json.loads((tmp_path / "out/adapter_config.json").read_text())["base_model_name_or_path"] == str(hub)
    texts = [one["text"] for one in kept(run)]
    base = transformers.AutoModel.from_pretrained(hub).eval()
    before = first_vectors(base, tmp_path / "out", texts)
    after = first_vectors(peft.PeftModel.from_pretrained(base, tmp_path / "out").eval(), tmp_path / "out", texts)
    assert np.abs(after - before).max() > 0.01, "the test needs an adapter that has an effect"
    np.testing.assert_allclose(after, nlu.load(run, device="cpu").encode(texts), atol=2e-5)


@pytest.mark.parametrize(("of_weights", "rslora"), [(native, True), (of_transformers, False)])
def test_a_run_begins_with_the_matrices_of_peft(of_weights: Any, rslora: bool, hub: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(
        r=2, lora_alpha=7, target_modules=["query", "value", "intermediate.dense"], use_rslora=rslora
    )
    model = peft.get_peft_model(transformers.AutoModel.from_pretrained(hub), config)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(tmp_path / "theirs")
    # In a native encoder one layer computes queries, keys and values, so that it takes the matrices of two.
    is_native = of_weights is native
    targets = "adapter.targets=['*qkv','*intermediate.dense']" if is_native else TARGETS
    given = ("adapter=lora", targets, f"adapter.rank={4 if is_native else 3}", *STANDING_STILL)
    run = trained(of_weights(TASKS["classify"], hub), tmp_path, *given, f"adapter.pretrained={tmp_path}/theirs")
    texts = [one["text"] for one in kept(run)]
    export(f"run={run}", "format=peft", f"out={tmp_path}/out")
    expected = first_vectors(model.eval(), tmp_path / "out", texts)
    # The run needs the folder no more.
    shutil.rmtree(tmp_path / "theirs")
    np.testing.assert_allclose(nlu.load(run, device="cpu").encode(texts), expected, atol=2e-5)
    again = trained(
        of_weights(TASKS["classify"], hub), tmp_path / "again", *given, f"adapter.pretrained={tmp_path}/out"
    )
    np.testing.assert_allclose(nlu.load(again, device="cpu").encode(texts), expected, atol=2e-5)


@pytest.mark.parametrize(
    ("given", "changed", "words"),
    [
        (("adapter.rank=1",), {}, "adapter.rank is 1, but backbone.encoder.layer.0.attention.self.qkv needs 3 x 2"),
        (("adapter.rank=9", "adapter.targets=['*intermediate.dense']"), {}, "add *.query, *.value to adapter.targets"),
        (("adapter.rank=9",), {"use_dora": True}, "which has use_dora; give a folder of plain LoRA, or merge it"),
        (("adapter.rank=9",), {"peft_type": "IA3"}, "which has peft_type IA3"),
        (("adapter.rank=9", "adapter.pretrained=HUB"), {}, "which lacks adapter_model.safetensors"),
    ],
)
def test_a_folder_that_does_not_fit_is_refused(
    given: tuple[str, ...], changed: dict[str, Any], words: str, hub: Path, tmp_path: Path, capsys: Any
) -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["query", "value"])
    peft.get_peft_model(transformers.AutoModel.from_pretrained(hub), config).save_pretrained(tmp_path / "theirs")
    path = tmp_path / "theirs/adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))
    order = ("adapter=lora", f"adapter.pretrained={tmp_path}/theirs", *(one.replace("HUB", str(hub)) for one in given))
    with pytest.raises(AssertionError):
        trained(native(TASKS["classify"], hub), tmp_path, *order)
    assert words in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("kind", "written", "words"),
    [
        (Kind((), classes), "model2vec", "which holds the vectors of single texts of model=static"),
        (Kind(("task=match",), pair_of_classes, STATIC), "model2vec", "vectors of single texts of model=static"),
        (Kind((), classes), "peft", "the run has no LoRA; train with adapter=lora"),
        (Kind((), classes, STATIC), "huggingface", "export it as model2vec, which sentence-transformers loads too"),
    ],
)
def test_a_run_without_such_vectors_is_refused(
    kind: Kind, written: str, words: str, tmp_path: Path, capsys: Any
) -> None:
    for name in ("peft", "model2vec"):
        pytest.importorskip(name)
    run = trained(kind, tmp_path)
    export(f"run={run}", f"format={written}", f"out={tmp_path}/out", status=2)
    assert words in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()
