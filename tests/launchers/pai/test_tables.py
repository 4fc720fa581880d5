"""Tables of MaxCompute: fetched once and again when they change; written at once, never twice, never beside others."""

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

pytest.importorskip("odps", reason="PyODPS comes with the extra pai")
from nlu.config.errors import DataError, UserError
from nlu.storage import tables
from nlu.storage.resources import fetch
from nlu.storage.tables import TableTarget

ROWS = pa.table({
    "text": [f"第{number}行 'a' `b`" for number in range(95)], "label": [*range(94), None],
    "probability": [number / 95 for number in range(95)], "labels": [["a", "b"]] * 94 + [[]],
    "spans": [[{"type": "人", "first": 0, "text": "x"}]] * 95,
})  # fmt: skip
TABLE = "odps://p/tables/found"


@pytest.fixture
def project(server, monkeypatch):
    from odps.config import option_context

    monkeypatch.setattr(tables, "BATCH_ROWS", 20)
    monkeypatch.setattr(tables, "BLOCK_BYTES", 2000)
    monkeypatch.setenv("ODPS_ENDPOINT", f"http://{server.host}/api")
    monkeypatch.setenv("ODPS_TUNNEL_ENDPOINT", f"http://{server.host}/api")
    with option_context() as options:
        options.retry_times = 1
        yield server


@pytest.fixture
def send(tmp_path):
    def sent(address: str = TABLE, rows: pa.Table = ROWS) -> None:
        parquet.write_table(rows, tmp_path / "rows")
        TableTarget(address, "output").send(tmp_path / "rows", tmp_path / "committing")

    return sent


@pytest.mark.parametrize(("address", "key"), [(TABLE, "found"), (f"{TABLE}/pt=1/city=杭州", "found,pt=1,city=杭州")])
def test_a_table_is_made_with_the_types_of_its_rows_and_holds_them(project, send, address, key):
    send(address)
    assert project.tables[key].equals(ROWS)
    assert len(next(iter(project.uploads.values()))["blocks"]) > 2
    if key == "found":
        assert parquet.read_table(fetch(address)).equals(ROWS)


def test_a_second_partition_joins_the_first(project, send, tmp_path):
    send(f"{TABLE}/pt=1")
    (tmp_path / "committing").unlink()
    send(f"{TABLE}/pt=2", ROWS.slice(0, 3))
    assert [project.tables[f"found,pt={number}"].num_rows for number in (1, 2)] == [95, 3]


def test_columns_of_an_empty_table_may_stand_in_another_order(project, send):
    project.tables["found"] = ROWS.select(["label", "spans", "text", "labels", "probability"]).slice(0, 0)
    send()
    assert project.tables["found"].select(ROWS.column_names).equals(ROWS)


def test_lists_are_stored_with_element_types_of_the_service() -> None:
    inner = pa.struct([("a", pa.uint8()), ("b", pa.large_string())])
    found = tables._stored(pa.large_list(inner))
    assert found == pa.list_(pa.struct([("a", pa.int64()), ("b", pa.string())]))


def test_a_table_with_rows_is_refused_and_kept(project, send):
    project.tables["found"] = ROWS.slice(0, 2)
    with pytest.raises(UserError, match="holds 2 rows; nothing was written; choose another table or partition"):
        TableTarget(TABLE, "output").require_free()
    with pytest.raises(UserError, match="holds 2 rows"):
        send()
    assert project.tables["found"].num_rows == 2


def test_half_an_upload_is_not_visible_and_the_next_one_is_complete(project, send):
    blocks = iter(range(99))
    project.fault = lambda method, path: "reset" if method == "PUT" and next(blocks) > 1 else None
    with pytest.raises(DataError, match="cannot be written"):
        send()
    assert project.tables["found"].num_rows == 0 and any(upload["blocks"] for upload in project.uploads.values())
    project.fault = lambda method, path: None
    send()
    assert project.tables["found"].equals(ROWS)


