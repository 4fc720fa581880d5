"""Sums of the gradients of ranks and their norm, which any division of the work among ranks leaves to the bit."""

import mmap

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nlu.models.layers.linear import Embedding
from nlu.optim.fused import FusedAdamW, decay_in_place, update_in_place
from nlu.training.shared_lines import Layout, Lines
from nlu.training.shared_memory import floats_in
from nlu.training.shared_rest import BLOCK_ROWS, Rest, divided
from nlu.training.shared_rows import LEAST_NUMBERS, PAGE, SharedRows, bytes_for
from nlu.training.shared_sums import Sums

WIDTH, RANKS = 312, 3
ENTRIES = LEAST_NUMBERS // WIDTH + 1
SHAPES = [(700, 13), (5,), (1, 1), (40, 312), (2048,), (1023,), (300, 301)]


class Common:
    """Three ranks in this process: a large table and other parameters, some without a gradient on some ranks."""

    def __init__(self, rows_of_ranks: list[list[int]], lacking: dict[int, list[int]]):
        """`lacking`: the ranks without a gradient, by the number of a parameter of SHAPES."""
        torch.manual_seed(0)
        tables = [Embedding(ENTRIES, WIDTH) for _ in rows_of_ranks]
        named = {"table": tables[0].weight, **{str(n): nn.Parameter(torch.randn(s)) for n, s in enumerate(SHAPES)}}
        groups = [{"params": [named["3"], named["5"]]}]
        groups.append({"params": [each for name, each in named.items() if name not in ("3", "5")]})
        self.layout = Layout(named, FusedAdamW(groups, fused=True), RANKS, has_average=False)
        offset = self.layout.reserve(bytes_for(named["table"], RANKS))
        count = Sums.count(self.layout.parts, len(named))
        norms = self.layout.reserve(4 * count)
        memory = mmap.mmap(-1, self.layout.size)
        self.lines: list[Lines] = [self.layout.lines(memory, rank) for rank in range(RANKS)]
        self.names = [name for name, _ in self.layout.named]
        place = self.lines[0].places[self.names.index("table")]
        self.rows, self.sums = [], []
        self.has_gradient_WP = np.ones((RANKS, len(named)), bool)
        for rank, (table, rows) in enumerate(zip(tables, rows_of_ranks, strict=True)):
            table.memory.use(self.lines[rank].places[self.names.index("table")].gradient)
            (table(torch.tensor(rows)) * torch.randn(len(rows), WIDTH)).sum().backward()
            told = SharedRows(table.weight, place.start, table.memory, memory, offset, (rank, RANKS))
            self.rows.append(told)
            self.sums.append(
                Sums(
                    self.lines[rank].places, self.layout.parts, self.lines[rank].gradients,
                    floats_in(memory, norms // 4, count), {self.names.index("table"): told}, rank,
                )
            )  # fmt: skip
            for number, each in enumerate(self.lines[rank].places):
                if self.names[number] == "table":
                    continue
                # What an earlier step has left there.
                each.gradient.normal_()
                self.has_gradient_WP[rank, number] = rank not in lacking.get(int(self.names[number]), [])

    def add(self) -> Tensor:
        """Let all ranks sum, and return what the line of sums should be."""
        total, first = torch.zeros_like(self.lines[0].gradients[0]), self.lines[0]
        for number, place in enumerate(first.places):
            for rank in np.flatnonzero(self.has_gradient_WP[:, number]):
                total[place.start : place.end] += first.gradients[rank][place.start : place.end]
        for each in self.rows:
            each.offer()
        for each in self.rows:
            each.look()
        for sums in self.sums:
            sums.add(self.has_gradient_WP)
        return total


@pytest.mark.parametrize("rows", [[[1, 5, 5, 3000], [0, 5, 640, 3300], [5, 3360]], [[7], [7], [7]]])
def test_sum_and_norm_have_the_bits_of_one_pass_over_each_part(rows: list[list[int]]) -> None:
    common = Common(rows, {})
    expected = common.add()
    assert torch.equal(common.lines[0].gradients[0].view(torch.int32), expected.view(torch.int32))
    squares, end = 0.0, common.lines[0].places[-1].end
    for begin, stop in common.layout.parts:
        numbers = expected[begin : min(stop, end)]
        whole = len(numbers) // PAGE * PAGE
        norms_P = torch.linalg.vector_norm(numbers[:whole].view(-1, PAGE), dim=1)
        squares += norms_P.double().square().sum().item()
        squares += torch.linalg.vector_norm(numbers[None, whole:], dim=1).double().square().item()
    assert [sums.squares() for sums in common.sums] == [squares] * RANKS
    assert squares == pytest.approx(float(expected.double().square().sum()), rel=1e-6)


def test_a_parameter_is_summed_over_the_ranks_that_have_a_gradient_for_it() -> None:
    common = Common([[1], [2], [3]], {0: [0], 2: [1, 2], 4: [0, 1, 2], 6: [0, 2]})
    expected = common.add()
    found = common.lines[0].gradients[0]
    for number, place in enumerate(common.lines[0].places):
        if common.has_gradient_WP[:, number].any():
            assert torch.equal(found[place.start : place.end], expected[place.start : place.end])
    squares = [sums.squares() for sums in common.sums]
    assert squares == [pytest.approx(float(expected.double().square().sum()), rel=1e-6)] * RANKS
    assert len(set(squares)) == 1


def test_ranks_update_each_number_once_and_cut_only_between_vectors() -> None:
    common = Common([[1], [2], [3]], {})
    seen = np.zeros(len(common.lines[0].weights), int)
    for lines in common.lines:
        for (start, end), (begin, stop) in zip(lines.own, common.layout.parts, strict=True):
            seen[start:end] += 1
            assert (start - begin) % 32 == 0 and (end == stop or (end - begin) % 32 == 0)
    end = common.layout.parts[-1][1]
    assert (seen[:end] == 1).all() and not seen[end:].any()


def test_a_decay_has_the_bits_of_adamw_without_gradient_and_moments() -> None:
    # All bit patterns of a kind are among them, subnormal numbers too.
    words = torch.randint(-(2**31), 2**31 - 1, (100_003,), generator=torch.Generator().manual_seed(0))
    weights = torch.cat([words.to(torch.int32).view(torch.float32), torch.tensor([0.0, -0.0])]).nan_to_num()
    group = {"lr": 0.0123, "weight_decay": 0.07, "betas": (0.9, 0.999), "eps": 1e-6}
    for decay in (0.07, 0.0):
        group["weight_decay"] = decay
        whole, alone = weights.clone(), weights.clone()
        zeros = [torch.zeros_like(weights) for _ in range(3)]
        update_in_place(group, whole, zeros[0], zeros[1], zeros[2], torch.tensor(3.0), torch.tensor(2.5))
        decay_in_place(group, alone)
        assert torch.equal(whole.view(torch.int32), alone.view(torch.int32))
        assert not any(each.view(torch.int32).any() for each in zeros)


def test_blocks_rest_until_a_row_of_any_rank_touches_them() -> None:
    common = Common([[1], [2], [5 * BLOCK_ROWS]], {})
    common.add()
    rest, lines = Rest(common.rows[0]), common.lines[0]
    start, block = rest.table.start, BLOCK_ROWS * WIDTH
    # A stretch ends at a whole vector.
    end = rest.table.end - (rest.table.end - start) % 16
    moments = list(lines.moments.values())
    rest.begin(moments)
    assert list(rest.stretches()) == [(start, end)]
    rest.note()
    assert list(rest.stretches()) == [(start + block, start + 5 * block), (start + 6 * block, end)]
    # A continued run knows them by its moments; -0 is one.
    moments[1][start + 12 * block] = -0.0
    rest.begin(moments)
    assert list(rest.stretches()) == [(start, start + 12 * block), (start + 13 * block, end)]
    # A gradient whose rows are not told may have any.
    lines.places[common.names.index("table")].parameter.grad = None
    for each in common.rows:
        each.offer()
    common.rows[0].look()
    rest.note()
    assert list(rest.stretches()) == []


def test_a_run_of_parameters_is_divided_where_rows_rest() -> None:
    resting = [(10, 20), (30, 40), (60, 70)]
    assert list(divided((3, 15, 65), resting)) == [
        (3, 15, 20, True), (3, 20, 30, False), (3, 30, 40, True), (3, 40, 60, False), (3, 60, 65, True)
    ]  # fmt: skip
    assert list(divided((3, 20, 30), resting)) == [(3, 20, 30, False)]
    assert list(divided((3, 70, 80), [])) == [(3, 70, 80, False)]
