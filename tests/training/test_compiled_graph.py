"""The graph of a compiled step, as it would run on CUDA: what it computes, and from which operations."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

from nlu.data.examples import Examples
from nlu.losses.cross_entropy import CrossEntropy
from nlu.models.layers.filled_attention import rows_at
from nlu.tasks.classify import Classify
from nlu.training.compiled import ALLOWED_ON_CPU, Compiled, CompiledTask
from tests.models.parts import labels
from tests.training.test_step import CPU, examples_in, stepper

ROWS = [np.arange(7)]


@dataclass
class Traced:
    """The gradients of a step in bf16, with its graphs and without, and the names of the operations in them."""

    eager: dict[str, Tensor]
    compiled: dict[str, Tensor]
    operations: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    operations: list[str] = []

    def noted(graph: fx.GraphModule, inputs: object) -> Any:
        operations.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return make_boxed_func(graph)

    examples = examples_in(tmp_path_factory.mktemp("set") / "train")
    # What a pass keeps in an object would be in memory that the next CUDA graph overwrites.
    with pytest.MonkeyPatch.context() as patch, torch._dynamo.config.patch(side_effect_replay_policy="error"):
        patch.setenv(ALLOWED_ON_CPU, "1")
        compiled = Compiled(CPU, backend=aot_autograd(fw_compiler=noted, bw_compiler=noted))
        found = [gradients(examples, each) for each in (None, compiled)]
    yield Traced(*found, operations)
    torch._dynamo.reset()


def gradients(examples: Examples, compiled: Compiled | None) -> dict[str, Tensor]:
    """Return the gradients of a step in bf16."""
    parts = stepper(dtype="bfloat16")
    if compiled is not None:
        parts.compiled = parts.passes.compiled = compiled
        parts.passes.__post_init__()
    parts.read(parts.step(examples, ROWS, 1))
    return {name: value.grad for name, value in parts.model.named_parameters() if value.grad is not None}


def test_compiled_gradients_in_bf16_are_those_of_an_eager_step(traced: Traced) -> None:
    assert traced.compiled.keys() == traced.eager.keys()
    largest = max(value.abs().max() for value in traced.eager.values())
    for name, value in traced.eager.items():
        # A backward pass under autocast rounds other numbers to 8 bits, which changes gradients by 1e-3 and more.
        assert (traced.compiled[name] - value).abs().max() <= 1e-5 * largest, name


def test_gradients_of_embeddings_are_not_left_to_the_compiler(traced: Traced) -> None:
    assert traced.operations.count("nlu.gradient_of_rows.default") == 3
    assert not [name for name in traced.operations if "embedding" in name or "index_put" in name]


def test_the_graph_of_a_step_draws_no_random_numbers_of_torch(traced: Traced) -> None:
    assert not [name for name in traced.operations if "rand" in name or "bernoulli" in name or "dropout" in name]


def test_class_weights_are_on_the_device_before_the_first_compiled_pass() -> None:
    loss = CrossEntropy(class_weights={"no": 3.0})
    loss.bind(["no", "yes"])
    CompiledTask(Classify(loss, labels(2)), Compiled(torch.device("meta")))  # type: ignore[arg-type]
    assert loss._weights.weights_C is not None
    assert loss._weights.weights_C.device.type == "meta"


def test_torch_does_not_advise_few_shapes_but_says_why_there_are_no_graphs(caplog: pytest.LogCaptureFixture) -> None:
    from torch._inductor.cudagraph_utils import log_cudagraph_skip_and_bump_counter, maybe_warning_due_to_dynamic_shape

    Compiled(CPU)
    # It has warned, as it believes; the second argument names a shape.
    assert maybe_warning_due_to_dynamic_shape({(shape,): print for shape in range(20)}, (21,))
    log_cudagraph_skip_and_bump_counter("skipping cudagraphs due to a test")
    assert [record.getMessage() for record in caplog.records] == ["skipping cudagraphs due to a test"]


def test_the_gradient_of_rows_is_that_of_an_embedding() -> None:
    places_N = torch.tensor([0, 3, 0, 0, 2])
    weight_NC = torch.arange(10.0).view(5, 2)
    table_VC = torch.arange(8.0).view(4, 2).requires_grad_()
    found_NC = rows_at(table_VC, places_N)
    assert torch.equal(found_NC, F.embedding(places_N, table_VC))
    (found_NC * weight_NC).sum().backward()
    assert table_VC.grad is not None
    # Rows 0, 2 and 3 of the weights are of place 0; nothing is of place 1.
    assert table_VC.grad.tolist() == [[0.0 + 4 + 6, 1.0 + 5 + 7], [0, 0], [8, 9], [2, 3]]
