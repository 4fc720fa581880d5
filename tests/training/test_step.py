"""One optimizer step on a tiny model: what accumulation, ranks and bad numbers do to it."""

import math
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from nlu.config.errors import UserError
from nlu.data.collate import collate
from nlu.data.dataset import Files
from nlu.data.examples import Examples
from nlu.data.layouts import LAYOUTS
from nlu.data.store import EncodedRows, Origin, SetWriter, StoredSet
from nlu.data.targets import Classes
from nlu.losses.cross_entropy import CrossEntropy
from nlu.methods.plain import Plain
from nlu.models.encoders.bert import Bert
from nlu.models.layers.dropout import Noise, drawing_from
from nlu.optim.optimizer import FusedAdamW
from nlu.runs import summary
from nlu.tasks.classify import Classify
from nlu.training.passes import StepResult
from nlu.training.precision import Precision
from nlu.training.ranks import Ranks
from nlu.training.step import Stepper
from tests.models.parts import labels, task_model

ROWS = 12
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Examples:
    return examples_in(tmp_path_factory.mktemp("set") / "train")


def examples_in(folder: Path) -> Examples:
    """Write ROWS examples to a new folder, the same at each call."""
    rng = np.random.default_rng(0)
    lengths_N = rng.integers(3, 9, ROWS)
    target = Classes(Files(train="", labels=["no", "yes"]))
    writer = SetWriter(folder, target.column())
    tokens = rng.integers(0, 30, int(lengths_N.sum())).astype(np.int32)
    numbers = np.arange(ROWS)
    writer.add(
        EncodedRows(tokens, lengths_N, lengths_N, np.zeros(ROWS, bool)), rng.integers(0, 2, ROWS),
        Origin(numbers, numbers, numbers * 0, numbers + 1),
    )  # fmt: skip
    writer.close()
    return Examples("train", StoredSet.open(folder), numbers, target, LAYOUTS["single"])


def stepper(
    lr: float = 0.1, dropout: float = 0.0, clip_norm: float = 0.0, ema_decay: float = 0.0,
    optimizer: Any = torch.optim.SGD, dtype: Literal["float32", "bfloat16"] = "float32",
    max_loss: float | None = None, ranks: Ranks | None = None,
) -> Stepper:  # fmt: skip
    torch.manual_seed(0)
    encoder = Bert(
        30, None, pretrained=None, hidden_size=8, layers=1, heads=2, intermediate_size=16, dropout=dropout,
        attention_dropout=dropout, head_dropout=dropout,
    )  # fmt: skip
    model = task_model(encoder, "single", 2).train()
    average = {name: value.detach().clone() for name, value in model.named_parameters()} if ema_decay else None
    return Stepper(
        model, optimizer(model.parameters(), lr=lr), Classify(CrossEntropy(), labels(2)), Plain(),  # type: ignore[arg-type]
        Precision(dtype=dtype), ranks or Ranks(0, 1, CPU), 1, clip_norm, average, ema_decay,
        max_loss=max_loss,
    )  # fmt: skip


def done(parts: Stepper, *of: Any) -> StepResult:
    """Do a step, and return its numbers."""
    return parts.read(parts.step(*of))


def vector(parts: Stepper) -> torch.Tensor:
    return torch.cat([parameter.detach().view(-1) for parameter in parts.model.parameters()])


def test_uneven_micro_batches_give_the_gradient_of_the_whole_batch(examples: Examples) -> None:
    whole, split = stepper(), stepper()
    first = done(whole, examples, [np.arange(ROWS)], 1, False)
    second = done(split, examples, [np.arange(5), np.arange(5, 6), np.arange(6, ROWS)], 1, False)
    assert first.counts == second.counts == {"labels": ROWS}
    assert second.loss == pytest.approx(first.loss, rel=1e-6)
    assert torch.allclose(vector(whole), vector(split), atol=1e-6)
    assert not torch.allclose(vector(whole), vector(stepper()), atol=1e-4)


def test_the_dropout_masks_are_those_of_seed_step_and_example(examples: Examples) -> None:
    parts, plain = stepper(dropout=0.5), stepper(dropout=0.5)
    expected = 0.0
    for row in range(ROWS):
        batch = collate(examples, np.array([row]), (1, 0))
        with drawing_from(Noise(1, 3, batch)):
            expected += F.cross_entropy(plain.model(batch), batch.targets["labels"], reduction="sum").item()
    found = done(parts, examples, [np.arange(5), np.arange(5, ROWS)], 3, False).loss
    assert found == pytest.approx(expected / ROWS, rel=1e-6)


def run(parts: Stepper, examples: Examples, micro_batches: list[np.ndarray], scale: dict[str, float]) -> torch.Tensor:
    """Run the passes of step 3."""
    return parts.passes.run(parts.passes.shares(examples, micro_batches, 0), scale, 3)


