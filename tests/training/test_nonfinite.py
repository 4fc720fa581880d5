import pytest

from nlu.training.nonfinite import named


@pytest.mark.parametrize(
    ("found", "of", "words"),
    [([3], 9, "row 3"), ([5, 3], 9, "rows 3, 5"), ([], 8, "rows 1, 2, 3, 4, 5, 6, 7, 8"), ([], 9, "all 9 rows"),
     ([], 1234, "all 1,234 rows"), (list(range(1, 10)), 10, "rows 1, 2, 3, 4, 5, 6, 7, 8 and 1 more"),
     (list(range(1, 2001)), 3000, "rows 1, 2, 3, 4, 5, 6, 7, 8 and 1,992 more"), ([], 1, "row 1")],
)  # fmt: skip
def test_eight_rows_at_most_are_named_one_by_one(found: list[int], of: int, words: str) -> None:
    assert named(found, list(range(1, of + 1))) == words
