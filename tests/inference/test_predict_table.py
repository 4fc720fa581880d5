"""python -m nlu.predict output=odps://...: the rows and their predictions in a table of MaxCompute, by its double."""

from pathlib import Path

import pytest

from nlu.inference.output_pieces import Pieces
from tests.inference.runs import kept, predict, unlabelled
from tests.training.kinds import TASKS, write

TABLE = "odps://p/tables/found/pt=1"


@pytest.fixture(scope="module")
def run(run_of):
    return run_of("classify")


@pytest.fixture
def project(tmp_path, monkeypatch):
    pytest.importorskip("odps", reason="PyODPS comes with the extra pai")
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "services")
    from pai_server import ID, SECRET, PaiServer

    monkeypatch.setenv("NLU_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ALIBABA_CLOUD_ACCESS_KEY_ID", ID)
    monkeypatch.setenv("ALIBABA_CLOUD_ACCESS_KEY_SECRET", SECRET)
    with PaiServer(tmp_path, runs=False) as server:
        monkeypatch.setenv("ODPS_ENDPOINT", f"http://{server.host}/api")
        monkeypatch.setenv("ODPS_TUNNEL_ENDPOINT", f"http://{server.host}/api")
        yield server


def test_a_table_gets_every_row_with_the_prediction_that_the_run_gave_it(run, project, tmp_path):
    rows = unlabelled(TASKS["classify"], 23)
    write(tmp_path / "new.jsonl", rows)
    predict(f"run={run}", f"input={tmp_path}/new.jsonl", f"output={TABLE}")
    found = project.tables["found,pt=1"].to_pylist()
    assert [{name: row[name] for name in rows[0]} for row in found] == rows
    assert [row["prediction"] for row in found] == [one["prediction"] for one in kept(run)]
    assert [str(field.type) for field in project.tables["found,pt=1"].schema][-2:] == ["string", "double"]
    assert not list((tmp_path / "cache" / "outputs").rglob("*.pieces"))
    predict(f"run={run}", f"input={tmp_path}/new.jsonl", f"output={TABLE}", status=2)
    assert project.tables["found,pt=1"].num_rows == 23


def test_an_interrupted_command_continues_with_its_pieces(run, project, tmp_path, monkeypatch):
    write(tmp_path / "new.jsonl", unlabelled(TASKS["classify"], 23))
    given = (f"run={run}", f"input={tmp_path}/new.jsonl", f"output={TABLE}")
    project.fault = lambda method, path: "403" if method == "POST" and "instances" in path else None
    predict(*given, status=2)
    assert "found" not in project.tables
    project.fault = lambda method, path: None
    monkeypatch.setattr(Pieces, "write", None)  # no piece is made again
    predict(*given)
    assert project.tables["found,pt=1"].num_rows == 23
