"""What counts as a secret in an address, and that nothing of it is shown."""

import logging
from pathlib import Path

import pytest

from nlu.config.addresses import parse_reference
from nlu.config.entry.app import prepare
from nlu.config.errors import UserError
from nlu.config.redaction import (
    credential_problems,
    found_in,
    hide,
    hide_setting,
    is_secret_file,
    is_secret_name,
    without_secrets,
)
from nlu.runs import logs
from nlu.search.faults import last_line
from tests.composing import composed_at_once
from tests.few import first

WITH_SECRETS = {
    "http://user:geheim@host/a.csv": "http://***@host/a.csv",
    "https://geheim@host/a.csv": "https://***@host/a.csv",
    "https://user:ge/heim@host/geheim": "https://***@host/geheim",
    "http://user:geh@eim@host:80/a": "http://***@host:80/a",
    "https://b.s3.amazonaws.com/a?X-Amz-Date=1&X-Amz-Signature=geheim": "https://b.s3.amazonaws.com/a?X-Amz-Date=1&X-Amz-Signature=***",
    "https://b.oss.com/a?OSSAccessKeyId=geheim": "https://b.oss.com/a?OSSAccessKeyId=***",
    "https://x.blob.core.windows.net/a?sv=1&sig=geheim": "https://x.blob.core.windows.net/a?sv=1&sig=***",
    "https://host/a?token=geheim#sha256=0": "https://host/a?token=***#sha256=0",
    "postgresql://me@host/db?sslpassword=geheim": "postgresql://me@host/db?sslpassword=***",
    "postgresql+psycopg2://me:geheim@host/db": "postgresql+psycopg2://***@host/db",
    "s3://id:geheim@bucket/a": "s3://***@bucket/a",
    "s3://bucket/a?key=geheim": "s3://bucket/a?key=***",
    "s3://bucket/a?endpoint=x&secret=geheim": "s3://bucket/a?endpoint=x&secret=***",
}  # fmt: skip
WITHOUT = [
    "http://host:8080/a@b.csv", "http://[::1]:80/a@b", "https://host/a?download=1&page=key", "sftp://me@host/a",
    "postgresql://me@host/db?sslmode=require", "abfs://container@account.dfs.core.windows.net/a", "hf://org/name@main",
    "hf://name@main", "pypi://name==1.0/a:b@c#sha256=" + "0" * 64, "s3://bucket/key=1/token", "a/path?key=x", "../x",
    "journal:///a/b.log", "s3://bucket/user:name@x",
]  # fmt: skip


@pytest.mark.parametrize(("address", "shown"), WITH_SECRETS.items())
def test_a_secret_in_an_address_is_found_and_hidden_also_within_a_sentence(address: str, shown: str) -> None:
    assert found_in(address) and "geheim" not in found_in(address)
    assert hide(address) == shown and not found_in(shown.replace("***@", ""))
    assert hide(hide(address)) == shown
    assert hide(f"'{address}' cannot be read") == f"'{shown}' cannot be read"


@pytest.mark.parametrize("address", WITHOUT)
def test_names_ports_revisions_and_paths_are_not_taken_for_secrets(address: str) -> None:
    assert not found_in(address) and hide(address) == address


@pytest.mark.parametrize("address", first(3, WITH_SECRETS))
def test_a_reference_with_a_secret_is_refused_in_any_place_and_not_repeated(address: str) -> None:
    config = {"data": {"train": ["a.csv", address], "urls": {"a": address}}, "model": {"pretrained": address}}
    problems = list(credential_problems(config))
    assert [text.partition(" ")[0] for text in problems] == ["data.train[1]", "data.urls.a", "model.pretrained"]
    assert not any("geheim" in text for text in problems)
    with pytest.raises(UserError, match="weights.*leave it out") as refused:
        parse_reference(address, "weights")
    assert "user:" not in str(refused.value) and "=geheim" not in str(refused.value)


def test_an_error_and_an_override_hide_what_others_put_into_them() -> None:
    error = UserError("https://user:geheim@host answers 404", remedy="ask https://geheim@host")
    assert "geheim" not in "".join([*error.problems, *error.sentences, str(error), error.remedy])
    assert hide_setting("data.train=https://geheim@host/a") == "data.train=https://***@host/a"
    assert hide_setting("+hub.token=geheim") == "+hub.token=***"


def test_a_run_with_a_secret_in_a_reference_is_refused_before_anything_is_written() -> None:
    for override in ("data.train='https://user:geheim@host/a'", "model.pretrained='s3://bucket/a?key=geheim'",
                     "resume='https://geheim@host/a'"):  # fmt: skip
        with pytest.raises(UserError) as refused:
            prepare(composed_at_once([override]))
        assert f"{override.partition('=')[0]} holds a" in str(refused.value) and "geheim" not in str(refused.value)


def test_neither_the_log_nor_the_study_gets_what_an_error_of_others_repeats(tmp_path: Path) -> None:
    logs.set_up(tmp_path, 0, on_console=False)
    try:
        logging.getLogger("nlu").warning("%s answers 404", "https://user:geheim@host/a")
        try:
            raise OSError("https://bucket/a?X-Amz-Signature=geheim")
        except OSError as error:
            logging.getLogger("nlu").exception("it broke")
            logs.record_end(tmp_path, error)
            assert last_line(error) == "OSError: https://bucket/a?X-Amz-Signature=***"
    finally:
        logs.tear_down()
    written = (tmp_path / "log.txt").read_text()
    assert "geheim" not in written and written.count("***") >= 3


