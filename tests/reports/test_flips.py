"""McNemar's test and Holm's correction, against numbers worked out by hand and by integrals."""

import math

import pytest

from nlu.reports.flips import holm, mcnemar


def test_with_few_discordant_rows_the_test_is_exact():
    # Of 12 coins 3 or fewer, or 9 or more, show heads.
    test = mcnemar(3, 9)
    assert test.method == "exact" and test.statistic is None
    assert test.p_value == pytest.approx(2 * sum(math.comb(12, heads) for heads in range(4)) / 2**12)
    assert mcnemar(9, 3).p_value == test.p_value
    assert mcnemar(0, 0).p_value == mcnemar(4, 4).p_value == 1.0
    assert mcnemar(0, 24).method == "exact" and mcnemar(0, 25).method == "chi squared"


def test_with_more_it_is_chi_squared_with_the_correction_for_continuity():
    # The example of Agresti, Categorical Data Analysis: 86 and 150 discordant, without the correction 17.36.
    test = mcnemar(150, 86)
    assert test.statistic == pytest.approx((150 - 86 - 1) ** 2 / 236)
    # Chi squared with one degree of freedom is the square of a normal variable.
    assert test.p_value == pytest.approx(math.erfc(math.sqrt(test.statistic / 2)))
    assert mcnemar(30, 30).p_value == 1.0


def test_holm_multiplies_the_smallest_by_the_most_and_keeps_the_order():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0] and holm([0.2]) == [0.2] and holm([]) == []
