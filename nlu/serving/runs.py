"""The runs of a server, by name: one, or several that share one encoder and whose rows share batches."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from nlu.config.command_keys import Serve
from nlu.config.nearest import hint
from nlu.data.layouts import Values
from nlu.inference.mixed import RUN, Mix
from nlu.inference.predictor import Predictor
from nlu.inference.sharing import share_encoder
from nlu.serving.bodies import Refused
from nlu.serving.named import named
from nlu.serving.served import Newest, Served


class Runs:
    """The checkpoints that are served at a time."""

    def __init__(self, newest: Mapping[str, Newest]):
        """`newest`: by the name of the run."""
        self._newest = newest
        self.served = {name: each.served for name, each in newest.items()}
        self.mix: Mix | None = None
        """None where there is one run"""
        if len(newest) > 1:
            self.mix = Mix({name: each.predictor for name, each in self.served.items()})
            self.mix.try_out()

    @classmethod
    def of_config(cls, config: Serve) -> "Runs":
        """Load them. Raises UserError if one cannot be loaded, or not together with the first one."""
        newest: dict[str, Newest] = {}
        for name, run in named(config).items():
            newest[name] = Newest(config, run, _sharing(newest, name))
        first, *others = newest
        # A checkpoint that the first run gets later.
        newest[first].share = _sharing({one: newest[one] for one in others}, first)
        return cls(newest)

    def renewed(self, count: Callable[[], None]) -> "Runs":
        """Return the newest checkpoints, as `Newest.renew` loads them; these if none has changed."""
        for newest in self._newest.values():
            newest.renew(count)
        is_changed = any(each.served is not self.served[name] for name, each in self._newest.items())
        return Runs(self._newest) if is_changed else self

    def of(self, name: str | None) -> Served:
        """Return the checkpoint of a run, which needs no name where there is one. Raises Refused for another name."""
        if name is None and self.mix is not None:
            raise Refused(422, f'run is missing; add "run" to the body, one of {", ".join(self.served)}')
        name = name or next(iter(self.served))
        if name not in self.served:
            raise Refused(404, f"run is {name:.80}, which is not served here; {hint(name, self.served)}")
        return self.served[name]

    def computing(self, name: str | None, values: list[Values]) -> tuple[Any, list[Values]]:
        """Return what computes rows of a run, and the rows as it takes them."""
        if self.mix is None:
            return self.of(name).predictor, values
        return self.mix, [{**row, RUN: name} for row in values]

    def of_each(self, what: Callable[[Served], object], several: str) -> object:
        """Return what is said of the only run, or under the name `several` of each run by its name."""
        said = {name: what(served) for name, served in self.served.items()}
        return {several: said} if self.mix is not None else next(iter(said.values()))


def _sharing(others: Mapping[str, Newest], name: str) -> Callable[[Predictor], None] | None:
    """Return what lets a checkpoint of a run hold the encoder of the first of the others, if there is one."""
    if not others:
        return None
    other = next(iter(others))
    return partial(share_encoder, other, others[other].served.predictor, name)
