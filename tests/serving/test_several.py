"""Several runs of one encoder in one process: their rows share batches, and each answer is that of its own run."""

import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import nlu
from nlu.commands import serve
from nlu.config.command_keys import Serve
from nlu.config.errors import UserError
from nlu.inference.loaded import Loaded
from nlu.inference.mixed import RUN, Mix
from nlu.inference.sharing import share_encoder
from nlu.serving.bodies import Refused
from nlu.serving.runs import Runs
from tests.inference.runs import trained, unlabelled
from tests.serving.servers import serving
from tests.training.in_process import MODEL, of_composed
from tests.training.kinds import IN_WINDOWS, TASKS, Kind, Row, classes, text

LORA = ("adapter=lora", "adapter.rank=2", "optimizer.lr=0.1")
"""at such a rate, few steps change the decisions of a run"""


TOPICS = [f"t{number}" for number in range(15)]


def topics(rng: random.Random) -> Row:
    return {"text": text(rng), "label": rng.choice(TOPICS)}


KINDS = {
    "two": TASKS["classify"],
    "topics": Kind((f"data.labels=[{','.join(TOPICS)}]",), topics),
    "pairs": TASKS["match"],
    "tags": TASKS["tag with a CRF"],
    "sides": Kind(("task=siamese", "loss=contrastive"), TASKS["siamese"].row),
    "windows": Kind(IN_WINDOWS, classes),
}
"""runs of one encoder"""


MODERN = (
    "model=modernbert", "model.pretrained=null", "model.hidden_size=16", "model.layers=2", "model.heads=2",
    "model.intermediate_size=16", "model.max_positions=32", "model.local_attention=4", "data.max_len=32",
)  # fmt: skip


def runs_of(folder: Path, kinds: dict[str, Kind], model: tuple[str, ...]) -> dict[str, Path]:
    """Train runs of adapters on the weights of one and the same run, and return their folders, NAME-run."""
    base = trained(replace(TASKS["classify"], model=model), folder / "base")
    found = {}
    for seed, (name, kind) in enumerate(kinds.items()):
        began = (f"model.pretrained={base}/best", *LORA, f"seed={seed}", *kind.options)
        whole = trained(replace(kind, options=began, model=without_null(model)), folder / name)
        found[name] = shutil.move(whole, folder / f"{name}-run")
    return found


