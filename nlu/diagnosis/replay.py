"""One step whose loss or gradient was not finite, run again from its folder: `python -m nlu.train replay=DIR`."""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from nlu.config.choices import RUN, with_defaults
from nlu.config.console import printing
from nlu.config.errors import CheckpointError, UserError
from nlu.config.schema import Run
from nlu.config.targets import TARGET, build, import_target
from nlu.data.layouts import LAYOUTS, Layout
from nlu.data.opening import Store
from nlu.data.seeds import stable_seed
from nlu.data.targets import Target
from nlu.data.tokenizing import Tokenizer, load_tokenizer
from nlu.display.progress import Progress
from nlu.inference.locate import LABELS
from nlu.inference.trained import with_saved_weights
from nlu.methods.method import Context, Method, restored
from nlu.models.adapter import Adapter
from nlu.models.composite import CompositeModel
from nlu.models.formats.pretrained import Pretrained, open_pretrained
from nlu.models.task_model import TaskModel
from nlu.optim.optimizer import Optimizer, named_parameters
from nlu.runs.failed_step import CONFIG, KEY, METHOD
from nlu.tasks.task import Task
from nlu.training.auto import with_precision
from nlu.training.build import assemble, task_with_loss
from nlu.training.failed_step import passes_at
from nlu.training.nonfinite import Examined, RecordedPass, examine, first_sentence, row_sentences, sentence
from nlu.training.passes import Passes, Share
from nlu.training.phases import phases_on
from nlu.training.precision import precision_for
from nlu.training.ranks import Ranks, choose_device

EXIT_FINITE = 1
"""the status if the step is finite here"""
COLUMNS = ("output", "input", "output_gradient", "input_gradient")


@dataclass
class Rebuilt:
    """The parts of a step."""

    passes: Passes
    recorded: list[RecordedPass]


def replay(folder: Path, report: Mapping[str, Any], given: Mapping[str, Any], overrides: Sequence[str]) -> int:
    """Run the step of a folder and print where the first number is not finite; returns 0 if there is one, else 1.

    The arguments are those of `repeated`.
    """
    rebuilt, found = repeated(folder, report, given, overrides)
    _print(report, rebuilt, found, rebuilt.passes.device)
    return EXIT_FINITE if found.is_finite else 0


