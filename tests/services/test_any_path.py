"""Every key and argument that takes a path takes an object, on a real S3 server: what is read, what is written."""

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
from safetensors.numpy import load_file
from test_conditional_put import adopt

from nlu.commands import io
from nlu.storage.access import files
from nlu.storage.locations import parse_place
from tests.inference.runs import predict, trained
from tests.oss_server import BUCKET, OssServer
from tests.training.in_process import TINY, killed_in_backward, train
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
    return list(files(parse_place(url)))


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
