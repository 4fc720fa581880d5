"""What every encoder promises: it looks words up, and computes from them what is asked for and nothing else."""

from pathlib import Path
from typing import Any

import pytest
import torch

from nlu.config.errors import UserError
from nlu.models.encoder import Encoded, Encoder
from nlu.models.formats.pretrained import Pretrained
from tests.models.parts import ENCODERS, VOCAB_SIZE

LENGTHS = [2, 3, 7, 7, 30]


@pytest.fixture(params=ENCODERS)
def encoder(request, spread, tmp_path) -> Any:
    return spread(ENCODERS[request.param](tmp_path / "weights"))


def encode(encoder: Any, batch: Any, **asked: bool) -> Encoded:
    return encoder.encode(encoder.embed(batch), batch, **asked)


def test_a_change_of_one_word_vector_reaches_only_its_sequence(encoder: Encoder, corpus):
    batch = corpus("single", LENGTHS).batch()
    x_TD = encoder.embed(batch).detach().requires_grad_()
    # The token in the second place of the third sequence.
    place = int(batch.starts_S[2]) + 1
    delta_TD = torch.zeros_like(x_TD)
    delta_TD[place] = torch.linspace(-1, 1, x_TD.shape[1])
    before = encoder.encode(x_TD, batch, pooled=True).pooled_SD
    after = encoder.encode(x_TD + delta_TD, batch, pooled=True).pooled_SD
    changed = (before - after).abs().amax(1) > 1e-4
    assert changed.tolist() == [False, False, True, False, False]
    gradient_TD = torch.autograd.grad(before[2].sum(), x_TD)[0]
    assert gradient_TD[place].any()
    assert not gradient_TD[: int(batch.starts_S[2])].any() and not gradient_TD[int(batch.starts_S[3]) :].any()


def test_the_texts_of_a_pair_apart_are_encoded_as_two_single_texts(encoder: Encoder, corpus):
    sides = corpus("sides", [4, 9, 9, 30])
    encoder.layout = "sides"
    batch = sides.batch()
    assert batch.num_sequences == 8 and batch.sequences_KB.shape == (2, 4)
    together = encode(encoder, batch, pooled=True).pooled_SD
    assert together.shape == (8, encoder.width_of("sides"))
    for example in range(4):
        one = sides.batch(batch.examples_B[example : example + 1])
        single = encode(encoder, one, pooled=True).pooled_SD
        torch.testing.assert_close(together[batch.sequences_KB[:, example]], single[one.sequences_KB[:, 0]])


def test_every_parameter_has_a_depth_from_the_word_vectors_upwards(encoder: Encoder):
    depths = {name: encoder.depth_of(name) for name, _ in encoder.named_parameters()}
    assert all(depth == 0 for name, depth in depths.items() if "word_embeddings" in name)
    assert all(0 <= depth <= encoder.depth for depth in depths.values())
    for name, depth in depths.items():
        numbers = [int(part) for part in name.split(".") if part.isdigit()]
        assert not numbers or depth == numbers[0] + 1, name


def test_a_pair_whose_second_text_is_empty_has_finite_vectors_and_gradients(encoder: Encoder, corpus):
    # The second text of a pair of length 1 is empty.
    encoder.layout = "pair"
    batch = corpus("pair", [1, 7]).batch()
    found = encode(encoder.train(), batch, pooled=True).pooled_SD
    assert found.shape == (2, encoder.width_of("pair")) and found.isfinite().all()
    found.sum().backward()
    assert all(value.grad is None or value.grad.isfinite().all() for value in encoder.parameters())


RUNS = [name for name in ENCODERS if not name.startswith("hf")]
"""Encoders of which a run writes the sizes; those of transformers have a configuration of their own."""
CHANGED = {"bert": {"layers": 3}, "lstm": {"layers": 1}, "static": {"embedding_size": 9}, "textcnn": {"layers": 1},
           "modernbert": {"layers": 2}}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_a_former_run_gives_the_sizes_and_others_are_refused(name: str, tmp_path: Path):
    former = ENCODERS[name](tmp_path)
    source = Pretrained("RUN", Path("RUN/model.safetensors"), former.settings())
    changed = CHANGED[name.partition(" ")[0]]
    (key, value) = next(iter(changed.items()))
    with pytest.raises(UserError, match=f"model.{key} is {value}, but the pretrained weights have"):
        type(former)(VOCAB_SIZE, source, pretrained="RUN", **changed)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["single", "pair"])
@pytest.mark.parametrize(
    "name", ["bert", "bert with narrow embeddings", "bert with a maximum", "bert with attention over tokens", "textcnn"]
)
def test_on_cuda_the_host_never_waits_for_the_device(corpus, tmp_path, name, layout):
    device = torch.device("cuda")
    encoder = ENCODERS[name](tmp_path / "weights").to(device)
    encoder.layout = layout
    batch = corpus(layout, LENGTHS).batch()
    encode(encoder, batch.to(device), tokens=True, pooled=True)
    # Every wait raises from here on, as the last line shows.
    torch.cuda.set_sync_debug_mode("error")
    try:
        encoded = encode(encoder, batch.to(device), tokens=True, pooled=True)
        with pytest.raises(RuntimeError, match="synchroniz"):
            encoded.pooled_SD.cpu()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert encoded.tokens_TD.isfinite().all() and encoded.pooled_SD.isfinite().all()
