"""Every figure, table and page shows the words and numbers that were approved, in their order.

The other files of this folder compare some of these numbers with numbers computed independently.
"""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from rich.console import Console, Group

from nlu.display import canvas, progress_bars, results, score_figures, survey_page, survey_tables
from nlu.display import curve_figures as of_runs
from nlu.display.curve_figures import Curve, Drawing
from nlu.display.score_figures import KeptScores
from nlu.runs.records import COST_COLUMNS, TRAIN_COLUMNS, VALID_COLUMNS, Table
from nlu.search import figures as search
from nlu.search import trials
from nlu.search.trials import Summary, TrialRow
from tests.approving import assert_approved, page_in_lines
from tests.display.described import described

APPROVED = Path(__file__).parent / "approved"


def run_figures(folder: Path) -> dict[str, Figure | None]:
    """Those of a short run, of a long one, and of one whose names fill a legend."""
    found: dict[str, Figure | None] = {}
    for name, points, sets in (
        ("short", 3, ("dev", "test")),
        ("long", 60, ("dev",)),
        ("wide", 2, ("d" * 30, "t" * 30)),
    ):
        run = folder / name
        columns = (*TRAIN_COLUMNS, *(COST_COLUMNS if name == "long" else ()))
        train, valid = Table(run / "train.tsv", columns), Table(run / "valid.tsv", VALID_COLUMNS)
        for point in range(1, points + 1):
            seen = {"step": point, "epoch": point / 10, "examples": point * 32}
            spike = 900.0 if point == 30 else 2.0 + point % 3
            costs = {
                column: (2 + point % 3) / (1 + place) ** 2 for place, column in enumerate(columns[len(TRAIN_COLUMNS) :])
            }
            train.append(**seen, loss=3 / point - 1, gnorm=spike, clipped=point % 2, lr=1e-5 * point, **costs)
            for place, set_name in enumerate(sets):
                height = 0.5 + (point % 4) / 8 + place / 16
                valid.append(**seen, set=set_name, metric="f1", value=height)
                valid.append(**seen, set=set_name, metric="loss", value=1 - height)
        major = ("loss", sets[0], False) if name == "short" else ("f1", sets[0], True)
        drawn = of_runs.figures_of(run, *major, {"short": 16, "long": 32, "wide": 0}[name])
        wanted = ("metric", "loss") if name == "wide" else drawn
        found |= {f"{name}_{figure}": drawn[figure]() for figure in wanted}
    return found


def a_search(*, maximize: bool) -> Summary:
    params = ["optimizer.lr", "layers", "pooling.kind"]
    values: list[tuple[str, float | None, dict[str, Any]]] = [
        ("complete", 0.5, {"optimizer.lr": 1e-4, "layers": 2, "pooling.kind": "mean"}),
        ("pruned", 0.125, {"optimizer.lr": 1e-2, "layers": 7}),
        ("complete", 0.75, {"optimizer.lr": 1e-3, "layers": 12, "pooling.kind": 3}),
        ("failed", None, {"optimizer.lr": 1e-3, "layers": 3, "pooling.kind": "mean"}),
        ("complete", 0.625, {"optimizer.lr": 2e-3, "layers": 5, "pooling.kind": "the first of all tokens"}),
        ("failed", None, {"optimizer.lr": 3e-3, "layers": 4, "pooling.kind": "mean"}),
        ("running", 0.25, {"optimizer.lr": 3e-3, "layers": 9, "pooling.kind": "mean"}),
        ("waiting", None, {}),
    ]  # fmt: skip
    rows = [
        TrialRow(
            number, state, value, 0.01 * number if number % 2 else None, 1000 * number or None, 59.9 * number or None,
            given, "disk  full" if state == "failed" else "",
        )
        for number, (state, value, given) in enumerate(values)
    ]  # fmt: skip
    return Summary("study", "dev/f1" if maximize else "dev/loss", maximize, rows, params)


