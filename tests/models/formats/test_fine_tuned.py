"""A head that transformers fine-tuned gives its logits; if it does not fit, a warning says what to set."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from nlu.models.encoders.bert import Bert
from nlu.models.encoders.huggingface import HuggingFace
from nlu.models.formats.pretrained import load_into, open_pretrained
from nlu.models.heads.crf import CrfHead
from nlu.models.heads.linear import LinearHead
from nlu.models.heads.mlp import MlpHead
from nlu.models.task_model import TaskModel
from tests.models.parts import Target

transformers = pytest.importorskip("transformers")

VOCAB_SIZE = 50
SIZES = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
CLASSES = ["a", "b", "c"]
TAGS = ["O", "B-A", "I-A"]
MOVED = [2, 0, 1]
"""the rows of the foreign head in the order of our classes"""
Save = Callable[..., nn.Module]


def moved(names: list[str]) -> list[str]:
    """The names of a head whose rows are in another order than ours."""
    return [names[MOVED.index(row)] for row in range(len(names))]


@pytest.fixture
def save(tmp_path: Path, spread: Any) -> Save:
    """Return a function that saves a model of transformers with a random head and names of its classes."""

    def save(kind: str, task: str, names: list[str] | None) -> nn.Module:
        labels = {"num_labels": 3} if names is None else {"id2label": dict(enumerate(names))}
        sizes = {"vocab_size": VOCAB_SIZE, "max_position_embeddings": 64, **SIZES, **labels}
        model = spread(getattr(transformers, f"{kind}For{task}")(getattr(transformers, f"{kind}Config")(**sizes)))
        model.save_pretrained(tmp_path)
        return model

    return save


def loaded(
    folder: Path, encoder: str, head: str, names: list[str], layout: str = "single", **options: Any
) -> TaskModel:
    source = open_pretrained(str(folder))
    pooling = {"pooling": options.pop("pooling")} if "pooling" in options else {}
    constructor: Any = {"bert": Bert, "hf": HuggingFace}[encoder]
    backbone = constructor(VOCAB_SIZE, source, pretrained=str(folder), **pooling)
    heads: dict[str, Any] = {"linear": LinearHead, "mlp": MlpHead, "crf": CrfHead}
    target = Target(names, "tags" if layout == "units" else "classes")
    model = TaskModel(backbone, heads[head](24, target, backbone, **options), layout)
    load_into(model, source, names)
    return model.eval()


@pytest.mark.parametrize(
    ("kind", "encoder", "head", "options"),
    [
        ("Bert", "bert", "linear", {"pooling": "pooler"}),
        ("Bert", "bert", "mlp", {"activation": "tanh"}),
        ("Bert", "hf", "mlp", {"activation": "tanh"}),
        ("Electra", "bert", "mlp", {"activation": "gelu"}),
        ("Roberta", "bert", "mlp", {"activation": "tanh"}),
        ("DistilBert", "bert", "mlp", {"activation": "relu"}),
    ],
)
def test_the_logits_of_a_classifier_are_those_of_transformers(
    corpus, save, tmp_path, messages, kind, encoder, head, options
):
    theirs = save(kind, "SequenceClassification", moved(CLASSES))
    batch = corpus("single", [2, 7, 30]).batch()
    batch.tokens_T[batch.tokens_T == (theirs.config.pad_token_id or 0)] = 2
    model = loaded(tmp_path, encoder, head, CLASSES, **options)
    with torch.inference_mode():
        found_NC = model(batch)
        for row, tokens in enumerate(batch.tokens_T.split(batch.lengths)):
            expected_C = theirs(input_ids=tokens[None]).logits[0, MOVED]
            assert (found_NC[row] - expected_C).abs().max() < 1e-4 * max(1.0, float(expected_C.abs().max()))
    assert not any("not used" in message or "WARNING" in message for message in messages())


@pytest.mark.parametrize("kind", ["Bert", "Electra", "Roberta", "DistilBert"])
def test_the_logits_of_a_tagger_are_those_of_transformers(corpus, save, tmp_path, kind):
    theirs = save(kind, "TokenClassification", moved(TAGS))
    batch = corpus("units", [2, 7, 30]).batch()
    batch.tokens_T[batch.tokens_T == (theirs.config.pad_token_id or 0)] = 2
    model = loaded(tmp_path, "bert" if kind in ("Bert", "Electra") else "hf", "linear", TAGS, "units")
    with torch.inference_mode():
        rows = [theirs(input_ids=tokens[None]).logits[0] for tokens in batch.tokens_T.split(batch.lengths)]
        expected_UC = torch.cat(rows)[batch.units_U][:, MOVED]
        assert (model(batch) - expected_UC).abs().max() < 1e-4 * float(expected_UC.abs().max())


@pytest.mark.parametrize("names", [None, ["NEGATIVE", "NEUTRAL", "POSITIVE"]])
def test_classes_that_the_data_numbers_are_the_numbers_of_the_weights(save, tmp_path, names):
    theirs = save("Bert", "SequenceClassification", names)
    model = loaded(tmp_path, "bert", "linear", ["2", "0", "1"], pooling="pooler")
    assert torch.equal(model.head.linear.weight, theirs.classifier.weight[MOVED])


def test_classes_without_names_fit_only_numbers(save, tmp_path, messages):
    save("Bert", "SequenceClassification", None)
    loaded(tmp_path, "bert", "linear", CLASSES, pooling="pooler")
    said = "its classes are 0, 1, 2, but those of the data are a, b, c; write the data's names"
    assert sum(said in message for message in messages()) == 1


@pytest.mark.parametrize(
    ("kind", "task", "how", "said"),
    [
        (
            "Bert",
            "SequenceClassification",
            ("bert", "linear", CLASSES),
            "set head=mlp head.activation=tanh model.pooling=f",
        ),
        ("Electra", "SequenceClassification", ("bert", "mlp", CLASSES), "set head=mlp head.activation=gelu"),
        ("Bert", "SequenceClassification", ("bert", "mlp", ["a", "b"]), "it has 3 classes, but the data has 2"),
        ("Bert", "SequenceClassification", ("bert", "mlp", []), "the task predicts a number"),
        ("Bert", "TokenClassification", ("bert", "crf", TAGS, "units"), "set head=linear to use it"),
    ],
)
def test_a_head_that_does_not_fit_is_left_out_with_a_warning(save, tmp_path, messages, kind, task, how, said):
    save(kind, task, TAGS if task == "TokenClassification" else CLASSES)
    torch.manual_seed(3)
    model = loaded(tmp_path, *how)
    assert model.head.linear.weight.abs().max() < 0.12, "it has its small random weights"
    warned = [
        message for message in messages() if message.startswith("WARNING") and "its head is not loaded" in message
    ]
    assert len(warned) == 1 and said in warned[0]


@pytest.mark.parametrize("wrapper", [None, "state_dict", "model"])
def test_a_pt_file_of_the_predecessor_is_read_without_unpickling_objects(save, tmp_path, wrapper):
    theirs = save("Bert", "SequenceClassification", CLASSES)
    (tmp_path / "model.safetensors").unlink()
    tensors: Any = dict(theirs.state_dict())
    torch.save(tensors if wrapper is None else {wrapper: tensors, "epoch": 3}, tmp_path / "checkpoint-500.pt")
    source = open_pretrained(str(tmp_path / "checkpoint-500.pt"))
    backbone = Bert(VOCAB_SIZE, source, pretrained="x", pooling="pooler")
    model = TaskModel(backbone, LinearHead(24, Target(CLASSES)), "single")
    load_into(model, source, CLASSES)
    assert torch.equal(model.head.linear.weight, theirs.classifier.weight)
    assert torch.equal(backbone.pooler["dense"].weight, theirs.bert.pooler.dense.weight)
