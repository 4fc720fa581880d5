"""`inspect=true`: norms of gradients, weights and updates by module, at the steps that write a row of train.tsv.

Nothing that is trained changes: norms are read between the gradient and the update, and after it.
"""

import torch
from torch import Tensor, nn

from nlu.models.task_model import TaskModel
from nlu.optim.optimizer import named_parameters
from nlu.runs.records import Cell

DIGITS = 6
"""of a norm in the table"""


class Inspector:
    """Looks into the steps that write a row. Norms are those of this rank's gradients, weights and updates."""

    def __init__(self, model: TaskModel, own: nn.Module | None):
        self._trained: dict[str, list[nn.Parameter]] = {}
        """by the module that they belong to, in the order of the model, which is from the input to the output"""
        for name, parameter in named_parameters(model, own):
            if parameter.requires_grad:
                self._trained.setdefault(name.rpartition(".")[0] or name, []).append(parameter)
        self._norms: dict[tuple[str, str], Tensor] = {}
        """by module and column, on the device"""
        self._before: dict[str, list[Tensor]] = {}

    @torch.no_grad()
    def before_update(self, loss_scale: Tensor | None) -> None:
        """Look at the gradient, of which `loss_scale` is a factor, and at the weights."""
        self._norms = {}
        for name, parameters in self._trained.items():
            if gradients := [one.grad for one in parameters if one.grad is not None]:
                norm = torch.nn.utils.get_total_norm(gradients)
                self._norms[name, "gradient"] = norm if loss_scale is None else norm / loss_scale
            self._norms[name, "weights"] = torch.nn.utils.get_total_norm([one.detach() for one in parameters])
        self._before = {name: [one.detach().clone() for one in each] for name, each in self._trained.items()}

    @torch.no_grad()
    def after_update(self) -> None:
        """Compare the updated weights with those before."""
        for name, before in self._before.items():
            changes = [now.detach() - then for now, then in zip(self._trained[name], before, strict=True)]
            self._norms[name, "update"] = torch.nn.utils.get_total_norm(changes)
        self._before = {}

    def rows(self) -> list[dict[str, Cell]]:
        """Return what was seen at the last inspected step, a row for each module with a gradient."""
        # The host waits for the device once.
        values = torch.stack([norm.double() for norm in self._norms.values()]).tolist() if self._norms else []
        rows: dict[str, dict[str, Cell]] = {}
        for (name, column), value in zip(self._norms, values, strict=True):
            rows.setdefault(name, {"name": name})[column] = float(f"{value:.{DIGITS}g}")
        return [row for row in rows.values() if "gradient" in row]
