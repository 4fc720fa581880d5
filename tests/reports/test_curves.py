"""Runs over each other: means of seeds, names by the keys that differ, one page without other files."""

import re
from pathlib import Path

import numpy as np
import pytest

from nlu.commands.visualize import main
from nlu.config.errors import UserError
from nlu.display.curve_figures import draw, figures_of
from nlu.reports.curves import drawings_of, joined, kept_scores
from nlu.reports.run_table import rows_of
from nlu.reports.runs import find_runs
from nlu.runs.records import read_rows
from tests.training.in_process import train
from tests.training.kinds import TASKS, read

STEPS = ("trainer.max_duration=4st", "trainer.eval_interval=1st", "trainer.log_interval=1st")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two rates with two seeds each."""
    folder = tmp_path_factory.mktemp("runs")
    data = TASKS["classify"].overrides(folder / "rows")
    for rate in ("3e-3", "1e-2"):
        for seed in (1, 2):
            place = f"hydra.run.dir={folder / 'grid' / f'{rate}-{seed}'}"
            train(*(one for one in data if not one.startswith("optimizer.lr")), *STEPS, f"optimizer.lr={rate}",
                  f"seed={seed}", place)  # fmt: skip
    return folder / "grid"


def values(run: Path, metric: str) -> list[float]:
    lines = [line.split("\t") for line in (run / "valid.tsv").read_text().splitlines()[1:]]
    return [float(line[-1]) for line in lines if line[-2] == metric]


def test_a_configuration_is_the_mean_of_its_seeds_with_their_deviation(runs: Path) -> None:
    found, _ = find_runs([runs])
    rows = rows_of(found)[0][0]
    drawing = drawings_of(rows, "steps", ["loss"])[0]
    assert sorted(curve.label for curve in drawing.curves) == ["lr=0.003", "lr=0.01"]
    for curve in drawing.curves:
        rate = {"lr=0.003": "3e-3", "lr=0.01": "1e-2"}[curve.label]
        both = np.array([values(runs / f"{rate}-{seed}", "loss") for seed in (1, 2)])
        assert curve.runs == 2 and curve.x_P.tolist() == [1, 2, 3, 4] and curve.sd_P is not None
        assert curve.mean_P == pytest.approx(both.mean(0)) and curve.sd_P == pytest.approx(both.std(0, ddof=1))
        assert curve.best == (float(both.mean(0).argmin() + 1), pytest.approx(both.mean(0).min()))
    assert drawing.epochs == 2, "13 rows are two steps of 8"


def test_curves_of_other_points_are_joined_where_all_have_gone() -> None:
    curve = joined(
        "a", [(np.array([0.0, 10, 20]), np.array([0.0, 10, 10])), (np.array([5.0, 25]), np.array([1.0, 21]))]
    )
    assert curve is not None and curve.x_P.tolist() == [5, 10, 20]
    assert curve.mean_P == pytest.approx([(5 + 1) / 2, (10 + 6) / 2, (10 + 16) / 2])
    assert joined("none", [(np.zeros(0), np.zeros(0))]) is None
    apart = joined("apart", [(np.array([1.0]), np.array([2.0])), (np.array([3.0]), np.array([4.0]))])
    assert apart is not None and apart.runs == 1


def test_kept_predictions_say_what_is_right_by_length(runs: Path) -> None:
    found = kept_scores(find_runs([runs / "3e-3-1"])[0], "dev")
    assert found is not None
    records = read(runs / "3e-3-1" / "predictions" / "dev.jsonl")[1:]
    assert sum(part[2] for part in found.right_by_length) == len(records)
    right = sum(share * rows for _, share, rows in found.right_by_length)
    assert right == pytest.approx(sum(one["label"] == one["prediction"] for one in records))
    lengths = [length for length, _, _ in found.right_by_length]
    assert lengths == sorted(lengths)
    assert sum(map(sum, found.confusion)) == len(records)


def test_the_command_writes_figures_and_a_page_without_other_files(runs: Path, tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    asked = ["--metric", "loss", "--metric", "dev/accuracy", "--format", "svg"]
    assert main([str(runs), "--out", str(tmp_path / "out"), *asked]) == 0
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"dev_loss.svg", "dev_accuracy.svg", "loss.svg", "lr.svg", "gnorm.svg", "by_class.svg", "by_length.svg",
            "confusion_0.svg", "calibration_1.svg", "index.html"} <= names  # fmt: skip
    page = (tmp_path / "out/index.html").read_text()
    assert page.count("<svg") == len(names) - 1 and "lr=0.003 (mean of 2): " in page
    assert not re.search(r"""(src|href)=["']https?://|<script|<link""", page)
    assert len(re.findall(r'id="[^"]+"', page)) == len(set(re.findall(r'id="[^"]+"', page)))


def test_a_run_that_continues_another_shows_its_past(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = (*TASKS["classify"].overrides(tmp_path / "rows"), *STEPS)
    train(*data, f"hydra.run.dir={tmp_path}/first")
    train(*data, "trainer.max_duration=6st", f"resume={tmp_path}/first", f"hydra.run.dir={tmp_path}/second")
    (row,) = rows_of(find_runs([tmp_path / "second"])[0])[0][0]
    for drawing in drawings_of([row], "steps", []):
        assert drawing.curves[0].x_P.tolist() == [1, 2, 3, 4, 5, 6], drawing.name
    own = figures_of(tmp_path / "second", "accuracy", "dev", True, 13)
    (loss,) = (line for line in own["loss"]().axes[0].lines if line.get_label() == "train")  # type: ignore[union-attr]
    both = [*read_rows(tmp_path / "first/train.tsv"), *read_rows(tmp_path / "second/train.tsv")]
    assert loss.get_ydata().tolist() == [row["loss"] for row in both]  # type: ignore[union-attr]


def test_scores_of_samples_are_marked_beside_those_of_whole_sets(tmp_path: Path) -> None:
    data = (*TASKS["classify"].overrides(tmp_path / "rows"), *STEPS)
    train(*data, f"hydra.run.dir={tmp_path}/whole", "seed=1")
    train(*data, f"hydra.run.dir={tmp_path}/sampled", "seed=1", "trainer.eval_rows=5")
    rows = rows_of(find_runs([tmp_path / "whole", tmp_path / "sampled"])[0])[0][0]
    (legend,) = draw(drawings_of(rows, "steps", [])[0]).legends
    labels = [text.get_text().rpartition(": ")[0] for text in legend.get_texts()]
    assert sorted(labels) == ["eval_rows=5 (of a sample of 5 rows)", "whole"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["RUNS", "--out", "RUNS"], "exists; nothing was written"),
        (["RUNS", "--out", "OUT", "--metric", "acuracy"], "nearest: dev/accuracy"),
        (["RUNS/nothing", "--out", "OUT"], "is not a folder"),
        (["save_dir=RUNS", "--out", "OUT"], "save_dir=RUNS is no run; write RUNS"),
        (["RUNS", "figext=png", "--out", "OUT"], "figext=png is no run; write --format png"),
    ],
)
def test_runs_that_cannot_be_drawn_are_refused_with_the_reason(
    runs: Path, tmp_path: Path, words: list[str], said: str
) -> None:
    given = [word.replace("RUNS", str(runs)).replace("OUT", str(tmp_path / "out")) for word in words]
    with pytest.raises(UserError, match=re.escape(said.replace("RUNS", str(runs)))):
        main(given)
    assert not (tmp_path / "out").exists()
