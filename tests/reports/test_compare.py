"""Two and more configurations side by side."""

import json
import math

import pytest
from omegaconf import OmegaConf

from nlu.commands.report import main
from nlu.config.errors import UserError
from nlu.reports.compare import comparison_of, print_comparison
from nlu.reports.flips import adjusted, mcnemar, text_of
from tests.composing import composed as composed_config
from tests.reports.folders import begin_run, end_run, keep_records, predict
from tests.training.in_process import TINY, train
from tests.training.runs import files

ROWS = [(0, "good", "good"), (1, "bad", "bad"), (2, "good", "bad"), (3, "bad", "good"), (4, "good", "good")]


def pair(tmp_path, others, **changes):
    predict(end_run(begin_run(tmp_path / "a"), 0.6, loss=0.5), ROWS)
    predict(end_run(begin_run(tmp_path / "b", optimizer__lr=0.002, **changes), 0.7, loss=0.4), others)
    return comparison_of([tmp_path / "a", tmp_path / "b"], examples=5)


def words(capsys):
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def test_keys_and_metrics_stand_side_by_side(tmp_path, capsys):
    for name, rate, value in (("a", 0.001, 0.6), ("b", 0.002, 0.7)):
        end_run(begin_run(tmp_path / name, optimizer__lr=rate), value)
    print_comparison(comparison_of([tmp_path / "a", tmp_path / "b"]))
    lines = words(capsys)
    assert ["optimizer.lr", "0.001", "0.002"] in lines
    assert ["dev/accuracy", "0.6000", "0.7000", "+0.1000"] in lines


def test_runs_without_a_common_metric_are_not_compared(tmp_path):
    end_run(begin_run(tmp_path / "a"), 0.6, loss=0.5)
    folder = end_run(begin_run(tmp_path / "b"), 0.7, loss=0.4)
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps(result).replace('"accuracy"', '"span_f1"'))
    with pytest.raises(UserError, match=r"A \(.*a\) has accuracy, and B \(.*b\) has span_f1: they have no metric in"):
        comparison_of([tmp_path / "a", tmp_path / "b"])


def test_flipped_rows_are_counted_each_way_and_shown_with_their_text(tmp_path, capsys):
    others = [(0, "good", "bad"), (1, "bad", "bad"), (2, "good", "good"), (3, "bad", "bad"), (4, "good", "good")]
    found = pair(tmp_path, others)
    (only,) = found.pairs["dev"]
    flips = only.flips
    assert (flips.rows, flips.both_right, flips.both_wrong, flips.lost, flips.won) == (5, 2, 0, 1, 2)
    assert [flip.row["id"] for flip in flips.first_lost] == [0] and only.better == ""
    print_comparison(found)
    lines = words(capsys)
    assert ["A", "B", "5", "2", "0", "1", "2", "1"] in lines
    at = lines.index(["only", "right", "in", "B"])
    assert lines[at + 2 : at + 4] == [
        ["3", "good", "bad", "0.75", "good", "0.75"], ["4", "bad", "good", "0.75", "bad", "0.75"]
    ]  # fmt: skip


@pytest.mark.parametrize("lost, won", [(3, 9), (9, 3), (30, 5), (0, 24)])
def test_the_p_of_mcnemar_is_that_of_as_many_coins(lost, won):
    least, coins = min(lost, won), lost + won
    assert mcnemar(lost, won) == pytest.approx(
        2 * sum(math.comb(coins, heads) for heads in range(least + 1)) / 2**coins
    )
    assert mcnemar(0, 0) == mcnemar(4, 4) == 1.0


def test_p_values_are_corrected_for_their_number():
    # The largest of m stays, the one before is multiplied by m / (m - 1), and so on; the order is kept.
    assert adjusted([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.04, 0.04])
    assert adjusted([0.2]) == [0.2]


def test_two_seeds_of_a_row_are_one_row_to_the_test(tmp_path, capsys):
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
    found = comparison_of([tmp_path / "a", tmp_path / "b"], examples=5)
    (only,) = found.pairs["dev"]
    flips = only.flips
    assert (flips.rows, flips.won, flips.lost, flips.examples_won, flips.examples_lost) == (16, 13, 1, 6, 0)
    assert only.p_value == pytest.approx(2 / 2**6) and only.better == "B"
    print_comparison(found)
    lines = words(capsys)
    assert ["A", "B", "16", "0", "2", "0", "6", "0.031", "B"] in lines
    assert ["seed", "fold", "row", "label", "A", "B", "text"] in lines
    assert ["1", "-", "8", "good", "good", "0.75", "bad", "0.75"] in lines


