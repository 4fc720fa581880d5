"""Compiled runs: one graph for each kind of pass, the numbers of eager runs, and no influence of filling.

Most tests trace graphs as for a device and compute them by torch's own operators; inductor compiles half a minute.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from nlu.config.errors import UserError
from nlu.data.collate import Batch, collate
from nlu.data.examples import Examples
from nlu.data.seeds import stable_seed
from nlu.data.shapes import SHAPES, Shape, Shapes, filled
from nlu.distillation.distil import Distil
from nlu.distillation.minilm import MiniLm
from nlu.distillation.tinybert import TinyBert
from nlu.losses.cross_entropy import CrossEntropy
from nlu.losses.ghm_c import GhmC
from nlu.methods.fgm import Fgm
from nlu.methods.freelb import FreeLb
from nlu.methods.plain import Plain
from nlu.methods.rdrop import RDrop
from nlu.models import keys
from nlu.models.adapters.lora import Lora, LoraLinear
from nlu.models.encoders import bert as encoders_bert
from nlu.models.encoders.bert import Bert
from nlu.models.layers import dropout, filled_attention
from nlu.models.layers.dropout import TokenKeys, hashed, layer_keys
from nlu.tasks.classify import Classify
from nlu.training.build import compiled_by
from nlu.training.compiled import ALLOWED_ON_CPU, Compiled, eager_because
from nlu.training.passes import Passes, Share
from nlu.training.ranks import Ranks
from nlu.training.step import Stepper
from tests.few import only
from tests.models.conftest import Corpus
from tests.models.parts import ENCODERS, VOCAB_SIZE, bert, labels, modern, task_model
from tests.training.compiling import compiling
from tests.training.in_process import NO_DROPOUT, Killed, composed, sets, start, tensors, train
from tests.training.kinds import KINDS
from tests.training.mixtures import CLASSES, TAGS, mixture
from tests.training.runs import REPOSITORY, SAME_THREADS, run, weights
from tests.training.test_kills import OPTIONS as OF_PROCESSES
from tests.training.test_kills import assert_same, outcome
from tests.training.test_kinds_killed import OPTIONS as OF_KILLS
from tests.training.test_kinds_killed import outcome as end_of
from tests.training.test_step import CPU, ROWS, examples_in, stepper, words_of_one_example

ARCHITECTURES = {
    "bert": (),
    "albert": ("model.embedding_size=4", "model.layer_groups=1", "model.layers=2"),
    "simbert": ("model.pooling=pooler", "model.layers=2"),
    "modernbert": ("model=modernbert", "model.pretrained=null", "model.layers=4", "model.local_attention=4"),
    "e5_small": ("model.pooling=mean", "model.layers=2", "model.segment_types=1"),
}
"""what distinguishes the architectures, as overrides of a small model"""
OF_TASKS = ("classify", "match", "tag", "regress", "multilabel", "siamese", "mlm")
RUN = ("trainer.batch_size=4", "trainer.accumulation=2", "trainer.eval_interval=10st", "trainer.save_interval=0")


def assert_same_weights(folder: Path) -> None:
    """Assert that the weights of an eager and of a compiled run differ by no more than rounding."""
    eager, compiled = (tensors(folder / name, "last/model") for name in ("eager", "compiled"))
    moved, whole = (
        np.concatenate([one.ravel() for one in each])
        for each in ([eager[name] - compiled[name] for name in eager], eager.values())
    )
    assert np.linalg.norm(moved) <= 1e-5 * np.linalg.norm(whole)
    # AdamW makes the rounding of a gradient near 0 large.
    assert np.abs(moved).max() <= 1e-5


def both(folder: Path, *overrides: str) -> None:
    """Run the same eagerly and compiled; their weights and scores must differ by no more than rounding."""
    for name, more in (("eager", ()), ("compiled", ("trainer.compile=true",))):
        start(composed(*overrides, *more), folder / name)
    assert_same_weights(folder)
    scores = [
        json.loads((folder / name / "result.json").read_text())["metrics"]["dev"] for name in ("eager", "compiled")
    ]
    assert scores[1] == pytest.approx(scores[0], abs=1e-5)


@pytest.mark.parametrize(
    ("architecture", "task"),
    only(
        [("bert", "classify"), ("modernbert", "match"), ("albert", "siamese"), ("simbert", "tag"), ("e5_small", "mlm")],
        product(ARCHITECTURES, OF_TASKS),
    ),
)
def test_each_architecture_and_task_is_one_graph_with_the_numbers_of_eager_steps(
    architecture: str, task: str, tmp_path: Path
) -> None:
    options = [*KINDS[task].overrides(tmp_path), *ARCHITECTURES[architecture], *NO_DROPOUT, *RUN]
    with compiling() as watched:
        # At larger rates, two roundings of a step are farther apart after 50 steps.
        both(tmp_path, *options, "trainer.max_duration=50st", "optimizer.lr=1e-3")
    # One for training and one for scoring, which the warm-up has traced.
    assert watched.warm[-1] == watched.now and watched.now[0] == 2


@pytest.mark.thorough
@pytest.mark.parametrize("task", ["match", "tag"])
def test_500_steps_of_all_lengths_compile_nothing_after_the_warm_up(task: str, tmp_path: Path) -> None:
    options = [*KINDS[task].overrides(tmp_path, train_rows=157, dev_rows=61), *RUN, "model.layers=2"]
    with compiling("aot_eager") as watched:
        start(composed(*options, "trainer.compile=true", "trainer.max_duration=500st"), tmp_path / "run")
    ((graphs, shapes),) = set(watched.warm)
    assert watched.now == (graphs, shapes) and graphs == 2 and shapes <= SHAPES


def test_each_set_of_a_mixture_has_its_graphs_and_the_warm_up_makes_all(tmp_path: Path) -> None:
    options = mixture(tmp_path, {"classes": CLASSES, "tags": TAGS}, *NO_DROPOUT, *RUN, "trainer.max_duration=6st")
    with compiling() as watched:
        start(composed(*options, "trainer.compile=true"), tmp_path / "compiled")
    assert watched.warm[-1][0] == watched.now[0] == 4
    start(composed(*options), tmp_path / "eager")
    assert_same_weights(tmp_path)


def test_a_second_run_in_a_process_compiles_nothing_again(tmp_path: Path) -> None:
    options = [*KINDS["rdrop"].overrides(tmp_path), *RUN, "trainer.max_duration=4st", "seeds=2", "trainer.compile=true"]
    with compiling() as watched:
        start(composed(*options), tmp_path / "run")
    assert len(watched.compiled) == 2 and watched.warm[0][0] == watched.now[0] == 2


def test_a_compiled_run_killed_in_every_step_ends_with_the_same_bytes(tmp_path: Path) -> None:
    backward, instants = Passes.backward, [(number, number % 2) for number in range(1, 5)]

    def dying(self: Passes, share: Share, scale: Any, number: int, micro: int) -> Tensor:
        sums = backward(self, share, scale, number, micro)
        if is_alive.get((number, micro)) is False:
            raise Killed
        return sums

    is_alive = dict.fromkeys(instants, True)

    with compiling(), mock.patch.object(Passes, "backward", dying):
        config = composed(*KINDS["rdrop"].overrides(tmp_path), *OF_KILLS, "trainer.compile=true")
        start(config, tmp_path / "whole")
        for instant in instants:
            is_alive[instant] = False
            with pytest.raises(Killed):
                start(config, tmp_path / "run")
            is_alive[instant] = True
        start(config, tmp_path / "run")
    assert end_of(tmp_path / "run") == end_of(tmp_path / "whole")


@pytest.mark.thorough
def test_a_run_compiled_by_inductor_and_killed_continues_to_the_same_bytes(tmp_path: Path) -> None:
    options = [
        *sets(tmp_path), *OF_PROCESSES, "trainer.compile=true", "trainer.max_duration=3st",
        "trainer.devices=2", "trainer.accumulation=2",
    ]  # fmt: skip
    allowed = {ALLOWED_ON_CPU: "1"}
    program = str(REPOSITORY / "tests" / "training" / "killed_at.py")
    killed = subprocess.run(
        [sys.executable, program, *options, f"hydra.run.dir={tmp_path}/run"], cwd=REPOSITORY, capture_output=True,
        env={**SAME_THREADS, **allowed, "KILLED_BEFORE": "os.rename .last.new last 2"}, timeout=1800,
        start_new_session=True, check=False,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL
    for name in ("whole", "run"):
        run(*options, f"hydra.run.dir={tmp_path}/{name}", env=allowed)
    assert_same(tmp_path / "run", outcome(tmp_path / "whole"), "compiled")


def test_on_a_cpu_a_compiled_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    options = KINDS["classify"].overrides(tmp_path)
    train(*options, "trainer.compile=true", f"hydra.run.dir={folder}", status=2)
    said = " ".join(capsys.readouterr().err.split())
    assert "trainer.compile is true, but the device is a CPU" in said and "set trainer.compile=false" in said
    assert not folder.exists()


def test_a_run_that_is_not_compiled_says_why_and_is_the_eager_one(tmp_path: Path) -> None:
    options = [*KINDS["tag with a CRF"].overrides(tmp_path), *RUN, "trainer.max_duration=3st"]
    with compiling():
        for name, more in (("eager", ()), ("asked", ("trainer.compile=true",))):
            start(composed(*options, *more), tmp_path / name)
    said = (tmp_path / "asked/log.txt").read_text()
    assert "trainer.compile is true, but this run is computed eagerly: a CRF computes tag by tag" in said
    assert weights(tmp_path / "asked") == weights(tmp_path / "eager")


MODELS: dict[str, Callable[[], Any]] = {
    "the encoder is none of BERT's family": lambda: ENCODERS["textcnn"](Path()),
    "the vectors of texts are pooled by other means than first, last, pooler, mean": lambda: bert(pooling="max"),
    "layers are computed again for their gradient": lambda: bert(gradient_checkpointing=True),
    "code from outside of nlu may not leave out rows of filling": lambda: OwnEncoder(VOCAB_SIZE, None, pretrained=None),
}


def classify(loss: Any) -> Classify:
    target: Any = labels(2)
    return Classify(loss, target)  # type: ignore[abstract]


class OwnEncoder(Bert):
    """An encoder of a user's own."""