def test_the_passes_of_a_step_can_be_repeated_with_other_micro_batches(examples: Examples) -> None:
    parts, whole = stepper(dropout=0.5), stepper(dropout=0.5)
    scale = {"labels": 1 / ROWS}
    expected = run(whole, examples, [np.arange(ROWS)], scale)
    before, calls = vector(parts).clone(), []

    class RunsOut(Plain):
        def backward(self, *of: Any) -> Any:
            calls.append(of)
            if len(calls) == 2:
                raise MemoryError
            return super().backward(*of)

    parts.passes.method = RunsOut()
    assert run(parts, examples, [np.arange(6), np.arange(6, ROWS)], scale) is None
    totals = run(parts, examples, np.array_split(np.arange(ROWS), 4), scale)
    assert torch.equal(vector(parts), before)
    torch.testing.assert_close(totals, expected, rtol=1e-6, atol=0)
    for (name, one), (_, other) in zip(parts.model.named_parameters(), whole.model.named_parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-7, msg=name)


class FitsHalf(Plain):
    """A method that records something, and for which memory runs out with more than half of the examples."""

    def backward(self, task: Any, model: Any, batch: Any, scale: Any, autocast: Any) -> dict[str, torch.Tensor]:
        summary.scalar("examples", len(batch))
        if len(batch) > ROWS / 2:
            raise torch.OutOfMemoryError
        return super().backward(task, model, batch, scale, autocast)


def test_passes_that_run_out_of_memory_record_nothing(examples: Examples) -> None:
    parts, collector = stepper(), summary.Collector()
    parts.passes.method = FitsHalf()
    with summary.listening(collector):
        summary.scalar("examples", 1.0)
        # The first micro-batch fits, and is computed again with the second one.
        parts.step(examples, [np.arange(2), np.arange(2, ROWS)], 1, False)
    means = collector.take()
    assert (means["examples"].calls, sum(means["examples"].partials)) == (1 + 4, 1 + ROWS)


def test_the_rows_of_a_nan_loss_are_searched_in_parts_that_fit(examples: Examples) -> None:
    (row, word), *_ = words_of_one_example(examples).items()
    parts = stepper()
    parts.passes.method = FitsHalf()
    with torch.no_grad():
        parts.model.backbone.embeddings.word_embeddings.weight[word] = torch.nan  # type: ignore[union-attr, index]
    with pytest.raises(UserError, match=f"the loss is nan at step 1, row {row + 1} of train; nothing was updated"):
        parts.step(examples, [np.arange(ROWS)], 1, False)


def test_clipping_bounds_the_update_and_reports_the_norm_before(examples: Examples) -> None:
    parts = stepper(lr=1.0, clip_norm=0.01)
    before = vector(parts)
    result = done(parts, examples, [np.arange(ROWS)], 1, False)
    assert result.clipped and result.gnorm > 0.01
    assert float((vector(parts) - before).norm()) == pytest.approx(0.01, rel=1e-3)


def test_a_gradient_near_the_epsilon_of_clipping_is_clipped_by_the_formula(
    examples: Examples,
) -> None:
    parts = stepper(lr=1.0, clip_norm=5e-7)
    for parameter in parts.model.parameters():
        parameter.register_hook(lambda gradient: gradient * 1e-6)
    before = vector(parts).double()
    result = done(parts, examples, [np.arange(ROWS)], 1, False)
    # As torch.nn.utils.clip_grad_norm_ does: the bound over the norm and a millionth.
    assert 5e-7 < result.gnorm < 1e-5 and result.clipped
    moved = float((vector(parts).double() - before).norm())
    assert moved == pytest.approx(result.gnorm * 5e-7 / (result.gnorm + 1e-6), rel=0.02)


def test_the_loss_of_one_example_is_its_own_and_a_step_of_none_changes_nothing(examples: Examples) -> None:
    one = stepper()
    logits = one.model.eval()(collate(examples, np.array([4]))).detach().double()[0]
    label = int(examples.stored.scalars("target", np.array([4]))[0])
    result = done(one, examples, [np.array([4])], 1, False)
    assert result.loss == pytest.approx(float(logits.logsumexp(0) - logits[label]), rel=1e-5)
    none = stepper(optimizer=FUSED)
    before = vector(none).clone()
    result = done(none, examples, [np.zeros(0, np.int64)], 1, False)
    assert (result.loss, result.counts, result.gnorm, result.clipped) == (0.0, {"labels": 0}, 0.0, False)
    assert torch.equal(vector(none), before)


def test_a_loss_above_the_bound_changes_nothing_and_one_at_the_bound_is_allowed(examples: Examples) -> None:
    loss = done(stepper(), examples, [np.array([4, 5]), np.array([6])], 3, False).loss
    bounded, free = stepper(max_loss=math.nextafter(loss, 0)), stepper(max_loss=loss)
    before = vector(bounded).clone()
    message = rf"the loss is {loss:g} at step 3, rows 5, 6, 7 of train, above trainer.max_loss, .*; nothing was updated"
    with pytest.raises(UserError, match=message):
        bounded.step(examples, [np.array([4, 5]), np.array([6])], 3, False)
    assert torch.equal(vector(bounded), before)
    free.step(examples, [np.array([4, 5]), np.array([6])], 3, False)
    assert not torch.equal(vector(free), before)


