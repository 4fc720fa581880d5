"""The sample of a product that `make test` tries."""

from itertools import combinations, product

from tests.sampled import sample, sampled


def test_each_value_of_a_sample_meets_each_other_and_every_other_case_is_thorough() -> None:
    sizes = (3, 2, 2)
    found = sample(sizes, together=2)
    assert len(found) == 6 and found <= set(product(*map(range, sizes)))
    for one, other in combinations(range(3), 2):
        pairs = {(places[one], places[other]) for places in found}
        assert pairs == set(product(range(sizes[one]), range(sizes[other])))
    names, cases = sampled("a,b,c", [1, 2, 3], "xy", {None: 0, 0.5: 0}).mark.args
    assert names == "a,b,c" and [case.values for case in cases] == list(product([1, 2, 3], "xy", [None, 0.5]))
    assert sum(not case.marks for case in cases) == 6
