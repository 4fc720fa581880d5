"""All checks of doctor, section by section.

The reasons why a score may differ that need a computation are found here: by the rows, the weights, and predictions for
some rows.
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from nlu.config.errors import DataError, UserError
from nlu.config.mixtures import names_of
from nlu.config.schema import Run as Config
from nlu.config.sentences import counted
from nlu.config.targets import TARGET, build
from nlu.data.examples import Examples
from nlu.diagnosis import machine, recorded
from nlu.diagnosis.check import Check, Section, broken, checked, said, warning
from nlu.display.progress_bars import Progress
from nlu.inference.locate import Located, locate
from nlu.inference.score_run import store_of_run
from nlu.inference.trained import Trained, config_of, load_trained
from nlu.reports.runs import CONFIG, read_run, saved_config
from nlu.runs.checkpoint import OrderKey, read_order
from nlu.runs.predictions import Record
from nlu.storage.cache import cache_dir
from nlu.storage.files import read_json
from nlu.storage.settle import is_whole
from nlu.training.evaluation import Evaluator, score
from nlu.training.precision import Precision
from nlu.training.processes import count_of
from nlu.training.ranks import Ranks, choose_device
from nlu.training.resuming import trained_on

BERT_TARGET = "nlu.models.encoders.bert.Bert"
TRIED_ROWS = 64
TOGETHER = 32
OTHERS_AGREE = 1e-5
"""how much predictions of encoders other than the native BERT may depend on the other rows of a batch"""
Records = dict[int, Record]

Look = Callable[[], Check | Iterable[Check]]
INSTALL = "install nlu again in a separate environment: make train"
RANKS = (
    "on CUDA run it again with NCCL_DEBUG=INFO, then with NCCL_P2P_DISABLE=1 or NCCL_SHM_DISABLE=1; on a CPU check "
    "whether a firewall or GLOO_SOCKET_IFNAME separates processes; until then set trainer.devices=1"
)


def rows(run_dir: Path, config: Config, ranks: Ranks, kept: dict[str, Examples]) -> Iterator[Check]:
    """Check whether the files exist and are unchanged; adds the unchanged sets to `kept`."""
    last = run_dir / "checkpoints" / "last"
    with Progress() as progress:
        store = store_of_run(config, ranks, progress, last if last.is_dir() else None)
    sizes = ", ".join(f"{name} {len(part):,}" for name, part in store.sets.items())
    if not (last / "state.json").is_file():
        yield warning(
            "rows", f"{sizes}; checkpoints/last, which identifies them, is missing", "compare the files yourself"
        )
        return
    _, order = read_order(last)
    told = changed_rows(order, store.digests)
    kept.update({name: store.sets[name] for name, digest in order["evaluated"] if digest == store.digests.get(name)})
    if any(order.get(key) != value for key, value in trained_on(config, store).items()):
        told.insert(0, "the rows of train, or what turns them into tokens and labels, have changed")
    for sentence in told:
        yield warning("rows", sentence, "restore the files, or train on the new ones")
    if not told:
        yield Check("rows", f"the same, with the same tokens and labels: {sizes}")


def weights(located: Located, loaded: list[Trained]) -> Check:
    """Check whether the checkpoint is complete, fits the model of its run, and is finite; adds it to `loaded`, once for
    each head."""
    checkpoint = located.checkpoint
    if not is_whole(checkpoint):
        return broken(
            "checkpoint",
            f"{checkpoint} lacks the mark that is written last, so it is incomplete",
            "name another checkpoint of the run, or run its command with resume=auto",
        )
    heads: list[str | None] = [*names_of(saved_config(located.run_dir))]
    several = [load_trained(replace(located, head_name=name)) for name in heads or [None]]
    tensors = load_file(checkpoint / "model.safetensors")
    if wrong := [name for name, value in tensors.items() if not torch.isfinite(value).all()]:
        return broken(
            "checkpoint",
            f"{counted(len(wrong), 'tensor')} of {len(tensors)} hold nan or inf, such as {wrong[0]}",
            "name an earlier checkpoint, and train with a lower optimizer.lr or trainer.clip_norm",
        )
    loaded += several
    return Check("checkpoint", f"complete: all {len(tensors)} tensors, all finite")


def predicted_again(trained: Trained, sets: Mapping[str, Examples], ranks: Ranks, name: str | None) -> Check:
    """Score some rows of the deciding set one by one and in batches, and compare them.

    For one of several heads, the rows are those of its first set.
    """
    if (head := trained.located.head_name) is not None:
        name = next((each for each, part in sets.items() if part.member == head), None)
    if name is None or name not in sets:
        return warning("neighbours", "not tried, since the rows are not those of the run", "restore its files")
    part = sets[name].some(np.arange(min(TRIED_ROWS, len(sets[name]))))
    if not getattr(trained.task.scorer(trained.decided), "joins", True):
        # The rank of an answer depends on the other rows.
        return Check("neighbours", "not tried: each row of this task is ranked among all others")
    # Both go through the path of an evaluation, so a difference comes from the neighbours of a row and from nothing
    # else.
    alone, together = (_records(trained, part, ranks, size) for size in (1, TOGETHER))
    differing = _differing(alone, together)
    largest = max(differing.values(), default=0.0)
    what = f"{counted(len(part), 'row')} of {name}"
    # See docs/guarantees.md, Scores.
    if largest > (0.0 if trained.config.model[TARGET] == BERT_TARGET else OTHERS_AGREE):
        return broken(
            "neighbours",
            f"{len(differing)} of {what} get another prediction one by one than in batches of {TOGETHER}, by up to "
            f"{largest:.2g}",
            "a prediction must not depend on the other rows of its batch: report it, or check that your own model does "
            "not attend to padding",
        )
    same = f"the same within {largest:.2g}" if differing else "exactly the same"
    return Check("neighbours", f"{what}: {same} one by one and in batches of {TOGETHER}")


def _records(trained: Trained, part: Examples, ranks: Ranks, batch_size: int) -> Records:
    """Return the record of each row, by the number of the row in its store."""
    precision: Precision = build(trained.config.precision)
    with tempfile.TemporaryDirectory(prefix="nlu-doctor-") as folder:
        evaluator = Evaluator(trained.model, trained.task, ranks, precision, batch_size, Path(folder))
        scored = score(evaluator, part, trained.decided, lambda rows: None)
        found: Records = {
            int(part.rows_N[example]): trained.task.finished(record, trained.decided)
            for example, record in scored.spool
        }
        scored.spool.close()
    return found


def _differing(first: Records, second: Records) -> dict[int, float]:
    """Return, for each row whose records differ, their largest difference."""
    found = {}
    for row, one in first.items():
        if distance := _distance(one, second[row]):
            found[row] = distance
    return found


def _distance(first: object, second: object) -> float:
    """Return the difference between two values of a record; 1 for different values that are not numbers."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return max((_distance(first[key], second.get(key)) for key in first), default=0.0)
    if isinstance(first, float | int) and isinstance(second, float | int):
        return abs(first - second)
    return float(_plain(first) != _plain(second))


