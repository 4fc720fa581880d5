"""Signatures are read from source, whole, and without importing anything."""

import ast
import sys

import pytest

from nlu.config.errors import UserError
from nlu.config.signature import read_signature


def names(target: str) -> list[str]:
    return list(read_signature(target).parameters)


def test_keyword_only_parameters_are_the_schema_and_positional_ones_are_kept_apart():
    signature = read_signature("shop.models.Model")
    assert list(signature.parameters) == ["hidden_size", "layers", "name", "head"]
    assert signature.positional == ("labels",)
    assert signature.doc == "A model."
    hidden_size = signature.parameters["hidden_size"]
    assert ast.unparse(hidden_size.annotation) == "PositiveInt"
    assert (hidden_size.required, hidden_size.default) == (False, "8")


def test_reading_a_target_imports_neither_its_package_nor_what_it_imports():
    read_signature("shop.models.Model")
    assert "shop" not in sys.modules


def test_a_function_is_read_like_a_constructor():
    signature = read_signature("shop.models.make")
    assert signature.parameters["rate"].required
    assert signature.doc == "Makes."


def test_a_dataclass_is_read_by_its_fields_with_defaults_from_field():
    signature = read_signature("shop.schema.Job")
    assert list(signature.parameters) == ["seed", "name", "trusted_packages", "task", "model", "trainer"]
    assert signature.parameters["name"].required
    assert signature.parameters["trusted_packages"].default == "list()"
    assert signature.doc == "The keys\nof a job."


def test_a_constructor_is_inherited_through_a_relative_import():
    assert names("shop.models.Heir") == ["hidden_size", "dropout"]
    assert read_signature("shop.models.Heir").positional == ("labels",)


def test_keywords_that_are_passed_on_to_a_base_add_the_parameters_of_the_base():
    signature = read_signature("shop.models.Extended")
    assert list(signature.parameters) == ["hidden_size", "dropout", "width"]
    assert not signature.is_open


def test_keywords_that_cannot_be_read_leave_the_signature_open():
    assert read_signature("shop.models.Open").is_open


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("shop.models.Modell", "shop.models has no Modell; nearest: Model"),
        ("shop.model.Model", "shop has no model; nearest: models"),
        ("shopp.models.Model", "package 'shopp' is not installed"),
        ("shop.models", "does not name a class"),
        ("__main__.Model", "package '__main__' is not installed"),
        ("", "package '' is not installed"),
    ],
)
def test_an_unknown_target_is_refused_with_its_part_that_is_wrong_and_the_nearest(target: str, expected: str):
    with pytest.raises(UserError) as caught:
        read_signature(target)
    assert expected in str(caught.value)
