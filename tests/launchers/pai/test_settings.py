"""The keys of hydra/launcher=pai: everything wrong at once, what is missing asked for and remembered, no secrets."""

import os
import pty
import subprocess
import sys

import pytest
import yaml
from hydra_plugins.pai_launcher import _requests as requests
from hydra_plugins.pai_launcher._remembered import completed
from hydra_plugins.pai_launcher._requests import Credentials, import_or_say
from hydra_plugins.pai_launcher._settings import (
    PaiSettings,
    mounts_of,
    region_endpoint,
    setting_problems,
    settings_of,
    store_environment,
)

from nlu.config.errors import UserError

FULL = {
    "region": "cn-hangzhou", "workspace": "1", "image": "registry/nlu:1", "oss_folder": "oss://bucket/nlu",
    "resource_quota": "q1",
}  # fmt: skip
MAXCOMPUTE = {"backend": "maxcompute", "region": "cn-hangzhou", "project": "p", "oss_folder": "oss://bucket/nlu"}


def test_valid_settings_pass():
    assert list(setting_problems(PaiSettings(**FULL))) == list(setting_problems(PaiSettings(**MAXCOMPUTE))) == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"backend": "dcl"}, "backend is dcl, but must be dlc or maxcompute; did you mean dlc?"),
        ({"workers": 0}, "workers is 0, but must be from 1 to 1000"),
        ({"gpus": 17}, "gpus is 17, but must be from 0 to 16"),
        ({"cpus": 0}, "cpus is 0, but must be from 0.1"),
        ({"memory_gb": 0}, "memory_gb is 0, but must be"),
        ({"priority": 10}, "priority is 10, but must be from 1 to 9"),
        ({"max_minutes": -1}, "max_minutes is -1, but must be from 0"),
        ({"code_limit_mb": 0}, "code_limit_mb is 0, but must be"),
        ({"oss_folder": "bucket/nlu"}, "oss_folder is bucket/nlu, but must be oss://BUCKET/FOLDER"),
        ({"oss_folder": "oss://bucket"}, "oss_folder is oss://bucket, but must be oss://BUCKET/FOLDER"),
        ({"oss_folder": "ftp://bucket/nlu"}, "oss_folder is ftp://bucket/nlu, but must be oss://BUCKET/FOLDER"),
        ({"oss_folder": "oss://bucket/$HOME"}, "holds a special character"),
        ({"oss_folder": "oss://key:secret@bucket/x"}, "holds a password or token before @"),
        ({"role": "AliyunRole"}, "role is AliyunRole, but must be acs:ram::UID:role/NAME"),
        ({"environment": {"A B": "1"}}, "environment names A B, which is not a name of a variable"),
        ({"environment": {"WANDB_API_KEY": "1"}}, "environment.WANDB_API_KEY has the name of a secret"),
        ({"environment": {"DB": "postgresql://me:pw@host/x"}}, "environment.DB has the name of a secret or holds one"),
        ({"before": ["a;b"]}, "before holds 'a;b', but a command is written MODULE ARGUMENT"),
        ({"project": "p"}, "project is set, but backend=dlc does not use it"),
        ({"tables": ["odps://p/tables/t"]}, "tables is set, but backend=dlc does not use it"),
        ({**MAXCOMPUTE, "tables": ["p.t"]}, "tables holds p.t, but a table is written odps://PROJECT/tables/NAME"),
        ({**MAXCOMPUTE, "max_minutes": 5}, "max_minutes is set, but backend=maxcompute does not use it"),
        ({"workers": 2}, "workers is 2, but the machines of a job share no folder"),
        ({"workers": 2}, "mount one into all of them and have jobs work there (hydra.launcher.mounts and"),
        ({**MAXCOMPUTE, "workers": 2}, "take hydra.launcher.backend=dlc, which mounts folders, or take one machine"),
        ({"mounts": ["d-1:data"]}, "mounts holds d-1:data, but a mount is written SOURCE:/PATH"),
        ({"mounts": ["d-1:/a/../b"]}, "mounts holds d-1:/a/../b, but"),
        ({"mounts": ["d-1:/"]}, "mounts holds d-1:/, but"),
        ({"mounts": ["a b:/mnt"]}, "mounts holds a b:/mnt, but"),
        ({"mounts": ["d-1:/mnt", "d-2:/mnt"]}, "mounts has two sources for one path"),
        ({"mounts": ["d-1:/mnt/", "d-2:/mnt"]}, "mounts has two sources for one path"),
        ({"mounts": ["oss://b/x:/mnt:/y"]}, "mounts holds oss://b/x:/mnt:/y, but"),
        ({"mounts": ["oss://key:secret@b/f:/mnt"]}, "mounts[0] holds a password or token before @"),
        ({"mounts": ["d-1:/mnt"], "work_folder": "/mnt2"}, "work_folder is /mnt2, but must lie below a path of "
         "hydra.launcher.mounts; there is /mnt"),
        ({"work_folder": "/mnt"}, "there is none"),
        ({**MAXCOMPUTE, "mounts": ["d-1:/mnt"]}, "mounts is set, but backend=maxcompute does not use it"),
        ({"instance_type": "ecs.a"}, "instance_type and hydra.launcher.resource_quota are both set"),
        ({"after": ["; ls"]}, "after holds '; ls', but a command is written MODULE ARGUMENT"),
        ({"gpu_type": "V100;"}, "gpu_type is 'V100;', but must be the name of a kind of GPU"),
        ({"gpu_type": "V100", "gpus": 0}, "gpu_type is V100, but hydra.launcher.gpus is 0"),
        ({"gpu_type": "V100", "instance_type": "ecs.a"}, "gpu_type is V100, but hydra.launcher.instance_type already"),
    ],
)  # fmt: skip
def test_a_bad_value_is_reported_with_its_rule(given, said):
    problems = list(setting_problems(PaiSettings(**({**FULL, **given} if "backend" not in given else {**given}))))
    assert any(said in problem for problem in problems), problems
    assert all(problem.startswith("hydra.launcher.") for problem in problems)