def _plain(value: object) -> object:
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def changed_rows(order: OrderKey, digests: Mapping[str, str]) -> list[str]:
    """Return a sentence for each evaluated set whose rows, tokens or labels differ from those of a saved state."""
    return [
        f"the rows of {name}, or what turns them into tokens and labels, have changed"
        for name, digest in order["evaluated"]
        if digests.get(name) != digest
    ]


def of_machine(outputs: Path) -> list[Section]:
    """Check this machine and the installed software."""
    looks: dict[str, list[tuple[str, Look, str]]] = {
        "environment": [("collect_env", machine.environment, INSTALL)],
        "software": [("versions", machine.versions, INSTALL), ("package", machine.package, INSTALL)],
        "machine": [
            ("devices", machine.devices, "look at nvidia-smi"),
            ("threads", machine.threads, "set OMP_NUM_THREADS"),
            ("precision", machine.precision, "set precision=fp32"),
            ("batches", machine.batches, "set precision=fp32"),
            ("ranks", machine.collectives, RANKS),
        ],
        "disks": [
            ("outputs", partial(machine.disk, "outputs", outputs), "set hydra.run.dir to a folder that can be written"),
            ("cache", partial(machine.disk, "cache", cache_dir()), "set NLU_CACHE to a folder that can be written"),
        ],
    }
    return [Section(title, [check for look in some for check in checked(*look)]) for title, some in looks.items()]


def of_run(reference: str) -> list[Section]:
    """Check a run: its files, and each reason why its score may differ now.

    Raises UserError unless the reference names one run, and if its configuration is damaged.
    """
    located = locate(reference)
    run_dir = located.run_dir
    begun = Section("run", checked("state", lambda: recorded.ending(read_run(run_dir)), "give another run"))
    try:
        # Without its configuration, the other checks of a run cannot be made.
        saved, run = Config.of(saved_config(run_dir)), read_run(run_dir)
        config_of(run_dir)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{run_dir / CONFIG} is not the whole configuration of a run: {said(error)}; copy it again"
        ) from error
    facts = read_json(run_dir / "data.json") or {}
    device, told = _device(saved)
    ranks = Ranks(0, count_of(saved.trainer.devices, saved.trainer.device), device)
    # The store is read in this process only; with the ranks of the run it would wait for the others.
    single, sets = replace(ranks, world_size=1), dict[str, Examples]()
    looks: list[tuple[str, Look]] = [
        ("code", partial(recorded.code, run_dir, saved.own_packages)),
        ("versions", partial(recorded.versions, run_dir)),
        ("machine", partial(recorded.computed_on, run_dir, ranks)),
        ("pretrained weights", partial(recorded.beginning, run_dir, saved.model.get("pretrained"))),
        ("rows", partial(rows, run_dir, saved, single, sets)),
        ("settings", partial(recorded.settings, run.config, facts, run.set_name)),
    ]
    found = [check for name, look in looks for check in checked(name, look, "restore its files, or train it again")]
    sections = [begun, Section("why its score may differ", told + found)]
    trained: list[Trained] = []
    begun.checks += [
        *checked("checkpoint", partial(weights, located, trained), "name another checkpoint"),
        *checked("which weights", partial(recorded.scored_at, located, run), "name another checkpoint"),
    ]
    # Empty if the checkpoint is broken, which a check above has already reported.
    for one in trained:
        one.model.to(device)
        again = partial(predicted_again, one, sets, single, run.set_name)
        sections.append(Section("predicted again", checked("predicted again", again, "look at the rest first")))
    learns = partial(recorded.learning, run_dir, run, facts)
    return [*sections, Section("whether it learns", checked("learning", learns, "look at train.tsv"))]


def _device(config: Config) -> tuple[torch.device, list[Check]]:
    """Return the device on which the run would be scored here, with a warning if it asks for another one."""
    try:
        return choose_device(config.trainer.device, 0), []
    except UserError as error:
        remedy = "score it with trainer.device=cpu, or there"
        return torch.device("cpu"), [warning("device", "; ".join(error.sentences), remedy)]