def test_every_pair_of_three_is_tested_and_corrected_for_all_pairs(tmp_path, capsys):
    for name, right in {"a": range(30), "b": range(5, 60), "c": range(3, 30)}.items():
        rows = [(number, "good", "good" if number in right else "bad") for number in range(60)]
        predict(end_run(begin_run(tmp_path / name, optimizer__lr=ord(name)), 0.5), rows)
    found = comparison_of([tmp_path / name for name in "abc"])
    assert found.config == {"optimizer.lr": (97, 98, 99)}
    pairs = {one.letters: one for one in found.pairs["dev"]}
    counts = {letters: (one.flips.examples_lost, one.flips.examples_won) for letters, one in pairs.items()}
    assert counts == {"AB": (5, 30), "AC": (3, 0), "BC": (30, 2)}
    p_values = [mcnemar(5, 30), mcnemar(3, 0), mcnemar(30, 2)]
    assert [one.p_value for one in pairs.values()] == adjusted(p_values)
    assert [one.better for one in pairs.values()] == ["B", "", "B"]
    print_comparison(found)
    assert ["A", "C", "60", "27", "30", "3", "0", "0.25", "0.25"] in words(capsys)
    with pytest.raises(UserError, match="is named twice"):
        comparison_of([tmp_path / "a", tmp_path / "b", tmp_path / "a"])


@pytest.mark.parametrize("others", [ROWS[:-1], [*ROWS[:-1], (4, "bad", "good")], [*ROWS[:-1], (5, "good", "good")]])
def test_rows_of_other_data_are_not_compared(tmp_path, others):
    found = pair(tmp_path, others)
    assert found.pairs == {} and "scored different rows as dev" in found.remarks[0]


def test_rows_of_another_text_are_not_compared(tmp_path):
    for name in "ab":
        run = end_run(begin_run(tmp_path / name), 0.6)
        rows = [{"id": 0, "file": 0, "row": 1, "label": "x", "prediction": "x", "text": name}]
        keep_records(run, rows)
    assert "row 1 has another text" in comparison_of([tmp_path / "a", tmp_path / "b"]).remarks[0]


def test_only_folds_that_all_sides_have_are_compared_and_missing_ones_are_named(tmp_path, capsys):
    for name, values in (("a", (0.5, 0.6, 0.7)), ("b", (0.4,))):
        for fold, value in enumerate(values):
            run = end_run(begin_run(tmp_path / name / f"fold-{fold}", folds__count=3, fold=fold), value)
            predict(run, [(fold, "good", "good")])
    found = comparison_of([tmp_path / "a", tmp_path / "b"])
    first, second = found.metrics["dev/accuracy"]
    assert (first.mean, first.n, second.mean, second.n) == (0.5, 1, 0.4, 1)
    assert [one.flips.rows for one in found.pairs["dev"]] == [1]
    assert found.config == {}, "seeds and folds do not count as a difference if one side has several"
    print_comparison(found)
    out = capsys.readouterr().out
    assert "of 3 folds are missing 1 (no run), 2 (no run)" in out and "over the folds that all have" in out


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (["我", "爱", "北", "京", "，", "你", "呢", "？"], "我爱北京，你呢？"),
        (["EU", "rejects", "German", "call"], "EU rejects German call"),
        (["서울", "날씨"], "서울 날씨"),
        ([], ""),
    ],
)
def test_tokens_are_shown_as_the_text_that_they_are(tokens, text):
    assert text_of({"tokens": tokens}) == text


def test_both_texts_of_a_pair_are_shown_however_long_the_first_is():
    shown = text_of({"text_a": "a" * 300, "text_b": "b" * 300}, 100)
    assert shown == f"{'a' * 47}... / {'b' * 47}..."
    assert text_of({"text": "c" * 300}, 100) == f"{'c' * 97}..."


def test_only_the_keys_that_a_file_changes_are_listed(tmp_path, capsys):
    overrides = (*files(tmp_path), *TINY, "trainer.max_duration=1st")
    train(*overrides, "note=first", f"hydra.run.dir={tmp_path}/run")
    path = tmp_path / "planned.yaml"
    OmegaConf.save(composed_config(overrides), path)
    capsys.readouterr()
    assert main(["diff", f"{tmp_path}/run", str(path)]) == 0
    assert capsys.readouterr().out.splitlines()[-2] == "no key of the configuration differs"
    changes = ("optimizer.lr=0.5", "seed=7", "note=second", "loss=focal", "loss.gamma=3")
    OmegaConf.save(composed_config((*overrides, *changes)), path)
    assert main(["diff", f"{tmp_path}/run", str(path)]) == 0
    lines = words(capsys)
    assert (
        ["optimizer.lr", "0.003", "0.5"] in lines and ["seed", "1", "7"] in lines and ["loss.gamma", "-", "3"] in lines
    )
    keys = {line[0] for line in lines[4:] if line}
    assert {key.partition(".")[0] for key in keys} == {"optimizer", "seed", "loss"}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "planned.yaml cannot be read: No such file or directory; give a file of a configuration"),
        ("a: [", "planned.yaml is not YAML"),
        ("lr: 3\n", "is not the configuration of a run; python -m nlu.train KEY=VALUE ... --cfg job prints one"),
        ("- 3\n", "is not the configuration of a run"),
    ],
)
def test_a_file_that_is_not_a_configuration_is_refused(tmp_path, content, says):
    end_run(begin_run(tmp_path / "run"), 0.5)
    if content is not None:
        (tmp_path / "planned.yaml").write_text(content)
    with pytest.raises(UserError) as caught:
        main(["diff", str(tmp_path / "run"), str(tmp_path / "planned.yaml")])
    assert says in str(caught.value) and len(caught.value.problems) == 1
