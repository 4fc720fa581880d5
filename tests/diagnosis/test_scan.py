"""python -m nlu.scan: curves whose best rate is known, and runs whose losses are known."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nlu.commands import scan
from nlu.config.errors import EXIT_USER_ERROR
from nlu.diagnosis.range_test import analyzed, rates, smoothed
from nlu.runs.records import read_rows
from tests.training.in_process import TINY, column, of_composed, sets, train
from tests.training.mixtures import CLASSES, NUMBERS, mixture


def run_scan(*overrides: str, status: int = 0) -> None:
    of_composed(scan.main, "scan", *TINY, *overrides, status=status)


def curve(falls_at: float, rises_at: float, *, height: float = 1.0, steps: int = 100, noise: float = 0.0) -> Any:
    """Rates, and losses that fall fastest at one rate and explode around another one."""
    lr_N = rates(1e-7, 1e-2, steps)
    x_N = np.log(lr_N)
    loss_N = 2 - height / (1 + np.exp(-(x_N - np.log(falls_at)))) + np.exp(3 * (x_N - np.log(rises_at)))
    return lr_N, loss_N + np.random.default_rng(1).normal(0, noise or 1e-9, steps)


def test_rates_rise_by_the_same_factor_from_the_first_to_the_last() -> None:
    lr_N = rates(1e-7, 1e-2, 100)
    assert lr_N == pytest.approx(np.geomspace(1e-7, 1e-2, 100))


def test_smoothing_weighs_neighbors_by_their_distance_and_shifts_no_step() -> None:
    draws_N = np.random.default_rng(0).normal(size=30)
    mean_N, factor_N = smoothed(draws_N, 0.8)
    for at in (0, 7, 29):
        weights = np.array([0.8 ** abs(other - at) for other in range(30)])
        assert mean_N[at] == pytest.approx(np.average(draws_N, weights=weights))
        assert factor_N[at] ** 2 == pytest.approx((weights**2).sum() / weights.sum() ** 2)
    straight_N = np.arange(200.0)
    assert smoothed(straight_N, 0.9)[0][70:130] == pytest.approx(straight_N[70:130], abs=0.05)
    assert smoothed(straight_N, 0.0)[0] == pytest.approx(straight_N)


@pytest.mark.parametrize("decay", [0.0, 0.9])
def test_the_recommended_rate_is_a_tenth_of_that_with_the_lowest_loss(decay: float) -> None:
    lr_N, loss_N = curve(1e-3, 2e-3)
    # On a finer grid of the same curve: 2 - 1 / (1 + e^-(x - a)) + e^(3 (x - b)).
    x_N = np.linspace(np.log(1e-7), np.log(1e-2), 200_001)
    fine_N = 2 - 1 / (1 + np.exp(-(x_N - np.log(1e-3)))) + np.exp(3 * (x_N - np.log(2e-3)))
    lowest = float(np.exp(x_N[fine_N.argmin()]))
    found = analyzed(lr_N, loss_N, decay, 100, False)
    assert found.recommended == float(f"{found.lr_N[found.lowest] / 10:.1e}")
    if not decay:
        assert found.recommended == pytest.approx(lowest / 10, rel=0.12)
    # Smoothed, the explosion counts a little earlier, never later.
    assert lowest / 20 < (found.recommended or 0) < 1.2 * lowest / 10


def test_an_explosion_of_any_size_does_not_change_the_recommended_rate() -> None:
    lr_N, loss_N = curve(3e-5, 1e-3)
    end = int((loss_N > 6).argmax())
    lower, higher = (np.append(loss_N[:end], last) for last in (10.0, 1e30))
    first, second = (analyzed(lr_N[: end + 1], one, 0.9, 100, True) for one in (lower, higher))
    assert first.recommended is not None and first.recommended == second.recommended
    assert first.to_json()["diverged_lr"] == lr_N[end]


def test_losses_that_fall_by_chance_recommend_no_rate() -> None:
    lr_N = rates(1e-7, 1e-2, 100)
    draws = [np.random.default_rng(seed).normal(0.7, 0.1, 100) for seed in range(100)]
    found = [analyzed(lr_N, loss_N, 0.9, 100, False).recommended for loss_N in draws]
    assert found.count(None) >= 99
    assert analyzed(*curve(3e-5, 1e-1, height=0.5, noise=0.1), 0.9, 100, False).recommended is not None


@pytest.mark.parametrize(
    "overrides",
    [("optimizer.layer_lr_decay=0.5", "optimizer.top_lr_ratio=3"), ("optimizer.lr_by_name={head.*: 1e-2}",)],
)
def test_a_step_of_a_range_test_is_that_of_a_run_at_its_rate(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    data = sets(tmp_path)
    train(*TINY, *data, *overrides, "trainer.max_duration=12st", "trainer.ema_decay=0", f"hydra.run.dir={tmp_path}/run")
    # The configuration has another rate, which must not matter.
    run_scan(
        *data, *overrides, "of=lr", "steps=12", "smoothing=0", "min_lr=3e-3", "max_lr=3.0000001e-3",
        "optimizer.lr=7e-5", "scheduler=one_cycle", f"out={tmp_path}/scanned", status=1,
    )  # fmt: skip
    rows = list(read_rows(tmp_path / "scanned/lr.tsv"))
    assert [row["loss"] for row in rows] == pytest.approx(column(tmp_path / "run", "loss"), rel=1e-5)
    assert [row["step"] for row in rows] == list(range(1, 13))


def test_a_scan_recommends_a_rate_and_ends_where_the_loss_diverges(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_scan(
        *sets(tmp_path, train_rows=400), "of=lr", "steps=60", "min_lr=1e-5", "max_lr=1e3", "trainer.clip_norm=0",
        f"out={tmp_path}/scanned",
    )  # fmt: skip
    printed = capsys.readouterr().out
    kept = json.loads((tmp_path / "scanned/scan.json").read_text())
    rows = list(read_rows(tmp_path / "scanned/lr.tsv"))
    assert f"recommended: optimizer.lr={kept['recommended']:.1e}\n" in printed
    assert len(rows) < 60 and kept["diverged_lr"] == rows[-1]["lr"]
    # The words of these rows tell the label, which takes a rate of about 1e-2.
    assert 1e-4 < kept["recommended"] < 1e-1 and kept["recommended"] == pytest.approx(kept["lowest_lr"] / 10, rel=0.05)
    assert kept["loss_at_start"] == pytest.approx(np.mean([row["loss"] for row in rows[:6]]))
    assert {path.name for path in (tmp_path / "scanned").iterdir()} == {"lr.tsv", "lr.png", "scan.json"}


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("of=lr", "min_lr=1e-2"), "min_lr is 0.01, but must be below max_lr, 0.01"),
        (("of=lr", "steps=9"), "steps is 9, but a curve needs a loss at 10 rates"),
        (("of=lr", "max_batch_size=8"), "max_batch_size: unknown key; leave it out: trainer.batch_size=auto finds"),
        (("of=batch_size",), "write trainer.batch_size=auto"),
        (("of=lr", "trainer.devices=2"), "trainer.devices is 2, but one process scans"),
        (("of=lr", "resume=outputs/mine"), "a scan starts from the initial weights"),
        (
            ("of=lr", "optimizer.lr_by_name={backbone.*: 1e-3, head.*: 1e-3}"),
            "the rates of all parameters are set elsewhere",
        ),
        (("of=rate",), 'of is "rate" but must be lr'),
        ((), "of is not set; set it to lr"),
    ],
)
def test_a_scan_that_makes_no_sense_is_refused(
    tmp_path: Path, overrides: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run_scan(*sets(tmp_path), *overrides, status=EXIT_USER_ERROR)
    error = capsys.readouterr().err
    assert said in error and "Traceback" not in error


def test_the_rates_of_a_mixture_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = mixture(tmp_path, {"texts": CLASSES, "numbers": NUMBERS})
    of_composed(scan.main, "scan", *both, "of=lr", status=EXIT_USER_ERROR)
    assert "the data are a mixture" in capsys.readouterr().err
