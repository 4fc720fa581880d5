"""python -m nlu.prune: importances against finite differences, and smaller models against masked heads."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nlu.commands import prune as pruning_command
from nlu.data.collate import collate
from nlu.inference import pruning
from nlu.inference.loaded import Loaded
from nlu.inference.locate import locate
from nlu.inference.pruning import Subject, importances, least_first, of_layers, to_remove, without
from nlu.models.encoder import Inside
from nlu.models.encoders.bert import Bert
from nlu.models.formats.smaller_weights import without_heads
from nlu.training.build import build_task
from tests.inference.runs import evaluate, kept, predict
from tests.training.in_process import NO_DROPOUT, of_composed, tensors, train
from tests.training.kinds import Kind, classes, pair_of_classes, read, tags

HEADS, LAYERS, WIDTH = 4, 2, 16
MODEL = (
    "model=bert_tiny", f"model.hidden_size={WIDTH}", f"model.heads={HEADS}", f"model.layers={LAYERS}",
    "model.intermediate_size=16", "model.max_positions=32", "data.max_len=32", "model.initializer_range=0.3",
    *NO_DROPOUT,
)  # fmt: skip
KINDS = {
    "classes": Kind((), classes, MODEL),
    "pairs apart": Kind(("task=siamese",), pair_of_classes, MODEL),
    "tags with a CRF": Kind(("task=tag", "head=crf"), tags, MODEL),
}
STEP = 0.02
"""a change of a mask; the losses are in single precision, so that smaller ones would be rounding"""
REMOVED = {0: [1], 1: [0, 2]}
"""heads that some tests remove"""


def prune(*overrides: str, status: int = 0) -> None:
    """Do what `python -m nlu.prune` does with these overrides, and assert its exit status."""
    of_composed(pruning_command.main, "prune", "device=cpu", *overrides, status=status)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The run of each kind."""
    found = {}
    for name, kind in KINDS.items():
        folder = tmp_path_factory.mktemp("kind")
        given = ("trainer.max_duration=4st", "trainer.eval_interval=0", "optimizer.lr=1e-2")
        train(*kind.overrides(folder, dev_rows=23), *given, f"hydra.run.dir={folder}/run")
        found[name] = folder / "run"
    return found


@pytest.fixture
def subject(runs: dict[str, Path], request: pytest.FixtureRequest) -> Iterator[Subject]:
    """The run of the kind that a test names, with its rows."""
    from nlu.display.progress_bars import Progress
    from nlu.training.ranks import process_group

    config: Any = type("Config", (), {"run": "the run"})
    with process_group("cpu", keys="") as ranks, Progress(enabled=False) as progress:
        yield pruning._subject(config, locate(str(runs[request.param])), ranks, progress)


def bert_of(model: Any) -> Bert:
    assert isinstance(model.backbone, Bert)
    return model.backbone


@pytest.mark.parametrize("subject", KINDS, indirect=True)
def test_an_importance_is_the_mean_of_the_slopes_of_single_examples(subject: Subject) -> None:
    task, train_set = build_task(subject.run, subject.store), subject.store.sets["train"]
    model = subject.trained.model
    found = importances(model, task, train_set, torch.device("cpu"), batch_size=5)
    # A mask m of a head is a factor of the head's columns of the projection after attention.
    slopes = np.zeros((LAYERS, HEADS))
    for example in range(len(train_set)):
        batch = collate(train_set, np.array([example]))
        for layer in range(LAYERS):
            weight = bert_of(model).encoder["layer"][layer].attention.output.dense.weight  # type: ignore[index]
            for head in range(HEADS):
                columns, losses = slice(head * 4, head * 4 + 4), []
                own = weight.data[:, columns].clone()
                for step in (-STEP, STEP):
                    weight.data[:, columns] = own * (1 + step)
                    with torch.no_grad():
                        terms = task.terms(model, batch, task.forward(model, batch))
                    losses.append(float(sum(terms.values())))
                weight.data[:, columns] = own
                slopes[layer, head] += abs(losses[1] - losses[0]) / (2 * STEP)
    expected = slopes / np.sqrt((slopes**2).sum(1, keepdims=True))
    np.testing.assert_allclose(np.stack(found), expected, rtol=0.01, atol=1e-3)


