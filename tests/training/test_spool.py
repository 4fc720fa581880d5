"""Records of examples on disk, from their batches back in the order of examples."""

from pathlib import Path

import numpy as np
import pytest

from nlu.training.evaluation import Spool


def test_records_come_back_in_the_order_of_examples_with_the_types_that_they_had(tmp_path: Path) -> None:
    spool = Spool(5000, tmp_path)
    order = np.random.default_rng(0).permutation(4999)
    for examples in np.array_split(order, 700):
        spool.add(examples, [{"label": f"\ud83d {n}", "loss": np.float64(n) / 3, "spans": [(n, n)]} for n in examples])
    assert len(spool) == 4999
    for place, (example, record) in enumerate(spool):
        assert example == place
        assert record == {"label": f"\ud83d {place}", "loss": place / 3, "spans": [(place, place)]}
    spool.close()


def test_arrays_are_not_kept_and_an_example_is_scored_once(tmp_path: Path) -> None:
    spool = Spool(2, tmp_path)
    spool.add([1], [{"label": "a", "vector": np.zeros(3)}])
    assert list(spool) == [(1, {"label": "a"})]
    with pytest.raises(AssertionError, match="twice"):
        spool.add([1], [{"label": "b"}])
    spool.close()