def repeated(
    folder: Path, report: Mapping[str, Any], given: Mapping[str, Any], overrides: Sequence[str]
) -> tuple[Rebuilt, Examined]:
    """Run the step of a folder, and return its parts and what its pass has shown.

    `report` is the folder's own. `given` is the validated configuration of this command, whose `overrides` may set the
    device, the precision and the teacher. Raises UserError if the folder is damaged, or if something that the step
    needs is not here.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    device = choose_device(given["trainer"]["device"], 0)
    config = with_precision(_config_of(folder, given, overrides), Ranks(0, 1, device))
    with _readable(folder):
        rebuilt = _rebuilt(folder, config, report, device)
    return rebuilt, _run(rebuilt, _scale(rebuilt.passes, report), report["step"])


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    """Raises CheckpointError for a file that is missing or damaged."""
    try:
        yield
    except (OSError, SafetensorError, json.JSONDecodeError) as error:
        raise CheckpointError(
            f"{KEY} is {folder}, of which a file is missing or damaged ({error}); copy the folder again"
        ) from error


def _config_of(folder: Path, given: Mapping[str, Any], overrides: Sequence[str]) -> Run:
    """Return the configuration of the run with what the command may change."""
    config = Run.of(with_defaults(json.loads((folder / CONFIG).read_text(encoding="utf-8")), RUN))
    keys = {override.partition("=")[0].lstrip("+~") for override in overrides}
    if any(key == "precision" or key.startswith("precision.") for key in keys):
        config = replace(config, precision=given["precision"])
    if METHOD in keys and given[METHOD][TARGET] != config.method[TARGET]:
        raise UserError(
            f"method is {given[METHOD][TARGET]}, but the step was one of {config.method[TARGET]}; {KEY} runs it as it "
            "was, so choose that method, to set its teacher, or leave it out"
        )
    teacher = given[METHOD].get("teacher")
    if teacher is not None and "teacher" in config.method:
        config = replace(config, method={**config.method, "teacher": teacher})
    return replace(config, trusted_packages=[*config.trusted_packages, *given["trusted_packages"]])


def _rebuilt(folder: Path, config: Run, report: Mapping[str, Any], device: torch.device) -> Rebuilt:
    known = json.loads((folder / LABELS).read_text(encoding="utf-8"))
    tokenizer = load_tokenizer(folder, None)
    if tokenizer is None:
        raise CheckpointError(f"{KEY} is {folder}, which lacks its tokenizer; copy the folder again")
    own = with_saved_weights(config)
    task, model, store = _parts(folder, own, known, report["frequencies"], tokenizer)
    adapter: Adapter = build(own.adapter, trusted=own.trusted_packages)
    adapter.apply(model)
    try:
        model.load_state_dict(load_file(folder / "model.safetensors"))
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise CheckpointError(
            f"{KEY} is {folder}, whose weights do not fit its model ({reason}); use the version that wrote it, "
            f"{report['version']}"
        ) from error
    model.to(device).train()
    recorded = passes_at(folder, report)
    method: Method = build(own.method, trusted=own.trusted_packages)
    torch.manual_seed(stable_seed(own.seed, "method"))
    context = Context(task, store, own.seed, device, Progress(enabled=False))
    of_method = _restored(method, model, context, recorded)
    if of_method is not None and (folder / "method.safetensors").is_file():
        of_method.load_state_dict(load_file(folder / "method.safetensors"))
        of_method.to(device)
    precision = precision_for(model, own.precision, own.trusted_packages)
    # The optimizer decides which parameters are trained.
    optimizer: Optimizer = build(own.optimizer, trusted=own.trusted_packages)
    optimizer.build(model, of_method)
    trained = [parameter for _, parameter in named_parameters(model, of_method) if parameter.requires_grad]
    ranks = Ranks(recorded[0].rank, 1, device)
    passes = Passes(model, task, method, precision, ranks, own.seed, trained, phases_on(device), of_method)
    return Rebuilt(passes, recorded)


def _restored(method: Method, model: TaskModel, context: Context, recorded: Sequence[RecordedPass]) -> nn.Module | None:
    try:
        return restored(method, model, context, [(one.batch, one.kept) for one in recorded])
    except (KeyError, AttributeError, IndexError) as error:
        raise UserError(
            f"method is {type(method).__name__}, whose prepare reads the rows of the run ({error!r}), which {KEY} does "
            "not have; define keep and restore (nlu/methods/method.py), or run the command of the run again"
        ) from error


def _parts(
    folder: Path, config: Run, known: Mapping[str, Any], of_loss: Mapping[str, Any], tokenizer: Tokenizer
) -> tuple[Task, TaskModel, Store]:
    """Return the task, the model with random weights, and a store without sets."""
    source = open_pretrained(str(folder), KEY)
    if not (members := config.members):
        return _of_set(folder, config, known, of_loss[""], tokenizer, source, None)
    tasks: dict[str, Task] = {}
    models: dict[str, TaskModel] = {}
    stores: dict[str, Store] = {}
    for name, own in members.items():
        before = next(iter(models.values()), None)
        tasks[name], models[name], stores[name] = _of_set(
            folder, with_saved_weights(own), known["members"][name], of_loss[name], tokenizer, source, before
        )
    num_labels = {name: len(store.labels) for name, store in stores.items()}
    task: Task = build(config.task, tasks, num_labels, trusted=config.trusted_packages)
    return task, CompositeModel(models), next(iter(stores.values()))


def _of_set(
    folder: Path,
    config: Run,
    known: Mapping[str, Any],
    of_loss: Mapping[str, Any],
    tokenizer: Tokenizer,
    source: Pretrained,
    before: TaskModel | None,
) -> tuple[Task, TaskModel, Store]:
    trusted = config.trusted_packages
    target_class: Any = import_target(known["target"][TARGET], trusted)
    target: Target = target_class.from_meta(known["target"]["meta"])
    task = task_with_loss(config, target, of_loss)
    encoder = None if before is None else before.backbone
    model = assemble(config, task, target, known["layout"], tokenizer, source, encoder)
    node = config.data.get("layout")
    layout: Layout = LAYOUTS[known["layout"]] if node is None else build(node, trusted=trusted)
    return task, model, Store(folder, {}, target, layout, tokenizer, {"max_len": config.data["max_len"]})


def _scale(passes: Passes, report: Mapping[str, Any]) -> dict[str, float]:
    """Return the factor of each term, with the loss scale of the recorded step if this precision scales the loss."""
    then = report["loss_scale"] or 1.0
    here = passes.precision.loss_scale(passes.device)
    factor = 1.0 if here is None else then if report["loss_scale"] else float(here)
    return {name: value / then * factor for name, value in report["scale"].items()}


def _run(rebuilt: Rebuilt, scale: Mapping[str, float], number: int) -> Examined:
    """Repeat the recorded passes, one after another if only their sum was not finite."""
    passes = rebuilt.passes
    if len(rebuilt.recorded) == 1:
        (one,) = rebuilt.recorded
        return examine(passes, Share(one.batch, one.is_own), scale, number, one.micro)
    totals = torch.zeros(len(scale), dtype=torch.float64, device=passes.device)
    passes.forget_gradients()
    for one in rebuilt.recorded:
        passes.ranks = replace(passes.ranks, rank=one.rank)
        totals += passes.backward(Share(one.batch, one.is_own), scale, number, one.micro)
    return Examined(None, dict(zip(scale, totals.tolist(), strict=True)), float(passes.norm()))


def _print(report: Mapping[str, Any], rebuilt: Rebuilt, found: Examined, device: torch.device) -> None:
    here = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    there = report["machine"]["device"]
    with printing():
        what = f"the {report['what']} was {report['value']}"
        print(f"step {report['step']} of {report['run']}, epoch {report['epoch']}: {what}")
        print(f"  there, on {there}: {_place(report)}")
        if found.is_finite:
            terms = ", ".join(f"{name} {value:g}" for name, value in found.terms.items())
            print(f"  here, on {here}: every number is finite (sums of terms: {terms}; gradient norm: {found.norm:g})")
            print(f"not reproduced; {_why_finite(report, device)}")
            return
        at = None
        if len(rebuilt.recorded) == 1:
            place = sentence(rebuilt.passes, found, rebuilt.recorded[0].batch.member)
            at = {"place": place, "examined": found.to_json()}
        said = first_sentence((0, 0) if at else None, at, 1)
        print(f"  here, on {here}: {said}")
        for line in row_sentences(report["rows"], report["set"]):
            print(f"  {line}")
        if found.around:
            print()
            _print_table(found.around)
        print("reproduced")


def _place(report: Mapping[str, Any]) -> str:
    if report["rank"] is None:
        return "only the sum of the micro-batches"
    where = f", on rank {report['rank']}" if report["world_size"] > 1 else ""
    return f"first {report['place'] or 'at a place that is not known'}{where}"


def _why_finite(report: Mapping[str, Any], device: torch.device) -> str:
    was_cpu = report["machine"]["device"].startswith("cpu")
    if was_cpu == (device.type == "cpu"):
        return "this version of torch, these kernels or this precision round differently"
    return (
        "another kind of device rounds differently and draws other dropout masks; run it on the same kind of device "
        "(trainer.device)"
    )


def _print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the largest magnitudes in the calls around the place, which is marked."""
    cells = [("", "largest magnitude in", "dtype", "output", "input", "grad output", "grad input")]
    for row in rows:
        numbers = [_shown(row[name]) for name in COLUMNS]
        cells.append((">" if row["is_at"] else "", f"{row['module']} ({row['type']})", row["dtype"], *numbers))
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    for mark, name, dtype, *numbers in cells:
        shown = [number.rjust(width) for number, width in zip(numbers, widths[3:], strict=True)]
        print("  ".join([mark.ljust(widths[0]), name.ljust(widths[1]), dtype.ljust(widths[2]), *shown]).rstrip())


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}" if math.isfinite(value) else str(value)
