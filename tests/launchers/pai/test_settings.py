"""The keys of hydra/launcher=pai: everything wrong or missing at once, no secrets, addresses by the region."""

import pytest
from hydra_plugins.pai_launcher._queue import ID, SECRET, Credentials, absent_keys, import_or_say
from hydra_plugins.pai_launcher.pai_launcher import (
    PaiSettings,
    missing_problems,
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


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"backend": "dcl"}, "backend is dcl, but must be dlc or maxcompute"),
        ({**MAXCOMPUTE, "client": "cmd"}, "client is cmd, but must be pyodps or odpscmd"),
        ({"workers": 0}, "workers is 0, but must be from 1 to 1000"),
        ({"gpus": 17}, "gpus is 17, but must be from 0 to 16"),
        ({"priority": 10}, "priority is 10, but must be from 1 to 9"),
        ({"oss_folder": "bucket/nlu"}, "oss_folder is bucket/nlu, which is not a folder in a bucket"),
        ({"environment": {"WANDB_API_KEY": "1"}}, "environment.WANDB_API_KEY is named like a secret"),
        ({"environment": {"DB": "postgresql://me:pw@host/x"}}, "environment.DB holds a password"),
        ({"project": "p"}, "project is set, but backend=dlc does not use it"),
        ({"client": "odpscmd"}, "client is set, but backend=dlc does not use it"),
        ({**MAXCOMPUTE, "max_minutes": 5}, "max_minutes is set, but backend=maxcompute does not use it"),
        ({**MAXCOMPUTE, "mounts": ["d-1:/mnt"]}, "mounts is set, but backend=maxcompute does not use it"),
        ({"workers": 2}, "workers is 2, but the machines of a job share no folder"),
        ({"mounts": ["d-1:data"]}, "mounts holds d-1:data, but a mount is written SOURCE:/PATH"),
        ({"mounts": ["oss://b/x:/mnt:/y"]}, "mounts holds oss://b/x:/mnt:/y, but"),
        ({"mounts": ["d-1:/mnt"], "work_folder": "/mnt2"}, "work_folder is /mnt2, but must lie below a path of "
         "hydra.launcher.mounts; there is /mnt"),
        ({"instance_type": "ecs.a"}, "instance_type and hydra.launcher.resource_quota are both set"),
        ({"instance_type": "ecs.a", "gpu_type": "V100"}, "instance_type and hydra.launcher.gpu_type are both set"),
    ],
)  # fmt: skip
def test_a_bad_value_is_reported_with_its_rule(given, said):
    problems = list(setting_problems(PaiSettings(**({**FULL, **given} if "backend" not in given else given))))
    assert any(said in problem for problem in problems), problems
    assert all(problem.startswith("hydra.launcher.") for problem in problems)


def test_valid_settings_pass_and_those_of_older_records_too():
    older = settings_of({**FULL, "before": [], "code_limit_mb": 100.0, "wait": True, "_target_": "x"})
    assert list(setting_problems(older)) == list(setting_problems(PaiSettings(**MAXCOMPUTE))) == []
    assert list(missing_problems(older)) == []
    mounted = PaiSettings(**FULL, mounts=["nas://h:2049/share:/mnt/", "d-1:/data"], work_folder="/mnt/nlu", workers=2)
    assert list(setting_problems(mounted)) == []
    assert mounts_of(mounted) == {"/mnt": "nas://h:2049/share", "/data": "d-1"}


def test_all_missing_keys_are_reported_together(monkeypatch):
    found = list(missing_problems(PaiSettings()))
    names = ("region", "workspace", "image", "oss_folder", "instance_type (or resource_quota)")
    assert found == [f"hydra.launcher.{name} is not set, but backend=dlc needs it" for name in names]
    assert not list(missing_problems(PaiSettings(**{**FULL, "region": None, "endpoint": "http://h"})))
    monkeypatch.delenv(ID, raising=False)
    monkeypatch.delenv(SECRET, raising=False)
    assert [problem.partition(" ")[0] for problem in absent_keys()] == [ID, SECRET]


def test_messages_of_the_service_lose_the_keys(monkeypatch):
    monkeypatch.setenv(ID, "my-id")
    monkeypatch.setenv(SECRET, "my-secret")
    keys = Credentials()
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
