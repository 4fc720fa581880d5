"""What is said of `data.fields` and `data.train` before a file is opened."""

from pathlib import Path

import pytest

OWN = ("data=files", "data.train=my.csv")


@pytest.mark.parametrize(
    "overrides", [(), ("task=match",), ("task=tag", "data.format=jsonl"), ("data.fields={text: 0, label: 1}",)]
)
def test_fields_may_be_left_to_the_names_of_the_columns(composer, overrides):
    assert composer.problems_of(composer.plain(*OWN, *overrides)) == []


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [(("task=tag", "data.format=conll"), "data.fields is null, but CoNLL columns have no names"),
     (("data.fields={text: review}",), "but task=classify needs label as well"),
     (("task=match", "data.fields={text_a: x, label: y}"), "but task=match needs text_b as well"),
     (("task=tag", "data.fields={tokens: 0}"), "but task=tag needs tags or spans as well"),
     (("task=match", "data.fields={text_a: text, text_b: text, label: y}"),
      "data.fields gives text_a and text_b the same column, 'text'; set each to a column of its own"),
     (("data.fields={text: 1, label: 1}",), "data.fields gives text and label the same column, 1")],
)  # fmt: skip
def test_a_field_that_a_task_needs_is_named(composer, overrides, problem):
    found = composer.problems_of(composer.plain(*OWN, *overrides))
    assert len(found) == 1 and problem in found[0]


def test_a_text_is_compared_with_itself_only_by_a_loss_with_in_batch_negatives(composer):
    same = ("data=files", "data.train=x.csv", "data.fields={text_a: text, text_b: text}", "task=retrieve")
    Path("x.csv").touch()
    assert composer.problems_of(composer.plain(*same)) == []
    (found,) = composer.problems_of(composer.plain(*same, "loss=contrastive"))
    assert "data.fields gives text_a and text_b the same column, 'text'" in found


def test_a_folder_as_a_file_is_refused_with_what_it_holds(composer):
    Path("rows").mkdir()
    for number in range(10):
        Path("rows", f"{number}.csv").touch()
    found = composer.problems_of(composer.plain("data=files", "data.train=rows", "data.dev=rows"))
    shown = ", ".join(f"{number}.csv" for number in range(8))
    assert found == [
        f"data.{name} is 'rows', which is a folder that holds {shown}, and 2 more; set data.{name} to a file"
        for name in ("train", "dev")
    ]
