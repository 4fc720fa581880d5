"""All checks of doctor, section by section."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from nlu.config.errors import DataError, UserError
from nlu.config.schema import Run as Config
from nlu.data.examples import Examples
from nlu.diagnosis import disks, learning, machine, recomputed, recorded, software
from nlu.diagnosis.check import Check, Section, checked, said, warning
from nlu.inference.locate import locate
from nlu.inference.trained import Trained, config_of
from nlu.reports.runs import CONFIG, read_run, saved_config
from nlu.storage.cache import cache_dir
from nlu.storage.files import read_json
from nlu.training.processes import count_of
from nlu.training.ranks import Ranks, choose_device

Look = Callable[[], Check | Iterable[Check]]
INSTALL = "install nlu again in a separate environment: make train"
RANKS = (
    "on CUDA run it again with NCCL_DEBUG=INFO, then with NCCL_P2P_DISABLE=1 or NCCL_SHM_DISABLE=1; on a CPU check "
    "whether a firewall or GLOO_SOCKET_IFNAME separates processes; until then set trainer.devices=1"
)


def of_machine(outputs: Path) -> list[Section]:
    """Check this machine and the installed software."""
    looks: dict[str, list[tuple[str, Look, str]]] = {
        "environment": [("collect_env", software.environment, INSTALL)],
        "software": [("versions", software.versions, INSTALL), ("package", software.package, INSTALL)],
        "machine": [
            ("devices", machine.devices, "look at nvidia-smi"),
            ("threads", machine.threads, "set OMP_NUM_THREADS"),
            ("precision", machine.precision, "set precision=fp32"),
            ("batches", machine.batches, "set precision=fp32"),
            ("ranks", machine.collectives, RANKS),
        ],
        "disks": [
            ("outputs", partial(disks.disk, "outputs", outputs), "set hydra.run.dir to a folder that can be written"),
            ("cache", partial(disks.disk, "cache", cache_dir()), "set NLU_CACHE to a folder that can be written"),
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
        ("rows", partial(recomputed.rows, run_dir, saved, single, sets)),
        ("settings", partial(recorded.settings, run.config, facts, run.set_name)),
    ]
    found = [check for name, look in looks for check in checked(name, look, "restore its files, or train it again")]
    sections = [begun, Section("why its score may differ", told + found)]
    trained: list[Trained] = []
    begun.checks += [
        *checked("checkpoint", partial(recomputed.weights, located, trained), "name another checkpoint"),
        *checked("which weights", partial(recorded.scored_at, located, run), "name another checkpoint"),
    ]
    # Empty if the checkpoint is broken, which a check above has already reported.
    for one in trained:
        one.model.to(device)
        again = partial(recomputed.predicted_again, one, sets, single, run.set_name)
        sections.append(Section("predicted again", checked("predicted again", again, "look at the rest first")))
    learns = partial(learning.learning, run_dir, run, facts)
    return [*sections, Section("whether it learns", checked("learning", learns, "look at train.tsv"))]


def _device(config: Config) -> tuple[torch.device, list[Check]]:
    """Return the device on which the run would be scored here, with a warning if it asks for another one."""
    try:
        return choose_device(config.trainer.device, 0), []
    except UserError as error:
        remedy = "score it with trainer.device=cpu, or there"
        return torch.device("cpu"), [warning("device", "; ".join(error.sentences), remedy)]
