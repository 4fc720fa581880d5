"""Numbers that a model records: how calls become a mean and a histogram."""

import math
import pickle
import random
import subprocess
import sys
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from nlu.config.errors import UserError
from nlu.runs import summary
from nlu.runs.over_evaluation import Recorder
from nlu.runs.state import Window
from nlu.runs.tallies import BOUNDS_B, EDGES_E, Histogram, Mean, drawn
from nlu.training.evaluation import scores_of_all


def test_a_mean_is_exact_for_every_order_of_its_numbers() -> None:
    rng = random.Random(0)
    values = [rng.choice((-1, 1)) * 10 ** rng.uniform(-30, 12) for _ in range(200)]
    exact = float(sum(map(Fraction, values))) / len(values)
    for _ in range(5):
        rng.shuffle(values)
        parts = [Mean(), Mean(), Mean()]
        for number, value in enumerate(values):
            parts[number % 3].add(value)
        parts[0].merge(parts[1])
        parts[0].merge(Mean(**vars(parts[2])))
        assert (parts[0].value, parts[0].calls) == (exact, 200)


@pytest.mark.parametrize(
    ("values", "mean"), [([math.inf, 1.0], math.inf), ([math.nan, 1.0], math.nan), ([1e308, 1e308], math.inf)]
)
def test_a_mean_of_numbers_that_are_not_finite_is_not_finite(values: list[float], mean: float) -> None:
    tally = Mean()
    for value in values:
        tally.add(value)
    np.testing.assert_equal(tally.value, mean)


def test_a_histogram_counts_as_numpy_does_and_each_nan_apart() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(400, generator=generator) * 10 ** torch.empty(400).uniform_(-9, 9, generator=generator)
    special = torch.tensor([0.0, math.inf, -math.inf, math.nan, math.nan, 1.0, -1.0])
    collector = summary.Collector()
    with summary.listening(collector):
        summary.histogram("all", values[:100].view(4, 25))
        summary.histogram("all", torch.cat([values[100:], special]))
    histogram = collector.take()[1]["all"]
    numbers = np.concatenate([values.double().numpy(), [0.0, math.inf, -math.inf, 1.0, -1.0]])
    expected = np.bincount(np.searchsorted(EDGES_E, numbers, side="right"), minlength=len(BOUNDS_B))
    assert histogram.counts_B == expected.tolist()
    assert histogram.nans == 2
    again = Histogram()
    for low, _, count in histogram.rows():
        again.put(low, count)
    assert again == histogram


def test_histograms_of_two_parts_together_are_that_of_the_whole_with_its_nans() -> None:
    parts = Histogram(), Histogram()
    for part, (low, count, nans) in zip(parts, ((BOUNDS_B[3][0], 5, 2), (BOUNDS_B[4][0], 7, 3)), strict=True):
        part.put(low, count)
        part.put(math.nan, nans)
    parts[0].merge(parts[1])
    assert parts[0].nans == 5
    assert [count for _, _, count in parts[0].rows()] == [5, 7, 5]
    assert parts[1].nans == 3, "the other one stays as it was"


def test_records_without_a_listener_are_dropped() -> None:
    collector = summary.Collector()
    summary.scalar("before", 1.0)
    with summary.listening(collector):
        summary.scalar("within", torch.tensor([2.0], requires_grad=True))
        summary.scalar("within", np.float32(4))
    summary.scalar("after", 1.0)
    means, _ = collector.take()
    assert {name: (mean.value, mean.calls) for name, mean in means.items()} == {"within": (3.0, 2)}
    assert collector.take() == ({}, {})


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: summary.scalar("gate", torch.zeros(2, 3)),
            r"a tensor of shape \(2, 3\), not one number; give its mean",
        ),
        (lambda: summary.scalar("gate", "high"), "was given a str, not one number"),
        (lambda: summary.scalar("a\tb", 1.0), "without tab or line break"),
        (lambda: summary.histogram("", torch.zeros(2)), "without tab or line break"),
        (lambda: summary.histogram("gate", [1.0]), "was given a list; give a tensor"),
    ],
)
def test_values_that_a_table_cannot_hold_are_refused(call, said: str) -> None:
    with summary.listening(summary.Collector()), pytest.raises(UserError, match=said):
        call()


def test_to_import_it_imports_no_torch() -> None:
    command = "import sys; from nlu.runs import summary; summary.scalar('a', 1.0); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", command], check=True, timeout=60)


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
        summary.histogram("y", y)
        return y + 1

    forward(torch.ones(3))
    collector = summary.Collector()
    with summary.listening(collector):
        forward(torch.ones(3))
        graphs = len(compiled)
        for factor in (2.0, 3.0, 4.0):
            assert forward(factor * torch.ones(3)).tolist() == [2 * factor + 1] * 3
        assert len(compiled) == graphs
    means, histograms = collector.take()
    assert (means["y"].value, means["y"].calls) == (5.0, 4)
    assert sum(histograms["y"].counts_B) == 12


@pytest.mark.parametrize(
    ("values", "mean"),
    [
        ([math.inf, -math.inf], math.nan), ([math.inf, math.nan], math.nan), ([-math.inf, 1.0], -math.inf),
        ([1.0, 1.0], 1.0), ([1.0, -1.0], 0.0),
    ],
)  # fmt: skip
def test_means_of_parts_that_are_not_finite_are_that_of_the_whole(values: list[float], mean: float) -> None:
    parts = [Mean(), Mean(), Mean()]
    for number, value in enumerate(values):
        parts[1].add(value)
        parts[number % 2 * 2].add(value)
    parts[0].merge(parts[2])
    for tally in parts[:2]:
        np.testing.assert_equal(tally.value, mean)
        assert tally.calls == len(values)


