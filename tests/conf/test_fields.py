"""What is said of `data.fields` and `data.train` before a file is opened."""

from pathlib import Path

import pytest

from nlu.config.choices import EVALUATE, RUN, with_defaults
from nlu.config.scoring import on_run

OWN = ("data=files", "data.train=my.csv")


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


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (
            ("data.sheet=0",),
            "data.sheet is 0, but the files are csv, and it applies to xlsx only; leave out data.sheet",
        ),
        (
            ("data.train=my.jsonl", 'data.quote="\'"'),
            'data.quote is "\'", but the files are jsonl, and it applies to csv, tsv',
        ),
        (
            ("data.format=conll", "data.separator=';'", "task=tag", "data.fields={tokens: 0, tags: 1}"),
            "data.separator is ';', but the files are conll, and it applies to csv, tsv only",
        ),
    ],
)
def test_a_key_that_applies_to_no_file_of_the_run_is_refused(composer, overrides, problem):
    for name in ("my.jsonl", "my.parquet"):
        Path(name).touch()
    (found,) = composer.problems_of(composer.plain(*OWN, *overrides))
    assert found.startswith(problem)


def test_a_run_scored_on_another_format_does_not_keep_the_separator_of_its_files(composer):
    saved = with_defaults(composer.plain(*OWN, "data.separator=';'", "data.skip_lines=1"), RUN)
    for name, kept in (("new.jsonl", (None, 0)), ("new.csv", (";", 1))):
        order = ["run=outputs/mine", f"data.test={name}"]
        asked = with_defaults(composer.plain(*order, config_name="evaluate"), EVALUATE)
        data = on_run(saved, asked, order, ["test"], "outputs/mine")["data"]
        assert (data["separator"], data["skip_lines"]) == kept


def test_fields_given_to_score_a_run_replace_those_of_the_default_data_set(composer):
    saved = with_defaults(composer.plain(*OWN, "task=match", "data.fields={text_a: a, text_b: b, label: y}"), RUN)
    order = ["run=outputs/mine", "data.test=new.csv", "data.fields={text_a: q, text_b: p, label: y}"]
    asked = with_defaults(composer.plain(*order, config_name="evaluate"), EVALUATE)
    fields = on_run(saved, asked, order, ["test"], "outputs/mine")["data"]["fields"]
    assert fields == {"text_a": "q", "text_b": "p", "label": "y"}
