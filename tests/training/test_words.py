"""A run starts from word vectors: of a file, whose words its vocabulary keeps, or of an encoder, with its tokens."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import nlu
from nlu.data.tokenizing import load_tokenizer
from tests.inference.hubs import KINDS, save
from tests.inference.runs import STEPS
from tests.training.in_process import STANDING_STILL, train
from tests.training.kinds import Kind, Row, pair_of_classes

WIDTH, RARITY = 6, 0.01
STATIC = ("model=static", f"model.embedding_size={WIDTH}", f"model.rarity={RARITY}", "data.max_len=32")
DISTILLED = (*STATIC, "model.dropout=0", "model.head_dropout=0")


def joined(rng: random.Random) -> Row:
    """Texts without spaces inside, so that pieces of several letters occur."""
    word = "".join(rng.choice(["ab", "cd", "ef", "g", "h"]) for _ in range(rng.randint(2, 6)))
    return {"text": f"{word} ab", "label": ("good", "bad")[word[0] in "ac"]}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: Any) -> Path:
    folder: Path = tmp_path_factory.mktemp("hub") / "unigram"
    save(folder, KINDS["unigram"]())
    return folder


@torch.inference_mode()
def outputs_of(hub: Path, pieces: list[int]) -> np.ndarray:
    """The mean of the outputs of transformers for each piece between the special tokens."""
    transformers = pytest.importorskip("transformers")
    encoder = transformers.BertModel.from_pretrained(hub).eval()
    ids = torch.tensor([[0, piece, 2] for piece in pieces])
    return encoder(input_ids=ids).last_hidden_state.double().mean(1).numpy()


def test_a_static_run_starts_from_what_the_formula_of_model2vec_yields(hub: Path, tmp_path: Path) -> None:
    overrides = Kind((), joined, DISTILLED).overrides(tmp_path)
    run = tmp_path / "run"
    train(*overrides, *STEPS, *STANDING_STILL, f"model.embeddings={hub}", f"hydra.run.dir={run}")
    small, whole = (load_tokenizer(folder, None) for folder in (run / "checkpoints/best-1", hub))
    assert small is not None and whole is not None
    special = {"<s>", "<pad>", "</s>", "<unk>", "<mask>"}
    pieces = [piece for piece in small.vocabulary if piece not in special]
    # Only pieces of the training texts and single characters.
    assert "ab" in pieces and "caf" in whole.vocabulary and "caf" not in pieces
    outputs = outputs_of(hub, [whole.vocabulary[piece] for piece in pieces])
    centred = outputs - outputs.mean(0)
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    components = (left * values)[:, :WIDTH]
    vector_of = dict(zip(pieces, components * 0.1 / components.std(), strict=True))
    rows = [json.loads(line)["text"] for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    split = [["<s>", *whole.backend.encode(row, add_special_tokens=False).tokens, "</s>"] for row in rows]
    counts = {piece: sum(own.count(piece) for own in split) for piece in small.vocabulary}
    total = sum(counts.values())
    weight = {piece: RARITY / (RARITY + count / total) for piece, count in counts.items()}
    mean = sum(counts[piece] / total * weight[piece] for piece in counts)
    # Special tokens have random vectors, which the checkpoint tells.
    table = load_file(run / "checkpoints/best-1/model.safetensors")["backbone.word_embeddings.weight"]
    random_of = {piece: table[small.vocabulary[piece]] for piece in special}

    def texts(vectors: dict[str, np.ndarray]) -> np.ndarray:
        return np.array([np.mean([vectors[one] * weight[one] / mean for one in own], axis=0) for own in split])

    without = texts(vector_of | {piece: np.zeros(WIDTH) for piece in special})
    found = nlu.load(run, device="cpu").encode(rows) - texts(dict.fromkeys(pieces, np.zeros(WIDTH)) | random_of)
    # The signs of components are free, so products of the vectors of texts are compared.
    np.testing.assert_allclose(found @ found.T, without @ without.T, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("model", ["textcnn", "lstm", "re2", "static"])
def test_rare_words_with_a_vector_are_kept_by_every_encoder_over_words(model: str, tmp_path: Path) -> None:
    sizes = () if model == "static" else ("model.hidden_size=8",)
    kind = Kind(("task=match",), pair_of_classes, (f"model={model}", "model.embedding_size=2", *sizes))
    overrides = kind.overrides(tmp_path)
    with open(tmp_path / "train.jsonl", "a") as file:
        file.write(json.dumps({"text_a": "a Scarce b", "text_b": "c unique d", "label": "1"}) + "\n")
    (tmp_path / "vectors.txt").write_text("a 1 2\nscarce 3 4\nabsent 5 6\n")
    more = (f"model.embeddings={tmp_path}/vectors.txt", *STEPS, *STANDING_STILL, f"hydra.run.dir={tmp_path}/run")
    train(*overrides, *more)
    best = tmp_path / "run/checkpoints/best-1"
    tokenizer = load_tokenizer(best, None)
    assert tokenizer is not None
    assert "scarce" in tokenizer.vocabulary and not {"unique", "absent"} & set(tokenizer.vocabulary)
    table = load_file(best / "model.safetensors")["backbone.word_embeddings.weight"]
    assert table[tokenizer.vocabulary["scarce"]].tolist() == [3, 4]
    assert "word vectors: 2 of 9 words (22.2%)" in (tmp_path / "run/log.txt").read_text()
