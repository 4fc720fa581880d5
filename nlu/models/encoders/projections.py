"""The queries, keys and values that layers of transformers compute."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn

PROJECTIONS = (
    ("query", "query_proj", "q_proj", "q_lin", "q", "Wqkv"),
    ("key", "key_proj", "k_proj", "k_lin", "k", "Wqkv"),
    ("value", "value_proj", "v_proj", "v_lin", "v", "Wqkv"),
)
"""names in transformers of the modules that compute queries, keys and values, or all three side by side"""


@contextmanager
def projections_of(inner: nn.Module | None) -> Iterator[list[list[Tensor]]]:
    """Yield the lists of queries, keys and values that the layers compute in the block, in the order of layers.

    Modules are found by their names in transformers. If layers share a module, as in ALBERT, each call is a layer.
    """
    seen: list[list[Tensor]] = [[], [], []]
    hooks = []

    def keep(places: Sequence[int]) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: object, output: Tensor) -> None:
            for place, part in zip(places, output.chunk(len(places), dim=-1), strict=True):
                seen[place].append(part)

        return hook

    for name, module in inner.named_modules() if inner is not None else ():
        places = [place for place, names in enumerate(PROJECTIONS) if name.rpartition(".")[2] in names]
        if places:
            hooks.append(module.register_forward_hook(keep(places)))
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
