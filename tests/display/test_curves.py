"""The last window of training, which is rarely a whole one."""

import pytest

from nlu.runs.records import with_whole_windows


def rows(*steps: int) -> list[dict[str, str | int | float | None]]:
    return [{"step": step, "loss": 1.0 + place, "gnorm": None if place == 1 else 2.0 + place, "lr": 0.1 / step}
            for place, step in enumerate(steps)]  # fmt: skip


def test_a_short_last_window_is_joined_to_the_one_before_it_by_steps() -> None:
    joined = with_whole_windows(rows(100, 200, 300, 301))
    assert [row["step"] for row in joined] == [100, 200, 301]
    assert joined[-1]["loss"] == pytest.approx((100 * 3.0 + 1 * 4.0) / 101)
    assert joined[-1]["gnorm"] == pytest.approx((100 * 4.0 + 1 * 5.0) / 101)
    assert joined[-1]["lr"] == 0.1 / 301, "that of the last step, no mean"


@pytest.mark.parametrize("steps", [(), (7,), (100, 101), (100, 200, 300), (100, 200, 260)])
def test_whole_windows_and_very_few_stay(steps: tuple[int, ...]) -> None:
    before = rows(*steps)
    assert with_whole_windows(before) == before == rows(*steps)


def test_times_of_a_short_last_window_are_added_and_its_memory_is_the_larger_one() -> None:
    given = rows(100, 200, 300, 301)
    given[2] |= {"data_s": 2.0, "other_s": None, "peak_mb": 70.0}
    given[3] |= {"data_s": 0.5, "other_s": 1.0, "peak_mb": 60.0}
    last = with_whole_windows(given)[-1]
    assert (last["data_s"], last["other_s"], last["peak_mb"]) == (2.5, 1.0, 70.0)