class OwnMethod(Plain):
    """A method of a user's own."""


@pytest.mark.parametrize("why", MODELS)
def test_a_model_that_is_not_compiled_has_a_reason(why: str) -> None:
    task = classify(CrossEntropy())
    assert eager_because(task_model(MODELS[why](), "single", 2), task, {}) == why
    assert eager_because(task_model(bert(), "single", 2), task, {}) is None


@pytest.mark.parametrize(
    ("loss", "data", "why"),
    [
        (GhmC(), {}, "the loss of a row depends on other rows"),
        (CrossEntropy(), {"long": "windows"}, "long texts are cut into windows"),
    ],
)
def test_a_loss_or_data_that_is_not_compiled_has_a_reason(loss: Any, data: dict[str, object], why: str) -> None:
    assert eager_because(task_model(bert(), "single", 2), classify(loss), data) == why


@pytest.mark.parametrize("method", [Plain, RDrop, Fgm, FreeLb, Distil, TinyBert, MiniLm, OwnMethod])
def test_only_plain_and_rdrop_compile_and_others_say_that_they_run_eagerly(
    method: type, caplog: pytest.LogCaptureFixture
) -> None:
    parts = stepper()
    config: Any = SimpleNamespace(trainer=SimpleNamespace(compile=True, detect_anomaly=False), members={}, data={})
    found = compiled_by(config, parts.model, parts.task, object.__new__(method), parts.ranks)
    assert (found is not None) == (method in (Plain, RDrop))
    assert (
        found is not None
        or f"computed eagerly: method={method.__name__} computes more than plain passes" in caplog.text
    )


