"""What a run records of the inside of its model: `inspect` by module, and `watch` for chosen parameters and modules.

Only steps that write a row of train.tsv are inspected. Nothing that is trained changes: norms are read between the
gradient and the update, and activations come from one more pass over the rows of the step (`nlu.training.activations`).
"""

import fnmatch
import logging
import math
from collections.abc import Iterable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from nlu.config.errors import UserError
from nlu.config.nearest import nearest
from nlu.config.schema import Run
from nlu.optim.optimizer import named_parameters
from nlu.runs.records import Cell
from nlu.training.activations import Seen, Tally, layers_with_attention, look
from nlu.training.memory import REMEDY, refused, release, tried
from nlu.training.parallel import Parallel
from nlu.training.passes import Passes, Share

log = logging.getLogger(__name__)

Row = dict[str, Cell]
DIGITS = 6
SHOWN = 8
"""names of which a step's values are logged; the table has all"""
CONTAINERS = (nn.ModuleList, nn.ModuleDict)
"""modules that are never called"""


class Inspector:
    """Looks into the steps that write a row. Every rank must make each call, since a strategy may communicate."""

    def __init__(
        self, kinds: str | Iterable[str], patterns: str | Iterable[str], passes: Passes, parallel: Parallel,
        own: nn.Module | None,
    ):  # fmt: skip
        """`kinds`: gradients, updates, activations. `patterns` of names of parameters and modules, as in a shell.

        Raises UserError for a pattern that matches nothing.
        """
        self.kinds = {kinds} if isinstance(kinds, str) else set(kinds)
        self._passes, self._parallel, self._ranks = passes, parallel, parallel.ranks
        parameters = dict(named_parameters(passes.model, own))
        modules = {name: each for name, each in passes.model.named_modules() if name}
        self._trained: dict[str, list[nn.Parameter]] = {}
        """by the module that they belong to, in the order of the model, which is from the input to the output"""
        for name, parameter in parameters.items():
            if parameter.requires_grad:
                self._trained.setdefault(name.rpartition(".")[0] or name, []).append(parameter)
        callable_ones = {name: each for name, each in modules.items() if not isinstance(each, CONTAINERS)}
        watched = _matching([patterns] if isinstance(patterns, str) else patterns, [*parameters, *callable_ones])
        self._parameters = {name: each for name, each in parameters.items() if name in watched}
        self._modules = {name: each for name, each in callable_ones.items() if name in watched}
        """watched ones"""
        has_own = {name: each for name, each in modules.items() if any(True for _ in each.parameters(recurse=False))}
        self._computing = has_own if "activations" in self.kinds else {}
        self._layers = layers_with_attention(passes.model) if "activations" in self.kinds else 0
        places = {name: place for place, (name, _) in enumerate(passes.model.named_modules())}
        beyond = len(places)
        # By their place in the model: a module comes before its parameters, and those of a method come last.
        self._place = {
            name: (places.get(name, places.get(name.rpartition(".")[0], beyond)), name in parameters)
            for name in (*parameters, *modules, *self._trained)
        }
        self._values: dict[str, dict[str, float]] = {}
        self._before: dict[str, list[Tensor]] = {}
        self._seen = Seen()
        self._may_look = True

    def before_update(self, number: int, shares: list[Share | None], loss_scale: Tensor | None) -> None:
        """Look into step `number`, whose gradient is known; `loss_scale` is a factor of it."""
        self._values, self._seen = {}, Seen()
        with torch.no_grad(), refused(f"memory ran out in step {number}, which inspect or watch looks into"):
            numbers: list[tuple[str, str, Tensor]] = []
            groups = self._trained if "gradients" in self.kinds else {}
            for name, parameters in (*groups.items(), *((name, [one]) for name, one in self._parameters.items())):
                if gradients := [parameter.grad for parameter in parameters if parameter.grad is not None]:
                    norm = self._parallel.norm(gradients)
                    numbers.append((name, "gradient", norm if loss_scale is None else norm / loss_scale))
            self._read(numbers)
            for name, parameter in self._parameters.items():
                self._add(name, _statistics(parameter))
            if "updates" in self.kinds:
                self._before = {name: [one.detach().clone() for one in each] for name, each in self._trained.items()}
        if (self._computing or self._modules) and self._may_look:
            self._look(shares)

    def after_update(self, number: int) -> None:
        """Compare the updated weights with those before."""
        with torch.no_grad(), refused(f"memory ran out in step {number}, whose updates are inspected"):
            norms = []
            for name, before in self._before.items():
                changes = [now.detach() - then for now, then in zip(self._trained[name], before, strict=True)]
                norms += [(name, "update", self._parallel.norm(changes)), (name, "norm", self._parallel.norm(before))]
            self._before = {}
            self._read(norms)
        for name, _, _ in norms[::2]:
            values = self._values[name]
            change, norm = values.pop("update"), values.pop("norm")
            # The ratio to weights of 0, such as those that LoRA begins with, is not defined.
            if norm:
                values["update"] = change / norm

    def rows(self, step: int) -> list[Row]:
        """Return what was seen at the last inspected step, a row for each name, and log watched values; on rank 0."""
        if (gathered := self._ranks.gather_to_first(self._seen)) is None:
            return []
        seen = Seen()
        for each in gathered:
            seen.merge(each)
        for name, tally in seen.outputs.items():
            # Of a micro-batch without units, a head gives nothing.
            if not tally.values:
                continue
            if name in self._computing:
                self._add(name, {"rms": tally.rms, "largest": tally.largest})
            if name in self._modules:
                self._add(name, _of_tally(tally))
        for name, tally in seen.inputs.items():
            if (dead := tally.dead) is not None:
                self._add(name, {"dead": dead})
        rows: list[Row] = [
            {
                "kind": "parameter" if name in self._parameters else "module",
                "name": name,
                **{column: _rounded(value) for column, value in self._values[name].items()},
            }
            for name in sorted(self._values, key=self._place.__getitem__)
        ]
        for layer, attention in sorted(seen.attention.items()):
            if attention.queries:
                entropy, peak = (_rounded(value / attention.queries) for value in (attention.entropy, attention.peak))
                rows.append({"kind": "attention", "name": f"layer {layer}", "entropy": entropy, "peak": peak})
        self._log(step, rows)
        return rows

    def _look(self, shares: list[Share | None]) -> None:
        is_local = self._parallel.passes_are_local
        modules = {**self._computing, **self._modules}

        def seen() -> Seen:
            return look(self._passes, shares, modules, self._computing, self._layers, runs_placeholders=not is_local)

        # Where ranks wait for one another within passes, the error of one must end them all.
        attempt = partial(tried, seen) if is_local else seen
        try:
            found = attempt()
        except UserError as error:
            if not self._layers:
                raise
            log.info("inspect=activations leaves attention out: %s", error.sentences[0].partition(", but")[0])
            self._layers = 0
            found = attempt()
        has_failed = is_local and bool(self._passes.ranks.sum_on_host([float(found is None)])[0])
        if found is not None and not has_failed:
            self._seen = found
            return
        release(self._passes.device)
        self._may_look = False
        log.warning("memory ran out where activations are inspected, so they are left out from here on; %s", REMEDY)

    def _read(self, numbers: list[tuple[str, str, Tensor]]) -> None:
        """Wait for the device once, for all numbers."""
        if numbers:
            values = torch.stack([value.double() for _, _, value in numbers]).tolist()
            for (name, column, _), value in zip(numbers, values, strict=True):
                self._add(name, {column: value})

    def _add(self, name: str, values: dict[str, float]) -> None:
        self._values.setdefault(name, {}).update(values)

    def _log(self, step: int, rows: list[Row]) -> None:
        watched = [row for row in rows if row["name"] in self._parameters or row["name"] in self._modules]
        for row in watched[:SHOWN]:
            shown = ", ".join(f"{name} {value:.3g}" for name, value in row.items() if isinstance(value, float))
            log.info("step %d: %s: %s", step, row["name"], shown)
        if len(watched) > SHOWN:
            log.info("step %d: inspect.tsv has %d more watched names", step, len(watched) - SHOWN)


