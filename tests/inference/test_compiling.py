"""compile=true in predict, evaluate, serve and nlu.load: the answers of the eager run up to rounding, in few shapes.

On a CPU, where users are refused, backend aot_eager compiles the same graph in seconds.
"""

import gc
import json
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch._dynamo.utils import counters

import nlu
from nlu.commands import serve as serving
from nlu.config.command_keys import Serve
from nlu.config.errors import UserError
from nlu.data.shapes import SHAPES, Shape, Shapes, covering
from nlu.inference import compiling, predict_files
from nlu.serving.served import Newest
from nlu.training.compiled import ALLOWED_ON_CPU, Compiled
from tests.few import first
from tests.inference.runs import evaluate, kept, predict, trained, unlabelled
from tests.serving.servers import serving as serving_run
from tests.training.in_process import of_composed
from tests.training.kinds import TASKS, few_first, read, write

Backend = Callable[[str], None]


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Backend:
    """Allow compile=true on the CPU, by the backend that is given."""

    def choose(name: str) -> None:
        monkeypatch.setenv(ALLOWED_ON_CPU, "1")
        monkeypatch.setattr(compiling, "Compiled", partial(Compiled, backend=name))

    return choose


@pytest.fixture
def allowed(backend: Backend) -> None:
    backend("aot_eager")


def numbers(logits: Any) -> np.ndarray:
    """Return the logits of a row: a list, or JSON where a table has them."""
    return np.array(json.loads(logits) if isinstance(logits, str) else logits)


def values(predicted: list[dict[str, Any]]) -> np.ndarray:
    return np.array([numbers(one["logits"]) for one in predicted])


def rows_of(name: str, count: int, seed: int = 1) -> list[dict[str, Any]]:
    return unlabelled(TASKS[name], count, seed)


