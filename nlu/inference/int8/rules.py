"""Which commands can use int8, without importing torch."""

from collections.abc import Iterator, Mapping
from typing import Any


def int8_problems(config: Mapping[str, Any], task: Mapping[str, Any]) -> Iterator[str]:
    """Yield why the command cannot use int8: of those with the keys of a run, only nlu.evaluate predicts."""
    name = "int8_compiled" if config["precision"].get("compiled") else "int8"
    if "compare" not in config:
        yield (
            f"precision is {name}, which only predicts: rounded weights have no gradient; train with precision=fp32 or "
            f"bf16, then set precision={name} in nlu.predict, nlu.evaluate or nlu.serve"
        )
    elif config["trainer"]["device"] == "cuda":
        yield f"precision is {name}, which computes on a CPU, but trainer.device is cuda; set one of them otherwise"
