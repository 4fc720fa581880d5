"""The heads of transformers' own models: loaded from a folder, each gives the scores of transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from nlu.models.encoders.bert import Bert
from nlu.models.encoders.huggingface import HuggingFace
from nlu.models.formats.pretrained import load_into, open_pretrained
from nlu.models.heads.mlp import MlpHead
from nlu.models.heads.transformers import head_of_transformers
from nlu.models.heads.words import WordsHead
from nlu.models.task_model import TaskModel
from tests.models.parts import VOCAB_SIZE, Target

transformers = pytest.importorskip("transformers")

SIZES = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
IDS = {"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
KINDS = ["Bert", "Roberta", "Electra", "DistilBert", "Albert", "MPNet", "DebertaV2", "ModernBert", "RoFormer"]
LABELS = {"SequenceClassification": ["a", "b", "c"], "TokenClassification": ["O", "B-A", "I-A"], "MaskedLM": []}
MOVED = [2, 0, 1]
"""the rows of the foreign head in the order of our labels"""


@pytest.fixture
def save(tmp_path, spread):
    """Return a function that saves a model of transformers with random weights."""

    def save(kind: str, task: str, **changes: Any) -> Any:
        config = getattr(transformers, f"{kind}Config")(
            **{"vocab_size": VOCAB_SIZE, "max_position_embeddings": 64, **SIZES, **IDS, **changes}
        )
        model = spread(getattr(transformers, f"AutoModelFor{task}").from_config(config))
        model.tie_weights()
        model.save_pretrained(tmp_path)
        return model

    return save


def loaded(folder: Path, layout: str, target: Any, words: bool = False, **options: Any) -> TaskModel:
    """Return what a run of model=hf starts from."""
    source = open_pretrained(str(folder))
    backbone = HuggingFace(VOCAB_SIZE, source, pretrained=str(folder), **options)
    # As wide as the encoder.
    head: Any = WordsHead(24, target, backbone) if words else head_of_transformers(24, target, backbone)
    model = TaskModel(backbone, head, layout)
    scale = (target.mean, target.sd) if target.kind == "number" else None
    load_into(model, source, list(target.names), scale=scale)
    return model.eval()


class Numbers(Target):
    """A number that training has standardized."""

    mean, sd = 0.4, 0.25

    def __init__(self) -> None:
        super().__init__([], "number")


def batch_for(corpus: Any, layout: str) -> Any:
    batch = corpus(layout, [2, 7, 30]).batch()
    # Some architectures take the numbers of special tokens as padding.
    batch.tokens_T.clamp_(min=5)
    return batch


def scores(theirs: Any, batch: Any) -> list[torch.Tensor]:
    """The logits of each sequence by itself, as transformers computes them."""
    return [theirs(input_ids=tokens[None]).logits[0] for tokens in batch.tokens_T.split(batch.lengths)]


def assert_equal(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert (found - expected).abs().max() <= 1e-5 * max(1.0, float(expected.abs().max()))


@pytest.mark.parametrize("task", LABELS)
@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_scores_of_a_loaded_head_are_those_of_transformers(corpus, save, tmp_path, messages, kind, task):
    names = LABELS[task]
    there = [names[MOVED.index(row)] for row in range(len(names))]
    theirs = save(kind, task, **({"id2label": dict(enumerate(there))} if names else {}))
    is_pooled = task == "SequenceClassification"
    batch = batch_for(corpus, "single" if is_pooled else "units")
    target = Target(names, "classes" if is_pooled else "tags")
    model = loaded(tmp_path, "single" if is_pooled else "units", target, words=task == "MaskedLM")
    rows = scores(theirs, batch)
    expected = torch.stack(rows) if is_pooled else torch.cat(rows)[batch.units_U]
    assert_equal(model(batch), expected[:, MOVED] if names else expected)
    assert not any("WARNING" in message for message in messages())


@pytest.mark.parametrize("kind", ["Bert", "Roberta", "ModernBert", "DistilBert"])
@torch.inference_mode()
def test_a_decoder_of_its_own_is_loaded(corpus, save, tmp_path, kind):
    theirs = save(kind, "MaskedLM", tie_word_embeddings=False, layer_norm_eps=1e-3, hidden_act="relu")
    assert not torch.equal(theirs.get_output_embeddings().weight, theirs.get_input_embeddings().weight)
    batch = batch_for(corpus, "units")
    model = loaded(tmp_path, "units", Target([], "tags"), words=True)
    assert_equal(model(batch), torch.cat(scores(theirs, batch))[batch.units_U])


@pytest.mark.parametrize("activation", ["Sigmoid", "Identity"])
@pytest.mark.parametrize(("kind", "beside"), [("Bert", False), ("Roberta", True), ("ModernBert", False)])
@torch.inference_mode()
def test_a_cross_encoder_of_one_output_predicts_its_number(corpus, save, tmp_path, kind, beside, activation):
    says = {"activation_fn": f"torch.nn.modules.activation.{activation}"}
    theirs = save(kind, "SequenceClassification", num_labels=1, **({} if beside else {"sentence_transformers": says}))
    if beside:
        # As sentence-transformers 6 writes it.
        (tmp_path / "config_sentence_transformers.json").write_text(json.dumps({"model_type": "CrossEncoder", **says}))
    batch, target = batch_for(corpus, "single"), Numbers()
    found = loaded(tmp_path, "single", target)(batch) * target.sd + target.mean
    expected = torch.stack(scores(theirs, batch))
    assert_equal(found, expected.sigmoid() if activation == "Sigmoid" else expected)


@torch.inference_mode()
def test_a_reranker_of_the_last_token_without_a_bias_predicts_its_number(corpus, save, tmp_path):
    theirs = save("Llama", "SequenceClassification", num_labels=1, num_key_value_heads=2)
    batch, target = batch_for(corpus, "single"), Numbers()
    found = loaded(tmp_path, "single", target, pooling="last")(batch) * target.sd + target.mean
    assert_equal(found, torch.stack(scores(theirs, batch)))


@torch.inference_mode()
def test_a_cross_encoder_of_one_output_decides_between_the_labels_0_and_1(corpus, save, tmp_path):
    theirs = save("Roberta", "SequenceClassification", num_labels=1)
    batch = batch_for(corpus, "single")
    found = loaded(tmp_path, "single", Target(["1", "0"]))(batch).softmax(1)
    assert_equal(found[:, :1], torch.stack(scores(theirs, batch)).sigmoid())


@torch.inference_mode()
def test_a_classifier_over_the_mean_is_loaded_with_that_pooling(corpus, save, tmp_path, messages):
    names = {"id2label": dict(enumerate("abc"))}
    theirs = save("ModernBert", "SequenceClassification", classifier_pooling="mean", **names)
    loaded(tmp_path, "single", Target(["a", "b", "c"]), pooling="first")
    assert "set model.pooling=mean to use it" in messages()[0]
    batch = batch_for(corpus, "single")
    # What the weights say.
    model = loaded(tmp_path, "single", Target(["a", "b", "c"]))
    assert_equal(model(batch), torch.stack(scores(theirs, batch)))


def test_the_pooler_is_loaded_although_the_classes_are_others(save, tmp_path, messages):
    theirs = save("Bert", "SequenceClassification", id2label=dict(enumerate("xyz")))
    model = loaded(tmp_path, "single", Target(["a", "b"]))
    assert torch.equal(model.head.theirs.bert.pooler.dense.weight, theirs.bert.pooler.dense.weight)
    assert model.head.theirs.classifier.weight.abs().max() < 0.12, "it has its small random weights"
    assert "its head is not loaded: it has 3 classes, but the data has 2" in messages()[0]


@torch.inference_mode()
def test_a_decoder_of_its_own_is_not_dropped_silently_by_the_native_bert(save, tmp_path, caplog):
    theirs = save("Bert", "MaskedLM", tie_word_embeddings=False)
    source = open_pretrained(str(tmp_path))
    backbone = Bert(VOCAB_SIZE, source, pretrained=str(tmp_path))
    head = WordsHead(24, Target([], "tags"), backbone)
    load_into(TaskModel(backbone, head, "units"), source, [])
    assert "a decoder of its own, which this head lacks; set model=hf to use it" in caplog.text
    assert not torch.equal(head.predictions["transform"].dense.weight, theirs.cls.predictions.transform.dense.weight)


@torch.inference_mode()
def test_the_native_bert_predicts_the_number_of_a_cross_encoder(corpus, save, tmp_path):
    theirs = save("Bert", "SequenceClassification", num_labels=1)
    source, target = open_pretrained(str(tmp_path)), Numbers()
    backbone = Bert(VOCAB_SIZE, source, pretrained=str(tmp_path), pooling="first")
    model = TaskModel(backbone, MlpHead(24, target, backbone, activation="tanh"), "single").eval()
    load_into(model, source, [], scale=(target.mean, target.sd))
    batch = batch_for(corpus, "single")
    assert_equal(model(batch) * target.sd + target.mean, torch.stack(scores(theirs, batch)))