def with_goals(summary: Summary) -> Summary:
    """The search with one more objective and a constraint, which trial 2, the best before, breaks."""
    rows = [
        replace(trial, measured={"latency_ms": 9.0 - trial.number}, is_feasible=trial.number != 2)
        for trial in summary.trials
    ]
    return replace(summary, trials=rows, objectives=["latency_ms"], best=[4, 0])


def kept(names: list[str], runs: int, shift: float) -> KeptScores:
    by_label = [
        {"label": name, "examples": 1000 + place, "f1": None if place == 2 else (place + 1) / 8 + shift,
         "sd": 0.02 * place if runs > 1 and place else None}
        for place, name in enumerate(names)
    ]  # fmt: skip
    matrix = [[(3 * line + column) % 7 for column in range(len(names))] for line in range(len(names))]
    bins = [{"probability": 0.55, "right": 0.4, "rows": 5}, {"probability": 0.9, "right": 0.95, "rows": 20}]
    lengths = [(8.5, 0.9, 4), (40.0, 0.7 + shift, 4)]
    return KeptScores("dev", names, by_label, matrix, bins, 0.0625 + shift, lengths, runs)


def comparison_figures(folder: Path) -> dict[str, Figure | None]:
    x_P, names = np.array([8.0, 16, 32]), ["a", "b", "c", "d"]
    curves = [
        Curve("lr=1", x_P, np.array([0.5, 0.875, 0.75]), np.array([0.1, 0.05, 0.02]), 3, (16.0, 0.875)),
        Curve("lr=2", x_P, np.array([0.25, 0.5, 0.625]), best=(32.0, 0.625)),
    ]
    noisy = [Curve("a", np.arange(41.0), np.arange(41.0) ** 2, np.ones(41)), Curve("b", np.arange(40.0), np.ones(40))]
    many = [Curve(f"run {number} of many", x_P, x_P + number) for number in range(12)]
    few = {"lr=1": kept(names, 3, 0.0), "lr=2": kept(names, 1, 0.125)}
    return {
        "curves": of_runs.draw(Drawing("dev_f1", "dev f1", "examples seen", curves, epochs=10.0)),
        "noisy": of_runs.draw(Drawing("loss", "training loss", "steps", noisy, epochs=1.0, is_noisy=True)),
        "noisy_many": of_runs.draw(Drawing("loss", "loss", "steps", [*noisy, *noisy], is_noisy=True)),
        "rates": of_runs.draw(Drawing("lr", "learning rate", "steps", many)),
        "classes": score_figures.draw_by_class(few)["by_class"],
        "classes_left_out": score_figures.draw_by_class(
            {"one": kept([f"class {number}" for number in range(61)], 1, 0.0)}
        )["by_class"],
        "by_length": score_figures.draw_by_length(few),
        "calibration_of": score_figures.draw_calibration_of("lr=1", few["lr=1"]),
        "calibration_of_one": score_figures.draw_calibration_of("lr=2", few["lr=2"]),
        "confusion_of": score_figures.draw_confusion_of("lr=1", few["lr=1"]),
    }  # fmt: skip


def pictures_of_scores(folder: Path) -> dict[str, Figure | None]:
    matrix = np.diag(np.full(21, 90))
    matrix[3, 11], matrix[8, 2], matrix[5, 1] = 30, 4, 10
    names = ["a name that is too long to be shown whole", "twenty-eight letters and end", "c"]
    return {
        "confusion": score_figures.confusion_figure("dev", ["a", "b"], np.array([[1000, 0], [900, 1100]])),
        "confusion_turned": score_figures.confusion_figure("dev", names, np.array([[3, 1, 0], [0, 0, 0], [1, 1, 2]])),
        "confusion_large": score_figures.confusion_figure("test", [f"label {number}" for number in range(21)], matrix),
        "calibration": score_figures.calibration_figure(
            "dev: ECE 0.0625", [{"probability": 0.5, "right": 0.25, "rows": 3}]
        ),
    }