def test_the_open_ends_of_a_histogram_are_drawn_a_decade_beyond_its_edges() -> None:
    assert [drawn(edge) for edge in (-math.inf, -2.0, 0.0, 1e6, math.inf)] == [-1e7, -2.0, 0.0, 1e6, 1e7]
    assert (EDGES_E[0], EDGES_E[-1], len(EDGES_E)) == (-1e6, 1e6, 242)
    histogram = Histogram()
    histogram.put(BOUNDS_B[0][0], 2)
    histogram.put(math.nan, 3)
    histogram.put(math.nan, 1)
    assert histogram.nans == 4 and histogram.rows()[0] == (-math.inf, -1e6, 2)


class OnDevice:
    """A number on an accelerator, which the host does not read one by one."""

    device = SimpleNamespace(type="cuda")

    def __init__(self, value: float):
        self.value = torch.tensor([value])

    def numel(self) -> int:
        return 1

    def detach(self) -> torch.Tensor:
        return self.value


def test_numbers_of_a_device_wait_there_up_to_a_count_and_each_goes_to_its_own_mean(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(summary, "KEPT_ON_DEVICE_MAX", 3)
    collector = summary.Collector()
    waiting = []
    for number in range(5):
        source = OnDevice(float(number))
        collector.scalar("even" if number % 2 == 0 else "odd", source)
        source.value += 100
        waiting.append(len(collector._waiting))
    assert waiting == [1, 2, 0, 1, 2]
    means, _ = collector.take()
    assert {name: (mean.value, mean.calls) for name, mean in means.items()} == {"even": (2.0, 3), "odd": (2.0, 2)}
    assert collector._waiting == []


def test_a_window_adds_up_what_steps_and_ranks_give_it() -> None:
    window = Window(examples=30, real_tokens=90, steps_s=1.5)
    for count in (1, 2):
        mean, histogram = Mean(), Histogram()
        mean.add(float(count))
        histogram.put(BOUNDS_B[3][0], count)
        window.add_recorded({"gate": mean}, {"gate": histogram})
        window.add_terms({"loss": 6.0 * count, "none": 0.0}, {"loss": count, "none": 0})
    assert (window.recorded["gate"].value, window.recorded["gate"].calls) == (1.5, 2)
    assert window.histograms["gate"].rows() == [(*BOUNDS_B[3], 3)]
    assert (window.sums, window.counts) == ({"loss": 18.0, "none": 0.0}, {"loss": 3, "none": 0})
    assert window.means() == {"loss": 6.0, "none": 0.0}
    assert (window.examples_per_s, window.real_tokens_per_s) == (20.0, 60.0)


def test_statistics_of_two_processes_are_those_of_all_values_in_any_order() -> None:
    rng = np.random.default_rng(0)
    values = (10 ** rng.uniform(-12, 12, 500) * rng.choice([-1, 1], 500)).tolist()
    reductions = {"mean": np.mean, "sum": math.fsum, "min": min, "max": max}
    first, second = Recorder(), Recorder()
    for number, value in enumerate(values):
        for name in reductions:
            (first if number % 3 else second).add(name, value, name)
        (first if number % 3 else second).add("median", torch.tensor([[value]], dtype=torch.float64), median)
    first.merge(pickle.loads(pickle.dumps(second.sent())))
    expected = {f"summary/{name}": float(reduce(values)) for name, reduce in reductions.items()}
    assert first.results() == {**expected, "summary/mean": math.fsum(values) / 500, "summary/median": np.median(values)}
    with pytest.raises(UserError, match="called in one process, but not in the first one"):
        Recorder().merge(second.sent())
    with pytest.raises(UserError, match="'sum' after 'mean'; choose another name"):
        second.add("mean", 1.0, "sum")


class Scorer:
    """The scorer of a set without rows."""

    def merge(self, other: Any) -> None:
        pass

    def result(self) -> Any:
        return SimpleNamespace(metrics={})


def test_an_error_of_the_first_process_ends_all_of_them_with_the_same_words() -> None:
    first, second = Recorder(), Recorder()
    second.add("rare", [1.0], "mean")
    said: list[str] = []
    sent: list[Any] = []
    of_first = SimpleNamespace(
        gather_to_first=lambda own: [own, (Scorer(), second.sent())],
        from_first=lambda value: sent.append(value) or value,
    )
    of_second = SimpleNamespace(gather_to_first=lambda own: None, from_first=lambda value: sent[0])
    for recorder, ranks in ((first, of_first), (second, of_second)):
        with pytest.raises(UserError) as caught:
            scores_of_all(Scorer(), recorder, ranks)
        said.append(str(caught.value))
    assert said[0] == said[1] and "'rare') was called in one process, but not in the first one" in said[0]


def test_a_function_that_returns_no_number_is_refused_by_its_name() -> None:
    recorder = Recorder()
    recorder.add("spread", [1.0], lambda values_V: {"low": None, "high": 1.0})
    with pytest.raises(UserError, match=r"over_evaluation\('spread'\) returned \{'spread/low': 'NoneType'"):
        recorder.results()


def test_an_array_that_the_caller_uses_again_keeps_its_recorded_values() -> None:
    recorder, values = Recorder(), np.array([1.0, 2.0])
    recorder.add("median", values, median)
    values[:] = 7.0
    assert recorder.results() == {"summary/median": 1.5}


def median(values_V: np.ndarray) -> float:
    return float(values_V[len(values_V) // 2 - 1 : len(values_V) // 2 + 1].mean())
