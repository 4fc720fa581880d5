"""Whole runs of the command in the process of the tests: a quarter of a second each, where a separate process takes
three and more. Tests read only the folder of such a run, as its user would.
"""

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hydra.core.hydra_config import HydraConfig
from matplotlib.figure import Figure
from omegaconf import OmegaConf
from safetensors.numpy import load_file

from nlu.commands.train import main
from nlu.config.command_line import USER_MISTAKES, quoted, short_form
from nlu.config.entry.app import Task, run_app
from nlu.config.errors import EXIT_USER_ERROR, UserError, print_error
from nlu.config.schema import Run
from nlu.config.stopping import EXIT_INTERRUPTED
from nlu.config.targets import trust
from nlu.runs.records import read_rows
from nlu.training.processes import launch
from tests.composing import composed as composed_by_parts
from tests.composing import prepared
from tests.put_back import process_put_back

MODEL = (
    "model=bert_tiny", "model.hidden_size=8", "model.heads=2", "model.layers=1", "model.intermediate_size=16",
    "model.max_positions=32", "data.max_len=32",
)  # fmt: skip
NO_DROPOUT = ("model.dropout=0", "model.attention_dropout=0", "model.head_dropout=0")
PLAIN = (
    "trainer.device=cpu", "trainer.batch_size=8", "scheduler=constant", "optimizer.lr=3e-3", "trainer.log_interval=1st",
)  # fmt: skip
TINY = (*MODEL, *NO_DROPOUT, *PLAIN)
STANDING_STILL = ("optimizer.lr=1e-30", "optimizer.weight_decay=0")
"""A rate that changes no weight by more than 1e-30, so that the last weights are the first and all scores alike."""


def train(*overrides: str, status: int = 0) -> None:
    """Run what `python -m nlu.train` with these overrides runs, and assert its exit status; see `start`.

    Problems are said as the command says them; what Hydra refuses is left to the command itself.
    """
    (folder,) = (override for override in overrides if override.startswith("hydra.run.dir="))
    try:
        start(composed(*(one for one in overrides if one != folder)), Path(folder.partition("=")[2]), status)
    except UserError as error:
        print_error(error)
        assert status == EXIT_USER_ERROR, f"exit {EXIT_USER_ERROR}, not {status}"
    except USER_MISTAKES:
        command(*overrides, status=status)


def command(*overrides: str, status: int = 0) -> None:
    """Run the command itself with these overrides, and assert its exit status.

    What it changes in the process is put back. Its figures stay blank: drawing them takes two thirds of such a run.
    """
    program(main, "train", *overrides, status=status)


def program(task: Task, name: str, *overrides: str, status: int = 0) -> None:
    """Run a command that composes a configuration with these overrides, and assert its exit status."""
    with _put_back(), mock.patch.object(sys, "argv", [f"nlu.{name}", *overrides]):
        try:
            run_app(task, name)
        except SystemExit as left:
            assert left.code == status, f"exit {left.code}, not {status}"


def composed(*overrides: str) -> Run:
    """Return the validated configuration that `python -m nlu.train` with these overrides runs."""
    return Run.of(prepared(overrides))


def start(config: Run, run_dir: Path, status: int = 0) -> None:
    """Run a configuration, and assert its exit status.

    Composing it takes longer than all else of such a run, so a test that starts it repeatedly composes it once.
    For the same reason neither figures nor code.zip are made.
    """
    nothing = mock.patch("nlu.training.finish.draw"), mock.patch("nlu.training.single.snapshot_code")
    # It may have been composed by another test, whose trust is gone.
    trust(config.to_config())
    with _put_back(), nothing[0], nothing[1]:
        left = launch(config, run_dir, [])
    assert left == status, f"exit {left}, not {status}"


def of_composed(task: Task, name: str, *overrides: str, status: int = 0) -> None:
    """Run what a command makes of its configuration, and assert its exit status, without Hydra.

    Composing takes longer than all else of a small command; here choices of groups are composed once for all tests.
    Problems are said as the command says them; what Hydra refuses is left to the command itself.
    """
    given = [quoted(short_form(text)) for text in overrides]
    try:
        config = composed_by_parts(given, name)
    except USER_MISTAKES:
        program(task, name, *overrides, status=status)
        return
    with _put_back():
        hydra: Any = HydraConfig.instance()
        hydra.cfg = OmegaConf.create({"hydra": {"mode": "RUN", "overrides": {"task": given}}})
        try:
            left = task(config)
        except UserError as error:
            print_error(error)
            left = EXIT_USER_ERROR
        except KeyboardInterrupt:
            left = EXIT_INTERRUPTED
    assert left == status, f"exit {left}, not {status}"


