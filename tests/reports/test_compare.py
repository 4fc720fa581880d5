"""Two runs side by side."""

import json
import time

import pytest

from nlu.config.errors import UserError
from nlu.reports.compare import difference_as_json, difference_of, print_difference
from nlu.reports.flips import Flips, text_of, texts_of
from nlu.runs.predictions import predictions_of, write_predictions
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


def test_the_order_of_the_rows_does_not_matter(tmp_path):
    flips = pair(tmp_path, ROWS[::-1]).flips["dev"]
    assert flips.lost == flips.won == 0 and flips.both_wrong == 2 and flips.moved == 0


def test_the_chance_of_as_many_flips_is_that_of_a_fair_coin():
    balance = {(number, 0, number): -1 if number == 4 else 1 for number in range(10)}
    assert Flips(balance=balance).test.p_value == pytest.approx(2 * (1 + 10) / 2**10)
    assert Flips(balance={(0, 0, 0): 1, (1, 0, 1): -1}).test.p_value == Flips().test.p_value == 1.0


def test_an_example_that_one_seed_won_and_another_lost_does_not_count():
    flips = Flips(balance={(0, 0, 0): 1, (1, 0, 1): 0, (2, 0, 2): -2})
    assert (flips.examples_won, flips.examples_lost) == (1, 1)


def test_the_chance_of_very_many_flips_is_found_at_once():
    flips = Flips(balance={(number, 0, number): 1 if number % 2 else -1 for number in range(200_000)})
    began_s = time.process_time()
    assert flips.test.p_value == pytest.approx(1.0)
    assert time.process_time() - began_s < 5


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


def test_runs_of_the_same_seed_are_compared(tmp_path):
    for name, seeds in (("a", (1, 2)), ("b", (2, 3))):
        for seed in seeds:
            predict(end_run(begin_run(tmp_path / name / str(seed), seed=seed), 0.5), ROWS)
    found = difference_of(tmp_path / "a", tmp_path / "b")
    assert found.flips["dev"].rows == len(ROWS) and found.config == {}


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


def test_a_folder_with_several_configurations_is_refused(tmp_path):
    pair(tmp_path, ROWS)
    with pytest.raises(UserError, match="holds 2 configurations"):
        difference_of(tmp_path, tmp_path / "a")


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


def test_the_output_names_flips_and_does_not_call_a_single_flip_better(tmp_path, capsys):
    print_difference(pair(tmp_path, [(0, "good", "bad"), *ROWS[1:]]))
    out = capsys.readouterr().out
    assert "1 only right in A" in out and "optimizer.lr" in out
    (accuracy,) = [line.split() for line in out.splitlines() if line.startswith("dev/accuracy")]
    assert accuracy[:4] == ["dev/accuracy", "0.6000", "0.7000", "+0.1000"]
    assert accuracy[-1] not in ("A", "B") and float(accuracy[-1]) > 0.05


def test_json_holds_the_same(tmp_path):
    content = json.loads(difference_as_json(pair(tmp_path, [(0, "good", "bad"), *ROWS[1:]])))
    assert content["predictions"]["dev"]["only_a_right"] == 1
    assert content["predictions"]["dev"]["examples"][0]["a"]["id"] == 0
    assert content["metrics"]["dev/accuracy"]["b"]["mean"] == 0.7


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_the_text_of_a_flip_comes_from_the_run_that_kept_it(tmp_path, names):
    others = [(0, "good", "bad"), *ROWS[1:]]
    for name, rows in zip(names, (ROWS, others), strict=True):
        predict(end_run(begin_run(tmp_path / name), 0.6), rows)
    kept = predictions_of(tmp_path / "b", "dev")
    records = [{**record, "text": f"text {record['id']}"} for record in kept]
    write_predictions(tmp_path / "b" / "predictions" / "dev.jsonl", kept.header, records)
    flips = difference_of(tmp_path / "a", tmp_path / "b").flips["dev"]
    assert (flips.lost, flips.won) == ((1, 0) if names == "ab" else (0, 1))
    assert texts_of([*flips.first_lost, *flips.first_won], "dev") == {0: "text 0"}


def test_predictions_that_name_no_kind_are_not_compared(tmp_path):
    for name in "ab":
        predict(end_run(begin_run(tmp_path / name), 0.6), ROWS)
    write_predictions(tmp_path / "b" / "predictions" / "dev.jsonl", {"step": 1}, [])
    found = difference_of(tmp_path / "a", tmp_path / "b")
    assert not found.flips and not found.changes and "dev/accuracy" in found.metrics
    assert "does not name the kind of its records" in found.remarks[0]


def test_rows_of_another_text_are_not_compared(tmp_path):
    for name in "ab":
        run = end_run(begin_run(tmp_path / name), 0.6)
        rows = [{"id": 0, "file": 0, "row": 1, "label": "x", "prediction": "x", "text": name}]
        keep_records(run, rows)
    assert "row 1 has another text" in difference_of(tmp_path / "a", tmp_path / "b").remarks[0]


def compared(tmp_path, kind, *records):
    """The difference of two runs that kept these records of one example."""
    for name, record in zip("ab", records, strict=True):
        folder = end_run(begin_run(tmp_path / name), 0.6)
        keep_records(folder, [{"id": 0, "file": 0, "row": 2, **record}], kind=kind)
    return difference_of(tmp_path / "a", tmp_path / "b")


def test_sets_of_labels_flip_as_a_whole_and_are_listed(tmp_path, capsys):
    right, wrong = ({"label": ["law", "sport"], "prediction": found} for found in (["law", "sport"], ["law"]))
    found = compared(tmp_path, "LabelSetKind", right, wrong)
    assert (found.flips["dev"].lost, found.flips["dev"].won) == (1, 0)
    print_difference(found)
    assert "law, sport  law, sport  law" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("kind", "records"),
    [
        ("NumberKind", [{"label": 7.5, "prediction": 7.4}, {"label": 7.5, "prediction": 7.6}]),
        ("SimilarityKind", [{"label": True, "similarity": 0.5}, {"label": True, "similarity": 0.6}]),
    ],
)
def test_numbers_and_rankings_are_neither_right_nor_wrong(tmp_path, kind, records):
    found = compared(tmp_path, kind, *records)
    assert found.flips == {}
    (remark,) = found.remarks
    assert remark.startswith("predictions: those of dev are neither right nor wrong by themselves")


def test_a_threshold_is_higher_or_lower_and_not_better(tmp_path, capsys):
    for name, threshold in (("a", 0.4), ("b", 0.5)):
        end_run(begin_run(tmp_path / name), 0.6, threshold=threshold)
    print_difference(difference_of(tmp_path / "a", tmp_path / "b"))
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("dev/threshold")]
    assert line.split() == ["dev/threshold", "0.4000", "0.5000", "+0.1000"]


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
