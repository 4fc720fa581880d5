"""Two runs side by side."""

import json

import pytest

from nlu.config.errors import UserError
from nlu.reports.compare import difference_as_json, difference_of, print_difference
from nlu.reports.predictions import Flips, texts_of
from tests.reports.folders import begin_run, end_run, predict

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


def test_flipped_rows_are_counted_each_way(tmp_path):
    others = [(0, "good", "bad"), (1, "bad", "bad"), (2, "good", "good"), (3, "bad", "bad"), (4, "good", "good")]
    flips = pair(tmp_path, others).flips["dev"]
    assert (flips.rows, flips.both_right, flips.both_wrong) == (5, 2, 0)
    assert [flip.row["id"] for flip in flips.lost] == [0] and [flip.row["id"] for flip in flips.won] == [2, 3]


def test_the_order_of_the_rows_does_not_matter(tmp_path):
    flips = pair(tmp_path, ROWS[::-1]).flips["dev"]
    assert flips.lost == flips.won == [] and flips.both_wrong == 2 and flips.moved == 0


def test_the_chance_of_as_many_flips_is_that_of_a_fair_coin():
    flips = Flips()
    flips.won = [None] * 9
    flips.lost = [None]
    assert flips.p_value == pytest.approx(2 * (1 + 10) / 2**10)
    assert Flips().p_value == 1.0


@pytest.mark.parametrize("others", [ROWS[:-1], [*ROWS[:-1], (4, "bad", "good")], [*ROWS[:-1], (5, "good", "good")]])
def test_rows_of_other_data_are_not_compared(tmp_path, others):
    found = pair(tmp_path, others)
    assert found.flips == {} and "scored different rows as dev" in found.remarks[0]


def test_of_seeds_those_of_the_same_number_are_compared(tmp_path):
    for name, seeds in (("a", (1, 2)), ("b", (2, 3))):
        for seed in seeds:
            predict(end_run(begin_run(tmp_path / name / str(seed), seed=seed), 0.5), ROWS)
    found = difference_of(tmp_path / "a", tmp_path / "b")
    assert found.flips["dev"].rows == len(ROWS) and found.config == {}


def test_where_one_side_lacks_folds_only_the_folds_of_both_are_compared(tmp_path, capsys):
    for name, values in (("a", (0.5, 0.6, 0.7)), ("b", (0.4,))):
        for fold, value in enumerate(values):
            end_run(begin_run(tmp_path / name / f"fold-{fold}", folds__count=3, fold=fold), value)
    found = difference_of(tmp_path / "a", tmp_path / "b")
    first, second = found.metrics["dev/accuracy"]
    assert (first.mean, first.n, second.mean, second.n) == (0.5, 1, 0.4, 1)
    print_difference(found, examples=0)
    out = capsys.readouterr().out
    assert "of 3 folds are missing 1 (no run), 2 (no run)" in out and "over the folds that both have" in out


def test_a_folder_with_several_configurations_is_refused(tmp_path):
    pair(tmp_path, ROWS)
    with pytest.raises(UserError, match="holds 2 configurations"):
        difference_of(tmp_path, tmp_path / "a")


def test_an_example_comes_with_its_text_as_long_as_the_file_says_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    others = [(0, "good", "bad"), *ROWS[1:]]
    fields = {"data__fields": {"text": 0, "label": 1}, "data__format": "auto", "data__header": None}
    (tmp_path / "dev.tsv").write_text("first text\tgood\nsecond text\tbad\n")
    predict(end_run(begin_run(tmp_path / "a", data__dev="dev.tsv", **fields), 0.6), ROWS)
    predict(end_run(begin_run(tmp_path / "b", data__dev="dev.tsv", **fields), 0.6), others)
    lost = difference_of(tmp_path / "a", tmp_path / "b").flips["dev"].lost
    assert texts_of(lost, "dev") == {0: "first text"}
    (tmp_path / "dev.tsv").write_text("another text\tbad\n")
    assert texts_of(lost, "dev") == {}


def test_what_is_printed_names_flips_and_the_better_side(tmp_path, capsys):
    print_difference(pair(tmp_path, [(0, "good", "bad"), *ROWS[1:]]), examples=3)
    out = capsys.readouterr().out
    assert "1 only right in A" in out and "optimizer.lr" in out
    (loss,) = [line.split() for line in out.splitlines() if line.startswith("dev/loss")]
    assert loss == ["dev/loss", "0.5000", "0.4000", "-0.1000", "B"]


def test_json_holds_the_same(tmp_path):
    content = json.loads(difference_as_json(pair(tmp_path, [(0, "good", "bad"), *ROWS[1:]]), examples=1))
    assert content["predictions"]["dev"]["only_a_right"] == 1
    assert content["predictions"]["dev"]["examples"][0]["a"]["id"] == 0
    assert content["metrics"]["dev/accuracy"]["b"]["mean"] == 0.7