def of_set(rows: int, **changes: Any) -> dict[str, Any]:
    """What a survey found of one set."""
    known = {
        "rows": rows, "bad_rows": 0, "listed_bad_rows": [], "fields_because": "the header says so", "duplicates": 0,
        "conflicts": 0, "characters": [10, 25, 1234], "lengths": [4, 9, 40], "language": "English", "unknown": None,
        "labels": {"good": 6, "bad": 3, "odd & even": 1}, "numbers": None,
        "shown_duplicates": [], "shown_conflicts": [], "length_histogram": {"width": 2, "counts": [1, 5, 2]},
        "cut": [{"max_len": 16, "rows": 0.875, "tokens": 0.5}, {"max_len": 32, "rows": 0.25, "tokens": 0.125}],
    }  # fmt: skip
    return known | changes


def text_shown(text: str, rows: int, *labels: str) -> dict[str, Any]:
    return {"text": text, "rows": rows, "places": [{"row": 3 + place, "label": label}
                                                   for place, label in enumerate(labels)]}  # fmt: skip


def a_survey() -> dict[str, Any]:
    unknown = {"tokens": 5, "rows": 2}
    train = of_set(
        1200, bad_rows=2, listed_bad_rows=["row 7: no <label>"], duplicates=3, conflicts=1, unknown=unknown,
        shown_duplicates=[text_shown(f"text {number}", 5, "good", "good") for number in range(4)],
        shown_conflicts=[text_shown("t" * 61 + " & more" * 60, 2, "good", "(none)"), text_shown("b", 2, "bad", "odd")],
    )  # fmt: skip
    dev = of_set(
        40, labels={"bad": 1, "new": 3},
        length_histogram={"width": 1, "counts": [0, 2, 1, 1]},
        cut=[{"max_len": 16, "rows": 0.5, "tokens": 0.25}],
    )  # fmt: skip
    overlap = {"first": "train", "second": "dev", "rows_of_first": 1234, "rows_of_second": 5,
               "texts_with_other_labels": 2,
               "examples": [text_shown(f"both {one}", 2, "bad") for one in range(4)]}  # fmt: skip
    return {
        "sets": {"train": train, "dev": dev}, "train": "train", "unit": "tokens", "max_len": 16,
        "suggested_max_len": 32,
        "tokenizer": "bert#3", "overlap": [overlap], "remarks": ["<look>, [b]boldly[/b] :smile:"],
        "command": "python -m nlu.train 'a&b'",
    }  # fmt: skip


def a_bare_survey() -> dict[str, Any]:
    numbers = {"least": 1.0, "median": 2.5, "greatest": 123.4567891}
    one = of_set(8, labels=None, numbers=numbers)
    return {**a_survey(), "sets": {"all": one}, "train": "all", "tokenizer": None, "unit": "words", "max_len": 32,
            "overlap": [], "remarks": []}  # fmt: skip


def survey_figures(folder: Path) -> dict[str, Figure | None]:
    four = {name: of_set(8, labels={f"{'l' * 32}{one}": 1 for one in range(3)}) for name in "abcd"}
    records = {"two": a_survey(), "four": {**a_survey(), "sets": four}, "bare": a_bare_survey()}
    with canvas.styled():
        return {f"{name}_lengths": survey_page.lengths_figure(record) for name, record in records.items()}


def length_figures(folder: Path) -> dict[str, Figure | None]:
    counts = np.zeros(2001, int)
    counts[[3, 4, 190, 2000]] = (1, 2, 5, 1000)
    few = {"train": [0, 1, 6, 2, 1, 0, 10], "none": [0, 0], "dev": [0, 0, 3, 1]}
    return {
        "lengths": of_runs.lengths_figure("run", few, 4),
        "lengths_long": of_runs.lengths_figure("run", {"train": counts.tolist()}, 1280),
    }  # fmt: skip


