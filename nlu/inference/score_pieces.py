"""The records of scored sets, computed by several jobs in pieces, as JSON."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nlu.data.examples import Examples
from nlu.inference.claimed import Team, claimed
from nlu.storage.outputs import require_free
from nlu.training.evaluation import Computed, Evaluator, computed

CHUNK_ROWS = 4096
"""examples of a piece"""
Read = Callable[[str], Iterator[Computed]]
"""returns the records of a set"""
ARRAY = "array of"
"""the key of an array in the JSON of records"""


def records_text(found: Iterable[Computed]) -> bytes:
    """Return records as JSON, a line for each batch, from which `read_records` makes the same ones."""

    def of_array(values: np.ndarray) -> dict[str, object]:
        return {ARRAY: str(values.dtype), "values": values.tolist()}

    lines = (json.dumps([examples_B.tolist(), records], default=of_array) for examples_B, records in found)
    return "".join(f"{line}\n" for line in lines).encode()


def read_records(path: Path) -> Iterator[Computed]:
    """Yield what `records_text` was given."""

    def of_object(found: dict[str, Any]) -> object:
        return np.array(found["values"], found[ARRAY]) if ARRAY in found else found

    with open(path, encoding="utf-8") as lines:
        for line in lines:
            examples, records = json.loads(line, object_hook=of_object)
            yield np.array(examples, np.int64), records


def score_in_pieces(
    evaluator: Evaluator,
    sets: Mapping[str, Examples],
    out: str,
    plan: Mapping[str, object],
    team: Team,
    write: Callable[[Read], object],
) -> None:
    """Compute the records of all sets together with other jobs, and have one of them `write` the folder `out`."""
    pieces = {
        f"{place}-{start:09d}": (name, np.arange(start, min(start + CHUNK_ROWS, len(part))))
        for place, (name, part) in enumerate(sets.items())
        for start in range(0, len(part), CHUNK_ROWS)
    }

    def compute(piece: str) -> bytes:
        name, examples_N = pieces[piece]
        return records_text(computed(evaluator, sets[name], examples_N))

    def make(paths: Sequence[Path]) -> None:
        by_piece = dict(zip(pieces, paths, strict=True))

        def read(set_name: str) -> Iterator[Computed]:
            for piece, (name, _) in pieces.items():
                if name == set_name:
                    yield from read_records(by_piece[piece])

        write(read)

    with claimed(out, plan, team, partial(require_free, out, "out"), "out") as shared:
        shared.run(list(pieces), compute)
        shared.finish(list(pieces), make)
