"""The command line before Hydra reads it: flags, words in quotes, files of overrides, a run that is repeated."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

import nlu
from nlu.config.command_line import FLAGS, quoted, read_command_line, read_override
from nlu.config.errors import UserError
from nlu.runs.provenance import write_overrides

WRITTEN = [
    "model=bert_tiny", "data.fields={text: review text, label: 'a b'}", 'name="it\'s"', "optimizer.lr=1e-3",
    "text=two\nlines", "~trainer.patience", "+extra={a: 1}",
]  # fmt: skip


def test_the_flags_are_hydras():
    # Read in Hydra 1.4.0rc3; --experimental-rerun wants a folder that runs here do not have.
    command = [sys.executable, "-m", "nlu.train", "--hydra-help"]
    done = subprocess.run(command, cwd=Path(nlu.__file__).parents[1], capture_output=True, text=True, timeout=60)
    assert set(re.findall(r"(?<![\w-])--[a-z-]+", done.stdout)) - {"--experimental-rerun"} == FLAGS


def test_a_command_line_has_its_flags_and_whole_overrides():
    line = read_command_line(["-m", "seed=1,2", "--config-dir", ".", "folds=5"])
    assert line.overrides == ["seed=1,2", "folds.count=5"] and line.is_multirun and line.flags.config_dir == "."
    assert read_command_line(["--info"]).flags.info == "all"
    assert read_command_line(["hydra.mode=MULTIRUN"]).is_multirun


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--experimental-rerun=x"], "write --rerun RUN, which repeats a run with changed keys"),
        (["--multi"], "unrecognized arguments: --multi"),
        (["--cfg", "jobs"], "invalid choice"),
        (["--config-dir", "nowhere"], "--config-dir is 'nowhere', which is not found"),
        (["--rerun", "nowhere"], "--rerun is nowhere, but nowhere/overrides does not exist; give the folder of a run"),
    ],
)
def test_a_flag_that_makes_no_sense_is_refused(tmp_path: Path, monkeypatch, arguments: list[str], expected: str):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=re.escape(expected)):
        read_command_line(arguments)


def test_of_two_choices_of_a_group_the_last_counts(tmp_path: Path):
    chosen = read_command_line(["model=bert", "seed=1", "model=textcnn", "seed=2"]).overrides
    assert chosen == ["seed=1", "model=textcnn", "seed=2"]
    write_overrides(tmp_path, ["model=bert"])
    assert read_command_line(["--rerun", str(tmp_path), "model=textcnn"]).overrides == ["model=textcnn"]


def test_a_file_of_overrides_is_taken_as_it_was_written_by_a_run(tmp_path: Path):
    path = write_overrides(tmp_path, WRITTEN)
    assert read_command_line(["--rerun", str(tmp_path)]).overrides == WRITTEN
    # and as xargs reads it
    pieces = subprocess.run(["xargs", "-a", str(path), "printf", "%s\\0"], capture_output=True, text=True).stdout
    assert pieces.split("\0")[:-1] == WRITTEN


def test_a_run_is_repeated_with_its_overrides_replaced_by_new_ones(tmp_path: Path):
    write_overrides(tmp_path, ["--config-dir=.", "model=bert_tiny", "optimizer.lr=1e-3", "folds.count=5", "+x.y=1"])
    line = read_command_line(["--rerun", str(tmp_path), "model=textcnn", "folds=2", "x.y=3", "seed=2"])
    assert line.overrides == ["optimizer.lr=1e-3", "model=textcnn", "folds.count=2", "+x.y=3", "seed=2"]
    assert line.flags.config_dir == "."


def test_a_secret_that_a_run_did_not_record_must_be_given_again(tmp_path: Path):
    write_overrides(tmp_path, ["tracker.password=hunter2", "seed=2"])
    with pytest.raises(UserError, match="tracker.password held a secret, .* give tracker.password=VALUE again"):
        read_command_line(["--rerun", str(tmp_path)])
    again = read_command_line(["--rerun", str(tmp_path), "tracker.password=hunter2"])
    assert again.overrides == ["seed=2", "tracker.password=hunter2"]


def test_take_stands_for_its_key_at_any_place():
    assert read_command_line(["a=1", "--take", "resume=auto"]).overrides == ["a=1", "take=true", "resume=auto"]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("data.train=数据/训练 集.csv", "数据/训练 集.csv"),
        ("data.train=s3://bucket/数据:1.csv", "s3://bucket/数据:1.csv"),
        ("data.fields={text: 评论, label: 标签}", {"text": "评论", "label": "标签"}),
        ('data.fields={text: "评论, 全", label: stars}', {"text": "评论, 全", "label": "stars"}),
        ("data.labels=[好评, '差评', 1, neutral]", ["好评", "差评", 1, "neutral"]),
        ("a=naïve", "naïve"),
        ('data.quote="', '"'),
        ("data.label_separator=, ", ", "),
        ("data.separator=,", ","),
        ("output=odps://p/tables/found/pt=1/city=杭州", "odps://p/tables/found/pt=1/city=杭州"),
        ("data.train=http://h:80/rows.tsv?version=2&x=a~b", "http://h:80/rows.tsv?version=2&x=a~b"),
        ("data.dev={a: http://h/x?v=1, b: y://h/x}", {"a": "http://h/x?v=1", "b": "y://h/x"}),
        ("data.train=[pypi://x==1.0/a.csv#sha256=ab,b.csv]", ["pypi://x==1.0/a.csv#sha256=ab", "b.csv"]),
        (
            "a=[odps://p/tables/x/pt=1, 'odps://p/tables/y/pt=2', z]",
            ["odps://p/tables/x/pt=1", "odps://p/tables/y/pt=2", "z"],
        ),
    ],
)
def test_words_of_other_scripts_mean_themselves(given: str, meant: object) -> None:
    assert OverridesParser.create().parse_override(quoted(given)).value() == meant


def test_the_values_of_a_sweep_stay_several() -> None:
    parsed = OverridesParser.create().parse_override(quoted("data.train=一.csv,二.csv,three.csv"))
    assert parsed.is_sweep_override() and list(parsed.sweep_string_iterator()) == ['"一.csv"', '"二.csv"', "three.csv"]


def test_null_among_the_values_of_choice_is_answered_with_a_list_that_hydra_reads() -> None:
    with pytest.raises(UserError) as raised:
        read_override("loss.class_weights=choice(null,inverse_frequency)")
    remedy = str(raised.value).split("as in ", 1)[1].strip("'")
    assert remedy == "loss.class_weights=null,inverse_frequency"
    assert list(read_override(remedy).sweep_iterator()) == [None, "inverse_frequency"]