DRAWN: dict[str, Callable[[Path], dict[str, Figure | None]]] = {
    "run": run_figures, "comparison": comparison_figures, "scores": pictures_of_scores,
    "survey": survey_figures, "lengths": length_figures,
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWN)
def test_figures_show_what_was_approved(name: str, tmp_path: Path) -> None:
    found = DRAWN[name](tmp_path)
    words = [f"{figure}\n{'nothing' if one is None else described(one)}" for figure, one in found.items()]
    assert_approved(APPROVED / f"{name}_figures.txt", "\n".join(words))


def a_result() -> dict[str, Any]:
    metrics = {"dev": {"f1": 0.5, "mcc": 0.25, "loss": 1234.5, "perplexity": -1000.0, "auc": None, "ece": 0.1, "b": 1.0,
                       "c": 2.0}, "test": {"f1": 0.75}}  # fmt: skip
    best = {"set": "dev", "metric": "mcc", "value": 0.25, "step": 1200, "examples": 38400, "epoch": 2.438, "sd": 0.125,
            "checkpoint": "checkpoints/best-1"}  # fmt: skip
    return {
        "metrics": metrics, "best": best, "steps": 1500, "examples": 48000, "examples_per_s": 912.3, "wall_s": 3700.2,
        "real_tokens_per_s": 31234.2, "train_s": 100.0, "sd": {"dev": {"mcc": 0.125}, "test": {}},
        "parts": [
            {"name": "fold-0", "pruned": False, "step": 1200, "metrics": {"dev": {"mcc": 0.5, "f1": 0.25}}},
            {"name": "fold-1", "pruned": True, "step": 900, "metrics": {"dev": {"mcc": 0.0}}},
        ],
        "out_of_fold": {"1": {"mcc": 0.3}, "2": {"mcc": 0.4, "f1": 0.5}},
    }  # fmt: skip


def print_results(folder: Path) -> None:
    result = a_result()
    results.print_result(result, folder, [folder / "plots/loss.png"])
    results.print_result({"metrics": {}, "best": None, "steps": 3, "wall_s": 59.6, "train_s": None}, folder, [])
    (folder / "predictions").mkdir()
    for name in ("dev.json", "a.jsonl", "b.txt"):
        (folder / "predictions" / name).touch()
    results.print_parts(result, folder)
    results.print_parts({**result, "out_of_fold": {"1": {"mcc": 0.3}}, "best": {**result["best"], "sd": None}}, folder)
    results.print_parts({**result, "out_of_fold": None}, folder)


def print_scores(folder: Path) -> None:
    names = ["a", "b", "c"]
    by_label = [{"label": name, "examples": 1000 + place, "f1": 0.5, "auc": None} for place, name in enumerate(names)]
    one = SimpleNamespace(rows=1, metrics={"f1": 0.5, "n": 1000.0, "x": 3.0}, by_label=by_label, names=names,
                          intervals={"f1": [0.25, 0.75], "n": None}, confusion=[[5, 1, 2000], [3, 4, 6], [7, 8, 9]],
                          calibration=None)  # fmt: skip
    plain = SimpleNamespace(**{**vars(one), "by_label": [], "intervals": {}, "confusion": [[1]], "names": ["a"]})
    for path in ("predictions/dev.jsonl", "plots/b.png", "plots/a.png"):
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).touch()
    score_figures.print_scores({"dev": one, "test": plain}, str(folder))  # type: ignore[dict-item]
    score_figures.print_scores({"dev": plain}, None)  # type: ignore[dict-item]


def print_search(folder: Path) -> None:
    whole = a_search(maximize=True)
    trials.print_trials(whole)
    long = [replace(whole.trials[0], number=number, value=number / 32, sd=None) for number in range(31)]
    trials.print_trials(replace(whole, trials=long, params=[]))
    failed = [replace(whole.trials[3], number=number, error="out of memory" * (number > 0)) for number in range(10)]
    trials.print_trials(replace(whole, trials=failed, params=[]))
    goals = with_goals(whole)
    trials.print_trials(replace(goals, params=[]))
    trials.write_trials(folder / "search.tsv", goals)
    print((folder / "search.tsv").read_text())


