"""Scan the learning rate with a few steps of a run, and recommend a value.

The rule is printed. The exit status is 1 if no value can be recommended.

python -m nlu.scan of=lr model=simbert_tiny data=tnews                   rising rates: which optimizer.lr
python -m nlu.scan of=lr model=simbert_tiny data=tnews out=scanned       also a table and a figure
"""

from collections.abc import Iterator
from functools import partial
from typing import NoReturn

from omegaconf import DictConfig

from nlu.config.choices import SCHEMAS
from nlu.config.entry.app import prepare, run_app
from nlu.config.errors import UserError
from nlu.config.types import Config

LEAST_RATES = 10


def main(composed: DictConfig) -> int:
    """Validate, then scan in this process. Returns 1 if no value can be recommended."""
    plain = prepare(composed, SCHEMAS["scan"])
    if problems := list(_cross(plain)):
        raise UserError(*problems)
    if plain["dry_run"]:
        from nlu.jobs.queue import end_dry_run

        return end_dry_run(plain)
    from nlu.config.command_keys import Scan
    from nlu.storage.outputs import require_free

    config = Scan.read(plain)
    # Imported from here on, since a key that is refused should not wait for torch.
    if config.out is not None:
        require_free(config.out, "out")
    from nlu.diagnosis.scanning import run_scan
    from nlu.training.processes import spread

    return spread(partial(run_scan, config), 1)


def _cross(config: Config) -> Iterator[str]:
    """Yield the problems of combinations of keys."""
    from nlu.jobs.placement import placement

    if (devices := config["trainer"]["devices"]) != 1:
        yield f"trainer.devices is {devices}, but one process scans; leave out trainer.devices"
    if placement().world_size > 1:
        yield f"there are {placement().world_size} processes, but one scans; start the command without torchrun"
    if config["resume"] not in ("never", "auto"):
        yield (
            f"resume is {config['resume']}, but a scan starts from the initial weights; leave out resume, or begin "
            "from the weights of a run by model.pretrained=RUN/best"
        )
    low, high, steps = config["min_lr"], config["max_lr"], config["steps"]
    if not low < high:
        yield f"min_lr is {low:g}, but must be below max_lr, {high:g}; set min_lr lower or max_lr higher"
    if steps < LEAST_RATES:
        yield f"steps is {steps}, but a curve needs a loss at {LEAST_RATES} rates; set steps to >= {LEAST_RATES}"
    if not isinstance(config["optimizer"].get("lr"), float | int):
        yield "the optimizer lacks the key lr, for which of=lr recommends a value; choose optimizer=adamw"
    if isinstance(config["data"].get("sets"), dict):
        yield (
            "the data are a mixture, whose sets have losses of different size, so their course says nothing of the "
            "rate; scan one of the sets by itself"
        )


def command() -> NoReturn:
    """The program nlu-scan."""
    run_app(main, "scan")


if __name__ == "__main__":
    command()
