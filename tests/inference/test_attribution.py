"""Integrated gradients of a row, against differences of scores and a linear model, whose attributions are known."""

from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import nlu
from nlu.config.errors import DataError
from nlu.data.layouts import Values
from nlu.inference.attribution import EXACT_ENOUGH, Explanation, characters_of, explaining
from nlu.inference.loaded import Loaded
from nlu.inference.predictor import Predictor
from tests.inference.runs import kept, trained
from tests.training.kinds import LOSSES, TASKS, few_first


def whole(parts: Generator[None, None, Any]) -> Any:
    """Do work in parts to its end."""
    while True:
        try:
            next(parts)
        except StopIteration as end:
            return end.value


def explain(predictor: Predictor, values: Values, label: str | None, span: tuple[int, int] | None) -> Explanation:
    found: Explanation = whole(explaining(predictor, values, label, span))
    return found


ROWS: dict[str, Values] = {
    "classify": {"text": "a b, c"}, "match": {"text_a": "a b", "text_b": "c d e"}, "regress": {"text": "a b c"},
    "multilabel": {"text": "a b c"}, "siamese": {"text_a": "a b", "text_b": "c d e"},
    "siamese with contrastive loss": {"text_a": "a b", "text_b": "c d e"},
    "retrieve": {"text_a": "a b", "text_b": "c d e"}, "bce": {"text": "a b"},
}  # fmt: skip


def run_of(name: str, folder: Path) -> Loaded:
    return nlu.load(trained({**TASKS, **LOSSES}[name], folder), device="cpu")


@pytest.mark.parametrize("name", few_first(list(ROWS), "classify", "siamese with contrastive loss"))
def test_attributions_add_up_to_the_difference_of_the_scores(name: str, tmp_path: Path) -> None:
    loaded, row = run_of(name, tmp_path), ROWS[name]
    found = explain(loaded.predictor, row, None, None)
    total = sum(mark.attribution for mark in found.marks)
    assert total == pytest.approx(found.score - found.baseline + found.gap, abs=1e-5)
    assert abs(found.gap) <= EXACT_ENOUGH * abs(found.score - found.baseline) + 1e-6
    assert [row[mark.field][mark.start : mark.end] for mark in found.marks] == [
        character for text in row.values() for character in text if character != " "
    ]
    assert any(mark.attribution for mark in found.marks)
    (own,) = loaded.predict([row])
    if name in ("classify", "match", "siamese"):
        p = own["probability"]
        assert found.score == pytest.approx(np.log(p / (1 - p)), abs=1e-4)
        assert found.score_of == f"log-odds of {own['prediction']}"
    elif name in ("regress", "retrieve"):
        assert found.score == pytest.approx(own["prediction"], rel=1e-5)
    elif name == "siamese with contrastive loss":
        assert found.score == pytest.approx(own["similarity"], rel=1e-5)


def test_each_word_gets_its_exact_share_in_a_linear_model(tmp_path: Path) -> None:
    loaded = run_of("regress", tmp_path)
    model: Any = loaded.trained.model
    weights_D = torch.linspace(-1, 1, 8)

    def forward(own_model: Any, batch: Any, x_TD: Any = None) -> dict[str, torch.Tensor]:
        x_TD = own_model.backbone.embed(batch) if x_TD is None else x_TD
        ends = [*batch.starts_S.tolist()[1:], batch.num_tokens]
        sums = [(x_TD[start:end] @ weights_D).sum() for start, end in zip(batch.starts_S.tolist(), ends, strict=True)]
        return {"logits": torch.stack(sums).index_select(0, batch.sequences_KB[0])[:, None]}

    loaded.trained.task.forward = forward  # type: ignore[method-assign]
    found = explain(loaded.predictor, {"text": "a b"}, None, None)
    ids = loaded.trained.tokenizer.ids(["a b"])[0].tolist()
    words = model.backbone.state_dict()
    table = next(value for name, value in words.items() if "word" in name)
    target: Any = loaded.trained.target
    expected = (table[ids] @ weights_D).double().numpy() * target.sd
    np.testing.assert_allclose([mark.attribution for mark in found.marks], expected, rtol=1e-4, atol=1e-6)


def test_a_span_is_explained_by_the_odds_of_its_tags(tmp_path: Path) -> None:
    loaded = run_of("tag", tmp_path)
    rows = [record["tokens"] for record in kept(tmp_path / "run") if record["spans"]]
    assert rows, "the small run found no span; train it longer"
    row = {"tokens": rows[0]}
    (span, *_) = loaded.predict([row])[0]["prediction"]
    found = explain(loaded.predictor, row, None, (span["first"], span["last"]))
    (logits_UC,) = (np.array(one["logits"]) for one in loaded.predict([row], logits=True))
    probs_UC = np.exp(logits_UC) / np.exp(logits_UC).sum(1, keepdims=True)
    names = [
        f"{'B' if unit == span['first'] else 'I'}-{span['type']}" for unit in range(span["first"], span["last"] + 1)
    ]
    odds = [
        np.log(p / (1 - p))
        for unit, name in enumerate(names, span["first"])
        for p in [probs_UC[unit, loaded.labels.index(name)]]
    ]
    assert found.score == pytest.approx(sum(odds), abs=1e-4)
    assert [(mark.start, mark.end) for mark in found.marks] == [(unit, unit + 1) for unit in range(len(rows[0]))]
    with pytest.raises(DataError, match="no span is predicted from 90 to 91"):
        explain(loaded.predictor, row, None, (90, 91))


def test_another_label_may_be_requested_and_an_unknown_one_is_refused(tmp_path: Path) -> None:
    loaded = run_of("classify", tmp_path)
    bad, good = (explain(loaded.predictor, {"text": "a b"}, label, None) for label in ("bad", "good"))
    assert bad.score == pytest.approx(-good.score, abs=1e-5)
    with pytest.raises(DataError, match="label is goood, which is not a label of the run; nearest: good"):
        explain(loaded.predictor, {"text": "a b"}, "goood", None)


@pytest.mark.parametrize(
    ("text", "offsets", "expected"),
    [
        ("ab cd", [(0, 2), (2, 5)], [(0, 2, [0]), (3, 5, [1])]),
        ("北京", [(0, 1), (0, 2)], [(0, 2, [0, 1])]),
        ("ﬁx", [(0, 1), (0, 1), (1, 2)], [(0, 1, [0, 1]), (1, 2, [2])]),
        ("a😀", [(0, 1), (1, 2), (1, 2)], [(0, 1, [0]), (1, 2, [1, 2])]),
        ("e\u0301te", [(0, 1), (2, 4)], [(0, 2, [0]), (2, 4, [1])]),
    ],
    ids=["a space before a word", "a token for a beginning", "letters of a ligature", "bytes", "a joined mark"],
)  # fmt: skip
def test_each_character_of_a_text_is_in_one_range(text: str, offsets: Any, expected: Any) -> None:
    assert [(start, stop, list(tokens)) for start, stop, tokens in characters_of(text, offsets)] == expected
