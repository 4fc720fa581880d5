"""AdamW with BERT's parameter groups: learning rates by depth, no decay of norms and biases, frozen parameters."""

import fnmatch
import logging
from collections.abc import Iterable, Mapping

import torch
from torch import nn

from nlu.config.errors import UserError
from nlu.config.keys import takes
from nlu.models.head import HasLearningRates
from nlu.models.task_model import TaskModel
from nlu.optim import keys as schemas
from nlu.optim.optimizer import FusedAdamW, named_parameters

log = logging.getLogger(__name__)


@takes(schemas.AdamW)
class AdamW:
    """Decoupled weight decay (Loshchilov & Hutter 2019, https://arxiv.org/abs/1711.05101, algorithm 2)."""

    def __init__(self, keys: schemas.AdamW):
        self.keys = keys

    def build(self, model: TaskModel, own: nn.Module | None = None) -> torch.optim.Optimizer:
        """Freeze parameters and return the optimizer. Parameters of the method have the rate of the head.

        Raises UserError if a pattern matches no parameter, or all parameters are frozen.
        """
        named = list(named_parameters(model, own))
        names = [name for name, _ in named]
        for key in ("freeze", "lr_by_name", "weight_decay_by_name"):
            _require_matches(key, getattr(self.keys, key) or (), names)
        self._freeze(named)
        of_head = model.head.learning_rates if isinstance(model.head, HasLearningRates) else {}
        own_rates = {f"head.{name}": rate for name, rate in of_head.items()}
        modules = [*model.modules(), *(own.modules() if own is not None else ())]
        # Normalizations of any library: LayerNorm, RMSNorm, ModernBertRMSNorm, ...
        norms = {id(p) for m in modules if "norm" in type(m).__name__.lower() for p in m.parameters(recurse=False)}
        groups: dict[tuple[float, float, bool], list[nn.Parameter]] = {}
        for name, parameter in named:
            if parameter.requires_grad:
                # Decay pulls weights towards 0, which regularizes matrices but neither biases nor the scales of norms
                # (BERT's own optimizer excludes them too).
                is_shape = parameter.dim() < 2 or name.endswith("bias") or id(parameter) in norms
                lr, decay = self.keys.lr * self._ratio(model, name), 0.0 if is_shape else self.keys.weight_decay
                own_lr = _last_match(self.keys.lr_by_name or {}, name, own_rates.get(name))
                decay = _last_match(self.keys.weight_decay_by_name or {}, name, decay) or 0.0
                # Few groups, because each is a call of the fused kernel; the order of parameters in a group follows the
                # model, so it is the same in every process.
                groups.setdefault((lr if own_lr is None else own_lr, decay, own_lr is not None), []).append(parameter)
        if not groups:
            raise UserError(f"optimizer.freeze is {self.keys.freeze}, which leaves nothing to train; drop a pattern")
        return FusedAdamW(
            [
                {"params": parameters, "lr": lr, "weight_decay": decay, "has_own_lr": has_own_lr}
                for (lr, decay, has_own_lr), parameters in groups.items()
            ],
            betas=(self.keys.betas[0], self.keys.betas[1]),
            eps=self.keys.eps,
            fused=True,
        )

    def _freeze(self, named: list[tuple[str, nn.Parameter]]) -> None:
        for name, parameter in named:
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in self.keys.freeze):
                # Before the groups are formed: a frozen parameter must get neither decay nor moments.
                parameter.requires_grad_(False)
        if self.keys.freeze:
            frozen = [name for name, parameter in named if not parameter.requires_grad]
            log.info("frozen: %d of %d parameters, e.g. %s", len(frozen), len(named), ", ".join(frozen[:3]))

    def _ratio(self, model: TaskModel, name: str) -> float:
        inner = name.removeprefix("backbone.")
        if inner == name:
            return self.keys.top_lr_ratio
        # 0 for parameters above all layers (pooler), 1 for the top layer, which keeps the full rate.
        below_top = model.backbone.depth - model.backbone.depth_of(inner)
        ratio = self.keys.layer_lr_decay ** max(0, below_top - 1)
        return ratio * self.keys.top_lr_ratio if below_top == 0 else ratio


def _require_matches(key: str, patterns: Iterable[str], names: list[str]) -> None:
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise UserError(
                f"optimizer.{key} has the pattern {pattern!r}, which matches no parameter; names look like "
                f"{names[0]}, {names[-1]}"
            )


def _last_match(by_pattern: Mapping[str, float], name: str, default: float | None) -> float | None:
    """Return the value of the last pattern that matches a name, else the default."""
    found = [value for pattern, value in by_pattern.items() if fnmatch.fnmatchcase(name, pattern)]
    return found[-1] if found else default