NAMES = (
    "AWS_ACCESS_KEY_ID",
    "FSSPEC_OSS_KEY",
    "FSSPEC_OSS_SECRET",
    "HF_TOKEN",
    "PGPASSWORD",
    "privateKey",
    "api_key",
    "token",
)
NO_SECRETS = (
    "PWD",
    "tokens",
    "max_token",
    "loss_per_token",
    "pad_token",
    "key",
    "monkey",
    "AWS_ENDPOINT_URL",
    "passes",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_of_a_secret_is_known_in_any_case_with_either_dash_and_below_any_key(name: str) -> None:
    for written in (name, name.upper(), name.lower().replace("_", "-")):
        assert is_secret_name(written) and is_secret_name(f"hydra.job.env_set.{written}")
        assert hide_setting(f"a.{written}.b=abc") == f"a.{written}.b=***"
        assert hide_setting(f"a={{b: [{{'{written}': \"abc\"}}]}}") == "a=***"
        assert list(credential_problems({"a": [{written: {"b": ["abc"]}}]})) and list(credential_problems({written: 7}))
        shown = str(without_secrets({"a": [{written: {"b": ["abc"], "n": 123}}], "c": 1}))
        assert "abc" not in shown and "123" not in shown and "'c': 1" in shown
        assert hide(f"cannot run: export {written}=abc; python x") == f"cannot run: export {written}=***; python x"
        assert found_in(f"export {written}=abc", is_line=True) and not found_in(f"export {written}=$X", is_line=True)


@pytest.mark.parametrize("name", NO_SECRETS)
def test_other_names_are_not_hidden(name: str) -> None:
    assert not is_secret_name(name) and not list(credential_problems({name: "abc"}))
    assert hide_setting(f"a.{name}=abc") == f"a.{name}=abc" and hide(f"{name}=abc") == f"{name}=abc"


@pytest.mark.parametrize(
    "secret",
    ["hf_" + "aB3" * 12, "AKIA" + "A1B2" * 4, "LTAI5t" + "aB3d" * 4,
     "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----"],
)  # fmt: skip
def test_a_key_is_recognized_by_its_form_in_any_place(secret: str) -> None:
    assert hide(f"asked with {secret} in vain") == "asked with *** in vain"
    assert [text.partition(" ")[0] for text in credential_problems({"a": {"b": f"x {secret}"}})] == ["a.b"]


def test_the_value_of_a_variable_that_holds_a_secret_is_hidden_in_any_place(monkeypatch) -> None:
    monkeypatch.setenv("Some_Service_Token", "no-form-of-its-own")
    assert hide("GET /no-form-of-its-own/x") == "GET /***/x"
    assert list(credential_problems({"a": "prefix-no-form-of-its-own"}))
    assert without_secrets({"a": ["no-form-of-its-own"]}) == {"a": ["***"]}
    monkeypatch.setenv("Some_Service_Token", "short")
    assert hide("too short a word") == "too short a word"


def test_files_of_credentials_are_known_by_name() -> None:
    for name in ("odps_config.ini", "ODPS_CONFIG.INI", ".ossutilconfig", ".aws", "my_token", "kaggle.json", "Prod.PEM"):
        assert is_secret_file(name), name
    # The launcher for PAI sends the other files of a folder of code to a bucket.
    for name in (".htpasswd", "apikey.txt", "hf_token.json", "store.jks", "host.keytab", "keys.kdbx", "odps.conf"):
        assert is_secret_file(name), name
    assert not any(map(is_secret_file, ("tokens.txt", "tokenizer.json", "key.py", "config.ini", "train.py")))


def test_assigned_values_are_hidden_unless_they_stand_for_something_else() -> None:
    for text, shown in [
        ("HF_TOKEN=abc", "HF_TOKEN=***"),
        ("password=a; token='b'", "password=***; token=***"),
        ("token=null token=None token='' token=$X token=*** password=VALUE", None),
    ]:
        assert hide(text) == (shown or text)


def test_shell_lines_in_the_settings_of_a_launcher_are_hidden_and_others_shown() -> None:
    launcher = {
        "setup": ["export X=abc"],
        "srun_args": ["a"],
        "partition": "main",
        "modules": None,
        "n": {"setup": "x"},
    }
    shown = without_secrets({"hydra": {"launcher": launcher}, "setup": "mine", "launcher": {"setup": "mine"}})
    assert shown["hydra"]["launcher"] == {
        "setup": "***", "srun_args": "***", "partition": "main", "modules": None, "n": {"setup": "x"},
    }  # fmt: skip
    assert (shown["setup"], shown["launcher"]) == ("mine", {"setup": "mine"})
    overrides = {"hydra": {"overrides": {"task": ["hub.token=abc", "a=b"]}}, "a": ["hub.token=1"]}
    assert without_secrets(overrides)["hydra"] == {"overrides": {"task": ["hub.token=***", "a=b"]}}
    assert without_secrets({"token": {"a": ["abc", None], "b": 7}}) == {"token": "***"}
    kept = {"token": {"a": [None, True, "${oc.env:X}", ""]}}
    assert without_secrets(kept) == kept
