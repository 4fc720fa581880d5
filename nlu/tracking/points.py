"""Read the tables of a run as points for a tracker, which may have lost some or may be new."""

import heapq
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from nlu.runs.records import HISTOGRAMS, SCALARS, TRAIN, VALID, Cell, read_rows
from nlu.runs.tallies import Histogram
from nlu.tracking.tracker import Point

Row = Mapping[str, Cell]
OF_SUMMARY = "summary"
"""the prefix of names from `nlu.runs.summary`"""


def of_train(row: Row) -> Point:
    """Return the point of a row of train.tsv."""
    return _point(row, {f"train/{name}": value for name, value in row.items() if name != "step"})


def of_valid(row: Row) -> Point:
    """Return the point of a row of valid.tsv."""
    return _point(row, {f"{row['set']}/{row['metric']}": row["value"]})


def of_scalars(row: Row) -> Point:
    """Return the point of a row of scalars.tsv."""
    return _point(row, {f"{OF_SUMMARY}/{row['name']}": row["value"]})


def of_histograms(rows: Iterable[Row]) -> Point:
    """Return the point of all rows of a step in histograms.tsv."""
    histograms: dict[str, Histogram] = {}
    step = 0
    for row in rows:
        step, low, count = int(row["step"] or 0), float(row["low"] or 0), int(row["count"] or 0)
        histograms.setdefault(f"{OF_SUMMARY}/{row['name']}", Histogram()).put(low, count)
    return Point(step, histograms=histograms)


def past_points(run_dir: Path, step: int) -> Iterator[Point]:
    """Yield one point for each step up to `step`, in order."""
    tables = {name: _rows(run_dir / name, step) for name in (TRAIN, VALID, SCALARS, HISTOGRAMS)}
    of_step = groupby(tables[HISTOGRAMS], key=lambda row: row["step"])
    kinds: list[Iterable[Point]] = [
        map(of_train, tables[TRAIN]),
        map(of_valid, tables[VALID]),
        map(of_scalars, tables[SCALARS]),
        (of_histograms(rows) for _, rows in of_step),
    ]
    for number, points in groupby(heapq.merge(*kinds, key=attrgetter("step")), key=attrgetter("step")):
        whole = Point(number)
        for point in points:
            whole.add(point)
        yield whole


def _point(row: Row, values: Mapping[str, Cell]) -> Point:
    numbers = {key: float(value) for key, value in values.items() if isinstance(value, int | float)}
    return Point(int(row["step"] or 0), numbers)


def _rows(path: Path, step: int) -> list[dict[str, Cell]]:
    rows = read_rows(path) if path.is_file() else []
    return [row for row in rows if int(row["step"] or 0) <= step]