@pytest.mark.usefixtures("allowed")
@pytest.mark.parametrize("name", few_first(("classify", "match", "regress", "multilabel", "tag", "siamese"), "tag"))
def test_compiled_predictions_are_those_of_the_eager_run(run_of: Callable[[str], Path], name: str) -> None:
    eager, compiled = (nlu.load(run_of(name), device="cpu", batch_size=5, compile=asked) for asked in (False, True))
    assert compiled.predictor.compiled is not None
    rows = rows_of(name, 23)
    expected, found = (one.predict(rows, logits=True) for one in (eager, compiled))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(numbers(one["logits"]), numbers(other["logits"]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", first(1, ["aot_eager", "inductor"]))
def test_in_one_shape_a_row_has_the_same_bits_among_any_neighbours(
    run_of: Callable[[str], Path], backend: Backend, name: str
) -> None:
    backend(name)
    loaded = nlu.load(run_of("classify"), device="cpu", batch_size=23, compile=True)
    assert loaded.predictor.compiled is not None
    loaded.predictor.compiled.scored = Shapes([Shape(320, 23, 16, 0)], 1)
    rows = rows_of("classify", 8)
    alone = [values(loaded.predict([row], logits=True))[0] for row in rows]
    for seed, count in enumerate((1, 7, 15)):
        others = rows_of("classify", count, seed=seed + 2)
        # Rows are sorted by length, so the places of these change with the lengths of the others.
        together = values(loaded.predict([*others, *rows], logits=True))[count:]
        np.testing.assert_array_equal(together, alone)
    assert len(loaded.predictor.compiled.scored.shapes) == 1


def test_few_shapes_hold_all_batches() -> None:
    rng = np.random.default_rng(0)
    for sequences, longest in ((64, 128), (1, 512), (512, 20), (2, 1)):
        shapes = covering(sequences, longest, 8)
        assert len(shapes) <= 8
        for _ in range(200):
            lengths = rng.integers(1, rng.integers(1, longest + 1) + 1, rng.integers(1, sequences + 1))
            tokens = int(lengths.sum())
            batch = Shape(tokens, len(lengths), int(lengths.max()), int(rng.integers(tokens + 1)))
            assert any(shape.holds(batch) for shape in shapes), batch


@pytest.mark.usefixtures("allowed")
def test_the_first_rows_decide_the_shapes_and_no_later_row_adds_one(run_of: Callable[[str], Path]) -> None:
    loaded = nlu.load(run_of("classify"), device="cpu", batch_size=4, compile=True)
    compiled = loaded.predictor.compiled
    assert compiled is not None
    loaded.predict(rows_of("classify", 30))
    before = list(compiled.scored.shapes)
    graphs = counters["stats"]["unique_graphs"]
    loaded.predict(["a"])
    loaded.predict(["a b c d e f g h " * 9] * 9)
    assert compiled.scored.shapes == before and len(before) <= SHAPES and not compiled.scored.others
    assert counters["stats"]["unique_graphs"] == graphs, "compiled again"


@pytest.mark.usefixtures("allowed")
def test_a_killed_compiled_prediction_continues_to_the_same_bytes(
    run_of: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(predict_files, "CHUNK_ROWS", 8)
    write(tmp_path / "new.jsonl", rows_of("classify", 23))
    order = (f"run={run_of('classify')}", f"input={tmp_path}/new.jsonl", "compile=true", "batch_size=3", "logits=true")
    predict(*order, f"output={tmp_path}/a.jsonl")
    write_piece = predict_files.Pieces.write

    def killed(self: Any, number: int, content: bytes) -> None:
        if number == 1:
            raise KeyboardInterrupt
        write_piece(self, number, content)

    with monkeypatch.context() as patched:
        patched.setattr(predict_files.Pieces, "write", killed)
        predict(*order, f"output={tmp_path}/b.jsonl", status=130)
    predict(*order, f"output={tmp_path}/b.jsonl", "compile=false", status=2)
    assert "which was started with other settings (compile differ)" in capsys.readouterr().err
    predict(*order, f"output={tmp_path}/b.jsonl")
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()


@pytest.mark.usefixtures("allowed")
def test_compiled_scores_are_those_that_the_run_recorded(run_of: Callable[[str], Path], tmp_path: Path) -> None:
    run = run_of("classify")
    evaluate(f"run={run}", "compile=true", f"out={tmp_path}/out")
    found, recorded = read(tmp_path / "out/predictions/dev.jsonl")[1:], kept(run)
    assert [one["loss"] for one in found] == pytest.approx([one["loss"] for one in recorded], abs=1e-6)
    loaded = nlu.load(run, device="cpu", compile=True)
    rows = read(run.parent / "dev.jsonl")
    exact = nlu.load(run, device="cpu").evaluate(rows)
    assert loaded.evaluate(rows) == pytest.approx(exact, abs=1e-6)


@pytest.mark.usefixtures("allowed")
def test_a_run_that_is_not_compiled_is_computed_eagerly_with_the_reason(
    run_of: Callable[[str], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = run_of("tag with a CRF")
    rows = rows_of("tag with a CRF", 9)
    found = nlu.load(run, device="cpu", compile=True).predict(rows, logits=True)
    assert found == nlu.load(run, device="cpu").predict(rows, logits=True)
    assert "compile is true, but outputs are computed eagerly: a CRF computes tag by tag" in caplog.text


@pytest.mark.parametrize("command", ["predict", "evaluate", "serve", "load"])
def test_on_a_cpu_it_is_refused_by_the_names_of_the_command(
    run_of: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    run = run_of("classify")
    device = "device"
    if command == "predict":
        write(tmp_path / "new.jsonl", rows_of("classify", 2))
        predict(f"run={run}", f"input={tmp_path}/new.jsonl", f"output={tmp_path}/o.csv", "compile=true", status=2)
    elif command == "evaluate":
        evaluate(f"run={run}", f"out={tmp_path}/o.csv", "compile=true", status=2)
        device = "trainer.device"
    elif command == "serve":
        of_composed(serving.main, "serve", f"run={run}", "port=0", "device=cpu", "compile=true", status=2)
    else:
        with pytest.raises(UserError, match="^compile is true, .* set compile=false, or device=cuda"):
            nlu.load(run, device="cpu", compile=True)
        return
    said = capsys.readouterr().err
    assert "error: compile is true, but the device is a CPU" in said
    assert f"set compile=false, or {device}=cuda on a machine with a GPU" in said
    assert not (tmp_path / "o.csv").exists()


@pytest.mark.parametrize(
    ("orders", "words"),
    [
        (
            ["run=RUN", "compile=true", "compare=true"],
            "compare is true, which compares to the bit, but compile is true",
        ),
        (["run=RUN", "trainer.compile=true"], "trainer.compile: a run is scored as it was trained"),
        (["model=bert_tiny", "trainer.compile=true"], "nothing is trained; set compile=true instead"),
    ],
)
def test_where_it_has_no_effect_it_is_refused(
    run_of: Callable[[str], Path], capsys: pytest.CaptureFixture[str], orders: list[str], words: str
) -> None:
    evaluate(*(order.replace("RUN", str(run_of("classify"))) for order in orders), status=2)
    assert words in capsys.readouterr().err


@pytest.mark.usefixtures("allowed")
def test_a_checkpoint_that_replaces_another_is_not_compiled_again(tmp_path: Path) -> None:
    run, other = (trained(TASKS["classify"], tmp_path / name, f"seed={seed}") for seed, name in enumerate("ab"))
    rows = rows_of("classify", 30)
    newest = Newest(Serve(run=str(run), device="cpu", batch_size=4, compile=True), str(run))
    old = weakref.ref(newest.served.trained.model)
    before = newest.served.predictor.predict(newest.served.predictor.encode(rows), with_logits=True)
    graphs = counters["stats"]["unique_graphs"]
    (run / "checkpoints/best-1").rename(tmp_path / "old")
    (other / "checkpoints/best-1").rename(run / "checkpoints/best-1")
    shapes = newest.served.predictor.compiled.scored.shapes
    newest.renew(lambda: None)
    # Not by the first request that comes: the same text has the same bits after each load.
    assert newest.served.predictor.compiled.scored.shapes == shapes != []
    found = newest.served.predictor.predict(newest.served.predictor.encode(rows), with_logits=True)
    assert counters["stats"]["unique_graphs"] == graphs
    exact = nlu.load(run, device="cpu").predict(rows, logits=True)
    np.testing.assert_allclose(values(found), values(exact), atol=1e-5, rtol=0)
    assert np.abs(values(found) - values(before)).max() > 1e-3, "other weights"
    gc.collect()
    assert old() is None, "the old model stays in memory"


@pytest.mark.thorough
def test_a_server_answers_what_the_compiled_run_predicts(run_of: Callable[[str], Path]) -> None:
    run, rows = run_of("classify"), [row["text"] for row in rows_of("classify", 9)]
    with serving_run(run, "compile=true", "timeout_s=120", **{ALLOWED_ON_CPU: "1"}) as server:
        status, found = server.ask("/predict", {"rows": rows})
    expected = nlu.load(run, device="cpu").predict(rows)
    assert status == 200
    assert [one["prediction"] for one in found["rows"]] == [one["prediction"] for one in expected]
    shown = [one["probability"] for one in found["rows"]]
    assert shown == pytest.approx([one["probability"] for one in expected], abs=1e-5)


def test_a_word_in_place_of_true_or_false_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="^compile is 'false' but must be True or False$"):
        nlu.load(tmp_path, device="cpu", compile="false")  # type: ignore[arg-type]