@contextmanager
def _put_back() -> Iterator[None]:
    threads, composed = torch.get_num_threads(), HydraConfig.instance().cfg
    try:
        torch.set_num_threads(1)
        with process_put_back(), mock.patch.object(Figure, "savefig", lambda self, *_, **__: None):
            yield
    finally:
        torch.set_num_threads(threads)
        HydraConfig.instance().cfg = composed


@contextmanager
def at_backward(number: int, do: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[dict[str, torch.nn.Parameter]]:
    """Pass the gradient of the classifier's bias, in backward pass `number` from 1, through `do`.

    Gives the parameters of the models that are built meanwhile, by their name in their module.
    """
    passes = 0
    registered: dict[str, torch.nn.Parameter] = {}

    def count(gradient: torch.Tensor) -> torch.Tensor:
        nonlocal passes
        passes += 1
        return do(gradient) if passes == number else gradient

    def register(module: torch.nn.Module, name: str, parameter: torch.nn.Parameter) -> None:
        # Two labels, and nothing else of these models has a width of two.
        if name == "bias" and parameter.shape == (2,):
            registered["head.linear.bias"] = parameter
            parameter.register_hook(count)

    handle = torch.nn.modules.module.register_module_parameter_registration_hook(register)
    try:
        yield registered
    finally:
        handle.remove()


@contextmanager
def killed_in_backward(number: int) -> Iterator[None]:
    """Kill the run in backward pass `number` from 1, with any head: at the gradient of the first trained matrix."""
    passes = 0
    found: list[torch.nn.Parameter] = []

    def count(parameter: torch.nn.Parameter, gradient: torch.Tensor) -> None:
        nonlocal passes
        # An adapter freezes the matrices that were there before it.
        if parameter is next(known for known in found if known.requires_grad):
            passes += 1
            if passes == number:
                raise Killed

    def register(module: torch.nn.Module, name: str, parameter: torch.nn.Parameter) -> None:
        # An empty one is a stand-in, which the weights of a checkpoint replace.
        if parameter is not None and parameter.dim() == 2 and not any(parameter is known for known in found):
            found.append(parameter)
            if parameter.requires_grad:
                parameter.register_hook(partial(count, parameter))

    handle = torch.nn.modules.module.register_module_parameter_registration_hook(register)
    try:
        with pytest.raises(Killed):
            yield
    finally:
        handle.remove()


class Killed(BaseException):
    """Ends a run in the midst of a step, as a kill there does: a step writes nothing."""


def die(gradient: torch.Tensor) -> torch.Tensor:
    """Be what `at_backward` does where the run is to end there."""
    raise Killed


def write_rows(path: Path, rows: int, *, seed: int = 0, inverted: bool = False) -> Path:
    """Write lines of text and label, which the words tell; `inverted` gives each text the other label.

    Three of four rows are bad, or good where inverted: the first steps already learn that, if nothing else.

    Words are single letters, so that each is one token in every vocabulary.
    """
    rng = random.Random(seed)
    lines = []
    for number in range(rows):
        label = number % 4 == 0
        words = [rng.choice("abcdefgh"[3 * label : 3 * label + 5]) for _ in range(rng.randint(2, 12))]
        lines.append(f"{' '.join(words)}\t{('bad', 'good')[label ^ inverted]}\n")
    path.write_text("".join(lines))
    return path


def sets(folder: Path, *, train_rows: int = 27, dev_rows: int = 21, inverted_dev: bool = False) -> tuple[str, ...]:
    """Return the overrides for a training and a dev set written to `folder`."""
    train_file = write_rows(folder / "train.tsv", train_rows)
    dev_file = write_rows(folder / "dev.tsv", dev_rows, seed=1, inverted=inverted_dev)
    return "data=files", f"data.train={train_file}", f"data.dev={dev_file}", "data.fields={text: 0, label: 1}"


def tensors(run_dir: Path, name: str) -> dict[str, np.ndarray]:
    """Return the tensors of a file of a run's checkpoints, such as last/average, by name, in double precision."""
    values = load_file(run_dir / "checkpoints" / f"{name}.safetensors")
    return {key: value.astype(np.float64) for key, value in values.items()}


def column(run_dir: Path, name: str) -> list[Any]:
    """Return a column of train.tsv."""
    return [row[name] for row in read_rows(run_dir / "train.tsv")]


def scores(run_dir: Path, name: str, metric: str) -> dict[int, float]:
    """Return the values of a metric on a set, by step, as valid.tsv has them."""
    rows = read_rows(run_dir / "valid.tsv")
    return {int(row["step"]): float(row["value"]) for row in rows if (row["set"], row["metric"]) == (name, metric)}  # type: ignore[arg-type]
