"""Runs of one configuration are combined, ranked, and distinguished by their differences."""

import math

import pytest

from nlu.reports.differing_keys import differing_columns
from nlu.reports.run_table import join_predictions, missing_folds, rows_of
from nlu.reports.runs import find_runs
from nlu.reports.show_table import print_tables
from tests.reports.folders import begin_run, end_run, evaluate, predict


def table(folder, *metrics):
    tables, remarks = rows_of(find_runs([folder])[0], metrics)
    assert len(tables) == 1
    return tables[0], remarks


def test_seeds_of_one_configuration_are_one_row_with_mean_and_sample_sd(tmp_path):
    for seed, value in ((1, 0.5), (2, 0.7)):
        end_run(begin_run(tmp_path / str(seed), seed=seed), value)
    rows, _ = table(tmp_path)
    spread = rows[0].values["accuracy"]
    assert len(rows) == 1 and spread.mean == pytest.approx(0.6) and spread.n == 2
    assert spread.sd == pytest.approx(0.1414, abs=1e-4)


def test_rows_are_ranked_by_state_then_by_value(tmp_path):
    end_run(begin_run(tmp_path / "worse", optimizer__lr=1), 0.5)
    end_run(begin_run(tmp_path / "better", optimizer__lr=2), 0.6)
    end_run(begin_run(tmp_path / "pruned", optimizer__lr=3), 0.9, pruned=True)
    evaluate(begin_run(tmp_path / "unfinished", optimizer__lr=4), 0.95)
    assert [row.runs[0].folder.name for row in table(tmp_path)[0]] == ["better", "worse", "pruned", "unfinished"]


def test_a_run_repeated_with_the_same_seed_and_fold_counts_once_with_a_remark(tmp_path):
    end_run(begin_run(tmp_path / "1"), 0.5)
    evaluate(begin_run(tmp_path / "2"), 0.4)
    rows, remarks = table(tmp_path)
    assert [run.folder.name for run in rows[0].runs] == ["1"] and "2" in remarks[0]


def test_only_keys_that_differ_are_columns_and_seeds_are_none(tmp_path):
    for seed, lr in ((1, 1), (2, 1), (1, 2)):
        end_run(begin_run(tmp_path / f"{seed}-{lr}", seed=seed, optimizer__lr=lr), 0.5)
    columns = differing_columns(table(tmp_path)[0])
    assert columns.shown == {"optimizer.lr": [1, 2]} and columns.implied == []


def test_a_choice_is_one_column_and_what_it_brings_is_only_mentioned(tmp_path):
    tiny, base = ({"choices": {"model": name, "experiment": name}} for name in ("bert_tiny", "bert_base"))
    end_run(begin_run(tmp_path / "a", "model=bert_tiny", **tiny), 0.5)
    end_run(begin_run(tmp_path / "b", "optimizer.lr=1", model__layers=12, optimizer__lr=1, **base), 0.4)
    end_run(begin_run(tmp_path / "c", model__layers=2, optimizer__lr=1, **tiny), 0.3)
    columns = differing_columns(table(tmp_path)[0])
    assert columns.shown == {"model": ["bert_tiny", "bert_base", "bert_tiny"], "optimizer.lr": [0.001, 1, 1]}
    assert columns.implied == ["model.layers"]


def test_own_splits_are_one_configuration_with_mean_and_deviation(tmp_path, capsys):
    for number, value in enumerate((0.5, 0.7)):
        own = {"data__dev": f"split{number}.tsv", "data__train": f"rest{number}.tsv"}
        end_run(begin_run(tmp_path / "own" / str(number), **own), value)
    (row,), remarks = table(tmp_path / "own")
    spread = row.values["accuracy"]
    assert (spread.mean, spread.sd, spread.n) == (pytest.approx(0.6), pytest.approx(math.sqrt(2 * 0.1**2)), 2)
    assert remarks == [] and row.state == "complete"
    # Sizes of training sets are no splits, nor are files of other names.
    for number in (100, 500):
        end_run(begin_run(tmp_path / "sizes" / str(number), data__dev="dev.tsv", data__train=f"train{number}.tsv"), 0.5)
    assert len(table(tmp_path / "sizes")[0]) == 2
    for name in ("lcqmc", "afqmc"):
        end_run(begin_run(tmp_path / "sets" / name, data__dev=f"{name}.tsv"), 0.5)
    assert len(table(tmp_path / "sets")[0]) == 2
    print_tables([[row]])
    assert "are splits of one configuration" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("one", "other", "are_splits"),
    [
        ("data/sem2019/dev.tsv", "data/sem2020/dev.tsv", False),
        ("sem2019.tsv", "sem2020.tsv", False),
        ("fold0/dev1.tsv", "fold1/dev1.tsv", False),
        ("top5_dev.tsv", "top9_dev.tsv", False),
        ("v2/dev-0.tsv.gz", "v2/dev-11.tsv.gz", True),
        ("CV_100-dev.jsonl", "CV_101-dev.jsonl", True),
        ("dev_1.5.tsv", "dev_1.6.tsv", False),
        ("manifold1_dev.tsv", "manifold2_dev.tsv", False),
    ],
)
def test_only_numbers_of_splits_in_the_names_of_files_make_splits(tmp_path, one, other, are_splits):
    for number, dev in enumerate((one, other)):
        own = {"data__dev": dev, "data__train": dev.replace("dev", "train")}
        end_run(begin_run(tmp_path / str(number), **own), 0.5)
    assert len(table(tmp_path)[0]) == (1 if are_splits else 2)


