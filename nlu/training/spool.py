"""Records of examples on disk, written in any order and read in theirs, so that scoring keeps none in memory."""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nlu.training.ranks import Ranks

CHUNK_RECORDS = 2048


class Spool:
    """The records of one set on one rank, in a file without a name, which goes with the process. N examples."""

    def __init__(self, examples: int, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self._file = tempfile.TemporaryFile(dir=folder)
        self._offset_N = np.full(examples, -1, np.int64)
        self._end = 0

    def add(self, example: int, record: Mapping[str, Any]) -> None:
        """Keep an example's record; arrays in it are not kept."""
        assert self._offset_N[example] < 0, "an example was scored twice"
        kept = {name: value for name, value in record.items() if not isinstance(value, np.ndarray)}
        line = json.dumps(kept, ensure_ascii=False).encode() + b"\n"
        self._offset_N[example] = self._end
        self._file.write(line)
        self._end += len(line)

    def __len__(self) -> int:
        return int((self._offset_N >= 0).sum())

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield examples and their records, in the order of examples."""
        for example in np.flatnonzero(self._offset_N >= 0).tolist():
            self._file.seek(int(self._offset_N[example]))
            yield example, json.loads(self._file.readline())

    def gather(self, ranks: Ranks) -> None:
        """Bring the other ranks' records to rank 0, in pieces."""
        if ranks.world_size == 1:
            return
        own = iter(self) if not ranks.is_first else iter(())
        while True:
            piece = [entry for _, entry in zip(range(CHUNK_RECORDS), own, strict=False)]
            if not sum(ranks.sum_on_host([float(len(piece))])):
                return
            for received in (ranks.gather_to_first(piece) or [])[1:]:
                self._file.seek(0, os.SEEK_END)
                for example, record in received:
                    self.add(example, record)

    def close(self) -> None:
        self._file.close()