def words_of_one_example(examples: Examples) -> dict[int, int]:
    """Return the unique word of each example that has one."""
    words_of = [set(collate(examples, np.array([number])).tokens_T.tolist()) for number in range(ROWS)]
    counts = Counter(word for words in words_of for word in words)
    return {number: word for number, words in enumerate(words_of) for word in words if counts[word] == 1}


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_the_error_of_a_nan_loss_names_exactly_its_rows(examples: Examples, dropout: float) -> None:
    (first, one), (second, other), *_ = words_of_one_example(examples).items()
    parts = stepper(dropout=dropout)
    with torch.no_grad():
        parts.model.backbone.embeddings.word_embeddings.weight[[one, other]] = torch.nan  # type: ignore[union-attr, index]
    before = vector(parts).clone()
    # Rows are numbered from 1.
    with pytest.raises(UserError, match=f"at step 1, rows {first + 1}, {second + 1} of train; nothing was updated"):
        done(parts, examples, list(np.array_split(np.arange(ROWS), 4)), 1, False)
    assert torch.equal(vector(parts).nan_to_num(), before.nan_to_num())


class Bursts(Plain):
    """A method in which one example gives an infinite gradient."""

    def backward(self, task: Any, model: Any, batch: Any, scale: Any, autocast: Any) -> dict[str, torch.Tensor]:
        sums = super().backward(task, model, batch, scale, autocast)
        if 7 in batch.examples_B:
            model.head.linear.weight.grad[0, 0] = torch.inf
        return sums


def test_a_row_is_named_whose_loss_is_finite_but_not_its_gradient(examples: Examples) -> None:
    parts = stepper()
    parts.passes.method = Bursts()
    with pytest.raises(UserError, match="the gradient norm is inf at step 1, row 8 of train; nothing was updated"):
        done(parts, examples, [np.arange(5), np.arange(5, ROWS)], 1, False)


def test_the_moving_average_moves_a_known_share_after_each_update(examples: Examples) -> None:
    parts = stepper(ema_decay=0.25)
    names = [name for name, _ in parts.model.named_parameters()]
    expected = vector(parts).double()
    # (1 + n) / (10 + n) at step n, until it passes the decay that is asked for: 2/11 and 3/12 are below a quarter.
    for number, decay in enumerate([2 / 11, 1 / 4, 1 / 4, 1 / 4], 1):
        done(parts, examples, [np.arange(ROWS)], number, False)
        expected = decay * expected + (1 - decay) * vector(parts).double()
        assert parts.average is not None
        average = torch.cat([parts.average[name].view(-1) for name in names])
        torch.testing.assert_close(average.double(), expected, rtol=1e-5, atol=1e-7)


def test_a_gradient_that_is_not_finite_changes_nothing_and_names_rows(examples: Examples) -> None:
    parts = stepper(ema_decay=0.9)
    parts.model.head.linear.bias.register_hook(lambda gradient: gradient * float("inf"))
    before = vector(parts).clone()
    with pytest.raises(UserError, match=r"the gradient norm is inf at step 3, rows 5, 6, 7 of train; nothing was"):
        done(parts, examples, [np.array([4, 5, 6])], 3, False)
    assert torch.equal(vector(parts), before) and parts.average is not None
    assert torch.equal(torch.cat([value.view(-1) for value in parts.average.values()]), before)


def test_a_rank_without_examples_takes_part(examples: Examples, tmp_path: Path) -> None:
    parts = stepper()
    pending = parts.step(examples, [np.arange(3), np.zeros(0, np.int64)], 1, True)
    assert pending.stop
    assert parts.read(pending).counts == {"labels": 3}


class HearsAnother(Ranks):
    """The rank of a step in which another one was asked to stop."""

    def sum_on_host(self, numbers: list[float]) -> list[float]:
        # The counts and the request to stop; other messages are of one number.
        return [*numbers[:-1], numbers[-1] + 1] if len(numbers) > 1 else numbers

    def sum_gradients(self, parameters: list[torch.nn.Parameter], totals: torch.Tensor) -> torch.Tensor:
        return totals


def test_a_rank_stops_where_another_one_was_asked_to(examples: Examples) -> None:
    parts = stepper()
    assert not parts.step(examples, [np.arange(3)], 1, False).stop
    parts.passes.ranks = HearsAnother(0, 2, CPU)
    assert parts.step(examples, [np.arange(3)], 2, False).stop


FUSED = partial(FusedAdamW, fused=True)


@pytest.mark.parametrize("clip_norm", [0.0, 0.01])
def test_a_fused_optimizer_divides_and_clips_as_another_does(examples: Examples, clip_norm: float) -> None:
    fused = stepper(0.01, clip_norm=clip_norm, optimizer=FUSED)
    plain = stepper(0.01, clip_norm=clip_norm, optimizer=partial(torch.optim.AdamW, fused=False))
    for number in (1, 2, 3):
        for parts in (fused, plain):
            parts.step(examples, [np.arange(ROWS)], number, False)
    torch.testing.assert_close(vector(fused), vector(plain), rtol=1e-4, atol=1e-5)
