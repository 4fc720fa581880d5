"""python -m nlu.evaluate: the scores that the run recorded, to the bit, and what else is to be known of them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nlu.data.examples import sample
from nlu.data.prepare import prepare_scoring
from nlu.data.targets import Classes
from nlu.inference.score_run import differs
from tests.inference.runs import evaluate, kept, trained
from tests.training.kinds import TASKS, read, write


@pytest.fixture(scope="module")
def run(run_of: Callable[[str], Path]) -> Path:
    return run_of("classify")


def result(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "result.json").read_text())  # type: ignore[no-any-return]


def test_another_score_is_reported_with_what_names_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(TASKS["classify"], tmp_path)
    rows = read(tmp_path / "dev.jsonl")
    write(tmp_path / "dev.jsonl", rows[:-4])
    evaluate(f"run={run}", "compare=true", "resamples=0", f"out={tmp_path}/out", status=1)
    said = capsys.readouterr().err
    assert "dev accuracy: " in said and f"python -m nlu.doctor {run} names what has changed since" in said
    assert result(tmp_path / "out")["compare"]["equal"] is False


def test_a_score_that_is_no_number_equals_one_that_is_none() -> None:
    nan = float("nan")
    compared = [(nan, nan), (0.5, 0.5), (None, 0.5), (nan, 0.5), (0.5, nan), (0.5, 0.25)]
    assert [differs(*pair) for pair in compared] == [False, False, False, True, True, True]


def test_intervals_are_those_of_rows_drawn_again(run: Path, tmp_path: Path) -> None:
    write(tmp_path / "new.jsonl", read(run.parent / "dev.jsonl") * 8)
    evaluate(f"run={run}", f"data.test={tmp_path}/new.jsonl", f"out={tmp_path}/a", "resamples=250")
    evaluate(f"run={run}", f"data.test={tmp_path}/new.jsonl", f"out={tmp_path}/b", "resamples=250", "seed=1")
    low, high = result(tmp_path / "a")["interval"]["test"]["accuracy"]
    assert result(tmp_path / "a")["interval"] == result(tmp_path / "b")["interval"], "the seed decides"
    right_N = np.array([one["label"] == one["prediction"] for one in read(tmp_path / "a/predictions/test.jsonl")[1:]])
    rng = np.random.default_rng(7)
    means = [right_N[rng.integers(len(right_N), size=len(right_N))].mean() for _ in range(4000)]
    assert (low, high) == pytest.approx(np.quantile(means, [0.025, 0.975]).tolist(), abs=0.02)


def test_groups_are_drawn_whole(run: Path, tmp_path: Path) -> None:
    rows = read(run.parent / "dev.jsonl")
    # Every row eight times under its own number: eight times as many rows tell nothing more.
    write(tmp_path / "new.jsonl", [{**row, "q": f"q{place}"} for place, row in enumerate(rows) for _ in range(8)])
    order = (f"run={run}", f"data.test={tmp_path}/new.jsonl", "resamples=300")
    evaluate(*order, f"out={tmp_path}/rows")
    evaluate(*order, f"out={tmp_path}/groups", "group_by=q")
    apart, together = (result(tmp_path / name)["interval"]["test"]["accuracy"] for name in ("rows", "groups"))
    assert (together[1] - together[0]) == pytest.approx(8**0.5 * (apart[1] - apart[0]), rel=0.35)


def test_a_sample_has_the_same_share_of_each_label(tmp_path: Path) -> None:
    from nlu.data.dataset import Files
    from nlu.data.layouts import LAYOUTS
    from nlu.data.tokenizing import SPECIALS, wordpiece

    write(tmp_path / "new.jsonl", [{"text": f"a {n}", "label": "abc"[(n % 10 > 5) + (n % 10 > 8)]} for n in range(500)])
    files = Files(train="none", test=f"{tmp_path}/new.jsonl", fields={"text": "text", "label": "label"}, max_len=16)
    target = Classes.from_meta({"names": ["a", "b", "c"], "remap": None})
    tokenizer = wordpiece([*SPECIALS, "a"], True, "a test")
    part = prepare_scoring(files, ["test"], target, LAYOUTS["single"].name, tokenizer).sets["test"]
    drawn = sample(part, 50, seed=1)
    assert np.bincount(target.numbers(drawn.stored, drawn.rows_N)).tolist() == [30, 15, 5]
    assert (np.diff(drawn.rows_N) > 0).all() and not np.array_equal(drawn.rows_N, sample(part, 50, seed=2).rows_N)
    assert len(sample(part, 10_000, seed=1)) == 500


@pytest.mark.parametrize(
    ("orders", "words"),
    [
        (["optimizer.lr=1"], ["optimizer.lr: a run is scored as it was trained"]),
        (["data.test=IN", "out=DIR"], ["exists; nothing was written"]),
        (["data.test=IN", "compare=true"], ["leave out data"]),
        (["group_by=q"], ["group_by is set, but the rows to score are not"]),
        (
            ["data.test=NEW"],
            [
                "field label: 'new' is not one of the labels ['bad', 'good'] that the run was trained for; "
                "fix these rows, or set data.on_bad_row=skip to leave such rows out and count them\n"
            ],
        ),
        (["data.test=IN", "group_by=queries"], ["queries"]),
        (["data.test=DIR/absent.jsonl"], ["absent.jsonl"]),
        (["data.test=IN", "data.fields={text: nope, label: label}"], ["lacks this field"]),
        (["data.test=IN", "data.quote="], ["data.quote is '', but the files are jsonl, and it applies to csv, tsv"]),
        (["checkpoint=best-9"], ["lacks a checkpoint best-9"]),
        (["data.test=null"], ["nothing would be scored"]),
        (["data.test=IN", "group_by=queries", "out=DIR/out"], ["group_by"]),
    ],
)
def test_data_that_cannot_be_scored_are_refused_with_the_reason(
    run: Path, tmp_path: Path, capsys: Any, orders: list[str], words: list[str]
) -> None:
    write(tmp_path / "in.jsonl", read(run.parent / "dev.jsonl"))
    write(tmp_path / "new.jsonl", [{"text": "a", "label": "new"}])
    names = {"IN": tmp_path / "in.jsonl", "NEW": tmp_path / "new.jsonl", "DIR": tmp_path}
    for word, path in names.items():
        orders = [order.replace(word, str(path)) for order in orders]
    evaluate(f"run={run}", *orders, status=2)
    refusal = capsys.readouterr().err
    assert all(word in refusal for word in words) and "Traceback" not in refusal, refusal
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "new.jsonl"]


def test_intervals_of_retrieval_are_those_of_queries_drawn_again(tmp_path: Path) -> None:
    run = trained(TASKS["retrieve"], tmp_path)
    evaluate(f"run={run}", f"out={tmp_path}/out", "resamples=400")
    low, high = result(tmp_path / "out")["interval"]["dev"]["recall_5"]
    mean = result(tmp_path / "out")["metrics"]["dev"]["recall_5"]
    queries = len({record["text_a"] for record in kept(run) if record["label"] in (1, "relevant", True)})
    # What the normal distribution says of a mean of so many values between 0 and 1, roughly.
    most = 2 * 1.96 * np.sqrt(mean * (1 - mean) / queries)
    assert low <= mean <= high and 0.4 * most < high - low < 1.3 * most
