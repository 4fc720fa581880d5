"""Sums and norms of a table's rows have the bits of those of whole gradients, however the table is cut into parts."""

import mmap

import numpy as np
import pytest
import torch
from torch import nn

from nlu.models.layers.linear import Embedding
from nlu.training.shared_rows import LEAST_NUMBERS, PAGE, SharedRows, bytes_for, is_large, norms_of_pages

WIDTH = 312
BEFORE, AFTER = 5008, 3008
"""numbers of other parameters in the line"""


class Line:
    """Three ranks in this process, each with a table and the gradients of a few of its rows."""

    def __init__(self, rows_of_ranks: list[list[int]]):
        entries = LEAST_NUMBERS // WIDTH + 1
        self.layers = [Embedding(entries, WIDTH) for _ in rows_of_ranks]
        weight, count = self.layers[0].weight, len(rows_of_ranks)
        memory = mmap.mmap(-1, bytes_for(weight, count))
        self.gradients = [torch.randn(BEFORE + weight.numel() + AFTER) for _ in rows_of_ranks]
        self.tables = []
        for rank, (layer, rows) in enumerate(zip(self.layers, rows_of_ranks, strict=True)):
            layer.memory.use(self.gradients[rank][BEFORE : BEFORE + weight.numel()].view_as(weight))
            if rows:
                (layer(torch.tensor(rows)) * torch.randn(len(rows), WIDTH)).sum().backward()
            self.tables.append(SharedRows(layer.weight, BEFORE, layer.memory, memory, 0, (rank, count)))
        for table in self.tables:
            table.offer()
        for table in self.tables:
            table.look()


@pytest.mark.parametrize("cut", [BEFORE + 16, BEFORE + 10 * WIDTH, 200_000, BEFORE + 3300 * WIDTH + 16])
def test_rows_are_summed_to_the_bits_of_whole_gradients(cut: int) -> None:
    torch.manual_seed(0)
    line = Line([[1, 5, 5, 3000], [0, 5, 640, 641, 3300], [5, 3000, 3360]])
    end = BEFORE + line.layers[0].weight.numel()
    whole = [each.clone() for each in line.gradients]
    expected = whole[0][BEFORE:end] + whole[1][BEFORE:end] + whole[2][BEFORE:end]
    for table, (start, stop) in zip(line.tables, ((BEFORE, cut), (cut, cut + 64), (cut + 64, end)), strict=True):
        assert table.is_known
        table.sum(line.gradients, start, stop)
    assert torch.equal(line.gradients[0][BEFORE:end].view(torch.int32), expected.view(torch.int32))
    assert torch.equal(line.gradients[0][:BEFORE], whole[0][:BEFORE])
    assert torch.equal(line.gradients[0][end:], whole[0][end:])
    for start, stop in ((0, cut), (cut, len(whole[0])), (48, 4000), (BEFORE, end), (cut, end)):
        numbers = line.gradients[0][start:stop]
        # Rows outside of those that are told would not be seen.
        norms_P = norms_of_pages(numbers, [line.tables[0].pages(start, stop)])
        assert torch.equal(norms_P, norms_of_pages(numbers, []))
        assert len(norms_P) == (stop - start) // PAGE + 1
        assert float(norms_P.double().square().sum()) == pytest.approx(float(numbers.double().square().sum()), rel=1e-6)
    # Rank 0 clears what the others have added there.
    layer = line.layers[0]
    layer.weight.grad = None
    layer(torch.tensor([7])).sum().backward()
    assert np.flatnonzero(layer.weight.grad.any(1).numpy()).tolist() == [7]


def test_whole_gradients_are_summed_if_a_rank_has_none_or_does_not_know_its_rows() -> None:
    assert not Line([[1], [2], []]).tables[0].is_known
    line = Line([[1], [2], [3]])
    line.layers[1].weight.grad.mul_(2)
    for table in line.tables:
        table.offer()
    for table in line.tables:
        table.look()
    assert not any(table.is_known for table in line.tables)
    # Whatever the others write, rank 0 clears all of it.
    line.layers[0].weight.grad.data.fill_(1)
    line.layers[0].weight.grad = None
    line.layers[0](torch.tensor([7])).sum().backward()
    assert np.flatnonzero(line.layers[0].weight.grad.any(1).numpy()).tolist() == [7]


def test_only_large_tables_tell_their_rows() -> None:
    large, small = Embedding(LEAST_NUMBERS // 64, 64), Embedding(512, 64)
    assert is_large(large.weight, large.memory) and not is_large(small.weight, small.memory)
    assert not is_large(nn.Parameter(torch.zeros(LEAST_NUMBERS // 64, 64)), None)
