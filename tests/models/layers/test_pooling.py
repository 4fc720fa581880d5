"""The vectors of texts that a pooling computes, compared with NumPy over each text by itself."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nlu.config.errors import UserError
from nlu.models.adapters.lora import Lora
from nlu.models.encoder import Inside
from nlu.models.encoders.bert import Bert
from nlu.models.encoders.huggingface import HuggingFace
from nlu.models.formats.pretrained import open_pretrained
from nlu.models.model_rules import encoder_problems
from nlu.optim.adamw import AdamW
from tests.models.parts import task_model

VOCAB_SIZE, LAYERS = 50, 3
LENGTHS = [2, 3, 7, 7, 30]


def native(folder: Path, **options: Any) -> Bert:
    sizes: dict[str, Any] = {"hidden_size": 24, "heads": 4, "intermediate_size": 40, "max_positions": 64}
    return Bert(VOCAB_SIZE, None, pretrained=None, layers=LAYERS, **sizes, **options)


def of_transformers(folder: Path, kind: str = "Electra", **options: Any) -> HuggingFace:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 24, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "intermediate_size": 40}
    config = getattr(transformers, f"{kind}Config")(vocab_size=VOCAB_SIZE, max_position_embeddings=64, **sizes)
    getattr(transformers, f"{kind}Model")(config).save_pretrained(folder)
    return HuggingFace(VOCAB_SIZE, open_pretrained(str(folder)), pretrained=str(folder), **options)


ENCODERS = {"bert": native, "hf": of_transformers}


@pytest.fixture(params=ENCODERS)
def make(request, tmp_path) -> Any:
    return lambda **options: ENCODERS[request.param](tmp_path / "weights", **options)


def of_texts(encoder: Any, corpus: Any) -> tuple[np.ndarray, list[list[np.ndarray]]]:
    """The vectors of texts, and of the tokens of each text after each layer."""
    batch = corpus("single", LENGTHS).batch()
    with torch.inference_mode():
        found = encoder.encode(encoder.embed(batch), batch, pooled=True, inside=Inside(hidden=True))
    hidden = [[part.double().numpy() for part in layer_TD.split(LENGTHS)] for layer_TD in found.hidden[1:]]
    return found.pooled_SD.numpy(), hidden


def weights_of(encoder: Any) -> dict[str, np.ndarray]:
    return {name: value.double().numpy() for name, value in encoder.pooling_module.state_dict().items()}


def test_max_takes_the_largest_value_of_each_feature_over_a_texts_tokens(corpus, spread, make):
    pooled_SD, hidden = of_texts(spread(make(pooling="max")), corpus)
    assert pooled_SD == pytest.approx(np.stack([text_LD.max(0) for text_LD in hidden[-1]]), abs=1e-6)
    assert (pooled_SD < 0).any(), "or padding with zeros would not be noticed"


def test_attention_weighs_tokens_by_a_softmax_within_their_text(corpus, spread, make):
    encoder = spread(make(pooling="attention"))
    pooled_SD, hidden = of_texts(encoder, corpus)
    own = weights_of(encoder)
    expected, shares = [], []
    for text_LD in hidden[-1]:
        score_L = np.tanh(text_LD @ own["dense.weight"].T + own["dense.bias"]) @ own["query"]
        share_L = np.exp(score_L) / np.exp(score_L).sum()
        expected.append(share_L @ text_LD)
        shares.append(share_L)
    assert pooled_SD == pytest.approx(np.stack(expected), abs=1e-5)
    assert max(share_L.max() - share_L.min() for share_L in shares) > 0.01, "or a mean would do"


@pytest.mark.parametrize(("asked", "indices"), [([-1, -3], [2, 0]), ([1], [1])])
def test_layers_are_joined_in_the_order_they_are_named(corpus, spread, make, asked, indices):
    encoder = spread(make(pooling="layers", pooled_layers=asked))
    pooled_SD, hidden = of_texts(encoder, corpus)
    own = weights_of(encoder)
    joined = np.concatenate([np.stack([text_LD[0] for text_LD in hidden[number]]) for number in indices], 1)
    assert pooled_SD == pytest.approx(np.tanh(joined @ own["dense.weight"].T + own["dense.bias"]), abs=1e-5)
    batch = corpus("single", LENGTHS).batch()
    with torch.inference_mode():
        without_inside = encoder.encode(encoder.embed(batch), batch, pooled=True)
    assert without_inside.pooled_SD.numpy() == pytest.approx(pooled_SD, abs=1e-6)
    assert not without_inside.hidden and encoder.width_of("single") == pooled_SD.shape[1]


@pytest.mark.parametrize("options", [{"pooling": "attention"}, {"pooling": "layers", "pooled_layers": [-1, 0]}])
def test_weights_of_a_pooling_have_the_rate_of_the_top_also_beside_adapters(make, options):
    model = task_model(make(**options), "single", 3)
    optimizer = AdamW(lr=1e-3, layer_lr_decay=0.5, top_lr_ratio=10.0).build(model)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    own = {name: p for name, p in model.named_parameters() if ".pooling_module." in name}
    assert own and {rates[id(p)] for p in own.values()} == {1e-2}
    # The rates of layers are those without a pooling: the top one has the whole rate.
    layers = {name: rates[id(p)] for name, p in model.named_parameters() if ".layer." in name and "dense.bias" in name}
    assert sorted(set(layers.values())) == pytest.approx([2.5e-4, 5e-4, 1e-3])
    Lora(rank=2).apply(model)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert set(own) < trained and not any("LayerNorm" in name for name in trained)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({"pooling": "layers"}, "model.pooled_layers is null; name layers from the last one, -1"),
        ({"pooling": "layers", "pooled_layers": []}, "model.pooled_layers is []; name layers"),
        ({"pooling": "mean", "pooled_layers": [-1]}, "model.pooling is mean; set model.pooling=layers"),
        ({"pooling": "layers", "pooled_layers": [-1, -4]}, "has -4, but the encoder has 3 layers; name layers from -3"),
        ({"pooling": "layers", "pooled_layers": [0, -3]}, "names one of the 3 layers twice"),
    ],
)
def test_layers_that_do_not_fit_are_found_in_the_configuration_and_by_the_encoder(model, words, make):
    config = {"model": {"layers": LAYERS, "pooled_layers": None, **model}}
    (problem,) = encoder_problems(config, {})
    assert words in problem
    with pytest.raises(UserError) as refused:
        make(**model)
    assert str(refused.value) == problem
