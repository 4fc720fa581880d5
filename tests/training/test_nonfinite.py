"""A step that is not finite: rows, module, term and rank are named, nothing is updated, and a healthy step costs
nothing."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from nlu.config.errors import UserError
from nlu.config.schema import Run
from nlu.training.nonfinite import named
from tests.composing import prepared
from tests.training import poisoned
from tests.training.in_process import MODEL, PLAIN, composed, sets, start, tensors
from tests.training.poisoned import HERE, LAYER
from tests.training.test_kinds_in_processes import run_in_two

PLACES = {
    "embeddings.word_embeddings": "embeddings.word_embeddings (Embedding)",
    f"{LAYER}.output.dense": f"{LAYER}.output.dense (Linear)",
    "activation": f"{LAYER}.output.dense (Linear)",
}
ROW = 7
"""the row with the token"""
TEXT = f'row {ROW} of train: "a z b z"'


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of three steps for each epoch of all rows, one of which has a token of its own."""
    folder = tmp_path_factory.mktemp("data")
    options = sets(folder)
    lines = (folder / "train.tsv").read_text().splitlines()
    lines[ROW - 1] = "a z b z\tgood"
    (folder / "train.tsv").write_text("\n".join(lines) + "\n")
    whole = composed(
        *MODEL, *PLAIN, *options, "trainer.batch_size=9", "trainer.max_duration=4st", "model.dropout=0.1",
        "trainer.eval_interval=0", "trainer.save_interval=1st",
    )  # fmt: skip
    return replace(whole, trusted_packages=["tests"])