def inspector_of(config: Run, passes: Passes, parallel: Parallel, own: nn.Module | None) -> Inspector | None:
    """Return what looks into the steps of a run, or None; raises UserError for a pattern that matches nothing."""
    if not config.inspect and not config.watch:
        return None
    return Inspector(config.inspect, config.watch, passes, parallel, own)


def _statistics(parameter: Tensor) -> dict[str, float]:
    """Return the statistics of a parameter, of a sharded one those of this rank's part."""
    tally = Tally()
    tally.add(parameter.detach().reshape(1, -1), by_unit=False)
    return _of_tally(tally)


def _of_tally(tally: Tally) -> dict[str, float]:
    norm = math.sqrt(tally.squares)
    return {"largest": tally.largest, "mean": tally.mean, "std": tally.std, "norm": norm}


def _rounded(value: float) -> float:
    """Return a number with few digits, so that the table stays small."""
    return float(f"{value:.{DIGITS}g}")


def _matching(patterns: Iterable[str], names: Sequence[str]) -> set[str]:
    found: set[str] = set()
    for pattern in patterns:
        matching = [name for name in names if fnmatch.fnmatchcase(name, pattern)]
        if not matching:
            close = nearest(pattern, names)
            known = f"nearest: {', '.join(close)}" if close else f"names look like {names[0]}, {names[-1]}"
            raise UserError(
                f"watch has the pattern {pattern!r}, which matches no parameter and no module of the model; {known}; "
                "set it to names, or to patterns such as '*.layer.0.*'"
            )
        found.update(matching)
    return found
