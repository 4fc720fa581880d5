"""Signatures are read from source, whole, and without importing anything."""

import ast
import sys
from pathlib import Path

import pytest

import nlu
from nlu.config.checks.values import broken_rule
from nlu.config.errors import UserError
from nlu.config.signature import read_signature, without_functions


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


def test_the_schema_of_a_run_can_be_read():
    assert {"seed", "task", "trainer"} <= set(names("nlu.config.schema.Run"))
    assert read_signature("nlu.config.schema.Trainer").parameters["batch_size"].default == "32"


def test_a_constructor_is_inherited_through_a_relative_import():
    assert names("shop.models.Heir") == ["hidden_size", "dropout"]
    assert read_signature("shop.models.Heir").positional == ("labels",)


def test_keywords_that_are_passed_on_to_a_base_add_the_parameters_of_the_base():
    signature = read_signature("shop.models.Extended")
    assert list(signature.parameters) == ["hidden_size", "dropout", "width"]
    assert not signature.is_open


def test_keywords_that_cannot_be_read_leave_the_signature_open():
    assert read_signature("shop.models.Open").is_open


def test_a_name_that_a_module_imports_is_followed_to_its_definition():
    assert names("shop.models.Ancestor") == ["hidden_size", "dropout"]


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


def test_packages_without_an_init_are_read_at_any_depth(tmp_path, monkeypatch):
    module = tmp_path / "my_parts" / "losses" / "soft.py"
    module.parent.mkdir(parents=True)
    module.write_text("class Soft:\n    def __init__(self, *, degree: float = 0.5): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert list(read_signature("my_parts.losses.soft.Soft").parameters) == ["degree"]
    with pytest.raises(UserError, match="my_parts.losses.sofd.*soft"):
        read_signature("my_parts.losses.sofd.Soft")


def test_a_type_that_is_only_called_like_one_of_ours_accepts_anything(tmp_path, monkeypatch):
    (tmp_path / "namesakes.py").write_text("""
from typing import Annotated, Literal
import elsewhere
from elsewhere import PositiveInt
from nlu.config import types
from nlu.config.types import Probability
Weights = list[float]
class Loss:
    def __init__(self, *, a: Weights, b: "dict[str, Weights] | None", c: list["Weights"], d: PositiveInt,
                 e: elsewhere.Fraction, f: Annotated[Weights, "one a class"], g: Literal["Weights"],
                 h: Probability, i: types.Duration, j: "Probability"): ...
""")
    monkeypatch.syspath_prepend(tmp_path)
    parameters = read_signature("namesakes.Loss").parameters
    assert [ast.unparse(parameter.annotation) for parameter in parameters.values()] == [
        "Any", "dict[str, Any] | None", "list[Any]", "Any", "Any", "Annotated[Any, 'one a class']",
        "Literal['Weights']", "Probability", "types.Duration", "Probability",
    ]  # fmt: skip
    assert broken_rule("loss.a", parameters["a"].annotation, [1.0, 2.0]) is None
    assert "loss.h is 2 but must be a number >= 0 and < 1" in str(broken_rule("loss.h", parameters["h"].annotation, 2))


@pytest.mark.thorough
def test_signatures_are_the_same_if_function_bodies_are_skipped():
    texts = {path: path.read_text(encoding="utf-8") for path in Path(nlu.__file__).parent.rglob("*.py")}
    assert len(texts) > 200
    for path, text in texts.items():
        whole, part = (ast.parse(source) for source in (text, without_functions(text)))
        assert of_constructors(part) == of_constructors(whole), path


def of_constructors(tree: ast.Module) -> list[str]:
    """Everything at the top of a module but functions, of classes without what their methods do, as written."""
    found = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            node.body = [own for own in node.body if not _is_left_out(own)]
            for own in node.body:
                if isinstance(own, ast.FunctionDef):
                    # What a class without a docstring is, its constructor would say.
                    own.body = own.body[: ast.get_docstring(node) is None and ast.get_docstring(own) is not None]
        if not _is_left_out(node):
            found.append(ast.unparse(node))
    return found


def _is_left_out(node: ast.stmt) -> bool:
    is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name != "__init__"
    return is_function or isinstance(node, ast.Pass)


def test_a_function_of_nlu_is_read_though_classes_are_looked_for_first():
    assert read_signature("nlu.config.signature.read_signature").positional == ("target",)
    with pytest.raises(UserError, match="nlu.config.signature has no read_signatur; nearest: read_signature"):
        read_signature("nlu.config.signature.read_signatur")
