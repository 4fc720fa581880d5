"""Tables of MaxCompute as data: fetched through the tunnel's double once, and again when they change."""

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

pytest.importorskip("odps", reason="PyODPS comes with the extra pai")
from pai_server import ID, SECRET

from nlu.config.errors import DataError, UserError
from nlu.storage.resources import fetch

ROWS = pa.table({"text": [f"第{number}行" for number in range(95)], "label": list(range(95)), "score": [0.5] * 95})


@pytest.fixture
def project(server, monkeypatch):
    monkeypatch.setenv("ALIBABA_CLOUD_ACCESS_KEY_ID", ID)
    monkeypatch.setenv("ALIBABA_CLOUD_ACCESS_KEY_SECRET", SECRET)
    monkeypatch.setenv("ODPS_ENDPOINT", f"http://{server.host}/api")
    monkeypatch.setenv("ODPS_TUNNEL_ENDPOINT", f"http://{server.host}/api")
    for key, rows in (("shop", ROWS), ("shop,pt=1", ROWS.slice(0, 20)), ("none", ROWS.slice(0, 0))):
        server.tables[key], server.changed_s[key] = rows, 1_700_000_000
    return server


def test_a_table_is_a_parquet_file_with_its_rows(project):
    path = fetch("odps://p/tables/shop")
    assert path.name == "shop.parquet" and parquet.read_table(path).equals(ROWS)
    assert parquet.read_table(fetch("odps://p/tables/none")).num_rows == 0


def test_a_partition_is_read_without_the_rest_of_its_table(project):
    assert parquet.read_table(fetch("odps://p/tables/shop/pt=1")).num_rows == 20


def test_a_table_is_fetched_again_when_its_data_changed(project):
    first = fetch("odps://p/tables/shop")
    project.requests.clear()
    assert fetch("odps://p/tables/shop") == first
    assert not [path for _, path in project.requests if "download" in path]
    project.tables["shop"], project.changed_s["shop"] = ROWS.slice(0, 5), 1_700_000_100
    assert parquet.read_table(fetch("odps://p/tables/shop")).num_rows == 5


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("odps://p/tables/nothing", "does not exist"),
        ("odps://p/tables/shop/pt=9", "does not exist"),
        ("odps://p/shop", "is not a table; write odps://PROJECT/tables/NAME"),
    ],
)
def test_an_address_without_a_table_is_refused(project, address, said):
    with pytest.raises((DataError, UserError), match=said):
        fetch(address, what="data.train")


def test_wrong_keys_are_reported_by_their_variables(project, monkeypatch):
    monkeypatch.setenv("ALIBABA_CLOUD_ACCESS_KEY_SECRET", "a-wrong-secret")
    with pytest.raises(DataError, match="check ALIBABA_CLOUD_ACCESS_KEY_ID") as raised:
        fetch("odps://p/tables/shop")
    assert "a-wrong-secret" not in str(raised.value)


def test_a_missing_variable_is_named(monkeypatch):
    monkeypatch.delenv("ODPS_ENDPOINT", raising=False)
    with pytest.raises(UserError, match="needs .*ODPS_ENDPOINT in the environment"):
        fetch("odps://p/tables/shop")
