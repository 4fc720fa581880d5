"""Outputs and gradients of our layers are those of plain torch and of transformers, in float64, to 1e-6 of their size.

The references are written elsewhere, so a mistake of ours cannot be in both. Dropout is off.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlu.models.encoders.bert import Bert
from nlu.models.formats.pretrained import load_into, open_pretrained
from nlu.models.layers.exact_linear import Linear, product
from tests.models.parts import task_model

LENGTHS = [1, 2, 5, 5, 9, 16, 17, 17, 30]
TOLERANCE = 1e-6


def require_equal(found: Tensor, exact: Tensor, what: object = "") -> None:
    assert found.shape == exact.shape, what
    distance = (found.detach().double() - exact.detach()).norm() / exact.detach().norm()
    assert distance <= TOLERANCE, f"{what}: {distance:.1e}"


@pytest.mark.parametrize("outputs", [1, 10, 17])
@pytest.mark.parametrize("inputs", [7, 48])
@pytest.mark.parametrize("rows", [1, 15, 16, 100])
def test_a_linear_layer_is_torchs(rows: int, inputs: int, outputs: int) -> None:
    torch.manual_seed(rows * inputs + outputs)
    ours = Linear(inputs, outputs)
    exact = nn.Linear(inputs, outputs).double()
    exact.load_state_dict(ours.state_dict())
    x, towards = torch.randn(rows, inputs, requires_grad=True), torch.randn(rows, outputs)
    x_exact = x.detach().double().requires_grad_()
    ours(x).backward(towards)
    exact(x_exact).backward(towards.double())
    require_equal(ours(x), exact(x_exact))
    for found, wanted in ((x, x_exact), (ours.weight, exact.weight), (ours.bias, exact.bias)):
        assert found.grad is not None and wanted.grad is not None
        require_equal(found.grad, wanted.grad)


@pytest.mark.parametrize("layout", ["single", "units"])
@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu"])
def test_a_whole_encoder_has_the_vectors_and_gradients_of_transformers(
    corpus: Any, tmp_path: Path, layout: str, activation: str
) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=100,
        max_position_embeddings=64, hidden_act=activation, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        initializer_range=0.1, attn_implementation="eager",
    )  # fmt: skip
    theirs = transformers.BertModel(config, add_pooling_layer=False)
    theirs.save_pretrained(tmp_path)
    theirs = theirs.double().train()
    source = open_pretrained(str(tmp_path))
    model = task_model(Bert(50, source, pretrained=str(tmp_path), head_dropout=0.0), layout, 3)
    load_into(model, source)
    model.train()
    batch = corpus(layout, LENGTHS).batch()
    logits = model(batch)
    towards = torch.randn(logits.shape)
    logits.backward(towards)
    # Padded by hand, and in the place of each text.
    tokens = nn.utils.rnn.pad_sequence(batch.tokens_T.split(batch.lengths), batch_first=True)
    mask = torch.arange(tokens.shape[1]) < torch.tensor(batch.lengths)[:, None]
    hidden = theirs(input_ids=tokens, attention_mask=mask.long()).last_hidden_state
    vectors = hidden[:, 0] if layout == "single" else hidden[mask][batch.units_U]
    head = {name: each.detach().double() for name, each in model.head.named_parameters()}
    exact = F.linear(vectors, head["linear.weight"], head["linear.bias"])
    exact.backward(towards.double())
    require_equal(logits, exact)
    gradients = {name: each.grad for name, each in theirs.named_parameters() if each.grad is not None}
    for name, parameter in model.backbone.named_parameters():
        assert parameter.grad is not None, name
        if "self.qkv" in name:
            wanted = torch.cat([gradients[name.replace("qkv", each)] for each in ("query", "key", "value")])
        else:
            wanted = gradients[name]
        require_equal(parameter.grad, wanted, name)


def test_a_product_of_no_rows_has_none() -> None:
    assert product(torch.zeros(0, 7), torch.ones(5, 7), torch.ones(5)).shape == (0, 5)
