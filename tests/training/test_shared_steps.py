"""Steps of two ranks that share weights, as threads of this process: how often they meet, and what saves time."""

import threading
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from nlu.data.examples import Examples
from nlu.losses.cross_entropy import CrossEntropy
from nlu.methods.plain import Plain
from nlu.models.encoders.bert import Bert
from nlu.models.layers.linear import Linear
from nlu.models.layers.noise import drawing_from
from nlu.optim.compiled import update_in_one_pass
from nlu.optim.fused import FusedAdamW, decay_in_place
from nlu.tasks.classify import Classify
from nlu.training import shared, shared_compiled, shared_rest, shared_rows
from nlu.training.precision import Precision
from nlu.training.ranks import Ranks
from nlu.training.shared import Shared
from nlu.training.shared_memory import Room
from nlu.training.step import Stepper
from tests.models.layers.compiled.machine import compiles_training
from tests.models.parts import labels, task_model
from tests.training.test_shared_memory import in_rooms
from tests.training.test_step import CPU, ROWS, examples_in

WORDS = 4000
"""entries of the table, of which the texts use 30"""
STEPS = 4
SEEDED = threading.Lock()


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Examples:
    return examples_in(tmp_path_factory.mktemp("set") / "train")


@pytest.fixture(autouse=True)
def drawing() -> Iterator[None]:
    """Ranks are threads here, and could leave the streams of one of them to the tests that follow."""
    with drawing_from(None):
        yield


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_rows, "LEAST_NUMBERS", WORDS)


def stepper(
    room: Room, dtype: Literal["float32", "bfloat16"], is_compiled: bool = False, ema_decay: float = 0.9,
    sizes: tuple[int, int] = (WORDS, 8),
) -> Stepper:  # fmt: skip
    # Threads share the random generator.
    with SEEDED:
        torch.manual_seed(0)
        encoder = Bert(
            sizes[0], None, pretrained=None, hidden_size=sizes[1], layers=2, heads=2, intermediate_size=16, dropout=0.0,
            attention_dropout=0.0, head_dropout=0.0,
        )  # fmt: skip
        model = task_model(encoder, "single", 2).train()
    average = {name: value.detach().clone() for name, value in model.named_parameters()} if ema_decay else None
    parallel = Shared(Ranks(room.rank, 2, CPU, room=room))
    if is_compiled:
        parallel.compile_update()
    optimizer = FusedAdamW(model.parameters(), lr=0.01, weight_decay=0.1, eps=1e-3, fused=True)
    return Stepper(
        model, optimizer, Classify(CrossEntropy(), labels(2)), Plain(), Precision(dtype=dtype),
        parallel, 1, 0.1, average, ema_decay,
    )  # fmt: skip


def rows_of(rank: int) -> list[np.ndarray]:
    return [np.arange(rank, ROWS, 2)]


def trained(
    examples: Examples, room: Room, dtype: Literal["float32", "bfloat16"] = "float32", is_compiled: bool = False,
    ema_decay: float = 0.9, sizes: tuple[int, int] = (WORDS, 8),
) -> list[Tensor]:  # fmt: skip
    """Return weights, averages and moments after a few steps; `sizes`: words and width of the table."""
    parts = stepper(room, dtype, is_compiled, ema_decay, sizes)
    for step in range(1, STEPS + 1):
        parts.step(examples, rows_of(room.rank), step, False, settles=False)
    parts.parallel.settle()
    names = ("exp_avg", "exp_avg_sq", "step")
    state = [values[name] for name in names for values in parts.optimizer.state.values()]
    tensors: Sequence[Tensor] = [*parts.model.parameters(), *(parts.average or {}).values(), *state]
    return [tensor.detach().clone() for tensor in tensors]


def assert_same_bits(one: list[Tensor], other: list[Tensor]) -> None:
    assert len(one) == len(other)
    for expected, found in zip(one, other, strict=True):
        assert torch.equal(found.view(torch.int32), expected.view(torch.int32))


def test_ranks_meet_three_times_in_a_step_and_once_more_before_weights_are_read(examples: Examples) -> None:
    def work(room: Room) -> list[int]:
        parts, counts = stepper(room, "float32"), []
        for step, settles in enumerate((False, False, True), start=1):
            before = room._meetings
            parts.step(examples, rows_of(room.rank), step, False, settles=settles)
            counts.append(room._meetings - before)
        return counts

    assert in_rooms(2, work) == [[3, 3, 4]] * 2


def test_rows_without_gradient_are_only_decayed_which_gives_the_same_bits(
    examples: Examples, monkeypatch: pytest.MonkeyPatch
) -> None:
    decayed: list[int] = []

    def noted(group: Any, weights: Tensor) -> None:
        decayed.append(len(weights))
        decay_in_place(group, weights)

    monkeypatch.setattr(shared, "decay_in_place", noted)
    one, other = in_rooms(2, partial(trained, examples))
    assert_same_bits(one, other)
    # All blocks but the first one, in which all words are.
    assert sum(decayed) == STEPS * 8 * (WORDS - shared_rest.BLOCK_ROWS)
    monkeypatch.setattr(shared_rest, "LEAST_BLOCKS", WORDS)
    assert_same_bits(in_rooms(2, partial(trained, examples))[0], one)
    assert sum(decayed) == STEPS * 8 * (WORDS - shared_rest.BLOCK_ROWS)


