"""The scheduler of a search, from the specification of its pruner and its space."""

from collections.abc import Callable, Mapping
from typing import Any

from nlu.search.schedulers.asha import Asha
from nlu.search.schedulers.scheduler import ASHA, FREEZE_THAW, Lengths, Scheduler
from nlu.search.space import Space


def build(spec: Mapping[str, Any], space: Space, composed: Callable[[str], str | None], seed: int) -> Scheduler | None:
    """Return the scheduler for a pruner (`nlu.search.resources.pruner_spec`); None for one that pauses no trial.

    `composed` returns the value of a key that is not drawn, as for `Space.draw`.
    """
    if spec["name"] == ASHA:
        return Asha.of(spec)
    if spec["name"] != FREEZE_THAW:
        return None
    # Its libraries take half a second to import.
    from nlu.search.schedulers.encoding import Encoding
    from nlu.search.schedulers.freeze_thaw import FreezeThaw

    conditional = [name for name in space.names if name not in space.params]
    encoding = Encoding({name: space.distributions(name) for name in space.names}, conditional)
    factor = spec["reduction_factor"]
    return FreezeThaw(
        Lengths.of(spec), encoding, lambda suggest: space.draw(suggest, composed), seed, space.priors, factor=factor
    )
