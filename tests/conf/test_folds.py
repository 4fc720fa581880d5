"""What is said of folds and seeds before anything is read."""

import pytest

from nlu.config.command_line import short_form


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("folds=5", "folds.count=5"), ("folds=2,5", "folds.count=2,5"), ("folds=none", "folds.count=null"),
        ("folds=null", "folds.count=null"), ("folds={count: 5}", "folds={count: 5}"), ("folds", "folds"),
        ("fold=3", "fold=3"), ("folds.group_by=shop", "folds.group_by=shop"),
    ],
)  # fmt: skip
def test_the_number_of_folds_has_a_short_form(written, meant):
    assert short_form(written) == meant


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("folds.group_by=shop data=afqmc", "data.dev is set and folds.count is null, so no training row is held out"),
        ("folds=5 folds.group_by=a data=conll2003 model=textcnn", "rows of CoNLL files"),
        ("folds=5 folds.group_by=shop", "rows of CoNLL files and plain lines have no column to group by"),
        ("folds=1", "folds.count is 1 but must be an integer >= 2 or null"),
        ("seeds=0", "seeds is 0 but must be an integer >= 1"),
        ("data=files data.train=split* 'data.fields={text: 0, label: 1}'", "data.train is 'split*', which no file"),
    ],
)
def test_wrong_folds_and_seeds_are_refused(composer, arguments, problem):
    (found,) = composer.command_problems(f"-m nlu.train {arguments}")
    assert problem in found