@pytest.mark.parametrize(("words", "width"), [(4001, 10), (4003, 6), (4001, 12)])
def test_rows_that_are_only_decayed_leave_the_bits_of_what_follows_any_table(
    examples: Examples, monkeypatch: pytest.MonkeyPatch, words: int, width: int
) -> None:
    work = partial(trained, examples, sizes=(words, width))
    found = in_rooms(2, work)[0]
    monkeypatch.setattr(shared_rest, "LEAST_BLOCKS", words)
    assert_same_bits(in_rooms(2, work)[0], found)


def test_layers_use_shared_bf16_copies_with_the_bits_of_their_own(
    examples: Examples, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(room: Room) -> tuple[list[Tensor], list[tuple[Tensor, ...]]]:
        parts = stepper(room, "bfloat16")
        for step in range(1, STEPS + 1):
            parts.step(examples, rows_of(room.rank), step, False, settles=False)
        parts.parallel.settle()
        linears = [each for each in parts.model.modules() if isinstance(each, Linear)]
        with torch.autocast("cpu", torch.bfloat16):
            used = [(each.weight, each.bias, *each.operands("cpu")) for each in linears]
        return [parameter.detach().clone() for parameter in parts.model.parameters()], used

    (weights, used), (_, used_by_other) = in_rooms(2, work)
    assert len(used) > 8
    for (weight, bias, weight_copy, bias_copy), (_, _, of_other, _) in zip(used, used_by_other, strict=True):
        assert torch.equal(weight_copy, weight.bfloat16()) and torch.equal(bias_copy, bias.bfloat16())
        assert weight_copy.data_ptr() % 64 == 0
        weight_copy.zero_()
        assert not of_other.any(), "both have the same memory"
    monkeypatch.setattr(Linear, "keep", lambda *of: None)
    assert_same_bits(in_rooms(2, work)[0][0], weights)


def test_the_copy_of_a_weight_that_has_changed_since_is_not_used(examples: Examples) -> None:
    def work(room: Room) -> bool:
        parts = stepper(room, "bfloat16")
        parts.step(examples, rows_of(room.rank), 1, False)
        linear = next(each for each in parts.model.modules() if isinstance(each, Linear))
        room.meet()
        if room.rank == 0:
            with torch.no_grad():
                linear.weight.fill_(3.0)
        room.meet()
        with torch.autocast("cpu", torch.bfloat16):
            return bool((linear.operands("cpu")[0] == 3.0).all())

    assert in_rooms(2, work)[0]


@pytest.mark.needs(compiles_training, "needs a C compiler, AVX-512 and its bf16")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("ema_decay", [0.9, 0.0])
def test_an_update_in_c_is_that_of_torch_and_has_the_same_bits_each_time(
    examples: Examples, dtype: Literal["float32", "bfloat16"], ema_decay: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def counted(*of: Any) -> None:
        calls.append(len(of[2]))
        update_in_one_pass(*of)

    monkeypatch.setattr(shared_compiled, "update_in_one_pass", counted)
    work = partial(trained, examples, dtype=dtype, is_compiled=True, ema_decay=ema_decay)
    one, other = in_rooms(2, work)
    assert len(calls) == 2 * STEPS, "one call of each rank in each step"
    assert_same_bits(one, other)
    assert_same_bits(in_rooms(2, work)[1], one)
    by_torch = in_rooms(2, partial(trained, examples, dtype=dtype, ema_decay=ema_decay))[0]
    for expected, found in zip(by_torch, one, strict=True):
        # A last bit can be one of bf16 in the next step.
        torch.testing.assert_close(found, expected, rtol=1e-5 if dtype == "float32" else 2e-2, atol=1e-5)


@pytest.mark.needs(compiles_training, "needs a C compiler, AVX-512 and its bf16")
def test_copies_of_an_update_in_c_are_those_of_the_weights(examples: Examples) -> None:
    def work(room: Room) -> list[bool]:
        parts = stepper(room, "bfloat16", is_compiled=True)
        for step in range(1, STEPS + 1):
            parts.step(examples, rows_of(room.rank), step, False, settles=False)
        parts.parallel.settle()
        linears = [each for each in parts.model.modules() if isinstance(each, Linear)]
        with torch.autocast("cpu", torch.bfloat16):
            return [torch.equal(each.operands("cpu")[0], each.weight.bfloat16()) for each in linears]

    assert all(map(all, in_rooms(2, work)))


def test_only_weights_with_a_gradient_are_updated_and_their_averages_follow(examples: Examples) -> None:
    def work(room: Room) -> bool:
        parts = stepper(room, "float32", is_compiled=compiles_training())
        assert parts.average is not None
        name, first = next(iter(parts.model.named_parameters()))
        before = first.detach().clone()
        parts.average[name].fill_(0.5)
        room.meet()
        # Without an update, the average of a parameter still moves towards it.
        parts.passes.run = without(first, parts.passes.run)  # type: ignore[method-assign]
        parts.step(examples, rows_of(room.rank), 1, False)
        amount = 1 - min(0.9, 2 / 11)
        moved = torch.lerp(torch.full_like(before, 0.5), before, amount)
        return torch.equal(first, before) and torch.allclose(parts.average[name], moved)

    assert in_rooms(2, work) == [True, True]


def without(parameter: Tensor, run: Any) -> Any:
    def changed(*of: Any) -> Tensor:
        totals: Tensor = run(*of)
        parameter.grad = None
        return totals

    return changed
