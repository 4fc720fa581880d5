"""The head on an encoder: a row of logits for each example, or for each unit of a tagging batch."""

from typing import Any

import numpy as np
import pytest
import torch

from nlu.config.errors import UserError
from nlu.models.encoder import Inside
from nlu.models.encoders.bert import Bert
from nlu.models.encoders.textcnn import TextCnn
from nlu.models.heads.crf import CrfHead
from nlu.models.heads.linear import LinearHead
from nlu.models.heads.pairs import SidesHead
from nlu.models.task_model import TaskModel
from tests.models.parts import labels, task_model

SIZES: dict[str, Any] = {"hidden_size": 24, "layers": 2, "heads": 4, "intermediate_size": 40, "max_positions": 64}


def model_of(layout: str, **changes: Any) -> TaskModel:
    return task_model(Bert(50, None, pretrained=None, **{**SIZES, **changes}), layout, 3)


class PlainHead(torch.nn.Linear):
    """A head of a user, of torch's own layers."""

    wants = "pooled"

    def __init__(self, width: int, target: Any, encoder: object):
        super().__init__(width, target.num_outputs)

    def forward(self, encoded, batch):
        return super().forward(encoded.pooled_SD[batch.sequences_KB[0]])


@pytest.mark.parametrize("encoder", ["bert", "textcnn"])
@pytest.mark.parametrize(
    ("layout", "head_class"),
    [("single", LinearHead), ("single", PlainHead), ("sides", SidesHead), ("units", LinearHead), ("units", CrfHead)],
)
def test_a_head_computes_in_fp32_under_autocast(corpus, spread, encoder, layout, head_class):
    backbone = Bert(50, None, pretrained=None, **SIZES) if encoder == "bert" else TextCnn(50, None, pretrained=None)
    head = head_class(backbone.width_of(layout), labels(3, layout), None)
    model, batch = spread(TaskModel(backbone, head, layout)), corpus(layout, [4, 9, 12]).batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits, encoded = model(batch), model.encode(batch)
    read = encoded.units_UD if layout == "units" else encoded.pooled_SD[batch.sequences_KB]
    assert logits.dtype == read.dtype == torch.float32
    vectors = read.detach().double().numpy()
    if layout == "sides":
        vectors = np.concatenate([*vectors, np.abs(vectors[0] - vectors[1])], axis=1)
    elif layout == "single":
        vectors = vectors[0]
    weight, bias = (parameter.detach().double().numpy() for parameter in getattr(head, "linear", head).parameters())
    np.testing.assert_allclose(logits.detach().numpy(), vectors @ weight.T + bias, rtol=1e-5, atol=1e-5)


def test_the_head_drops_out_in_training_only(corpus, spread):
    model = spread(model_of("single", dropout=0.0, attention_dropout=0.0, head_dropout=0.5))
    batch = corpus("single", [4, 5]).batch()
    assert torch.equal(model(batch), model(batch))
    model.train()
    assert not torch.equal(model(batch), model(batch))


def test_a_text_is_read_from_its_sequence_at_any_position(corpus, spread):
    model, batch = spread(model_of("single")), corpus("single", [4, 9, 12]).batch()
    logits = model(batch)
    batch.sequences_KB = torch.tensor([[2, 0, 1]])
    assert torch.equal(model(batch), logits[[2, 0, 1]])


def test_hidden_states_and_attention_are_recorded_for_each_pass_in_a_block(corpus, spread):
    model, batch = spread(model_of("single")), corpus("single", [4, 9]).batch()
    plain = model(batch)
    with model.watching(Inside(hidden=True, attention=(-1,))) as seen:
        logits = model(batch)
        model(batch, 2 * model.backbone.embed(batch))
    assert len(seen) == 2 and [len(one.hidden) for one in seen] == [3, 3]
    torch.testing.assert_close(logits, plain, atol=1e-6, rtol=1e-5)
    assert not torch.allclose(seen[0].hidden[1], seen[1].hidden[1])
    assert [weights.shape for weights in seen[0].attention[-1]] == [(4, 4, 4), (4, 9, 9)]
    model(batch)
    assert len(seen) == 2, "nothing is kept after the block"


def test_an_encoder_without_attention_is_refused_where_a_method_would_look_inside():
    model = task_model(TextCnn(50, None, pretrained=None), "single", 3)
    with pytest.raises(UserError, match="model is TextCnn, which has no attention layers"), model.watching(Inside()):
        pass


class BothHead(torch.nn.Module):
    """Reads sequences and units: a row for each unit, to which the vector of its sequence is added."""

    wants = ("pooled", "units")

    def forward(self, encoded, batch):
        sequence_U = torch.repeat_interleave(torch.arange(len(batch)), torch.from_numpy(batch.unit_counts_B))
        return encoded.units_UD + encoded.pooled_SD[batch.sequences_KB[0]][sequence_U]


def test_a_head_may_read_sequences_and_units(corpus, spread):
    model = spread(TaskModel(Bert(50, None, pretrained=None, **SIZES), BothHead(), "units"))
    batch = corpus("units", [4, 9]).batch()
    backbone = model.backbone
    found = backbone.encode(backbone.embed(batch), batch, tokens=True, pooled=True)
    firsts = found.pooled_SD.repeat_interleave(torch.tensor(batch.unit_counts_B), 0)
    torch.testing.assert_close(model(batch), found.tokens_TD[batch.units_U] + firsts)
