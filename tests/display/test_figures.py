"""Figures are read back as pixels: they exist, have the promised size and change with what they must show."""

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from nlu.display.figures import _stride, draw_lengths, draw_run
from nlu.display.search import strength_of
from nlu.runs.records import TRAIN_COLUMNS, VALID_COLUMNS, Table


def write_run(folder: Path, points: int, *, accuracy=lambda point: 0.5 + point / 100, clipped=False) -> Path:
    train, valid = Table(folder / "train.tsv", TRAIN_COLUMNS), Table(folder / "valid.tsv", VALID_COLUMNS)
    for point in range(1, points + 1):
        seen = {"step": point, "epoch": point / 10, "examples": point * 32}
        train.append(**seen, loss=1 / point, gnorm=2 / point, clipped=clipped, lr=1e-5 * point)
        for name in ("dev", "test"):
            valid.append(**seen, set=name, metric="accuracy", value=accuracy(point))
            valid.append(**seen, set=name, metric="loss", value=2 / point)
    return folder


def draw(folder: Path, **changes) -> dict[str, np.ndarray]:
    settings = {"major_metric": "accuracy", "major_set": "dev", "higher_is_better": True, "epoch_examples": 320}
    return {path.name: np.asarray(Image.open(path)) for path in draw_run(folder, **(settings | changes))}


def best_columns(picture: np.ndarray) -> np.ndarray:
    """Pixel columns of the dot of the best point: full discs of its colour, wider than its letters are thick."""
    red = (picture[..., :3] == (0xC1, 0x12, 0x1F)).all(axis=-1)
    return np.flatnonzero(red.sum(axis=0) >= 8)


@pytest.mark.parametrize("points", [1, pytest.param(2, marks=pytest.mark.thorough), 300])
def test_a_run_of_any_length_gives_four_figures_of_1000_by_600_pixels(tmp_path, points):
    pictures = draw(write_run(tmp_path / "run", points))
    assert sorted(pictures) == ["gnorm.png", "loss.png", "lr.png", "metric.png"]
    assert {picture.shape[:2] for picture in pictures.values()} == {(600, 1000)}
    assert sorted(path.name for path in (tmp_path / "run" / "plots").iterdir()) == sorted(pictures)


@pytest.mark.parametrize(("higher_is_better", "left"), [(True, False), (False, True)])
def test_the_best_point_is_marked_where_the_metric_is_best(tmp_path, higher_is_better, left):
    pictures = draw(write_run(tmp_path / "run", 20), higher_is_better=higher_is_better)
    columns = best_columns(pictures["metric.png"])
    assert len(columns) and (columns.max() < 300 if left else columns.min() > 700)


def test_a_nan_is_never_best(tmp_path):
    run = write_run(tmp_path / "run", 20, accuracy=lambda point: math.nan if point > 3 else 0.5)
    assert best_columns(draw(run)["metric.png"]).max() < 300


def test_every_set_has_a_curve_in_a_separate_colour(tmp_path):
    pictures = draw(write_run(tmp_path / "run", 5, accuracy=lambda point: 0.5))
    for colour in ((0x00, 0x72, 0xB2), (0xE6, 0x9F, 0x00)):
        assert (pictures["loss.png"][..., :3] == colour).all(axis=-1).any()


def test_a_run_without_evaluations_or_rows_leaves_out_what_it_cannot_show(tmp_path):
    run = write_run(tmp_path / "run", 3)
    (run / "valid.tsv").unlink()
    assert sorted(draw(run)) == ["gnorm.png", "loss.png", "lr.png"]
    (tmp_path / "empty").mkdir()
    assert draw(tmp_path / "empty") == {}


def test_the_share_of_clipped_steps_is_in_the_figure_of_the_gradient_norm(tmp_path):
    never = draw(write_run(tmp_path / "a" / "run", 5))
    always = draw(write_run(tmp_path / "b" / "run", 5, clipped=True))
    assert (never["gnorm.png"] != always["gnorm.png"]).any()
    assert (never["lr.png"] == always["lr.png"]).all()


@pytest.mark.thorough
@pytest.mark.parametrize(("epoch_examples", "changed"), [(320, True), (100_000, False)])
def test_epochs_are_drawn_once_they_are_reached(tmp_path, epoch_examples, changed):
    run = write_run(tmp_path / "run", 30)
    without = draw(run, epoch_examples=0)["lr.png"]
    assert (draw(run, epoch_examples=epoch_examples)["lr.png"] != without).any() == changed


@pytest.mark.parametrize(("epochs", "stride"), [(0, 1), (20, 1), (21, 2), (41, 2), (42, 5), (105, 10), (3000, 200)])
def test_many_epochs_are_thinned_to_about_twenty_lines(epochs, stride):
    assert _stride(epochs, 20) == stride
    assert epochs // stride <= 20


def test_lengths_of_each_split_are_drawn_and_an_empty_split_is_left_out(tmp_path):
    full = {"train": [0, 5, 9, 4, 1], "dev": [0, 1, 2, 2, 0]}
    draw_lengths(tmp_path / "full.png", full, max_len=4)
    draw_lengths(tmp_path / "again" / "full.png", full | {"test": [0, 0, 0]}, max_len=4)
    draw_lengths(tmp_path / "one" / "full.png", {"train": full["train"]}, max_len=4)
    pictures = [(tmp_path / name).read_bytes() for name in ("full.png", "again/full.png", "one/full.png")]
    assert pictures[0] == pictures[1] != pictures[2]
    assert Image.open(tmp_path / "full.png").size == (1000, 600)


@pytest.mark.parametrize(("trials", "strength"), [(5, 0.7), (50, 0.5), (1000, 0.18)])
def test_curves_of_many_trials_are_fainter(trials, strength):
    assert strength_of(SimpleNamespace(trials=[None] * trials)) == strength