@pytest.mark.parametrize("fate", ["lost", "reset"])
def test_a_commit_without_an_answer_is_done_once(project, send, fate):
    times = iter([fate])
    project.fault = lambda method, path: (
        next(times, None) if method == "POST" and "uploadid" in path and "blockid" not in path else None
    )
    send()
    assert project.tables["found"].equals(ROWS) and project.faults[fate] == 1


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_command_that_was_killed_at_its_commit_continues(project, send, monkeypatch, is_committed):
    from odps.tunnel.tabletunnel import TableUploadSession

    commit = TableUploadSession.commit

    def killed(session, blocks):
        if is_committed:
            commit(session, blocks)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(TableUploadSession, "commit", killed)
        with pytest.raises(KeyboardInterrupt):
            send()
    send()
    assert project.tables["found"].equals(ROWS)
    project.tables["found"] = ROWS.slice(0, 7)
    with pytest.raises(UserError, match="holds 7 rows"):
        send()


@pytest.mark.parametrize(
    ("address", "rows", "said"),
    [
        ("odps://p/found", ROWS, "is not a table; write odps://PROJECT/tables/NAME"),
        (TABLE, pa.table({"p value": [1]}), "'p value' cannot name a column there"),
        (TABLE, pa.table({"t": pa.array([1], pa.time64("us"))}), r"column t holds time64\[us\]"),
        ("odps://p/tables/shop", ROWS, "where column note is string, but the rows have no such column"),
        ("odps://p/tables/shop", pa.table({"note": [1]}), "where column note is string, but the rows have bigint"),
    ],
)
def test_rows_that_do_not_fit_a_table_are_refused_before_predicting(project, address, rows, said):
    project.tables["shop"] = pa.table({"note": pa.array([], pa.string())})
    with pytest.raises(UserError, match=said):
        TableTarget(address, "output").storable(rows.schema)
    assert not project.uploads and not project.statements


SHOP = pa.table({"text": [f"第{number}行" for number in range(95)], "label": list(range(95)), "score": [0.5] * 95})


@pytest.fixture
def shops(project):
    for key, rows in (("shop", SHOP), ("shop,pt=1", SHOP.slice(0, 20)), ("none", SHOP.slice(0, 0))):
        project.tables[key], project.changed_s[key] = rows, 1_700_000_000
    return project


def test_a_table_is_a_parquet_file_with_its_rows(shops):
    path = fetch("odps://p/tables/shop")
    assert path.name == "shop.parquet" and parquet.read_table(path).equals(SHOP)
    assert parquet.read_table(fetch("odps://p/tables/none")).num_rows == 0


def test_a_partition_is_read_without_the_rest_of_its_table(shops):
    assert parquet.read_table(fetch("odps://p/tables/shop/pt=1")).num_rows == 20


def test_a_table_is_fetched_again_when_its_data_changed(shops):
    first = fetch("odps://p/tables/shop")
    shops.requests.clear()
    assert fetch("odps://p/tables/shop") == first
    assert not [path for _, path in shops.requests if "download" in path]
    shops.tables["shop"], shops.changed_s["shop"] = SHOP.slice(0, 5), 1_700_000_100
    assert parquet.read_table(fetch("odps://p/tables/shop")).num_rows == 5


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("odps://p/tables/nothing", "does not exist"),
        ("odps://p/tables/shop/pt=9", "does not exist"),
        ("odps://p/shop", "is not a table; write odps://PROJECT/tables/NAME"),
    ],
)
def test_an_address_without_a_table_is_refused(shops, address, said):
    with pytest.raises((DataError, UserError), match=said):
        fetch(address, what="data.train")


def test_wrong_keys_are_reported_by_their_variables(shops, monkeypatch):
    monkeypatch.setenv("ALIBABA_CLOUD_ACCESS_KEY_SECRET", "a-wrong-secret")
    for call, done in ((TableTarget(TABLE, "output").require_free, "written"), (lambda: fetch(TABLE), "read")):
        with pytest.raises(DataError, match=f"cannot be {done}: .*check ALIBABA_CLOUD_ACCESS_KEY_ID") as raised:
            call()
        assert "a-wrong-secret" not in str(raised.value)


def test_a_missing_variable_is_named(monkeypatch):
    monkeypatch.delenv("ODPS_ENDPOINT", raising=False)
    with pytest.raises(UserError, match="needs .*ODPS_ENDPOINT in the environment"):
        fetch("odps://p/tables/shop")
