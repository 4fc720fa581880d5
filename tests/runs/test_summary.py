"""Numbers that a model records: how calls become a mean."""

import math
import random
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from nlu.config.errors import UserError
from nlu.runs import summary
from nlu.runs.state import Window
from nlu.runs.summary import Mean


def test_a_mean_is_exact_for_every_order_of_its_numbers() -> None:
    rng = random.Random(0)
    values = [rng.choice((-1, 1)) * 10 ** rng.uniform(-30, 12) for _ in range(200)]
    exact = float(sum(map(Fraction, values))) / len(values)
    for _ in range(5):
        rng.shuffle(values)
        parts = [Mean(), Mean(), Mean()]
        for number, value in enumerate(values):
            parts[number % 3].merge(Mean([value], 1))
        parts[0].merge(parts[1])
        parts[0].merge(Mean(**vars(parts[2])))
        assert (parts[0].value, parts[0].calls) == (exact, 200)


def test_records_without_a_listener_are_dropped() -> None:
    collector = summary.Collector()
    summary.scalar("before", 1.0)
    with summary.listening(collector):
        summary.scalar("within", torch.tensor([2.0], requires_grad=True))
        summary.scalar("within", np.float32(4))
    summary.scalar("after", 1.0)
    means = collector.take()
    assert {name: (mean.value, mean.calls) for name, mean in means.items()} == {"within": (3.0, 2)}
    assert collector.take() == {}


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: summary.scalar("gate", torch.zeros(2, 3)),
            r"a tensor of shape \(2, 3\), not one number; give its mean",
        ),
        (lambda: summary.scalar("gate", "high"), "was given a str, not one number"),
        (lambda: summary.scalar("a\tb", 1.0), "without tab or line break"),
    ],
)
def test_values_that_a_table_cannot_hold_are_refused(call, said: str) -> None:
    with summary.listening(summary.Collector()), pytest.raises(UserError, match=said):
        call()


@pytest.mark.thorough
def test_a_compiled_model_records_each_call_and_is_compiled_once() -> None:
    compiled = []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward

    @torch.compile(backend=backend)
    def forward(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        summary.scalar("y", y.mean())
        return y + 1

    forward(torch.ones(3))
    collector = summary.Collector()
    with summary.listening(collector):
        forward(torch.ones(3))
        graphs = len(compiled)
        for factor in (2.0, 3.0, 4.0):
            assert forward(factor * torch.ones(3)).tolist() == [2 * factor + 1] * 3
        assert len(compiled) == graphs
    means = collector.take()
    assert (means["y"].value, means["y"].calls) == (5.0, 4)


@pytest.mark.parametrize(
    ("values", "mean"),
    [
        ([math.inf, -math.inf], math.nan), ([math.inf, math.nan], math.nan), ([-math.inf, 1.0], -math.inf),
        ([1.0, 1.0], 1.0), ([1.0, -1.0], 0.0), ([math.nan, 1.0], math.nan), ([1e308, 1e308], math.inf),
    ],
)  # fmt: skip
def test_means_of_parts_that_are_not_finite_are_that_of_the_whole(values: list[float], mean: float) -> None:
    parts = [Mean(), Mean(), Mean()]
    for number, value in enumerate(values):
        parts[1].merge(Mean([value], 1))
        parts[number % 2 * 2].merge(Mean([value], 1))
    parts[0].merge(parts[2])
    for tally in parts[:2]:
        np.testing.assert_equal(tally.value, mean)
        assert tally.calls == len(values)


class OnDevice:
    """A number on an accelerator, which the host does not read one by one."""

    device = SimpleNamespace(type="cuda")

    def __init__(self, value: float):
        self.value = torch.tensor([value])

    def numel(self) -> int:
        return 1

    def detach(self) -> torch.Tensor:
        return self.value


def test_numbers_of_a_device_wait_there_as_they_were_and_each_goes_to_its_own_mean() -> None:
    collector = summary.Collector()
    for number in range(5):
        source = OnDevice(float(number))
        collector.scalar("even" if number % 2 == 0 else "odd", source)
        source.value += 100
    means = collector.take()
    assert {name: (mean.value, mean.calls) for name, mean in means.items()} == {"even": (2.0, 3), "odd": (2.0, 2)}
    assert collector.take() == {}


def test_a_window_adds_up_what_steps_and_ranks_give_it() -> None:
    sums, counts = {"loss": 18.0, "none": 0.0}, {"loss": 3, "none": 0}
    window = Window(sums, counts, examples=30, real_tokens=90, steps_s=1.5)
    for count in (1, 2):
        window.add_recorded({"gate": Mean([float(count)], 1)})
    assert (window.recorded["gate"].value, window.recorded["gate"].calls) == (1.5, 2)
    saved = {
        "gate": {"partials": [1.0], "calls": 3, "not_finite": None},
        "bad": {"partials": [], "calls": 1, "not_finite": math.inf},
    }
    before = Window.from_json({"recorded": saved})
    assert (before.recorded["gate"].value, before.recorded["bad"].value) == (1 / 3, math.inf)
    assert window.means() == {"loss": 6.0, "none": 0.0}
    assert (window.examples_per_s, window.real_tokens_per_s) == (20.0, 60.0)