def test_runs_that_were_scored_on_other_rows_are_marked(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    for name, dev, value in (("a", "easy.tsv", 0.9), ("b", None, 0.8), ("c", None, 0.7)):
        end_run(begin_run(tmp_path / name, data__dev=dev, data__dev_fraction=0.1, optimizer__lr=value), value)
    print_tables([table(tmp_path)[0]])
    out = capsys.readouterr().out
    assert [line.split("  ")[0] for line in out.splitlines()[:2]] == ["optimizer.lr", "0.9"]
    assert "scored on" in out and "easy.tsv" in out and "0.1 of train.tsv" in out
    assert 'values of runs that were "scored on" other rows do not compare' in out
    (tmp_path / "a" / "result.json").unlink()
    print_tables([table(tmp_path)[0]])
    assert "scored on" not in capsys.readouterr().out


def test_a_narrow_table_keeps_task_and_model_and_drops_files_first(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    for number in range(3):
        choices = {"task": f"task{number}", "model": f"model{number % 2}"}
        keys = {"task__of": number, "model__layers": number % 2, "optimizer__lr": number + 0.5}
        typed = ("data.train=x", "optimizer.lr=x", "task=x", "model=x")
        folder = begin_run(tmp_path / "a long name of a folder" / str(number), *typed, choices=choices,
                           data__train=f"/corpora/{'ab' * number}/of/a/place/train.tsv", **keys)  # fmt: skip
        end_run(folder, 0.5)
    monkeypatch.chdir(tmp_path)
    print_tables([table(tmp_path)[0]])
    header, *lines = capsys.readouterr().out.splitlines()
    (gone,) = (line for line in lines if line.startswith("too wide to show: "))
    assert header.split()[:2] == ["task", "model"] and "data.train" in gone


def folds(folder, complete=(0, 1)):
    rows = {0: [(0, "good", "good"), (2, "bad", "good")], 1: [(1, "bad", "bad"), (3, "good", "good")]}
    for fold in complete:
        run = predict(end_run(begin_run(folder / str(fold), folds__count=2, fold=fold), 0.5), rows[fold])
        (run / "data.json").write_text(
            '{"labels": ["bad", "good"], "sets": {"train": {"examples": 2}, "dev": {"examples": 2}}}'
        )


def test_folds_that_jobs_ran_are_joined_into_every_row_once(tmp_path):
    folds(tmp_path)
    (row,), _ = table(tmp_path)
    assert join_predictions(row) == []
    assert row.out_of_fold["accuracy"].mean == 0.75
    assert [record["id"] for record in row.joined[1].records()] == [0, 1, 2, 3]


def test_folds_that_are_missing_are_named_with_what_became_of_them(tmp_path):
    folds(tmp_path)
    assert missing_folds(table(tmp_path)[0][0]) == []
    (tmp_path / "1" / "result.json").unlink()
    (sentence,) = missing_folds(table(tmp_path)[0][0])
    assert sentence.startswith("seed 1, ") and sentence.endswith("of 2 folds are missing 1 (unfinished)")
    (tmp_path / "1" / "config.yaml").unlink()
    assert missing_folds(table(tmp_path)[0][0])[0].endswith("missing 1 (no run)")


def test_a_cross_validation_broken_off_is_not_complete_and_stands_behind_a_whole_one(tmp_path):
    for name, complete in (("whole", 3), ("broken", 1)):
        for fold in range(complete):
            run = begin_run(tmp_path / name / f"fold-{fold}", folds__count=3, fold=fold, optimizer__lr=complete)
            end_run(run, 0.9 if name == "broken" else 0.5)
    evaluate(begin_run(tmp_path / "broken" / "fold-1", folds__count=3, fold=1, optimizer__lr=1), 0.2)
    whole, broken = table(tmp_path)[0]
    assert (whole.state, broken.state) == ("complete", "unfinished")
    assert broken.states == {"complete": 1, "unfinished": 1, "missing": 1}
    assert broken.values["accuracy"].mean == 0.9 and broken.values["accuracy"].n == 1


def test_only_seeds_with_all_folds_are_averaged(tmp_path):
    for seed, complete in ((1, 2), (2, 1)):
        for fold in range(complete):
            run = begin_run(tmp_path / f"seed-{seed}-fold-{fold}", seed=seed, folds__count=2, fold=fold)
            end_run(run, 0.5 if seed == 1 else 0.9)
    (row,), _ = table(tmp_path)
    assert row.state == "complete" and row.states == {"complete": 3, "missing": 1}
    assert (row.values["accuracy"].mean, row.values["accuracy"].n) == (0.5, 2)


def test_each_trial_of_a_search_is_a_row_though_it_drew_what_another_drew(tmp_path):
    for number in (0, 1):
        trial = {"storage": "journal:///s", "study": "s", "number": number, "attempt": 0}
        end_run(begin_run(tmp_path / str(number), trial=trial), 0.5 + number / 10)
    end_run(begin_run(tmp_path / "apart"), 0.4)
    rows, remarks = table(tmp_path)
    assert [row.runs[0].folder.name for row in rows] == ["1", "0", "apart"] and remarks == []
    assert differing_columns(rows).shown == {}
