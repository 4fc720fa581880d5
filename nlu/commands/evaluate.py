"""Score a trained run, on new rows or its own.

python -m nlu.evaluate run=outputs/mine data.test=new.csv out=scores
python -m nlu.evaluate run=outputs/mine data.test=big.jsonl out=scores jobs=4 hydra/launcher=slurm
python -m nlu.evaluate run=outputs/mine compare=true             its own sets again: exactly equal or not
python -m nlu.evaluate model=bert_tiny data=afqmc max_rows=500   a configuration's initial weights
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NoReturn

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from nlu.config.choices import EVALUATE, RUN
from nlu.config.entry.app import run_app
from nlu.config.errors import UserError
from nlu.config.types import ConfigLike


def main(composed: DictConfig) -> int:
    """Validate, then score in one process for each device."""
    from nlu.config.checks.validate import problems
    from nlu.config.choices import with_defaults
    from nlu.config.command_keys import Evaluate
    from nlu.config.mixtures import member_of
    from nlu.config.resolving import resolve
    from nlu.config.scoring import on_run, scored_sets

    overrides = list(HydraConfig.get().overrides.task)
    plain, unresolved = resolve(composed)
    # Only jobs of a search have this key.
    plain.pop("trial", None)
    if (reference := plain.get("run")) is None:
        _require_subject(overrides)
        located, named = None, []
        config = plain
        if (head_name := plain.get("head_name")) is not None:
            raise UserError(f"head_name is {head_name}, but run is not set; set run, or leave out head_name")
    else:
        from nlu.inference.locate import locate
        from nlu.reports.runs import saved_config

        located, named = locate(str(reference), str(plain.get("checkpoint"))), scored_sets(overrides)
        located, saved = located.of_head(plain.get("head_name")), saved_config(located.run_dir)
        # A head is scored as a run of one task, with the configuration that it would have had by itself.
        if located.head_name is not None:
            saved = with_defaults(member_of(saved, located.head_name), RUN)
        config = on_run(saved, with_defaults(plain, EVALUATE), overrides, named, str(located.checkpoint))
    # With rows to score, the training rows are not read, so their problems do not matter.
    own = [text for text in problems(config, EVALUATE) if not (named and text.startswith("data.train"))]
    # All problems at once, before torch is imported.
    if found := [*unresolved, *own, *_cross(config, named), *_idle(config, overrides), *_table(config)]:
        raise UserError(*found)
    config = with_defaults(config, EVALUATE)
    if config["dry_run"]:
        from nlu.jobs.queue import end_dry_run
        from nlu.storage.outputs import require_free

        if config["out"] is not None:
            require_free(config["out"], "out")
        return end_dry_run(config)
    from nlu.inference.score_run import run_evaluation
    from nlu.training.processes import count_of, spread

    # A partial of a function of a module, since the processes of several devices get it by pickle.
    work = partial(run_evaluation, Evaluate.of(config), located, named)
    return spread(work, count_of(config["trainer"]["devices"], config["trainer"]["device"]))


def _require_subject(overrides: Sequence[str]) -> None:
    """Raise UserError if the command names nothing to score: the default would be random weights on default data."""
    # The groups of keys such as data.test or +model.x, without a sign that adds a key.
    named = {re.split("[.=]", override.lstrip("+"), maxsplit=1)[0] for override in overrides}
    if named.isdisjoint(("model", "data", "experiment", "task")):
        raise UserError(
            "run is not set, and neither are model or data; set run=RUN for a trained run, or model=NAME and data=NAME "
            "for the initial weights of a configuration"
        )


def _cross(config: Mapping[str, object], named: Sequence[str]) -> list[str]:
    """Return the problems of combinations of keys."""
    found = []
    if config.get("compare") and config.get("run") is None:
        found.append("compare is true, but run is not set; set run, or compare=false")
    if config.get("compare") and (named or config.get("max_rows") or config.get("group_by") is not None):
        found.append(
            "compare is true, which scores the run's own sets as they are; leave out data, max_rows and group_by, or "
            "set compare=false"
        )
    if config.get("compare") and (config.get("jobs") or 1) != 1:
        found.append("compare is true, which one process does, but jobs is set; leave out one of them")
    if config.get("compare") and config.get("compile"):
        found.append("compare is true, which compares to the bit, but compile is true; set one of them to false")
    trainer = config.get("trainer")
    if config.get("run") is None and isinstance(trainer, Mapping) and trainer.get("compile"):
        found.append("trainer.compile is true, but nothing is trained; set compile=true instead")
    if config.get("group_by") is not None and not named:
        found.append("group_by is set, but the rows to score are not; set data.test=FILE or data.dev=FILE")
    folds = config.get("folds")
    has_folds = isinstance(folds, Mapping) and folds.get("count")
    if config.get("fold") is None and has_folds and config.get("run") is None:
        found.append("folds are only for training; set fold to the number of one, or folds=none")
    return found


def _table(config: Mapping[str, object]) -> list[str]:
    """Return why no row can be added to `table`."""
    if not isinstance(table := config.get("table"), str):
        return []
    from nlu.inference.scores_table import require_table

    try:
        require_table(table)
    except UserError as error:
        return error.problems
    return []


def _idle(config: ConfigLike, overrides: Sequence[str]) -> Iterator[str]:
    """Yield the given keys of reading that apply to no file, of the configuration of a run."""
    data = config.get("data")
    if config.get("run") is None or not isinstance(data, Mapping):
        return
    from nlu.data.data_rules import formats_of
    from nlu.data.fields import idle_keys

    given = {override.partition("=")[0].lstrip("+") for override in overrides}
    values = {key: value for key, value in data.items() if f"data.{key}" in given}
    # The training rows are not read, and stand for those that are scored.
    yield from idle_keys(values, formats_of(data), "data")


def command() -> NoReturn:
    """The program nlu-evaluate."""
    run_app(main, "evaluate")


if __name__ == "__main__":
    command()
