"""Two runs side by side."""

import json

import pytest

from nlu.config.errors import UserError
from nlu.reports.compare import difference_as_json, difference_of, print_difference
from nlu.reports.flips import Flips, text_of, texts_of
from tests.reports.folders import begin_run, end_run, keep_records, predict

ROWS = [(0, "good", "good"), (1, "bad", "bad"), (2, "good", "bad"), (3, "bad", "good"), (4, "good", "good")]


def pair(tmp_path, others, **changes):
    predict(end_run(begin_run(tmp_path / "a"), 0.6, loss=0.5), ROWS)
    predict(end_run(begin_run(tmp_path / "b", optimizer__lr=0.002, **changes), 0.7, loss=0.4), others)
    return difference_of(tmp_path / "a", tmp_path / "b")


def test_keys_that_differ_and_metrics_stand_side_by_side(tmp_path):
    found = pair(tmp_path, ROWS)
    assert found.config == {"optimizer.lr": (0.001, 0.002)}
    first, second = found.metrics["dev/accuracy"]
    assert (first.mean, second.mean) == (0.6, 0.7)


def test_runs_without_a_common_metric_are_not_compared(tmp_path):
    end_run(begin_run(tmp_path / "a"), 0.6, loss=0.5)
    folder = end_run(begin_run(tmp_path / "b"), 0.7, loss=0.4)
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps(result).replace('"accuracy"', '"span_f1"'))
    with pytest.raises(UserError, match=r"A \(.*a\) has accuracy, and B \(.*b\) has span_f1: they have no metric in"):
        difference_of(tmp_path / "a", tmp_path / "b")


def test_flipped_rows_are_counted_each_way(tmp_path):
    others = [(0, "good", "bad"), (1, "bad", "bad"), (2, "good", "good"), (3, "bad", "bad"), (4, "good", "good")]
    flips = pair(tmp_path, others).flips["dev"]
    assert (flips.rows, flips.both_right, flips.both_wrong) == (5, 2, 0)
    assert [flip.row["id"] for flip in flips.first_lost] == [0]
    assert [flip.row["id"] for flip in flips.first_won] == [2, 3] and (flips.lost, flips.won) == (1, 2)


def test_the_chance_of_as_many_flips_is_that_of_a_fair_coin():
    balance = {(number, 0, number): -1 if number == 4 else 1 for number in range(10)}
    assert Flips(balance=balance).test.p_value == pytest.approx(2 * (1 + 10) / 2**10)
    assert Flips(balance={(0, 0, 0): 1, (1, 0, 1): -1}).test.p_value == Flips().test.p_value == 1.0


def test_two_seeds_of_a_row_are_one_row_to_the_sign_test(tmp_path, capsys):
    """Of 8 rows B wins six with both seeds; another it wins with one seed and loses with the other."""
    rows = [(number, "good", "bad") for number in range(8)]
    won = [(number, "good", "good" if number < 6 else "bad") for number in range(8)]
    for name in "ab":
        for seed in (1, 2):
            found = rows if name == "a" else won
            if seed == 2:
                found = [*found[:7], (7, "good", "good" if name == "b" else "bad")]
            elif name == "a":
                found = [*found[:7], (7, "good", "good")]
            predict(end_run(begin_run(tmp_path / name / str(seed), seed=seed), 0.5), found)
    found = difference_of(tmp_path / "a", tmp_path / "b")
    flips = found.flips["dev"]
    assert (flips.rows, flips.won, flips.lost, flips.examples_won, flips.examples_lost) == (16, 13, 1, 6, 0)
    assert flips.test.p_value == pytest.approx(2 / 2**6)
    print_difference(found)
    out = capsys.readouterr().out.splitlines()
    assert any(line.startswith("dev: 16 predictions by 2 pairs of runs, ") for line in out)
    chance = "by chance alone: p = 0.031, McNemar, exact"
    assert f"rows, each counted once: 6 oftener right in B, 0 oftener right in A ({chance})" in out
    tables = [line.split() for line in out]
    assert ["seed", "fold", "row", "label", "A", "B", "text"] in tables
    assert ["1", "-", "8", "good", "good", "0.75", "bad", "0.75"] in tables
    examples = json.loads(difference_as_json(found))["predictions"]["dev"]["examples"]
    assert {(example["seed"], example["fold"]) for example in examples} == {(1, None)}


@pytest.mark.parametrize("others", [ROWS[:-1], [*ROWS[:-1], (4, "bad", "good")], [*ROWS[:-1], (5, "good", "good")]])
def test_rows_of_other_data_are_not_compared(tmp_path, others):
    found = pair(tmp_path, others)
    assert found.flips == {} and "scored different rows as dev" in found.remarks[0]


def test_only_folds_that_both_sides_have_are_compared(tmp_path, capsys):
    for name, values in (("a", (0.5, 0.6, 0.7)), ("b", (0.4,))):
        for fold, value in enumerate(values):
            end_run(begin_run(tmp_path / name / f"fold-{fold}", folds__count=3, fold=fold), value)
    found = difference_of(tmp_path / "a", tmp_path / "b")
    first, second = found.metrics["dev/accuracy"]
    assert (first.mean, first.n, second.mean, second.n) == (0.5, 1, 0.4, 1)
    assert found.config == {}, "seeds and folds do not count as a difference if one side has several"
    print_difference(found)
    out = capsys.readouterr().out
    assert "of 3 folds are missing 1 (no run), 2 (no run)" in out and "over the folds that both have" in out


def test_an_example_is_shown_with_its_text_if_the_file_is_unchanged(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    others = [(0, "good", "bad"), *ROWS[1:]]
    fields = {"data__fields": {"text": 0, "label": 1}, "data__format": "auto", "data__header": None}
    (tmp_path / "dev.tsv").write_text("first text\tgood\nsecond text\tbad\n")
    predict(end_run(begin_run(tmp_path / "a", data__dev="dev.tsv", **fields), 0.6), ROWS)
    predict(end_run(begin_run(tmp_path / "b", data__dev="dev.tsv", **fields), 0.6), others)
    lost = difference_of(tmp_path / "a", tmp_path / "b").flips["dev"].first_lost
    assert texts_of(lost, "dev") == {0: "first text"}
    (tmp_path / "dev.tsv").write_text("another text\tbad\n")
    assert texts_of(lost, "dev") == {}


def test_rows_of_another_text_are_not_compared(tmp_path):
    for name in "ab":
        run = end_run(begin_run(tmp_path / name), 0.6)
        rows = [{"id": 0, "file": 0, "row": 1, "label": "x", "prediction": "x", "text": name}]
        keep_records(run, rows)
    assert "row 1 has another text" in difference_of(tmp_path / "a", tmp_path / "b").remarks[0]


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (["我", "爱", "北", "京", "，", "你", "呢", "？"], "我爱北京，你呢？"),
        (["EU", "rejects", "German", "call"], "EU rejects German call"),
        (["买", "iPhone", "15", "手", "机"], "买iPhone 15手机"),
        (["서울", "날씨"], "서울 날씨"),
        ([], ""),
    ],
)
def test_tokens_are_shown_as_the_text_that_they_are(tokens, text):
    assert text_of({"tokens": tokens}) == text
