"""Batches side by side: the same results in the same order as one by one, each on a thread of its own."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import nlu
from nlu.inference.side_by_side import is_small, may_be_apart, side_by_side
from nlu.models.encoders.bert import Bert
from nlu.tasks.classify import Classify
from tests.inference.runs import FEW, trained, unlabelled
from tests.training.kinds import TASKS, few_first, read

CPU = torch.device("cpu")
WIDE = ("model.hidden_size=48", "model.heads=2")
BATCHES = [np.arange(start, start + 4) for start in range(0, 40, 4)]


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_results_come_in_order_from_threads_that_compute_with_one():
    seen = []

    def work(examples_B: np.ndarray) -> int:
        seen.append((threading.current_thread(), torch.get_num_threads(), torch.is_inference_mode_enabled()))
        return int(examples_B.sum())

    with torch.inference_mode():
        found = list(side_by_side(work, BATCHES, CPU))
    assert [result for _, result in found] == [batch.sum() for batch in BATCHES]
    assert all(np.array_equal(own, batch) for (own, _), batch in zip(found, BATCHES, strict=True))
    # The first call is that of one example, after which nothing is left that only one thread may do.
    first, *others = seen
    assert first[:2] == (threading.main_thread(), 2) and len(others) == len(BATCHES)
    assert {each[1:] for each in others} == {(1, True)} and threading.main_thread() not in {one for one, *_ in others}
    assert torch.get_num_threads() == 2


def test_two_batches_are_computed_at_the_same_time():
    both, is_first = threading.Barrier(2, timeout=30), [True]

    def work(examples_B: np.ndarray) -> bool:
        if is_first.pop() if is_first else False:
            return True
        # Raises an error unless another batch arrives too.
        both.wait()
        return True

    assert len(list(side_by_side(work, BATCHES, CPU))) == len(BATCHES)


def test_a_batch_for_which_memory_runs_out_is_divided():
    def work(examples_B: np.ndarray) -> list[int]:
        if len(examples_B) > 2:
            raise MemoryError
        return examples_B.tolist()

    found = [result for _, result in side_by_side(work, BATCHES, CPU)]
    assert [example for result in found for example in result] == list(range(40))


def test_an_error_of_a_batch_ends_the_others_and_restores_the_threads():
    def work(examples_B: np.ndarray) -> bool:
        if 12 in examples_B:
            raise ValueError("batch of 12")
        return True

    with pytest.raises(ValueError, match="^batch of 12$"):
        list(side_by_side(work, BATCHES, CPU))
    assert torch.get_num_threads() == 2
    assert not [one for one in threading.enumerate() if one.name.startswith("nlu-batch")]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", few_first(list(TASKS), *FEW))
def test_predictions_have_the_bits_of_one_thread(name: str, precision: str, tmp_path: Path) -> None:
    kind = TASKS[name]
    run, rows = trained(kind, tmp_path, *WIDE), unlabelled(kind, 40)
    loaded = nlu.load(run, device="cpu", batch_size=3, precision=precision)
    assert may_be_apart(loaded.trained.model, loaded.trained.task)
    found = loaded.predict(rows, logits=True)
    torch.set_num_threads(1)
    assert loaded.predict(rows, logits=True) == found and len(found) == 40


def test_vectors_and_scores_have_the_bits_of_one_thread(tmp_path: Path) -> None:
    run = trained(TASKS["classify"], tmp_path, *WIDE)
    loaded = nlu.load(run, device="cpu", batch_size=3)
    rows = read(run.parent / "dev.jsonl") * 4
    texts = [row["text"] for row in rows]
    found = loaded.encode(texts), loaded.evaluate(rows)
    torch.set_num_threads(1)
    other = loaded.encode(texts), loaded.evaluate(rows)
    assert np.array_equal(found[0], other[0]) and json.dumps(found[1]) == json.dumps(other[1])


class Own(Classify):
    """A task of a user."""


def test_what_a_user_wrote_and_other_encoders_are_computed_one_by_one(tmp_path: Path) -> None:
    wide = nlu.load(trained(TASKS["classify"], tmp_path / "wide", *WIDE), device="cpu").trained
    assert may_be_apart(wide.model, wide.task)
    assert not may_be_apart(wide.model, Own.__new__(Own))
    narrow = nlu.load(trained(TASKS["classify"], tmp_path / "narrow", *WIDE[:1], "model.heads=8"), device="cpu").trained
    assert not may_be_apart(narrow.model, narrow.task)


def test_a_few_tokens_are_computed_by_one_thread_with_the_same_bits(tmp_path: Path, monkeypatch) -> None:
    run, rows = trained(TASKS["classify"], tmp_path, *WIDE), unlabelled(TASKS["classify"], 8)
    loaded = nlu.load(run, device="cpu")
    threads, forward = [], Classify.forward

    def counted(*given, **named):
        threads.append(torch.get_num_threads())
        return forward(*given, **named)

    monkeypatch.setattr(Classify, "forward", counted)
    small = [loaded.predict([row], logits=True)[0] for row in rows]
    assert threads == [1] * len(rows) and torch.get_num_threads() == 2
    monkeypatch.setattr("nlu.inference.side_by_side.FEW_PRODUCTS", 0)
    assert loaded.predict(rows, logits=True) == small and threads[len(rows) :] == [2]


def test_how_many_tokens_are_few_depends_on_the_encoder() -> None:
    with torch.device("meta"):
        tiny, base = (
            Bert(10, None, pretrained=None, layers=layers, hidden_size=width, heads=12, intermediate_size=4 * width)
            for layers, width in [(4, 312), (12, 768)]
        )
    # 12 products for each square of the width and each layer: 4.7 million and 85 million for a token.
    assert [is_small(tiny, tokens) for tokens in (1, 32, 33)] == [True, True, False]
    assert [is_small(base, tokens) for tokens in (1, 2)] == [True, False]