def print_surveys(folder: Path) -> None:
    survey_tables.print_survey(a_survey())
    survey_tables.print_survey(a_bare_survey())
    many = of_set(99, labels={f"label {number}": 100 - number for number in range(31)})
    survey_tables.print_survey({**a_bare_survey(), "sets": {"all": many}})


def print_progress(folder: Path) -> None:
    """Bars on terminals of several widths, 90 s after they began."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(progress_bars.time, "monotonic", lambda: 1000.0)
        shown = progress_bars.Progress(enabled=False)
        shown.start(2000, 500)
        training = shown._training
        assert training is not None
        bars = [shown.task("scoring dev", 64), shown.task("reading"), training]
        patched.setattr(progress_bars.time, "monotonic", lambda: 1090.0)
        bars[0].advance(16)
        bars[1].advance(1234)
        for number in range(3):
            shown.advance(800 + number, loss=2.0 - number, examples_per_s=1234.5)
        shown.metric("dev f1", 0.87654)
        for width in (200, 100, 80, 60, 40, 20):
            console = Console(width=width, color_system=None, legacy_windows=False)
            with console.capture() as capture:
                console.print(Group(*(progress_bars._render_bar(bar, width) for bar in bars)))
            print(capture.get())
    print([progress_bars.format_time(duration_s) for duration_s in (0, 59.9, 60, 3599.9, 3600, 90061)])


PRINTED: dict[str, Callable[[Path], None]] = {
    "results": print_results, "scores": print_scores, "search": print_search, "surveys": print_surveys,
    "progress": print_progress,
}  # fmt: skip


@pytest.mark.parametrize("name", PRINTED)
def test_tables_print_what_was_approved(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    PRINTED[name](tmp_path)
    assert_approved(APPROVED / f"{name}_printed.txt", capsys.readouterr().out)


def test_pages_show_what_was_approved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (search, survey_page, score_figures):
        monkeypatch.setattr(module, "svg_of", lambda name, figure: f"<svg>{name}</svg>")
    whole, none = a_search(maximize=True), a_search(maximize=True)
    none.trials[:] = [replace(none.trials[3], params={"a": math.nan, "pooling.kind": 3})]
    figure = canvas.new_figure()[0]
    search.write_search_page(tmp_path / "search.html", whole, dict.fromkeys(search.TITLES, figure), "train a&b")
    search.write_search_page(tmp_path / "no search.html", none, {}, None)
    survey_page.write_survey_page(tmp_path / "survey.html", "files of <mine>", a_survey())
    survey_page.write_survey_page(tmp_path / "bare survey.html", "files", a_bare_survey())
    header, lines = [("run", False), ("f1", True), ("text", False)], [["a", "0.5", "t" * 30], ["b<", "0.25", ""]]
    score_figures.write_comparison(
        tmp_path / "comparison.html", "two & more", header, lines, {"f1": canvas.new_figure()[0]}
    )  # fmt: skip
    pages = [f"{path.name}\n{page_in_lines(path)}" for path in sorted(tmp_path.glob("*.html"))]
    assert_approved(APPROVED / "pages.txt", "\n".join(pages))


def test_the_svg_of_a_figure_holds_its_data_and_unique_names(tmp_path: Path) -> None:
    found = {name: canvas.new_figure()[0] for name in ("one", "two")}
    for each in found.values():
        each.axes[0].plot([1, 2], [0.5, 0.25])
    svg = canvas.svg_of("one", found["one"])
    assert "<g id=" not in svg and svg.startswith('<svg viewBox="0 0 720 432" role="img"') and svg.endswith("</svg>")
    clips = [set(re.findall(r'clipPath id="(\w+)"', canvas.svg_of(name, found[name]))) for name in found]
    assert all(clips) and not set.intersection(*clips)
    kept_files = score_figures.write_figures(tmp_path, {"one": found["one"]}, ("svg", "pdf"))
    assert [path.name for path in kept_files] == ["one.svg", "one.pdf"] and kept_files[1].read_bytes()[:4] == b"%PDF"
