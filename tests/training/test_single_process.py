"""A single process on a CPU: its weights lie in one block of memory, and its updates are those of torch."""

from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nlu.config.choices import target_of
from nlu.config.targets import TARGET
from nlu.data.examples import Examples
from nlu.optim.compiled import STRETCH
from nlu.optim.fused import FusedAdamW
from nlu.training import shared_compiled
from nlu.training.parallel import SingleProcess, strategy
from nlu.training.ranks import Ranks
from nlu.training.shared import Shared
from nlu.training.shared_compiled import COST_OF_REST, GRAIN, shares
from nlu.training.shared_memory import OwnRoom
from nlu.training.step import Stepper
from tests.models.layers.compiled.machine import compiles_training
from tests.training.test_step import CPU, ROWS, examples_in, stepper

SINGLE = Ranks(0, 1, CPU)
REPLICATED = {TARGET: target_of("parallel", "replicated")}
STEPS = 4


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Examples:
    return examples_in(tmp_path_factory.mktemp("set") / "train")


def adamw(parameters: Any, lr: float) -> FusedAdamW:
    # Small gradients are not divided by themselves, so rounding does not decide.
    return FusedAdamW(parameters, lr=lr, weight_decay=0.1, eps=1e-3, fused=True)


def trained(
    examples: Examples, parallel: Any, dtype: Literal["float32", "bfloat16"] = "float32", ema_decay: float = 0.9,
    optimizer: Any = adamw,
) -> dict[str, Tensor]:  # fmt: skip
    """Return what a few steps of two micro-batches have changed."""
    parts = stepper(0.01, 0.2, 0.1, ema_decay, optimizer, dtype, parallel=parallel)
    # Some steps have no gradient for one of the parameters.
    resting = next(each for name, each in parts.model.named_parameters() if "position" in name)
    run = parts.passes.run
    for step in range(1, STEPS + 1):

        def without(*of: Any, is_last: bool = step == STEPS) -> Tensor:
            totals = run(*of)
            if is_last:
                resting.grad = None
            return totals

        parts.passes.run = without  # type: ignore[method-assign]
        parts.step(examples, [np.arange(5), np.arange(5, ROWS)], step, False)
    names = {id(parameter): name for name, parameter in parts.model.named_parameters()}
    found = {f"weight {names[id(each)]}": each for each in parts.model.parameters()}
    found |= {f"average {name}": each for name, each in (parts.average or {}).items()}
    for parameter, values in parts.optimizer.state.items():
        found |= {f"{key} {names[id(parameter)]}": value for key, value in values.items() if value is not None}
    return {name: each.detach().clone().float() for name, each in found.items()}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("ema_decay", [0.9, 0.0])
def test_updates_in_one_block_are_those_of_torch_on_single_tensors(
    examples: Examples, dtype: Literal["float32", "bfloat16"], ema_decay: float
) -> None:
    parallel = strategy(SINGLE, REPLICATED)
    assert isinstance(parallel, Shared)
    found = trained(examples, parallel, dtype, ema_decay)
    expected = trained(examples, SingleProcess(SINGLE), dtype, ema_decay)
    assert found.keys() == expected.keys()
    for name, each in expected.items():
        tolerance = {"rtol": 1e-5, "atol": 1e-7} if dtype == "float32" else {"rtol": 2e-2, "atol": 1e-5}
        torch.testing.assert_close(found[name], each, **tolerance, msg=lambda said, name=name: f"{name}: {said}")


def test_all_weights_lie_in_one_block_of_memory(examples: Examples) -> None:
    parts: Stepper = stepper(optimizer=adamw, ema_decay=0.9, parallel=strategy(SINGLE, REPLICATED))
    size = sum(each.numel() for each in parts.model.parameters())
    for tensors in (list(parts.model.parameters()), list((parts.average or {}).values())):
        first, *_, last = sorted(each.data_ptr() for each in tensors)
        # At most 15 unused numbers after each of them.
        assert last - first < 4 * (size + 16 * len(tensors))


@pytest.mark.parametrize("room", ["another optimizer", "no memory"])
def test_without_the_block_a_process_updates_as_before_to_the_same_bits(
    examples: Examples, room: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimizer: Any = torch.optim.SGD if room == "another optimizer" else adamw
    if room == "no memory":
        monkeypatch.setattr(OwnRoom, "share", lambda self, size: None)
    found = trained(examples, strategy(SINGLE, REPLICATED), optimizer=optimizer)
    expected = trained(examples, SingleProcess(SINGLE), optimizer=optimizer)
    assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)


def test_memory_that_cannot_be_had_is_none() -> None:
    assert OwnRoom().share(1 << 62) is None


def test_a_process_on_cuda_keeps_its_tensors_apart() -> None:
    assert type(strategy(Ranks(0, 1, torch.device("cuda")), REPLICATED)) is SingleProcess


@pytest.mark.needs(compiles_training, "needs a C compiler, AVX-512 and its bf16")
def test_an_update_in_c_has_the_same_bits_with_any_number_of_threads(
    examples: Examples, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for threads in (1, 3):
        monkeypatch.setattr(shared_compiled, "shares", lambda stretches, count, of=threads: shares(stretches, of))
        parallel = strategy(SINGLE, REPLICATED)
        parallel.compile_update()
        found.append(trained(examples, parallel, "bfloat16"))
    one, other = found
    by_torch = trained(examples, SingleProcess(SINGLE), "bfloat16")
    for name, each in by_torch.items():
        torch.testing.assert_close(one[name], each, rtol=2e-2, atol=1e-5)
        assert torch.equal(one[name], other[name]), name


@given(
    st.lists(st.tuples(st.integers(1, 5000), st.booleans(), st.booleans(), st.integers(0, 64)), max_size=12),
    st.integers(1, 7),
)
def test_each_number_is_updated_by_one_thread_and_threads_have_equal_shares(
    lengths: list[tuple[int, bool, bool, int]], count: int
) -> None:
    stretches, place = [], 0
    for number, (length, rests, has_copy, gap) in enumerate(lengths):
        start = place + 16 * gap
        place = start + length
        stretches.append((start, place, 1_000_000 + 2 * start if has_copy else 0, number, rests))
    parts = shares(stretches, count)
    assert len(parts) == count and all(part.dtype == STRETCH for part in parts)
    joined = [tuple(each) for part in parts for each in part.tolist()]
    at = {start: (end, copy, settings, rests) for start, end, copy, settings, rests in joined}
    for start, end, copy, settings, rests in stretches:
        while start < end:
            stop, own_copy, own_settings, own_rests = at.pop(start)
            assert start < stop <= end and (own_settings, own_rests) == (settings, rests)
            assert own_copy == (copy and 1_000_000 + 2 * start)
            start = stop
    assert not at
    costs = [sum((end - start) * (COST_OF_REST if rests else 1) for start, end, _, _, rests in part.tolist())
             for part in parts]  # fmt: skip
    assert max(costs) <= sum(costs) / count + count * GRAIN + 1
