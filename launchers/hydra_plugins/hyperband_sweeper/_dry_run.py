"""What a dry run of a search prints."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from optuna.study import Study

from nlu.config.words import counted
from nlu.sweeps.space import Space, overrides_of


def dry_run_lines(
    space: Space,
    first: Sequence[Mapping[str, object]],
    tried: int,
    folder: Path,
    study: Study | None,
    warnings: Sequence[str],
    *,
    has_read: bool,
) -> Iterator[str]:
    """Yield the lines of a dry run that found nothing wrong.

    `first` are the configurations that are tried first, `tried` the combinations of groups that were composed. `study`
    is the one that the command would continue; `has_read`: whether studies of hydra.sweeper.warm_start were read.
    """
    yield f"Drawn for each trial: {', '.join(space.names)}"
    for values in first:
        yield f"Tried first: {' '.join(overrides_of(values))}"
    yield f"{counted(tried, 'combination')} of groups, valid at both ends of every interval and with every choice."
    besides = " besides the studies of hydra.sweeper.warm_start" if has_read else ""
    if study is None:
        yield f"Nothing was run or read{besides}. The search itself will check whether the storage answers and has"
        yield "another search of this name, and will compute the rungs of the pruner from the number of rows."
    else:
        begun = counted(len(study.get_trials(deepcopy=False)), "trial")
        yield f"{folder} has this search, with {begun}; without dry_run the command continues it."
        yield f"Nothing was run, and only its journal was read{besides}. The search itself will compute the rungs of"
        yield "the pruner from the number of rows."
    for warning in warnings:
        yield f"warning: {warning}"
