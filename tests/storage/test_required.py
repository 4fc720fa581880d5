"""Which values of a configuration are remote addresses, and what is said of those that are not there."""

from pathlib import Path

import pytest

from nlu.config.errors import UserError
from nlu.storage import presence
from nlu.storage.presence import Answer, State
from nlu.storage.required import addresses_of, require_addresses

CONFIG = {
    "data": {
        "train": ["s3://b/a.csv", "here.csv", "far.csv"], "dev": {"good": "OSS://b/good.txt"}, "test": None,
        "urls": {"far.csv": "https://x/far.csv#sha256=0", "here.csv": "https://x/here.csv", "unused.csv": "https://x/u"},
    },
    "tokenizer": {"vocab": "http://x/vocab.txt"},
    "model": {"pretrained": "hf://org/name@main"},
    "method": {"of": {"teacher": "s3://b/teacher/best", "service": "http://x/api"}},
    "tracker": {"uri": "s3://b/mlflow"}, "trial": {"storage": "s3://b/journal"}, "note": "s3://b/before",
    "run": "s3://b/run", "mirror": "s3://b/runs", "out": "outputs/x", "output": "odps://p/tables/t",
}  # fmt: skip


def test_the_addresses_of_files_are_found_by_their_keys(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.csv").touch()
    expected = {
        "data.train": "s3://b/a.csv", "data.dev.good": "OSS://b/good.txt", "tokenizer.vocab": "http://x/vocab.txt",
        "model.pretrained": "hf://org/name@main", "method.of.teacher": "s3://b/teacher/best", "run": "s3://b/run",
        "mirror": "s3://b/runs", "data.urls.far.csv": "https://x/far.csv#sha256=0",
    }  # fmt: skip
    assert dict(addresses_of(CONFIG)) == expected
    elsewhere = dict(addresses_of(CONFIG, are_elsewhere=True))
    assert elsewhere == {**expected, "data.urls.here.csv": "https://x/here.csv"}


@pytest.fixture
def answers(monkeypatch) -> dict[str, Answer]:
    """What services say of each address; anything else is there."""
    known: dict[str, Answer] = {}

    def ask(questions):
        return {one: known.get(one[0], Answer(State.THERE)) for one in questions}

    monkeypatch.setattr(presence, "ask", ask)
    return known


def problems(configs: dict[int, dict], **options: bool) -> list[str]:
    with pytest.raises(UserError) as raised:
        require_addresses(configs, **options)
    return raised.value.problems


def test_all_problems_of_all_jobs_are_said_together_each_once(answers, capsys):
    answers |= {
        "s3://b/no.csv": Answer(State.ABSENT),
        "s3://b/secret.csv": Answer(State.DENIED, "Forbidden; correct AWS_ACCESS_KEY_ID"),
        "http://x/away.csv": Answer(State.UNKNOWN, "timed out"),
        "s3://no/runs": Answer(State.ABSENT),
    }
    own = {"data": {"train": "s3://b/no.csv", "dev": "http://x/away.csv"}}
    configs = {0: own, 1: {**own, "mirror": "s3://no/runs"}, 2: own | {"run": "s3://b/secret.csv"}, 3: own}
    assert problems(configs) == [
        "data.train is s3://b/no.csv, which does not exist; correct data.train",
        "job 1: mirror is s3://no/runs, but this bucket does not exist; create it, or correct mirror",
        "job 2: run is s3://b/secret.csv, for which there is no permission: Forbidden; correct AWS_ACCESS_KEY_ID",
    ]
    said = "http://x/away.csv, which this machine cannot reach (timed out); it was not checked, and jobs may reach it"
    assert capsys.readouterr().err == f"nlu: warning: data.dev is {said}\n"


def test_a_new_output_must_be_free_but_a_mirror_may_hold_a_run(answers):
    assert problems({0: {"out": "s3://b/out", "mirror": "s3://b/runs"}}) == [
        "out is s3://b/out, which exists; choose another, or remove it"
    ]


def test_jobs_with_rights_of_their_own_may_read_what_this_machine_may_not(answers, capsys):
    answers["oss://b/a.csv"] = answers["http://x/b.csv"] = Answer(State.DENIED, "Forbidden")
    config = {0: {"data": {"train": "oss://b/a.csv", "dev": "http://x/b.csv"}}}
    assert problems(config, are_elsewhere=True) == [
        "data.dev is http://x/b.csv, for which there is no permission: Forbidden"
    ]
    assert "no permission: Forbidden; jobs have the rights of their role" in capsys.readouterr().err
