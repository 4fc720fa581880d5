"""Profile a few steps of a run: where time and memory go, and what to change first.

python -m nlu.profile model=simbert_tiny data=tnews                 some steps of the run that nlu.train would do
python -m nlu.profile model=simbert_tiny data=tnews out=profiled    also a trace for a browser, and memory over time
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, NoReturn

from omegaconf import DictConfig

from nlu.config.choices import SCHEMAS
from nlu.config.entry.app import prepare, run_app
from nlu.config.errors import UserError


def main(composed: DictConfig) -> int:
    """Validate, then profile in this process."""
    plain = prepare(composed, SCHEMAS["profile"])
    if problems := list(_cross(plain)):
        raise UserError(*problems)
    if plain["dry_run"]:
        from nlu.launching.queue import end_dry_run

        return end_dry_run(plain)
    from nlu.config.inference import Profile
    from nlu.storage.outputs import require_free

    config = Profile.of(plain)
    if config.out is not None:
        require_free(config.out, "out")
    from nlu.diagnosis.profiling import run_profile
    from nlu.launching.local import spread

    return spread(partial(run_profile, config), 1)


def _cross(config: dict[str, Any]) -> Iterator[str]:
    """Yield the problems of combinations of keys."""
    from nlu.config.placement import placement

    if (devices := config["trainer"]["devices"]) not in (1, "auto"):
        yield f"trainer.devices is {devices}, but one process is profiled; leave out trainer.devices"
    if placement().world_size > 1:
        yield f"there are {placement().world_size} processes, but one is profiled; start the command without torchrun"


def command() -> NoReturn:
    """The program nlu-profile."""
    run_app(main, "profile")


if __name__ == "__main__":
    command()
