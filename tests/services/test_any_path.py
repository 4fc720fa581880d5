"""Every key and argument that takes a path takes an object, on a real S3 server: what is read, what is written."""

import json
import os
import shutil
import threading
import uuid
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from faulty_proxy import FaultyProxy
from safetensors.numpy import load_file
from test_conditional_put import adopt

import nlu
from nlu import doctor, io, report, visualize
from nlu.config.errors import UserError
from nlu.data import __main__ as survey
from nlu.inference.locate import locate
from nlu.storage.objects import backend_of
from nlu.storage.places import parse_place
from tests.inference.runs import evaluate, export, predict, trained
from tests.oss_server import BUCKET, OssServer
from tests.training.in_process import TINY, command, killed_in_backward, train
from tests.training.kinds import TASKS

pytestmark = pytest.mark.services


class Stored:
    """A trained run and its files, on this machine (`local`) and below `url`."""

    def __init__(self, local: Path, url: str):
        self.local, self.url = local, url
        self.run = f"{url}/run"


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    folder = tmp_path_factory.mktemp("stored")
    trained(TASKS["classify"], folder)
    found = Stored(folder, f"{os.environ['NLU_TEST_S3']}/{uuid.uuid4().hex}")
    assert io.main(["cp", "-r", str(folder), found.url]) == 0
    return found


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing of this test's is there from one before it."""
    monkeypatch.setenv("NLU_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def names(url: str) -> list[str]:
    place = parse_place(url)
    return list(backend_of(place).files(place))


def fetched(url: str, folder: Path) -> Path:
    target = folder / url.rpartition("/")[2]
    assert io.main(["cp", "-r", url, str(target)]) == 0
    return target


def weights(run: Path) -> dict[str, np.ndarray]:
    return load_file(run / "checkpoints/best-1/model.safetensors")


@pytest.fixture
def web(stored: Stored) -> Iterator[str]:
    handler = partial(SimpleHTTPRequestHandler, directory=str(stored.local))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def rows_of(start: str) -> tuple[str, ...]:
    """Keys of TASKS["classify"] with files elsewhere."""
    return (
        *TINY, "task=classify", "data=files", f"data.train={start}/train.jsonl", f"data.dev={start}/dev.jsonl",
        "data.fields={text: text, label: label}", "trainer.max_duration=2st", "trainer.eval_interval=2st",
    )  # fmt: skip


def test_training_reads_data_vocabulary_and_weights_from_a_store_and_the_web(
    stored: Stored, web: str, tmp_path: Path
) -> None:
    best = "run/checkpoints/best-1"
    found = []
    for number, start in enumerate([str(stored.local), stored.url]):
        folder = tmp_path / f"run-{number}"
        keys = (f"tokenizer.vocab={start}/{best}/tokenizer.json", f"hydra.run.dir={folder}")
        train(*rows_of(start), f"model.pretrained={start}/run/best", *keys)
        found.append(weights(folder))
    local, s3 = found
    assert local.keys() == s3.keys() and all((local[name] == s3[name]).all() for name in local)
    train(*rows_of(web), f"tokenizer.vocab={web}/{best}/tokenizer.json", f"hydra.run.dir={tmp_path / 'web'}")
    assert weights(tmp_path / "web").keys() == local.keys()


def test_an_error_in_a_file_of_a_store_names_its_address_there(
    stored: Stored, tmp_path: Path, own_cache: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.jsonl").write_text('{"text": "a", "label": "x"}\n{"text": 5, "label": "x"}\n')
    (tmp_path / "vocab.txt").write_bytes(b"\xff\xfe")
    for name in ("bad.jsonl", "vocab.txt"):
        io.main(["cp", str(tmp_path / name), f"{stored.url}/bad/{name}"])
    bad = f"{stored.url}/bad/bad.jsonl"
    own, run = rows_of(stored.url), f"hydra.run.dir={tmp_path / 'no'}"
    for keys, told in (
        ((f"data.train={bad}",), f"{bad}:2: field text: 5 "),
        ((f"data.train={bad}", "data.fields={text: texts, label: label}"), f"{bad}:1: field texts"),
        ((f"data.test={bad}",), f"{bad}:2: field text: 5 "),
        ((f"tokenizer.vocab={stored.url}/bad/vocab.txt",), f"{stored.url}/bad/vocab.txt"),
        ((f"model.pretrained={bad}",), bad),
    ):
        train(*own, *keys, run, status=2)
        said = capfd.readouterr().err.partition("nlu: error: ")[2]
        assert told in said and str(own_cache) not in said, said
    predict(f"run={stored.run}", f"input={bad}", f"output={tmp_path}/p.jsonl", status=2)
    said = capfd.readouterr().err.partition("nlu: error: ")[2]
    assert f"{bad}:2: field text: 5 " in said and str(own_cache) not in said
    rows = f"data.train=[{stored.url}/train.jsonl,{bad}]"
    train(*own, rows, "data.on_bad_row=skip", f"hydra.run.dir={tmp_path / 'run'}")
    log = (tmp_path / "run/log.txt").read_text()
    assert f"{bad}:2: field text: 5 " in log
    meta = json.loads(next(own_cache.rglob("meta.json")).read_text())
    assert meta["files"]["train"] == [f"{stored.url}/train.jsonl", bad]


def test_files_of_a_store_are_found_by_a_pattern(stored: Stored, tmp_path: Path) -> None:
    io.main(["cp", f"{stored.url}/train.jsonl", f"{stored.url}/parts/a-0.jsonl"])
    io.main(["cp", f"{stored.url}/dev.jsonl", f"{stored.url}/parts/a-1.jsonl"])
    train(*rows_of(stored.url), f"data.train={stored.url}/parts/a-*.jsonl", f"hydra.run.dir={tmp_path / 'run'}")
    train(
        *rows_of(stored.url), f"data.train={stored.url}/parts/b-*.jsonl", f"hydra.run.dir={tmp_path / 'no'}", status=2
    )


def test_a_run_starts_from_the_state_of_one_in_a_store(stored: Stored, tmp_path: Path) -> None:
    found = []
    for number, start in enumerate([str(stored.local), stored.url]):
        kind = TASKS["classify"].overrides(tmp_path / "rows", dev_rows=23)
        run = tmp_path / f"run-{number}"
        train(*kind, "trainer.max_duration=6st", "trainer.eval_interval=2st", "trainer.keep_best=2",
              f"resume={start}/run", f"hydra.run.dir={run}")  # fmt: skip
        found.append(weights(run))
    assert all((found[0][name] == found[1][name]).all() for name in found[0])


def test_a_run_in_a_store_predicts_into_the_store(stored: Stored, tmp_path: Path) -> None:
    predict(f"run={stored.run}", f"input={stored.url}/dev.jsonl", f"output={stored.url}/out/p.jsonl")
    predict(f"run={stored.local}/run", f"input={stored.local}/dev.jsonl", f"output={tmp_path}/p.jsonl")
    out = fetched(f"{stored.url}/out", tmp_path)
    assert (out / "p.jsonl").read_bytes() == (tmp_path / "p.jsonl").read_bytes()
    predict(f"run={stored.run}", f"input={stored.url}/dev.jsonl", f"output={stored.url}/out/p.jsonl", status=2)
    predict(f"run={stored.run}/best-2", f"input={stored.url}/dev.jsonl", f"output={stored.url}/out/q.csv")
    assert names(f"{stored.url}/out") == ["p.jsonl", "q.csv"]
    assert not list((tmp_path / "cache").rglob("*.piece"))


def test_only_the_weights_that_are_used_are_fetched(stored: Stored, tmp_path: Path) -> None:
    located = locate(stored.run, "best")
    there = {path.parent.name for path in (located.run_dir / "checkpoints").rglob("*.safetensors")}
    assert there == {"best-1"} and not (located.run_dir / "checkpoints/last/optimizer.pt").exists()
    assert locate(f"{stored.run}/checkpoints/best-2").checkpoint.name == "best-2"
    found = nlu.load(stored.run).predict([{"text": "a b c"}])
    assert list(found) == list(nlu.load(stored.local / "run").predict([{"text": "a b c"}]))


def test_predicting_continues_after_the_store_was_away(
    stored: Stored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("nlu.storage.bucket.RETRY_DELAYS_S", (0.01,))
    arguments = (f"run={stored.local}/run", f"input={stored.local}/dev.jsonl", f"output={stored.url}/away/p.jsonl")
    is_away = False

    def choose(method: str, target: str) -> str | None:
        return "500" if is_away or (method == "PUT" and "p.jsonl" in target) else None

    with FaultyProxy.before(os.environ["AWS_ENDPOINT_URL"], choose) as proxy:
        with monkeypatch.context() as patched:
            patched.setenv("AWS_ENDPOINT_URL", proxy.url)
            predict(*arguments, status=2)
    assert len(list((tmp_path / "cache").rglob("*.piece"))) == 1
    capsys.readouterr()
    predict(*arguments)
    assert "continuing: 1 pieces" in capsys.readouterr().err
    assert names(f"{stored.url}/away") == ["p.jsonl"] and not list((tmp_path / "cache").rglob("*.piece"))


def test_scores_exports_and_figures_are_written_to_a_store(stored: Stored, tmp_path: Path) -> None:
    evaluate(f"run={stored.run}", f"data.test={stored.url}/dev.jsonl", f"out={stored.url}/scores", "resamples=10")
    assert {"result.json", "predictions/test.jsonl"} <= set(names(f"{stored.url}/scores"))
    assert ".begun" not in names(f"{stored.url}/scores")
    evaluate(f"run={stored.run}", f"data.test={stored.url}/dev.jsonl", f"out={stored.url}/scores", status=2)
    export(f"run={stored.run}", "format=torchscript", f"out={stored.url}/exported", "max_rows=4")
    assert "export.json" in names(f"{stored.url}/exported")
    assert visualize.main([stored.run, "--out", f"{stored.url}/figures"]) == 0
    assert "index.html" in names(f"{stored.url}/figures")


def test_an_incomplete_folder_is_written_again_but_never_another_one(
    stored: Stored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nlu.storage.bucket.RETRY_DELAYS_S", ())
    out = f"{stored.url}/broken"

    def choose(method: str, target: str) -> str | None:
        return "500" if method == "PUT" and "index.html" in target else None

    with FaultyProxy.before(os.environ["AWS_ENDPOINT_URL"], choose) as proxy:
        with monkeypatch.context() as patched:
            patched.setenv("AWS_ENDPOINT_URL", proxy.url)
            with pytest.raises(UserError):
                visualize.main([str(stored.local / "run"), "--out", out])
    assert ".begun" in names(out) and "index.html" not in names(out)
    assert visualize.main([str(stored.local / "run"), "--out", out]) == 0
    assert ".begun" not in names(out) and "index.html" in names(out)
    with pytest.raises(UserError, match="which exists; nothing was written"):
        visualize.main([str(stored.local / "run"), "--out", out])
    with pytest.raises(UserError, match="a whole bucket"):
        visualize.main([str(stored.local / "run"), "--out", os.environ["NLU_TEST_S3"]])


def test_reports_name_runs_in_a_store_as_they_are_called_there(
    stored: Stored, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report.main([stored.url, "--csv"]) == 0
    assert f"{stored.run}" in capsys.readouterr().out
    assert not list((tmp_path / "cache").rglob("*.safetensors")), "a report reads no weights"
    assert report.main(["diff", stored.run, str(stored.local / "run")]) == 0
    assert report.main(["errors", stored.run, "--html", f"{stored.url}/page/errors.html"]) == 0
    assert names(f"{stored.url}/page") == ["errors.html"]
    with pytest.raises(UserError, match="nothing is cleaned"):
        report.main(["clean", stored.run])
    with pytest.raises(UserError, match="does not exist"):
        report.main([f"{stored.url}/nothing"])


def test_doctor_and_survey_read_from_a_store(stored: Stored, capsys: pytest.CaptureFixture[str]) -> None:
    doctor.main([stored.run, "--json"])
    assert stored.run.rpartition("/")[2] in capsys.readouterr().out
    page = f"{stored.url}/page/rows.html"
    assert survey.main([f"{stored.url}/train.jsonl", "--out", page]) == 0
    assert "rows.html" in names(f"{stored.url}/page")


def test_a_run_in_a_store_is_run_again(stored: Stored, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "overrides").write_text("seed=7\ntrainer.batch_size=24\n")
    assert io.main(["cp", "-f", str(tmp_path / "overrides"), f"{stored.run}/overrides"]) == 0
    command("--rerun", stored.run, "--cfg", "job")
    assert {"seed: 7", "batch_size: 24"} <= {line.strip() for line in capsys.readouterr().out.splitlines()}


def test_rows_mirror_and_predictions_of_a_run_that_is_killed_lie_on_oss(
    stored: Stored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = ("trainer.max_duration=6st", "trainer.eval_interval=2st", "trainer.save_interval=1st")
    train(*rows_of(str(stored.local)), *steps, f"hydra.run.dir={tmp_path / 'whole'}")
    with OssServer() as server:
        adopt(monkeypatch, server.environment)
        url = f"oss://{BUCKET}/{uuid.uuid4().hex}"
        assert io.main(["cp", "-r", str(stored.local), url]) == 0
        keys = (*rows_of(url), *steps, f"mirror={url}/mirrored")
        with killed_in_backward(4):
            train(*keys, f"hydra.run.dir={tmp_path / 'here'}")
        shutil.rmtree(tmp_path / "here")
        predict(f"run={url}/mirrored", f"input={url}/dev.jsonl", f"output={url}/early.jsonl")
        train(*keys, "resume=auto", f"hydra.run.dir={tmp_path / 'elsewhere'}")
        weights_of_both = weights(tmp_path / "whole"), weights(tmp_path / "elsewhere")
        assert all((weights_of_both[0][name] == weights_of_both[1][name]).all() for name in weights_of_both[0])
        predict(f"run={url}/mirrored", f"input={url}/dev.jsonl", f"output={url}/out/p.jsonl")
        out = fetched(f"{url}/out", tmp_path)
        assert "early.jsonl" in names(url)
    predict(f"run={tmp_path / 'whole'}", f"input={stored.local}/dev.jsonl", f"output={tmp_path}/p.jsonl")
    assert (out / "p.jsonl").read_bytes() == (tmp_path / "p.jsonl").read_bytes()
