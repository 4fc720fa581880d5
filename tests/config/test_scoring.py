"""A run scored on files of another kind than those that it was trained on."""

import pytest

from nlu.config.scoring import _reading


@pytest.mark.parametrize(
    ("fields", "changed"),
    [
        ({"text": "review", "label": "stars"}, {"format": "auto", "header": None}),
        ({"text": 0, "label": 1}, {"format": "auto", "header": None, "fields": None}),
        (None, {"format": "auto", "header": None}),
    ],
)
def test_in_a_file_of_another_suffix_named_columns_keep_their_names(fields, changed):
    saved = {"train": "shop.csv", "dev": None, "test": None, "fields": fields}
    assert _reading(saved, {**saved, "test": "shop.jsonl"}, ["data.test"]) == changed
    assert _reading(saved, {**saved, "test": "new.csv"}, ["data.test"]) == {}
