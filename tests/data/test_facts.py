"""The facts of a tiny data set, counted by hand."""

import pytest

from nlu.data.facts import describe, length_histograms, lines


@pytest.fixture
def facts_of(write, open_files):
    def facts(train, dev=None, layout="single", suffix="tsv", **settings):
        sets = {"train": write(f"train.{suffix}", train)}
        if dev is not None:
            sets["dev"] = write(f"dev.{suffix}", dev)
        return describe(open_files(layout, **sets, **settings))

    return facts


def test_balance_lengths_duplicates_conflicts_and_overlap_are_counted(facts_of):
    train = "a b c\t1\na b c\t1\na b c\t0\na b c\t2\nx\t0\nx\t1\nlonger than all the others are\t2\n"
    facts = facts_of(train, "x\t1\nx\t1\nnew\t0\n", max_len=8)
    assert facts["labels"] == ["0", "1", "2"]
    assert facts["vocab_size"] == 5 + 10
    assert facts["dropped_duplicates"] == 0
    assert facts["sets"]["train"] == {
        "examples": 7, "bad_rows": 0, "document_marks": 0, "listed_bad_rows": [], "cut_to_max_len": 0, "findings": [],
        "length_median": 5, "length_95_percent": 7, "length_max": 8, "unknown_share": 0.0, "duplicates": 4,
        "conflicts": 2, "labels": {"0": 2, "1": 3, "2": 2},
    }  # fmt: skip
    dev = facts["sets"]["dev"]
    assert (dev["examples"], dev["duplicates"], dev["conflicts"], dev["in_train"]) == (3, 1, 0, 2)
    assert dev["labels"] == {"0": 1, "1": 2, "2": 0}
    assert lines(facts) == [
        "data: train: 7 examples; tokens: median 5, 95 % 7, most 8",
        "data: train: 1: 3 (42.9%), 0: 2 (28.6%), 2: 2 (28.6%)",
        "data: train: 4 examples seen before in the same set",
        "data: train: 2 texts with several labels",
        "data: dev: 3 examples; tokens: median 3, 95 % 3, most 3",
        "data: dev: scores rest on 3 rows: an accuracy of 80 % measured there may be off by 45 points; "
        "folds=5 scores each training row once",
        "data: dev: 33.3% of the tokens are [UNK], as the vocabulary lacks the words",
        "data: dev: 1: 2 (66.7%), 0: 1 (33.3%), 2: 0 (0.0%)",
        "data: dev: warning: no row has the label 2, so scores of this set say nothing about it",
        "data: dev: 1 example seen before in the same set",
        "data: dev: 2 examples whose text is a training text too: scores on these are optimistic",
    ]


@pytest.mark.parametrize(("labels", "train", "dev"), [(None, False, True), (["0", "1", "2"], True, True)])
def test_a_label_without_a_row_warns_for_each_set(facts_of, labels, train, dev):
    told = "\n".join(lines(facts_of("a\t0\nb\t1\n" + "c\t2\n" * (labels is None), "a\t0\nb\t1\n", labels=labels)))
    assert ("train: warning: no row has the label 2, so it cannot be learned" in told) == train
    assert ("dev: warning: no row has the label 2, so scores of this set say nothing about it" in told) == dev


def test_only_inner_tags_may_be_missing(facts_of):
    fields = {"tokens": 0, "tags": 1}
    told = "\n".join(lines(facts_of("a B-X\n\nb B-Y\n", "b B-Y\nc O\n", "units", "conll", fields=fields)))
    assert "dev: warning: no row has the label B-X, " in told


def test_cut_and_skipped_rows_are_reported(facts_of):
    facts = facts_of(f"{'a ' * 9}\t1\nb\t0\n\t1\nb\n", "a\t1\n", max_len=8, on_bad_row="skip")
    train = facts["sets"]["train"]
    assert (train["cut_to_max_len"], train["bad_rows"], len(train["listed_bad_rows"])) == (1, 2, 2)
    assert "train.tsv:3: field text" in train["listed_bad_rows"][0]
    told = "\n".join(lines(facts))
    assert "train: warning: 1 row (50.0%) is longer than data.max_len, 8, and is cut there" in told
    assert "train: 2 bad rows left out" in told


def test_the_balance_of_tagged_rows_counts_units_and_their_conflicts_are_of_tags(facts_of):
    train = "a B-X\nb O\n\na O\nb O\n\na B-X\nb O\n"
    fields = {"tokens": 0, "tags": 1}
    train_facts = facts_of(train, train, "units", "conll", fields=fields)["sets"]["train"]
    assert train_facts["labels"] == {"O": 4, "B-X": 2, "I-X": 0}
    assert (train_facts["duplicates"], train_facts["conflicts"]) == (2, 1)


def test_lengths_are_counted_by_number_of_tokens(write, open_files):
    store = open_files(train=write("train.tsv", "a\t1\na b\t0\nb\t1\n"), dev=write("dev.tsv", "a b b\t1\n"))
    assert length_histograms(store) == {"train": [0, 0, 0, 2, 1], "dev": [0, 0, 0, 0, 0, 1]}


def test_pairs_that_all_belong_together_lack_nothing(facts_of):
    settings = {"layout": "sides", "suffix": "csv", "target": "nlu.data.targets.Relevance"}
    told = "\n".join(lines(facts_of("text_a,text_b\na,b\nc,d\n", "text_a,text_b\na,b\n", **settings)))
    assert "train: relevant: 2 (100.0%)" in told and "warning" not in told
    # A set that no query could find still warns.
    none_fits = facts_of("text_a,text_b,label\na,b,1\nc,d,0\n", "text_a,text_b,label\na,b,0\n", **settings)
    assert "dev: warning: every row has the label irrelevant, so" in "\n".join(lines(none_fits))
