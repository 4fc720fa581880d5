"""Scan the learning rate or the batch size with a few steps of a run, and recommend a value.

The rule is printed. The exit status is 1 if no value can be recommended.

python -m nlu.scan of=lr model=simbert_tiny data=tnews                   rising rates: which optimizer.lr
python -m nlu.scan of=lr model=simbert_tiny data=tnews out=scanned       also a table and a figure
python -m nlu.scan of=batch_size model=simbert_tiny data=tnews           speed and memory: which trainer.batch_size
"""

from collections.abc import Iterator
from functools import partial
from typing import NoReturn

from omegaconf import DictConfig

from nlu.config.choices import SCHEMAS, defaults_of
from nlu.config.entry.app import prepare, run_app
from nlu.config.errors import UserError
from nlu.config.types import Config

OF_LR, OF_BATCH_SIZE = ("min_lr", "max_lr", "smoothing"), ("max_batch_size",)
"""keys that only one kind of scan has"""
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

    kind, trainer, defaults = config["of"], config["trainer"], defaults_of(SCHEMAS["scan"])
    for key in OF_BATCH_SIZE if kind == "lr" else OF_LR:
        if config[key] != defaults[key]:
            yield f"{key} is {config[key]}, but of is {kind}, which does not use it; leave out {key}"
    if (devices := trainer["devices"]) != 1:
        yield f"trainer.devices is {devices}, but one process scans; leave out trainer.devices"
    if placement().world_size > 1:
        yield f"there are {placement().world_size} processes, but one scans; start the command without torchrun"
    if config["resume"] not in ("never", "auto"):
        yield (
            f"resume is {config['resume']}, but a scan starts from the initial weights; leave out resume, or begin "
            "from the weights of a run by model.pretrained=RUN/best"
        )
    if kind == "lr":
        yield from _of_lr(config)
    elif (tokens := trainer["batch_tokens"]) is not None:
        yield f"trainer.batch_tokens is {tokens}, which fills micro-batches instead; leave it out for of=batch_size"


def _of_lr(config: Config) -> Iterator[str]:
    low, high, steps = config["min_lr"], config["max_lr"], config["steps"]
    if not low < high:
        yield f"min_lr is {low:g}, but must be below max_lr, {high:g}; set min_lr lower or max_lr higher"
    if steps is not None and steps < LEAST_RATES:
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