def without_null(model: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(each for each in model if each != "model.pretrained=null")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return runs_of(tmp_path_factory.mktemp("runs"), KINDS, MODEL)


@pytest.fixture(scope="module")
def alone(runs: dict[str, Path]) -> dict[str, Loaded]:
    return {name: nlu.load(run, device="cpu") for name, run in runs.items()}


def mixed(runs: dict[str, Path], **options: Any) -> Mix:
    predictors = {name: nlu.load(run, device="cpu", **options).predictor for name, run in runs.items()}
    first = next(iter(predictors))
    for name in list(predictors)[1:]:
        share_encoder(first, predictors[first], name, predictors[name])
    return Mix(predictors)


def rows_of_all(each: int) -> list[Row]:
    """Return rows of all runs in any order, each with the name of its run."""
    rows = [{**row, RUN: name} for name, kind in KINDS.items() for row in unlabelled(kind, each)]
    random.Random(0).shuffle(rows)
    return rows


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_mixed_batch_has_the_bits_of_each_runs_own_predictions(runs: dict[str, Path], precision: str) -> None:
    require_own_bits(runs, rows_of_all(9), precision)


def test_runs_of_modernbert_are_mixed_too(tmp_path: Path) -> None:
    kinds = {name: KINDS[name] for name in ("topics", "pairs", "tags")}
    rows = [row for row in rows_of_all(9) if row[RUN] in kinds]
    require_own_bits(runs_of(tmp_path, kinds, MODERN), rows, "fp32")


def require_own_bits(runs: dict[str, Path], rows: list[Row], precision: str) -> None:
    """Assert that rows of all runs together get what each run predicts for its own."""
    mix = mixed(runs, precision=precision)
    found = mix.predict(mix.encode(rows), with_logits=True)
    for name, run in runs.items():
        own = nlu.load(run, device="cpu", precision=precision).predictor
        places = [place for place, row in enumerate(rows) if row[RUN] == name]
        expected = own.predict(own.encode([rows[place] for place in places]), with_logits=True)
        assert [found[place] for place in places] == expected


def test_runs_differ_and_hold_the_weights_of_the_encoder_once(runs: dict[str, Path]) -> None:
    mix = mixed(runs)
    row = {"text": "a b c", "tokens": ["a", "b", "c"], "text_a": "a b", "text_b": "c"}
    found = mix.predict(mix.encode([{**row, RUN: name} for name in runs]), with_logits=True)
    assert found[0]["logits"] != found[-1]["logits"]
    first, *others = (each.trained.model.backbone for each in mix.predictors.values())
    of_first = {value.data_ptr() for value in first.parameters()}
    for other in others:
        assert not [name for name, value in other.named_parameters()
                    if value.data_ptr() not in of_first and "down" not in name and "up" not in name]  # fmt: skip


def test_a_run_with_another_encoder_is_refused_with_what_differs(runs: dict[str, Path], tmp_path: Path) -> None:
    other = trained(TASKS["classify"], tmp_path / "other", "seed=7", *LORA)
    wide = trained(TASKS["classify"], tmp_path / "wide", "model.intermediate_size=32", *LORA)
    with pytest.raises(UserError, match=r"run run cannot be served together with two-run: .* of its encoder differs"):
        Runs.of_config(Serve(run=[str(runs["two"]), str(other)], device="cpu"))
    with pytest.raises(UserError, match="one of them has no adapter, and so an encoder of its own; serve runs of"):
        Runs.of_config(Serve(run=[str(runs["two"]), str(runs["two"].parent / "base" / "run")], device="cpu"))
    with pytest.raises(UserError, match="the intermediate_size of its encoder is 32, that of the other 16"):
        Runs.of_config(Serve(run={"a": str(runs["two"]), "b": str(wide)}, device="cpu"))
    with pytest.raises(UserError, match="precision is int8, which merges the adapter into the weights"):
        Runs.of_config(Serve(run=[str(runs["two"]), str(runs["topics"])], device="cpu", precision=INT8))


INT8 = {"_target_": "nlu.inference.int8.precision.Int8", "compiled": False}


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("run=[TWO,TWO]",), "run has two runs of the name two-run"),
        (("run=[TWO,PAIRS]", "interactive=true"), "interactive is true, but run has 2 runs; name one, or leave out"),
        (("run=[TWO,PAIRS]", "compile=true"), "compile is true, but run has 2 runs"),
        (("run=[TWO,nowhere]",), "run is nowhere, which is not a folder here"),
        (("run=[]",), "run is empty, but must name at least one run"),
    ],
)  # fmt: skip
def test_names_that_cannot_be_served_are_refused_before_anything_is_loaded(
    runs: dict[str, Path], overrides: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [each.replace("TWO", str(runs["two"])).replace("PAIRS", str(runs["pairs"])) for each in overrides]
    of_composed(serve.main, "serve", "device=cpu", *given, status=2)
    assert sentence in capsys.readouterr().err


def test_clients_of_all_runs_get_the_answers_of_their_own(runs: dict[str, Path], alone: dict[str, Loaded]) -> None:
    rows = rows_of_all(12)
    with serving(list(runs.values())) as server, ThreadPoolExecutor(16) as pool:
        bodies = [{"run": f"{row[RUN]}-run", "rows": [row], "logits": True} for row in rows]
        answers = list(pool.map(lambda body: server.ask("/predict", body), bodies))
        expected = [(200, {"rows": alone[row[RUN]].predict([row], logits=True)}) for row in rows]
        assert answers == expected
        status, refused = server.ask("/predict", {"run": "topic-run", "rows": ["a"]})
        assert status == 404 and "run is topic-run, which is not served here; nearest: topics-run" in refused["detail"]
        status, refused = server.ask("/predict", {"rows": ["a"]})
        assert status == 422 and refused["detail"].startswith('run is missing; add "run" to the body, one of two-run, ')
        status, refused = server.ask("/predict", {"row": ["a"]})
        assert status == 422 and refused["detail"].endswith("and GET /labels the fields of a row")
        status, why = server.ask("/explain", {"run": "two-run", "row": "a b"})
        assert status == 200 and why["marks"]
        about = server.ask("/labels")[1]["runs"]
        assert list(about) == [run.name for run in runs.values()] and about["topics-run"]["labels"] == TOPICS
        assert server.ask("/health")[1]["checkpoint"]["runs"]["pairs-run"] == "best-1"


def test_a_newer_checkpoint_of_one_run_is_taken_up_by_that_run(runs: dict[str, Path], tmp_path: Path) -> None:
    copy = shutil.copytree(runs["two"], tmp_path / "two")
    served = Runs.of_config(Serve(run=[str(runs["topics"]), str(copy)], device="cpu", reload_s=0.1))
    shutil.rmtree(copy / "checkpoints" / "best-1")
    shutil.copytree(runs["windows"] / "checkpoints" / "best-1", copy / "checkpoints" / "best-1")
    counted: list[int] = []
    renewed = served.renewed(lambda: counted.append(1))
    predictor, rows = renewed.computing("two", [{"text": "a b c"}])
    (found,) = predictor.predict(predictor.encode(rows), with_logits=True)
    (expected,) = nlu.load(runs["windows"], device="cpu").predict(["a b c"], logits=True)
    assert counted == [1] and found["logits"] == expected["logits"]
    assert renewed.served["topics-run"] is served.served["topics-run"]


def test_a_newer_checkpoint_of_the_first_run_holds_the_same_encoder(runs: dict[str, Path], tmp_path: Path) -> None:
    copy = shutil.copytree(runs["two"], tmp_path / "two")
    served = Runs.of_config(Serve(run=[str(copy), str(runs["topics"])], device="cpu", reload_s=0.1))
    shutil.rmtree(copy / "checkpoints" / "best-1")
    shutil.copytree(runs["windows"] / "checkpoints" / "best-1", copy / "checkpoints" / "best-1")
    renewed = served.renewed(lambda: None)
    assert renewed.served["two"] is not served.served["two"]
    words = [each.predictor.trained.model.backbone.words.weight for each in renewed.served.values()]
    assert words[0] is words[1]


def test_a_server_of_one_run_knows_its_name_and_needs_none(runs: dict[str, Path]) -> None:
    served = Runs.of_config(Serve(run=str(runs["two"]), device="cpu"))
    assert served.of(None) is served.of("two-run") and served.mix is None
    with pytest.raises(Refused, match="run is tow-run, which is not served here; nearest: two-run"):
        served.of("tow-run")
