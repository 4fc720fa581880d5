"""Which files make which set, and where they are looked for."""

import hashlib

import pytest

from nlu.config.errors import DataError
from nlu.data.dataset import Files, find_file


def test_a_path_is_looked_up_here_first_and_then_in_the_data_folder(tmp_path, monkeypatch):
    here, data = tmp_path / "here", tmp_path / "data"
    for folder, names in ((here, ["both.tsv"]), (data, ["both.tsv", "there.tsv"])):
        folder.mkdir()
        for name in names:
            (folder / name).write_text(folder.name)
    monkeypatch.chdir(here)
    monkeypatch.setenv("NLU_DATA", str(data))
    sets = Files(train="both.tsv", dev="there.tsv").sets()
    assert [sets[name][0].path.read_text() for name in ("train", "dev")] == ["here", "data"]


def test_numbers_as_names_of_files_are_texts(write):
    path = str(write("numbers.tsv", "x"))
    assert list(Files(train=path, dev={2024: path}).sets()) == ["train", "2024"]
    assert Files(train={1: path}, format="lines").sets()["train"][0].label == "1"


def test_every_missing_file_is_named_with_its_key(tmp_path, monkeypatch):
    monkeypatch.setenv("NLU_DATA", str(tmp_path))
    with pytest.raises(DataError) as caught:
        Files(train=["a.tsv", "b.tsv"], dev={"hard": "c.tsv"}, test="d.tsv").sets()
    assert [problem.split(",")[0] for problem in caught.value.problems] == [
        "data.train is 'a.tsv'", "data.train is 'b.tsv'", "data.dev.hard is 'c.tsv'", "data.test is 'd.tsv'",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["train", "test", "..", "a/b"])
def test_a_dev_set_cannot_take_the_name_of_another_set_or_folder(write, name):
    path = str(write("a.tsv", "x"))
    with pytest.raises(DataError, match=f"data.dev names the evaluation set {name!r}"):
        Files(train=path, dev={name: path}).sets()


@pytest.mark.parametrize(
    ("settings", "key"), [({"dev": {}}, "data.dev is {}"), ({"test": []}, "data.test names no file")]
)
def test_a_set_without_files_is_refused(write, settings, key):
    with pytest.raises(DataError, match=key):
        Files(train=str(write("a.tsv", "x")), **settings).sets()


def test_a_file_of_another_sha256_than_declared_is_refused(write):
    path = write("a.tsv", "x")
    right = hashlib.sha256(b"x").hexdigest()
    assert Files(train=f"{path}#sha256={right}").sets()["train"][0].path == path
    with pytest.raises(DataError, match="sha256"):
        Files(train=f"{path}#sha256={'0' * 64}").sets()


def test_a_file_that_is_not_here_is_fetched_from_its_url(write, tmp_path, monkeypatch):
    monkeypatch.setenv("NLU_DATA", str(tmp_path / "nowhere"))
    source = write("source.tsv", "x\t1\n")
    files = Files(train="corpus/train.tsv", urls={"corpus/train.tsv": source.as_uri()})
    assert files.sets()["train"][0].path.read_text() == "x\t1\n"


def test_an_unreachable_url_is_reported_with_the_setting_that_helps(tmp_path, monkeypatch):
    monkeypatch.setenv("NLU_DATA", str(tmp_path / "nowhere"))
    gone = (tmp_path / "gone.tsv").as_uri()
    with pytest.raises(DataError, match=r"data\.train is 'corpus/train\.tsv': not here.*set NLU_DATA"):
        Files(train="corpus/train.tsv", urls={"corpus/train.tsv": gone}).sets()


@pytest.fixture
def splits(tmp_path, monkeypatch):
    """A data folder with split0.tsv to split3.tsv and dev.tsv."""
    for name in ("split0", "split1", "split2", "split3", "dev"):
        (tmp_path / f"{name}.tsv").write_text(name)
    (tmp_path / "split4.tsv").mkdir()
    monkeypatch.setenv("NLU_DATA", str(tmp_path))
    return tmp_path


def names(sets, name):
    return [file.path.stem for file in sets[name]]


def test_a_pattern_names_every_file_that_matches_in_order(splits):
    assert names(Files(train="split*").sets(), "train") == ["split0", "split1", "split2", "split3"]
    assert names(Files(train=["dev.tsv", str(splits / "split[13].tsv")]).sets(), "train") == ["dev", "split1", "split3"]
    (splits / "split*").write_text("")
    assert names(Files(train=str(splits / "split*")).sets(), "train") == ["split*"], "a file that is called so is meant"


def test_a_pattern_is_refused_where_one_file_is_needed(write, tmp_path, monkeypatch):
    for name in ("d2.csv", "d1.csv"):
        write(name, "x")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError) as caught:
        find_file("input", "d*.csv")
    assert caught.value.problems == [
        "input is 'd*.csv', a pattern, but must name one file; set input to one of d1.csv, d2.csv"
    ]
    with pytest.raises(DataError, match=r"input is 'e\*.csv', which no file matches"):
        find_file("input", "e*.csv")


def test_the_files_of_dev_are_taken_out_of_those_of_train(splits):
    sets = Files(train="split*", dev="split2.tsv", exclude_dev_from_train=True).sets()
    assert names(sets, "train") == ["split0", "split1", "split3"] and names(sets, "dev") == ["split2"]
    named = Files(train="split*", dev={"a": "split0.tsv", "b": "split[12].tsv"}, exclude_dev_from_train=True).sets()
    assert names(named, "train") == ["split3"]
    assert names(Files(train="split*", dev="split2.tsv").sets(), "train") == ["split0", "split1", "split2", "split3"]


@pytest.mark.parametrize(
    ("train", "dev", "rule"),
    [
        ("split*", "split[0-3].tsv", "all are in data.dev (split0.tsv, split1.tsv, split2.tsv, split3.tsv)"),
        ("split*", "dev.tsv", "none is in data.dev (dev.tsv)"),
        ("part*", "dev.tsv", "data.train is 'part*', which no file matches"),
        ("split*", "split7*", "data.dev is 'split7*', which no file matches"),
    ],
)
def test_taking_out_what_is_not_there_or_everything_is_refused(splits, train, dev, rule):
    with pytest.raises(DataError) as caught:
        Files(train=train, dev=dev, exclude_dev_from_train=True).sets()
    assert rule in str(caught.value) and "\n" not in str(caught.value)
