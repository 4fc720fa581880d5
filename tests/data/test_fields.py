"""Which fields a task needs, known only from facts of classes."""

import pytest

from nlu.config.errors import UserError
from nlu.config.keys import facts_of
from nlu.config.targets import trust
from nlu.data.fields import ROLES, chosen_layout, known_roles, layouts_of, missing_roles, target_roles, usual_fields


@pytest.fixture
def own_package(tmp_path, monkeypatch):
    """A package with a task, its target and one whose target is not there."""
    folder = tmp_path / "roomy"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "tasks.py").write_text(
        "from nlu.data.targets import Classes\n"
        "class Stars(Classes):\n    roles = ('spans',)\n"
        "class Rate:\n    target = 'roomy.tasks.Stars'\n    layouts = ('single', 'pair')\n"
        "class Lost:\n    target = 'roomy.tasks.Gone'\n    layouts = ('single',)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    trust({"trusted_packages": ["roomy"]})


def test_a_target_of_a_users_own_names_its_fields(own_package):
    task = facts_of("roomy.tasks.Rate")
    assert layouts_of(task) == ("single", "pair") and known_roles(task) == (("spans",), [])


def test_a_target_that_is_not_there_is_a_problem_of_the_task(own_package):
    task = facts_of("roomy.tasks.Lost")
    roles, wrong = known_roles(task)
    assert roles == () and "Gone" in wrong[0]
    with pytest.raises(UserError, match="Gone"):
        target_roles(task)


@pytest.mark.parametrize(
    ("layouts", "fields", "layout"),
    [(("single", "pair"), {"text", "label"}, "single"), (("single", "pair"), {"text_a", "text_b"}, "pair"),
     (("pair", "single"), {"text", "text_a", "text_b"}, "pair"), (("single", "pair"), {"text_a"}, None),
     (("units",), {"tokens"}, "units"), (("units",), {"text"}, "units"), (("sides",), {"text_a", "text_b"}, "sides")],
)  # fmt: skip
def test_the_first_layout_all_of_whose_texts_are_there_is_chosen(layouts, fields, layout):
    assert chosen_layout(layouts, fields) == layout


@pytest.mark.parametrize(
    ("layouts", "targets", "fields", "file_format", "missing"),
    [(("single",), ("label",), {"text", "label"}, "auto", []), (("single",), (), {"text"}, "auto", []),
     (("single", "pair"), ("label",), {"text_a"}, "auto", ["text", "label"]),
     (("pair",), ("label",), {"text_a"}, "auto", ["text_b", "label"]),
     (("units",), ("tags", "spans"), {"tokens"}, "conll", ["tags or spans"]),
     (("units",), ("tags", "spans"), {"text", "spans"}, "jsonl", []),
     (("single",), ("label",), {}, "lines", []), (("pair",), ("label",), {}, "lines", ["text_a", "text_b"])],
)  # fmt: skip
def test_missing_fields_are_those_of_the_nearest_layout_and_the_target(
    layouts, targets, fields, file_format, missing
):  # fmt: skip
    assert missing_roles(layouts, targets, fields, file_format) == missing


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["index", "sentence1", "sentence2", "label"],
         {"text_a": "sentence1", "text_b": "sentence2", "label": "label"}),
        (["sentence1", "sentence2", "score"], {"text_a": "sentence1", "text_b": "sentence2", "label": "score"}),
        (["id", "question1", "question2", "is_duplicate"],
         {"text_a": "question1", "text_b": "question2", "label": "is_duplicate"}),
        (["question", "sentence", "label"], {"text_a": "question", "text_b": "sentence", "label": "label"}),
        (["Quality", "#1 String", "#2 String"], {"text_a": "#1 String", "text_b": "#2 String", "label": "Quality"}),
        (["sentence", "label"], {"text": "sentence", "label": "label"}),
        (["text", "sentence1", "sentence2", "score"], {"text": "text"}),
        (["tokens", "sentence", "tags"], {"tokens": "tokens", "tags": "tags"}),
        (["sentence1", "review"], {}),
    ],
)  # fmt: skip
def test_columns_called_as_in_glue_are_taken_for_fields(names, found):
    assert usual_fields(names, ROLES) == found