@pytest.mark.parametrize(
    ("detects", "stream", "why"), [(True, False, "each operation"), (False, True, "still written")]
)
def test_rows_that_are_written_and_a_search_for_nan_are_not_compiled(
    detects: bool, stream: bool, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    parts, trainer = stepper(), SimpleNamespace(compile=True, detect_anomaly=detects)
    config: Any = SimpleNamespace(trainer=trainer, members={}, data={"stream": stream})
    assert compiled_by(config, parts.model, parts.task, parts.method, parts.ranks) is None
    assert why in caplog.text


@pytest.mark.parametrize("probability", [0.0, 0.3])
def test_adapters_that_drop_by_the_batch_are_not_compiled(probability: float, caplog: pytest.LogCaptureFixture) -> None:
    parts = stepper()
    parts.model.adapter = LoraLinear(nn.Linear(4, 4), 2, 1.0, probability)
    config: Any = SimpleNamespace(trainer=SimpleNamespace(compile=True, detect_anomaly=False), members={}, data={})
    found = compiled_by(config, parts.model, parts.task, parts.method, parts.ranks)
    assert (found is None) == ("adapter.dropout" in caplog.text) == (probability > 0)


@pytest.mark.parametrize("is_late", [False, True])
def test_where_memory_runs_out_the_shapes_are_those_of_pieces(is_late: bool, tmp_path: Path) -> None:
    options = [*KINDS["classify"].overrides(tmp_path, train_rows=61), *NO_DROPOUT, "trainer.max_duration=20st"]
    most, terms = 48, Compiled.terms
    refused: list[int] = []

    def limited(self: Compiled, task: Any, model: Any, batch: Batch) -> Any:
        if batch.num_tokens > most and (watched.warm or not is_late):
            refused.append(batch.num_tokens)
            raise torch.OutOfMemoryError("CUDA out of memory")
        return terms(self, task, model, batch)

    with compiling() as watched, mock.patch.object(Compiled, "terms", limited):
        both(tmp_path, *options)
    last = watched.compiled[-1]
    assert refused and last.pieces > 1 and max(shape.tokens for shape in last.trained.shapes) <= most
    # They are chosen again where a process that continues would do so.
    assert len(watched.compiled) == 1 + is_late


@pytest.mark.thorough
def test_layers_that_each_have_another_number_of_heads_are_one_graph(examples: Examples) -> None:
    def with_pruned_heads(*given: Any) -> dict[str, Any]:
        return {**sizes_of(*given), "pruned_heads": {layer: list(range(layer)) for layer in range(10)}}

    sizes_of = encoders_bert.resolve_sizes
    with mock.patch.object(encoders_bert, "resolve_sizes", with_pruned_heads):
        model = task_model(bert(hidden_size=24, heads=12, layers=10), "single", 2).eval()
    batch, task = collate(examples, np.arange(5)), classify(CrossEntropy())
    with compiling("aot_eager"), torch.inference_mode():
        found = Compiled(CPU, backend="aot_eager").outputs(task, model, batch)["logits"]
        torch.testing.assert_close(found, model(batch))
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize(
    ("lengths", "adapted"),
    [([2, 5, 9, 9, 30], None), ([3, 40, 95, 97, 200], None), ([2, 5, 9], "[02]")],
)
def test_layers_that_differ_compiled_have_vectors_and_gradients_of_eager_ones(
    lengths: list[int], adapted: str | None, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    if adapted is None:
        # Local and global layers, of which the first lacks a norm.
        model = task_model(modern(head_dropout=0.0), "single", 3).train()
    else:
        model = task_model(bert(layers=3, dropout=0.0, attention_dropout=0.0, head_dropout=0.0), "single", 3).train()
        Lora(keys.Lora(rank=2, targets=[f"backbone.encoder.layer.{adapted}.*"])).apply(model)
    for name, value in model.named_parameters():
        nn.init.normal_(value, mean=float("norm.weight" in name), std=0.2)
    task, batch = classify(CrossEntropy()), Corpus(tmp_path / "set", "single", lengths).batch()
    outputs = task.forward(model, batch)
    trained = [each for each in model.parameters() if each.requires_grad]
    eager = torch.autograd.grad(sum(task.terms(model, batch, outputs).values()), trained)
    # "eager" would not show a layer that is computed as another one.
    with compiling("aot_eager"):
        compiled = Compiled(CPU, backend="aot_eager")
        found, terms = compiled.terms(task, model, filled(batch, compiled.trained))
        gradient = torch.autograd.grad(sum(terms.values()), trained)
    torch.testing.assert_close(found["logits"][: len(batch)], outputs["logits"], atol=1e-5, rtol=1e-5)
    for one, other in zip(eager, gradient, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def with_filling(shapes: Shapes, **options: Any) -> Stepper:
    """Return a stepper whose passes are filled up to the shapes."""
    parts = stepper(**options)
    parts.compiled = parts.passes.compiled = Compiled(CPU, backend="eager")
    parts.passes.__post_init__()
    parts.compiled.trained = shapes
    return parts


def passed(parts: Stepper, examples: Examples, micro_batches: list[np.ndarray]) -> tuple[Tensor, Tensor]:
    """Run the passes of step 3 operation by operation; returns the sums of terms, and the gradient as a vector."""
    assert parts.compiled is not None
    with parts.compiled.eagerly():
        totals = parts.passes.run(parts.passes.shares(examples, micro_batches, 0), {"labels": 1 / ROWS}, 3)
    assert totals is not None
    return totals, torch.cat([each.grad.view(-1) for each in parts.trained if each.grad is not None])


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Examples:
    return examples_in(tmp_path_factory.mktemp("set") / "train")


@pytest.mark.parametrize("probability", [0.0, 0.5])
def test_filling_changes_neither_loss_nor_gradient_nor_dropout_of_others(
    examples: Examples, probability: float
) -> None:
    everything = [np.arange(ROWS)]
    totals, gradient = passed(with_filling(Shapes(), dropout=probability), examples, everything)
    for shape in (Shape(96, 14, 16, 0), Shape(512, 64, 40, 0)):
        more, other = passed(with_filling(Shapes([shape]), dropout=probability), examples, everything)
        # A softmax over more slots may add the same numbers in another order, and a gradient more zeros.
        torch.testing.assert_close(more, totals, rtol=1e-6, atol=0)
        torch.testing.assert_close(other, gradient, rtol=1e-5, atol=1e-7)
    if not probability:
        plain = stepper()
        expected = plain.passes.run(plain.passes.shares(examples, everything, 0), {"labels": 1 / ROWS}, 3)
        torch.testing.assert_close(totals, expected, rtol=1e-6, atol=0)
        found = torch.cat([each.grad.view(-1) for each in plain.trained if each.grad is not None])
        torch.testing.assert_close(gradient, found, rtol=1e-5, atol=1e-7)


def test_dropout_depends_on_neither_batch_nor_micro_batch_nor_rank(examples: Examples) -> None:
    totals, gradient = passed(with_filling(Shapes(), dropout=0.5), examples, [np.arange(ROWS)])
    order = np.random.default_rng(0).permutation(ROWS)
    divided, other = passed(with_filling(Shapes(), dropout=0.5), examples, [order[:1], order[1:6], order[6:]])
    torch.testing.assert_close(divided, totals, rtol=1e-6, atol=0)
    torch.testing.assert_close(other, gradient, rtol=1e-5, atol=1e-7)
    share = Share(collate(examples, np.arange(ROWS), (1, 0)), is_own=True)
    found = []
    for rank in (0, 1):
        parts = with_filling(Shapes(), dropout=0.5, ranks=Ranks(rank, 2, CPU))
        assert parts.compiled is not None
        with parts.compiled.eagerly():
            found.append(parts.passes.backward(share, {"labels": 1.0}, 3, rank).item())
    assert found[0] == found[1] == pytest.approx(totals.item(), rel=1e-6)


def test_no_two_places_of_a_step_of_rdrop_draw_the_same_dropout(
    examples: Examples, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = collate(examples, np.arange(ROWS), (1, 0))
    drawn: list[Tensor] = []

    def recorded(input: Tensor, probability: float, keys: Tensor, *columns: Tensor) -> Tensor:
        if keys.dim() == 3:
            drawn.extend(keys[number, :, :length].flatten() for number, length in enumerate(batch.lengths))
        else:
            # A row for each token, or for each sequence.
            is_by_token = len(keys) >= batch.num_tokens
            drawn.append(keys[: batch.num_tokens if is_by_token else batch.num_sequences])
        return dropped(input, probability, keys, *columns)

    dropped = dropout.dropped
    for module in (dropout, filled_attention):
        monkeypatch.setattr(module, "dropped", recorded)
    parts = with_filling(Shapes(), dropout=0.5)
    parts.passes.method = RDrop()
    assert parts.compiled is not None
    with parts.compiled.eagerly():
        parts.passes.backward(Share(batch, is_own=True), dict.fromkeys(("labels", "consistency"), 1.0), 3, 0)
    keys = torch.cat(drawn).tolist()
    # Twice: embeddings; attention of the first token in two heads, both sums of the layer, and the pooled vector.
    assert len(keys) == 2 * (batch.num_tokens + 5 * batch.num_sequences)
    assert len(set(keys)) == len(keys)


def splitmix(bits: int) -> int:
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ bits >> shift) * factor % 2**64
    return bits ^ bits >> 31


def lowbias(bits: int) -> int:
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        bits = (bits ^ bits >> shift) * factor % 2**32
    return bits ^ bits >> 16


def test_masks_are_those_of_the_hash_of_seed_step_pass_example_position_and_layer(examples: Examples) -> None:
    batch = filled(collate(examples, np.array([3, 7]), (1, 0)), Shapes())
    assert batch.filling is not None
    keys, begin = TokenKeys(5, 9, batch.filling), stable_seed(5, "dropout", 9) % 2**31
    for number in (1, 2):
        batch.filling.keys_T = keys.next_pass()
        found = dropout.dropped(torch.ones(batch.num_tokens, 6), 0.3, cast(Tensor, layer_keys(batch, 4, True)))
        expected = []
        for example, length in zip(batch.examples_B.tolist(), batch.lengths, strict=True):
            for position in range(length):
                place = splitmix(splitmix(splitmix(example)) + position * 0x9E3779B97F4A7C15 & 2**64 - 1) % 2**32
                key = lowbias((lowbias((lowbias(place ^ begin) + number) % 2**32) + 4) % 2**32)
                expected.append(
                    [(lowbias(key ^ lowbias(column)) & 0xFFFF) >= round(0.3 * 2**16) for column in range(6)]
                )
        assert (found[: len(expected)] > 0).tolist() == expected
        assert found.max().item() == pytest.approx(1 / 0.7)


def test_dropout_of_a_compiled_step_has_its_rate_and_neighbours_are_independent() -> None:
    rows, columns, rate = 4096, 64, 0.1
    keys = hashed(torch.arange(rows, dtype=torch.int32))
    dropped_RC = (dropout.dropped(torch.ones(rows, columns), rate, keys) == 0).double()
    spread = (rate * (1 - rate) / rows) ** 0.5
    # Of 64 columns, the farthest is 3 or 4 deviations away.
    assert (dropped_RC.mean(0) - rate).abs().max() < 4.5 * spread
    assert (dropped_RC.mean() - rate).abs() < 4.5 * spread / columns**0.5
    centered_RC = (dropped_RC - rate) / (rate * (1 - rate)) ** 0.5
    of_columns = centered_RC.T @ centered_RC / rows
    of_rows = (centered_RC[1:] * centered_RC[:-1]).mean()
    assert (of_columns - torch.diag(of_columns.diag())).abs().max() < 5.5 / rows**0.5
    assert of_rows.abs() < 4.5 / (rows * columns) ** 0.5


def test_a_compiled_step_that_is_not_finite_names_its_row_and_module(examples: Examples) -> None:
    (row, word), *_ = words_of_one_example(examples).items()
    parts = with_filling(Shapes())
    with torch.no_grad():
        # Its square overflows in the norm of the embeddings.
        cast(Bert, parts.model.backbone).words.weight[word, 0] = 1e30
    place = "first in the forward pass of backbone.embeddings.LayerNorm"
    with compiling(), pytest.raises(UserError, match=f"row {row + 1} of train(.|\n)*{place}"):
        parts.step(examples, [np.arange(ROWS)], 1, False)
