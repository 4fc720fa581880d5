"""A run of an encoder over words starts from word vectors of a file, whose words its vocabulary keeps."""

import json
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from nlu.data.tokenizing import load_tokenizer
from tests.inference.runs import STEPS
from tests.training.in_process import STANDING_STILL, train
from tests.training.kinds import Kind, pair_of_classes


@pytest.mark.parametrize("model", ["textcnn", "lstm", "static"])
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
