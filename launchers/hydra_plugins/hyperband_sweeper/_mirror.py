"""A search whose folder an object store keeps; its trials keep theirs in folders of their own below it."""

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator

from optuna.trial import FrozenTrial, TrialState

from nlu.config.errors import UserError
from nlu.runs.mirror import Mirror, bring_back, closed_at_the_end
from nlu.runs.mirrored import RESULT

from ._folder import hold
from ._plan import Plan


@contextlib.contextmanager
def mirrored(plan: Plan) -> Iterator[Mirror | None]:
    """Keep the folder in the search's mirror, if it has one: before the block it is what the mirror holds, after it
    the other way round."""
    if plan.mirror is None:
        yield None
        return
    mirror = Mirror(plan.mirror, plan.folder, say=tell, is_search=True)
    with hold(plan.folder):
        mirror.open(may_hold_a_run=True)
    with closed_at_the_end(mirror):
        yield mirror


def bring_trials_back(plan: Plan, trials: Iterable[FrozenTrial], say: Callable[[str], None]) -> None:
    """Have the runs of trials that ran elsewhere here, where their launcher has not brought them already."""
    if plan.mirror is None:
        return
    for trial in trials:
        folder = plan.folder / str(trial.number)
        if trial.state not in (TrialState.COMPLETE, TrialState.PRUNED) or (folder / RESULT).is_file():
            continue
        try:
            bring_back(f"{plan.mirror.rstrip('/')}/{trial.number}", folder)
        except (UserError, OSError) as error:
            say(f"the run of trial {trial.number} stays in its mirror: {error}")


def tell(text: str) -> None:
    """Say something that a person who starts a search should read at once."""
    print(text, file=sys.stderr)
