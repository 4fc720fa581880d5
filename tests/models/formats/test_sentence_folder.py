"""Folders of sentence-transformers: vectors of texts are those of the library itself, or what lacks is named."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from nlu.config.errors import UserError
from nlu.models.encoders.bert import Bert
from nlu.models.encoders.huggingface import HuggingFace
from nlu.models.formats.pretrained import load_into, open_pretrained
from tests.models.parts import VOCAB_SIZE, task_model

transformers = pytest.importorskip("transformers")
library = pytest.importorskip("sentence_transformers")

WIDTH = 24
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(VOCAB_SIZE - 5))]
Encoder = type[HuggingFace] | type[Bert]


def pooling(mode: Any) -> nn.Module:
    made: nn.Module = library.sentence_transformer.modules.Pooling(WIDTH, mode)
    return made


def dense(outputs: int, **options: Any) -> nn.Module:
    made: nn.Module = library.base.modules.Dense(WIDTH, outputs, **options)
    return made


def normalize() -> nn.Module:
    made: nn.Module = library.base.modules.Normalize()
    return made


@pytest.fixture
def folder(tmp_path: Path, spread: Any) -> Callable[..., Path]:
    """Return a function that saves a random BERT and these modules as sentence_transformers does."""

    def save(*modules: nn.Module, **options: Any) -> Path:
        config = transformers.BertConfig(
            vocab_size=VOCAB_SIZE, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40,
            max_position_embeddings=64,
        )  # fmt: skip
        spread(transformers.BertModel(config)).save_pretrained(tmp_path / "bert")
        (tmp_path / "bert/vocab.txt").write_text("\n".join(WORDS))
        tokenizer = transformers.BertTokenizer(vocab={word: number for number, word in enumerate(WORDS)})
        tokenizer.save_pretrained(tmp_path / "bert")
        encoder = library.base.modules.Transformer(str(tmp_path / "bert"), max_seq_length=32)
        library.SentenceTransformer(modules=[encoder, *modules], **options).save_pretrained(str(tmp_path / "whole"))
        return tmp_path / "whole"

    return save


def made(path: Path, encoder: Encoder = HuggingFace, layout: str = "sides", **keys: Any) -> Any:
    source = open_pretrained(str(path))
    model = task_model(encoder(VOCAB_SIZE, source, pretrained=str(path), **keys), layout, 2)
    load_into(model, source)
    return model.eval().backbone


def vectors_of(backbone: Any, batch: Any) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = backbone.encode(backbone.embed(batch), batch, pooled=True).pooled_SD
    return found


def expected_of(path: Path, batch: Any) -> torch.Tensor:
    """Return what sentence_transformers computes from the tokens of a batch."""
    model = library.SentenceTransformer(str(path)).eval()
    rows = batch.tokens_T.split(batch.lengths)
    with torch.inference_mode():
        found = [model({"input_ids": one[None], "attention_mask": torch.ones_like(one)[None]}) for one in rows]
    return torch.cat([one["sentence_embedding"] for one in found])


@pytest.mark.parametrize(
    ("modules", "encoders"),
    [
        (lambda: [pooling("mean"), dense(10), normalize()], [HuggingFace]),
        (lambda: [pooling("cls"), normalize()], [HuggingFace, Bert]),
        (lambda: [pooling("max")], [HuggingFace, Bert]),
        (
            lambda: [
                pooling("lasttoken"), dense(WIDTH, bias=False, activation_function=nn.Identity()),
                dense(6, activation_function=nn.GELU()),
            ],
            [HuggingFace],
        ),
    ],
)  # fmt: skip
def test_vectors_of_texts_are_those_of_the_library(folder, corpus, modules, encoders):
    path, batch = folder(*modules()), corpus("single", [2, 5, 9, 20]).batch()
    for encoder in encoders:
        assert (vectors_of(made(path, encoder), batch) - expected_of(path, batch)).abs().max() < 1e-5


def old(path: Path) -> Path:
    """Return the folder as the first versions wrote it: the encoder in a folder of its own, other names."""
    inner = path / "0_BERT"
    inner.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.move(path / name, inner / name)
    model = transformers.BertModel.from_pretrained(path.parent / "bert")
    torch.save(model.state_dict(), inner / "pytorch_model.bin")
    (path / "model.safetensors").unlink()
    kinds = [("0_BERT", "Transformer"), ("1_Pooling", "Pooling"), ("2_Dense", "Dense")]
    modules = [
        {"idx": number, "name": str(number), "path": place, "type": f"sentence_transformers.models.{kind}"}
        for number, (place, kind) in enumerate(kinds)
    ]
    (path / "modules.json").write_text(json.dumps(modules))
    modes = {"cls_token": False, "mean_tokens": True, "max_tokens": False, "mean_sqrt_len_tokens": False}
    content = {"word_embedding_dimension": WIDTH, **{f"pooling_mode_{name}": value for name, value in modes.items()}}
    (path / "1_Pooling/config.json").write_text(json.dumps(content))
    return path


def test_folders_of_the_first_versions_are_read_too(folder, corpus):
    path, batch = folder(pooling("mean"), dense(10)), corpus("single", [2, 5, 9]).batch()
    expected = expected_of(path, batch)
    assert (vectors_of(made(old(path)), batch) - expected).abs().max() < 1e-5


def test_a_head_gets_the_dense_layer_but_no_vectors_of_length_1(folder, corpus):
    path, batch = folder(pooling("mean"), dense(10), normalize()), corpus("single", [2, 5, 9]).batch()
    backbone = made(path, layout="single")
    found = vectors_of(backbone, batch)
    assert backbone.width_of("single") == 10 and backbone.width_of("units") == WIDTH
    assert (nn.functional.normalize(found) - expected_of(path, batch)).abs().max() < 1e-5
    assert (found.norm(dim=1) - 1).abs().min() > 0.01


def test_a_run_keeps_what_the_folder_said(folder, corpus, tmp_path):
    batch = corpus("single", [2, 5, 9]).batch()
    backbone = made(folder(pooling("mean"), dense(10), normalize()))
    (tmp_path / "run").mkdir()
    (tmp_path / "run/labels.json").write_text("{}")
    (tmp_path / "run/config.json").write_text(json.dumps(backbone.settings()))
    model = task_model(backbone, "sides", 2)
    torch.save(model.state_dict(), tmp_path / "run/pytorch_model.bin")
    assert torch.equal(vectors_of(made(tmp_path / "run"), batch), vectors_of(backbone, batch))


@pytest.mark.parametrize(
    ("modules", "encoder", "named", "remedy"),
    [
        (lambda: [pooling("weightedmean")], HuggingFace, "1_Pooling (pooling by weightedmean)", "; set model.pooling"),
        (lambda: [pooling(("cls", "mean"))], HuggingFace, "pooling by cls and mean", "; set model.pooling=mean"),
        (lambda: [pooling("mean"), normalize(), dense(5)], HuggingFace, "3_Dense (Dense)", "; set model.pooling=mean"),
        (lambda: [pooling("mean"), dense(5)], Bert, "2_Dense", "; set model=hf, which does, or model.pooling=mean"),
    ],
)
def test_what_is_not_computed_is_refused_by_name_unless_the_pooling_is_set(folder, modules, encoder, named, remedy):
    path = folder(*modules())
    with pytest.raises(UserError) as caught:
        made(path, encoder)
    assert named in str(caught.value) and remedy in str(caught.value)
    assert made(path, encoder, pooling="mean").width_of("single") == WIDTH
    # Tags are read from the vectors of tokens.
    assert made(path, encoder, layout="units").width_of("units") == WIDTH


def test_folders_without_an_encoder_or_a_part_are_refused_by_name(folder):
    path = folder(pooling("max"))
    (path / "1_Pooling/config.json").unlink()
    with pytest.raises(UserError, match="has 1_Pooling .Pooling., of which the folder lacks config.json"):
        made(path)
    (path / "config.json").unlink()
    kind = "sentence_transformers.sentence_transformer.modules.static_embedding.StaticEmbedding"
    (path / "modules.json").write_text(json.dumps([{"idx": 0, "name": "0", "path": "", "type": kind}]))
    with pytest.raises(UserError, match="model=hf cannot use: the first of its modules .* is StaticEmbedding; choose"):
        made(path)
