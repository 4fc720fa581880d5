"""Profile a few steps of a run: where time and memory go, and what to change first.

python -m nlu.profile model=simbert_tiny data=tnews                 some steps of the run that nlu.train would do
python -m nlu.profile model=simbert_tiny data=tnews out=profiled    also a trace for a browser
python -m nlu.profile run=outputs/mine rows=new.csv                 the rows that nlu.predict would predict
"""

import os
from collections.abc import Iterator
from functools import partial
from typing import NoReturn

from omegaconf import DictConfig

from nlu.config.choices import SCHEMAS
from nlu.config.entry.app import prepare, run_app
from nlu.config.errors import UserError
from nlu.config.types import Config


def main(composed: DictConfig) -> int:
    """Validate, then profile in this process."""
    plain = prepare(composed, SCHEMAS["profile"])
    if problems := list(_cross(plain)):
        raise UserError(*problems)
    if plain["dry_run"]:
        from nlu.jobs.queue import end_dry_run

        return end_dry_run(plain)
    from nlu.config.command_keys import Profile
    from nlu.storage.outputs import require_free

    config = Profile.of(plain)
    if config.out is not None:
        require_free(config.out, "out")
    located = None
    if config.run is not None:
        from nlu.inference.locate import locate

        # Report missing files first: importing torch takes longer than all other checks.
        located = locate(config.run, config.checkpoint).of_head(config.head_name)
    # Read when torch is imported: the profiler's own messages say nothing of a run.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from nlu.diagnosis.profiling import run_profile
    from nlu.training.processes import spread

    return spread(partial(run_profile, config, located), 1)


def _cross(config: Config) -> Iterator[str]:
    """Yield the problems of combinations of keys."""
    from nlu.jobs.placement import placement

    if (config["run"] is None) != (config["rows"] is None):
        given, lacking = ("run", "rows") if config["rows"] is None else ("rows", "run")
        yield f"{given} is {config[given]}, but {lacking} is not set; set both for predictions, or leave out both"
    if (devices := config["trainer"]["devices"]) != 1:
        yield f"trainer.devices is {devices}, but one process is profiled; leave out trainer.devices"
    if placement().world_size > 1:
        yield f"there are {placement().world_size} processes, but one is profiled; start the command without torchrun"


def command() -> NoReturn:
    """The program nlu-profile."""
    run_app(main, "profile")


if __name__ == "__main__":
    command()
