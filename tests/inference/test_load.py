"""nlu.load: a trained run in Python, whose answers are those of the commands."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nlu
from nlu.config.errors import DataError, UserError
from nlu.inference.loaded import Loaded
from tests.inference.runs import trained
from tests.training.kinds import TASKS


@pytest.fixture(scope="module")
def loaded(run_of: Callable[[str], Path]) -> Loaded:
    return nlu.load(run_of("classify"), device="cpu")


def test_the_error_for_damaged_weights_names_the_run(tmp_path: Path) -> None:
    run = trained(TASKS["classify"], tmp_path)
    weights = run / "checkpoints" / "best-1" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"^run is .*best-1': .*cannot be read .*; give undamaged weights"):
        nlu.load(run, device="cpu")


def test_a_last_checkpoint_whose_moving_average_is_missing_is_refused(tmp_path: Path) -> None:
    run = trained(TASKS["classify"], tmp_path)
    (run / "checkpoints" / "last" / "average.safetensors").unlink()
    with pytest.raises(UserError, match="last was saved with average.safetensors, .* the file is missing; use the"):
        nlu.load(run / "last", device="cpu")


def test_a_row_may_be_a_text_or_have_fields_by_role_beside_others(loaded: Loaded) -> None:
    expected = loaded.predict([{"text": "a b"}])
    assert loaded.predict(["a b"]) == expected
    assert loaded.predict([{"text": "a b", "id": 3, "label": "never read"}]) == expected
    assert loaded.predict([]) == []


def test_a_row_may_have_the_names_of_the_runs_own_columns(tmp_path: Path) -> None:
    kind = TASKS["match"]
    run = trained(kind, tmp_path)
    loaded = nlu.load(run, device="cpu")
    loaded.trained.config.data["fields"] = {"text_a": "first", "text_b": "second", "label": "is"}
    pair = {"text_a": "a b", "text_b": "c"}
    expected = loaded.predict([pair])
    assert loaded.predict([("a b", "c")]) == loaded.predict([{"first": "a b", "second": "c"}]) == expected
    # As nlu.predict looks for columns.
    assert loaded.predict([{"first": "a b", "second": "c", "text_a": "d", "text_b": "e"}]) == expected
    label = loaded.labels[0]
    named = {"first": "a b", "second": "c", "is": label}
    assert loaded.evaluate([named]) == loaded.evaluate([{**pair, "label": label}])
    with pytest.raises(DataError, match="row 1 is one text, but the run reads text_a and text_b"):
        loaded.predict(["a"])


@pytest.mark.parametrize(
    ("rows", "rule"),
    [
        (["a", 3], "row 2 is 3, but the run reads text; give it these"),
        ([("a", "b")], "row 1 is a list of 2, but the run reads text"),
        ([{"txt": "a"}], "row 1 lacks text; it has txt, and the run reads text"),
        ([{}], "row 1 lacks text; it has nothing"),
        (["a", " "], "row 2: field text: ' ' is empty"),
        (["\ud800"], "row 1: field text: '\\ud800' holds half of a surrogate pair"),
        ("abc", "rows is one text; give a list, such as [text]"),
        ({"text": "a"}, "rows is a dict; give a list"),
        (None, "rows is a NoneType; give a list"),
    ],
)
def test_a_row_that_cannot_be_used_is_named_with_its_rule(loaded: Loaded, rows: Any, rule: str) -> None:
    with pytest.raises(DataError) as raised:
        loaded.predict(rows)
    assert rule in str(raised.value)


def test_labels_that_the_run_does_not_know_and_no_rows_are_refused(loaded: Loaded) -> None:
    with pytest.raises(
        DataError, match="'ugly' is not one of the labels .* trained for; correct the row, or leave it out$"
    ):
        loaded.evaluate([{"text": "a", "label": "good"}, {"text": "a", "label": "ugly"}])
    with pytest.raises(DataError, match="rows is empty"):
        loaded.evaluate([])
    with pytest.raises(UserError, match="not a folder here"):
        nlu.load("not/there")


@pytest.mark.parametrize("name", ["classify", "match", "tag", "siamese"])
def test_the_vector_of_a_text_depends_only_on_the_text(name: str, tmp_path: Path, run_of: Any) -> None:
    loaded = nlu.load(run_of(name), device="cpu", batch_size=2)
    texts = ["a b", "c", "d e a b", "c a"]
    vectors_ND = loaded.encode(texts)
    assert vectors_ND.shape[0] == 4 and vectors_ND.dtype == np.float32
    assert np.array_equal(vectors_ND, np.concatenate([loaded.encode([text]) for text in texts]))
    assert len({vector.tobytes() for vector in vectors_ND}) == 4
    with pytest.raises(DataError, match="texts is one text"):
        loaded.encode("abc")
    with pytest.raises(DataError, match="text 2: field text: '' is empty"):
        loaded.encode(["a", ""])


def test_vectors_are_what_the_head_turns_into_logits(loaded: Loaded) -> None:
    head: Any = loaded.trained.model.head
    logits_NC = [one["logits"] for one in loaded.predict(["a b", "c d"], logits=True)]
    own_NC = loaded.encode(["a b", "c d"]) @ head.linear.weight.detach().numpy().T + head.linear.bias.detach().numpy()
    np.testing.assert_allclose(own_NC, np.array(logits_NC), rtol=1e-5, atol=1e-6)


def test_importing_nlu_imports_nothing_heavy() -> None:
    seen = "import sys, nlu; print([name for name in ('torch', 'numpy', 'hydra') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", seen], capture_output=True, text=True, check=True).stdout == "[]\n"