@pytest.fixture(scope="module")
def trained(config: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which everything was finite."""
    run_dir = tmp_path_factory.mktemp("trained") / "run"
    start(config, run_dir)
    return run_dir


@pytest.fixture(scope="module")
def token(trained: Path) -> int:
    """The number of the token."""
    tokenizer = json.loads((trained / "checkpoints/last/tokenizer.json").read_text())
    found: int = tokenizer["model"]["vocab"]["z"]
    return found


@pytest.fixture(autouse=True)
def active() -> Iterator[None]:
    poisoned.is_active = True
    yield
    poisoned.is_active = True


def with_bad(config: Run, token: int, place: str, phase: str = "forward", **parts: Any) -> Run:
    model = {**config.model, "_target_": f"{HERE}.BadBert", "place": place, "phase": phase, "piece": token}
    return replace(config, model=model, **parts)


def failed(config: Run, run_dir: Path) -> UserError:
    with pytest.raises(UserError, match="nothing was updated") as caught:
        start(config, run_dir)
    return caught.value


def step_of(run_dir: Path) -> int:
    """Return the last saved step; 0 if the first one failed."""
    if not (run_dir / "checkpoints/last").exists():
        return 0
    return json.loads((run_dir / "checkpoints/last/state.json").read_text())["state"]["step"]


@pytest.mark.parametrize("place", PLACES)
def test_the_row_and_the_module_that_fails_first_are_named(config: Run, token: int, tmp_path: Path, place: str) -> None:
    error = failed(with_bad(config, token, place), tmp_path / "run")
    assert f"the loss is nan at step {step_of(tmp_path / 'run') + 1}, row {ROW} of train;" in error.summary
    said, text = error.problems
    before = "code before " if place == "activation" else ""
    assert said == f"first in the forward pass of {before}backbone.{PLACES[place]}" and text == TEXT
    assert "lower optimizer.lr" in error.remedy


def test_the_last_parameter_whose_gradient_is_nan_is_named(config: Run, token: int, tmp_path: Path) -> None:
    error = failed(with_bad(config, token, "activation", "backward"), tmp_path / "run")
    assert f"the gradient norm is nan at step {step_of(tmp_path / 'run') + 1}, row {ROW} of train;" in error.summary
    # The function comes behind it: what is behind the function has a finite gradient.
    name = f"backbone.{LAYER}.intermediate.dense.bias"
    assert error.problems == [f"first in the backward pass, in the gradient of {name}, ...", TEXT]
    assert "trainer.detect_anomaly=true names the operation" in error.remedy


def test_a_parameter_whose_gradient_is_infinite_is_named(config: Run, token: int, tmp_path: Path) -> None:
    place = "embeddings.word_embeddings"
    error = failed(with_bad(config, token, place, "infinite"), tmp_path / "run")
    assert error.problems == [f"first in the backward pass, in the gradient of backbone.{place}.weight", TEXT]


@pytest.mark.parametrize("group", ["head", "loss"])
def test_the_head_and_the_loss_are_named(config: Run, token: int, tmp_path: Path, group: str) -> None:
    part = {"_target_": f"{HERE}.Bad{group.capitalize()}", "phase": "forward"}
    error = failed(with_bad(config, token, "", **{group: part}), tmp_path / "run")
    said = {"head": "the forward pass of head.linear (Linear)", "loss": "the loss (BadLoss)"}[group]
    assert error.problems == [f"first in {said}", TEXT]


@pytest.mark.parametrize("method", ["fgm", "rdrop"])
def test_the_terms_of_the_loss_are_named(config: Run, token: int, tmp_path: Path, method: str) -> None:
    own = prepared([f"method={method}"])["method"]
    error = failed(with_bad(config, token, "embeddings.word_embeddings", method=own), tmp_path / "run")
    terms = {"fgm": ", term labels, adversarial_labels", "rdrop": ", term labels, consistency"}[method]
    assert error.problems[0] == f"first in the forward pass of backbone.{PLACES['embeddings.word_embeddings']}{terms}"


def test_the_rank_is_named_and_all_ranks_say_the_same(config: Run, token: int, tmp_path: Path) -> None:
    def of(name: str, line: int) -> Run:
        lines = Path(config.data["train"]).read_text().splitlines()
        lines[ROW - 1], lines[line - 1] = lines[line - 1], lines[ROW - 1]
        (tmp_path / f"{name}.tsv").write_text("\n".join(lines) + "\n")
        data = {**config.data, "train": str(tmp_path / f"{name}.tsv")}
        trainer = replace(config.trainer, devices=2, batch_size=9, bucket_batches=1)
        method = prepared(["method=rdrop"])["method"]
        return replace(with_bad(config, token, "embeddings.word_embeddings", method=method), data=data, trainer=trainer)

    runs = {f"at-{line}": line for line in (ROW, ROW + 1, ROW + 4)}
    run_in_two([(of(name, line), tmp_path / name) for name, line in runs.items()], tmp_path, FAILS="1")
    ranks = set()
    for name, line in runs.items():
        (message,) = {(tmp_path / f"{name}.error-{rank}").read_text() for rank in range(2)}
        assert f"row {line} of train;" in message and f'row {line} of train: "a z b z"' in message
        said, _, rank = message.partition("(Embedding), term labels, consistency, on rank ")
        assert said.endswith("first in the forward pass of backbone.embeddings.word_embeddings ")
        ranks.add(int(rank[0]))
        assert f"at step {step_of(tmp_path / name) + 1}," in message
    assert ranks == {0, 1}


def test_the_run_continues_from_its_last_state_as_if_the_step_had_not_failed(
    config: Run, token: int, tmp_path: Path
) -> None:
    trainer = replace(config.trainer, max_duration="6st")
    # Its running statistics are saved too.
    head = {"_target_": "tests.training.test_passes.NormedHead"}
    bad = replace(with_bad(config, token, "embeddings.word_embeddings", head=head), trainer=trainer, resume="auto")
    poisoned.is_active = False
    start(bad, tmp_path / "whole")
    start(replace(bad, trainer=replace(trainer, stop_after="2st")), tmp_path / "run")
    poisoned.is_active = True
    failed(bad, tmp_path / "run")
    poisoned.is_active = False
    assert (before := step_of(tmp_path / "run")) >= 2
    start(replace(bad, trainer=replace(trainer, stop_after=f"{before}st")), tmp_path / "stopped")
    require_equal(tmp_path / "stopped", tmp_path / "run")
    start(bad, tmp_path / "run")
    require_equal(tmp_path / "whole", tmp_path / "run")


def require_equal(run_dir: Path, other: Path) -> None:
    for name in ("last/model", "last/optimizer", "last/average"):
        one, two = (tensors(folder, name) for folder in (run_dir, other))
        assert one.keys() == two.keys() and all((one[key] == two[key]).all() for key in one), name


def test_weights_that_were_broken_before_are_named_first(config: Run, trained: Path, tmp_path: Path) -> None:
    last = tmp_path / "last"
    shutil.copytree(trained / "checkpoints/last", last)
    weights = load_file(last / "model.safetensors")
    weights["backbone.embeddings.LayerNorm.bias"][0] = np.inf
    save_file(weights, last / "model.safetensors")
    error = failed(replace(config, model={**config.model, "pretrained": str(last)}), tmp_path / "run")
    assert error.problems[0] == "first in the weights from before the step: backbone.embeddings.LayerNorm.bias"


@pytest.mark.parametrize(
    ("found", "of", "words"),
    [([3], 9, "row 3"), ([3, 5], 9, "rows 3, 5"), ([], 8, "rows 1, 2, 3, 4, 5, 6, 7, 8"),
     (list(range(1, 10)), 10, "rows 1, 2, 3, 4, 5, 6, 7, 8, ...")],
)  # fmt: skip
def test_eight_rows_at_most_are_named_one_by_one(found: list[int], of: int, words: str) -> None:
    assert named(found, list(range(1, of + 1))) == words