@pytest.mark.parametrize("subject", ["classes", "tags with a CRF"], indirect=True)
def test_importances_do_not_depend_on_batches(subject: Subject) -> None:
    task, part = build_task(subject.run, subject.store), subject.store.sets["train"]
    first, *others = (
        np.stack(importances(subject.trained.model, task, part, torch.device("cpu"), batch_size=size))
        for size in (1, 4, 100)
    )
    for other in others:
        np.testing.assert_allclose(other, first, rtol=1e-5)


def test_the_least_important_heads_go_first_and_a_layer_keeps_one() -> None:
    importance = [np.array([0.1, 0.2, 0.9]), np.array([0.3, 0.8, 0.1])]
    order = least_first(importance)
    assert order == [(0, 0), (1, 2), (0, 1), (1, 0), (1, 1), (0, 2)]
    assert to_remove(order, [3, 3], 2) == {0: [0], 1: [2]}
    assert to_remove(order, [3, 3], 4) == {0: [0, 1], 1: [0, 2]}
    # The third head of the first layer would be its last one.
    assert to_remove(least_first([np.array([0.1, 0.2]), importance[0]]), [2, 3], 3) == {0: [0], 1: [0, 1]}
    assert of_layers(order, {1: 2}) == {1: [0, 2]}


@pytest.mark.parametrize("subject", ["classes", "tags with a CRF"], indirect=True)
def test_a_pruned_model_computes_what_the_whole_one_computes_with_masked_heads(subject: Subject) -> None:
    model, trained = without(subject, REMOVED), subject.trained
    batch = collate(subject.eval_set, np.arange(len(subject.eval_set)))
    masked = trained.model
    for layer, heads in REMOVED.items():
        weight = bert_of(masked).encoder["layer"][layer].attention.output.dense.weight  # type: ignore[index]
        for head in heads:
            weight.data[:, head * 4 : head * 4 + 4] = 0
    with torch.inference_mode():
        expected, found = (trained.task.forward(one, batch)["logits"] for one in (masked, model))
        inside = Inside(attention=(0, 1))
        seen = [
            bert_of(one).encode(bert_of(one).embed(batch), batch, tokens=True, inside=inside).attention
            for one in (masked, model)
        ]
    assert (found - expected).abs().max() < 1e-6 < expected.std()
    assert [len(layer.attention.output.dense.weight[0]) for layer in bert_of(model).encoder["layer"]] == [12, 8]  # type: ignore[union-attr]
    for layer, heads in REMOVED.items():
        stay = [head for head in range(HEADS) if head not in heads]
        for whole, own in zip(seen[0][layer], seen[1][layer], strict=True):
            torch.testing.assert_close(own, whole[stay], rtol=1e-4, atol=1e-5)


def test_a_pruned_run_is_used_like_any_run(runs: dict[str, Path], tmp_path: Path, capfd: Any) -> None:
    run, out = runs["classes"], tmp_path / "smaller"
    prune(f"run={run}", "fraction=0.5", f"out={out}")
    shown = [line.split()[:4] for line in capfd.readouterr().out.splitlines() if " of 8 " in line]
    assert shown == [["0%", "8", "of", "8"], ["50%", "4", "of", "8"]]
    about = json.loads((out / "prune.json").read_text())
    config = json.loads((out / "checkpoints/best-1/config.json").read_text())
    assert config["pruned_heads"] == about["removed"] and sum(map(len, about["removed"].values())) == 4
    whole, less = (sum(value.size for value in tensors(one, "best-1/model").values()) for one in (run, out))
    # A head has three rows of WIDTH weights and a bias in each of its 4 features, and 4 columns after attention.
    assert whole - less == 4 * (3 * 4 * (WIDTH + 1) + 4 * WIDTH)
    assert [one["parameters"] for one in about["candidates"]] == [whole, less]
    evaluate(f"run={out}", "compare=true")
    predict(f"run={out}", f"input={run.parent}/dev.jsonl", f"output={tmp_path}/predicted.jsonl")
    own = kept(out)
    assert [row["prediction"] for row in read(tmp_path / "predicted.jsonl")] == [row["prediction"] for row in own]
    loaded = Loaded.of(out, device="cpu")
    together = [one["probability"] for one in loaded.predict([{"text": row["text"]} for row in own])]
    assert together == [loaded.predict([{"text": row["text"]}])[0]["probability"] for row in own]