def test_a_mount_is_known_by_its_path_without_a_slash_at_the_end():
    settings = PaiSettings(**FULL, mounts=["nas://h:2049/share:/mnt/", "d-1:/data"], work_folder="/mnt/nlu")
    assert list(setting_problems(settings)) == []
    assert mounts_of(settings) == {"/mnt": "nas://h:2049/share", "/data": "d-1"}


def test_a_key_that_there_is_not_names_the_nearest():
    with pytest.raises(
        UserError, match=r"hydra\.launcher\.worker is not a key .* did you mean hydra\.launcher\.workers"
    ):
        settings_of({"worker": 2})


def test_all_missing_keys_are_reported_together_without_a_terminal(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", open(os.devnull))
    with pytest.raises(UserError) as raised:
        completed(PaiSettings(gpus=99), tmp_path)
    text = str(raised.value)
    assert all(f"hydra.launcher.{name} is not set" in text for name in ("region", "workspace", "image", "oss_folder"))
    assert "instance_type is not set" in text and "gpus is 99" in text and "on a terminal they are asked for" in text


ASKING = """
import sys
from pathlib import Path
from nlu.config.entry.app import find_plugins
find_plugins()
from hydra_plugins.pai_launcher._remembered import completed
from hydra_plugins.pai_launcher._settings import PaiSettings
found = completed(PaiSettings(region="cn-hangzhou"), Path(sys.argv[1]))
print("FOUND", found.workspace, found.image, found.oss_folder, found.instance_type, found.resource_quota)
"""


def test_missing_settings_are_asked_for_on_a_terminal_and_remembered(tmp_path):
    parent, child = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", ASKING, str(tmp_path)], stdin=child, stdout=child, stderr=child)
    os.close(child)
    os.write(parent, b"1234\nregistry/nlu:1\nno-address\noss://bucket/nlu\n\nquota7\n")
    said = b""
    while b"FOUND" not in said or not said.endswith(b"\n"):
        said += os.read(parent, 4096)
    assert process.wait(30) == 0
    os.close(parent)
    assert b"FOUND 1234 registry/nlu:1 oss://bucket/nlu None quota7" in said and b"oss_folder is no-address" in said
    kept = yaml.safe_load((tmp_path / ".nlu/pai.yaml").read_text())
    assert kept == {
        "dlc": {
            "workspace": "1234",
            "image": "registry/nlu:1",
            "oss_folder": "oss://bucket/nlu",
            "resource_quota": "quota7",
        }
    }
    again = completed(PaiSettings(region="cn-hangzhou", image="registry/nlu:2"), tmp_path)
    assert (again.image, again.resource_quota, again.instance_type) == ("registry/nlu:2", "quota7", None)
    assert completed(PaiSettings(region="a", instance_type="ecs.a"), tmp_path).resource_quota is None
    assert (tmp_path / ".nlu/.gitignore").read_text() == "*\n"


@pytest.mark.parametrize("text", ["- a", "dlc: 3", "dlc: {a: 1"])
def test_a_damaged_memory_is_reported(tmp_path, text):
    (tmp_path / ".nlu").mkdir()
    (tmp_path / ".nlu/pai.yaml").write_text(text)
    with pytest.raises(UserError, match=r"pai\.yaml .*correct it, or delete it"):
        completed(PaiSettings(**FULL), tmp_path)


def test_keys_come_from_the_environment_and_every_absent_one_is_named(monkeypatch):
    monkeypatch.delenv(requests.ID, raising=False)
    monkeypatch.delenv(requests.SECRET, raising=False)
    with pytest.raises(UserError, match=r"ALIBABA_CLOUD_ACCESS_KEY_ID and ALIBABA_CLOUD_ACCESS_KEY_SECRET are not set"):
        Credentials.from_environment()
    monkeypatch.setenv(requests.ID, "my-id")
    with pytest.raises(UserError, match=r"but ALIBABA_CLOUD_ACCESS_KEY_SECRET is not set; set it"):
        Credentials.from_environment()
    monkeypatch.setenv(requests.SECRET, "my-secret")
    keys = Credentials.from_environment()
    assert "my-" not in repr(keys) and keys.hidden("x my-secret y my-id") == "x *** y ***"


def test_a_missing_package_is_named_with_the_command_that_installs_it():
    with pytest.raises(UserError, match=r"backend=dlc needs the package some-sdk, .* pip install some-sdk, or"):
        import_or_say("no_such_module_of_ours", "some-sdk", "backend=dlc")


def test_addresses_follow_from_the_region(monkeypatch):
    dlc, maxcompute = PaiSettings(**FULL), PaiSettings(**MAXCOMPUTE)
    assert region_endpoint(dlc) == "pai-dlc.cn-hangzhou.aliyuncs.com"
    assert region_endpoint(maxcompute) == "https://service.cn-hangzhou.maxcompute.aliyun.com/api"
    assert store_environment(dlc) == {"OSS_ENDPOINT": "https://oss-cn-hangzhou-internal.aliyuncs.com"}
    monkeypatch.setenv("OSS_ENDPOINTS", "bucket=cn-hangzhou,far=cn-beijing")
    assert store_environment(dlc)["OSS_ENDPOINTS"] == "far=https://oss-cn-beijing.aliyuncs.com"
    assert store_environment(PaiSettings(oss_folder="s3://b/f", oss_endpoint="http://h")) == {
        "AWS_ENDPOINT_URL": "http://h"
    }


@pytest.mark.parametrize("backend", ["dlc", "maxcompute"])
def test_the_endpoint_of_the_store_reaches_jobs_under_the_name_of_its_service(backend):
    found = {
        scheme: store_environment(
            PaiSettings(backend=backend, region="cn-x", oss_folder=f"{scheme}://b/f", oss_endpoint="http://h")
        )
        for scheme in ("oss", "s3")
    }
    assert found["oss"]["OSS_ENDPOINT"] == "http://h" and "AWS_ENDPOINT_URL" not in found["oss"]
    assert found["s3"]["AWS_ENDPOINT_URL"] == "http://h" and "OSS_ENDPOINT" not in found["s3"]