def test_heads_can_be_removed_again_and_keep_their_numbers(runs: dict[str, Path], tmp_path: Path) -> None:
    prune(f"run={runs['classes']}", "heads={0: 1, -1: 2}", f"out={tmp_path}/first", "max_rows=5")
    prune(f"run={tmp_path}/first", "heads={0: 2}", f"out={tmp_path}/second")
    first, second = (
        json.loads((tmp_path / name / "checkpoints/best-1/config.json").read_text())["pruned_heads"]
        for name in ("first", "second")
    )
    assert [len(first[layer]) for layer in "01"] == [1, 2] and [len(second[layer]) for layer in "01"] == [3, 2]
    assert set(first["0"]) < set(second["0"]) and first["1"] == second["1"]
    before, after = (
        {name: torch.from_numpy(value) for name, value in tensors(folder, "best-1/model").items()}
        for folder in (runs["classes"], tmp_path / "second")
    )
    pruned = {int(layer): heads for layer, heads in second.items()}
    for name, value in without_heads(before, LAYERS, HEADS, {}, pruned).items():
        assert torch.equal(value, after[name]), name


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["fraction=0.3"], "out is not set; set it to a new folder"),
        (["out=NEW"], "out is NEW, but nothing says which heads to remove"),
        (["fraction=0.3", "heads={0: 1}", "out=NEW"], "fraction and heads are set"),
        (["fraction=0.9", "out=NEW"], "each of the 2 layers keeps at least one of the 8 heads; set fraction"),
        (["heads={2: 1}", "out=NEW"], "heads names the layer 2, but there are 2; name layers from -2 to 1"),
        (["heads={0: 4}", "out=NEW"], "heads removes 4 of the 4 heads of layer 0, but a layer keeps at least one"),
        (["heads={1: 1, -1: 1}", "out=NEW"], "names a layer twice"),
        (["fraction=0", "out=NEW"], "out is NEW, but nothing says which heads to remove"),
        (["fraction=0.06", "out=NEW"], "fraction is 0.06, which is none of the 8 heads; set it to at least 0.125"),
        (["heads={}", "out=NEW"], "out is NEW, but nothing says which heads to remove"),
        (["heads={a: 1}", "out=NEW"], "heads names the layer a, but there are 2"),
    ],
)  # fmt: skip
def test_what_cannot_be_pruned_is_refused_before_anything_starts(
    runs: dict[str, Path], tmp_path: Path, capfd: Any, given: list[str], expected: str
) -> None:
    place = [one.replace("NEW", str(tmp_path / "new")) for one in given]
    prune(f"run={runs['classes']}", *place, status=2)
    assert expected.replace("NEW", str(tmp_path / "new")) in capfd.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("model.layer_groups=1",), "whose layers share their weights"),
        (("adapter=lora", "adapter.rank=1"), "which has an adapter; train a run without adapter= from it"),
        (("loss=ghm_c",), "the loss GhmC, which depends on several rows at once"),
    ],
)
def test_runs_whose_heads_cannot_be_compared_are_refused(
    tmp_path: Path, capfd: Any, options: tuple[str, ...], expected: str
) -> None:
    given = (*options, "trainer.max_duration=1st", f"hydra.run.dir={tmp_path}/run")
    train(*KINDS["classes"].overrides(tmp_path), *given)
    prune(f"run={tmp_path}/run", "fraction=0.25", f"out={tmp_path}/new", status=2)
    assert expected in capfd.readouterr().err
    assert not (tmp_path / "new").exists()
