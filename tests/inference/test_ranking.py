"""A reranker in use: scores of pairs, lists of candidates in files, and the same of a program."""

import csv
import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import nlu
from nlu.config.errors import DataError, UserError
from tests.inference.runs import evaluate, export, kept, predict, trained
from tests.training.in_process import train
from tests.training.kinds import KINDS, read, write


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(KINDS["rerank"], tmp_path_factory.mktemp("reranker"))


@pytest.fixture(scope="module")
def queries(run: Path) -> dict[str, dict[str, float]]:
    """The score of each candidate of each query of the dev set, as the run kept it."""
    found: dict[str, dict[str, float]] = {}
    for record in kept(run):
        found.setdefault(record["text_a"], {})[record["text_b"]] = record["score"]
    return found


def ranked(scores: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(scores.items(), key=lambda pair: -pair[1])


def test_a_program_ranks_candidates_by_the_scores_of_the_run(run: Path, queries: dict[str, dict[str, float]]) -> None:
    loaded = nlu.load(run)
    for query, scores in queries.items():
        assert loaded.rank(query, list(scores)) == ranked(scores)
    rows = [{name: one[name] for name in ("text_a", "text_b", "label")} for one in kept(run)]
    assert loaded.evaluate(rows) == json.loads((run / "result.json").read_text())["metrics"]["dev"]


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_a_file_of_candidates_gets_their_order_and_scores(
    run: Path, queries: dict[str, dict[str, float]], tmp_path: Path, suffix: str
) -> None:
    with open(tmp_path / "in.csv", "w", newline="") as file:
        csv.writer(file).writerows(
            [["text_a", "candidates"], *([query, json.dumps([*scores])] for query, scores in queries.items())]
        )
    write(tmp_path / "in.jsonl", [{"text_a": query, "candidates": [*scores]} for query, scores in queries.items()])
    source = "jsonl" if suffix == "jsonl" else "csv"
    predict(f"run={run}", f"input={tmp_path}/in.{source}", f"output={tmp_path}/out.{suffix}")
    if suffix == "parquet":
        rows = pq.read_table(tmp_path / "out.parquet").to_pylist()
    elif suffix == "jsonl":
        rows = read(tmp_path / "out.jsonl")
    else:
        with open(tmp_path / "out.csv", newline="") as file:
            rows = [
                {**row, "ranking": json.loads(row["ranking"]), "scores": json.loads(row["scores"])}
                for row in csv.DictReader(file)
            ]
    for row, scores in zip(rows, queries.values(), strict=True):
        assert list(zip(row["ranking"], row["scores"], strict=True)) == ranked(scores)


def test_pairs_of_a_file_get_a_score_from_which_another_run_learns(run: Path, tmp_path: Path) -> None:
    rows = [{name: one[name] for name in ("text_a", "text_b")} for one in kept(run)]
    write(tmp_path / "pairs.jsonl", rows)
    predict(f"run={run}", f"input={tmp_path}/pairs.jsonl", f"output={tmp_path}/scored.jsonl")
    assert [row["score"] for row in read(tmp_path / "scored.jsonl")] == [one["score"] for one in kept(run)]
    write(tmp_path / "dev.jsonl", [{**row, "score": one["label"]} for row, one in zip(rows, kept(run), strict=True)])
    # Another reranker stands for any model that learns from these scores.
    train(
        "data=files", f"data.train={tmp_path}/scored.jsonl", f"data.dev={tmp_path}/dev.jsonl",
        "data.fields={text_a: text_a, text_b: text_b, label: score}", "task=rerank", "loss=margin_mse",
        *KINDS["rerank"].model, "trainer.device=cpu", "trainer.max_duration=2st", f"hydra.run.dir={tmp_path}/student",
    )  # fmt: skip
    assert (tmp_path / "student/result.json").is_file()


@pytest.mark.parametrize(
    ("candidates", "said"),
    [
        ("b", "field candidates: 'b' is not a list of texts"),
        (["a", ""], "field candidates: .* holds '', which is empty"),
    ],
)
def test_candidates_that_cannot_be_ranked_are_bad_rows(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], candidates: object, said: str
) -> None:
    write(tmp_path / "in.jsonl", [{"text_a": "a", "candidates": ["b"]}, {"text_a": "a", "candidates": candidates}])
    predict(f"run={run}", f"input={tmp_path}/in.jsonl", f"output={tmp_path}/out.jsonl", status=2)
    assert re.search(rf"in.jsonl:2: {said}", capsys.readouterr().err)


def test_evaluate_resamples_queries_with_all_of_their_rows(run: Path, tmp_path: Path) -> None:
    evaluate(f"run={run}", f"out={tmp_path}/out", "resamples=200")
    found = json.loads((tmp_path / "out/result.json").read_text())
    low, high = found["interval"]["dev"]["ndcg_10"]
    assert low < found["metrics"]["dev"]["ndcg_10"] < high


def test_a_run_of_another_task_ranks_nothing(run: Path, tmp_path: Path) -> None:
    other = trained(KINDS["match"], tmp_path)
    with pytest.raises(UserError, match="this run ranks no candidates; give a run of task=rerank"):
        nlu.load(other).rank("a", ["b"])
    with pytest.raises(DataError, match="row 2: field text_b: '' is empty"):
        nlu.load(run).rank("a", ["b", ""])


def test_an_export_is_a_cross_encoder_of_others_from_which_a_run_goes_on(run: Path, tmp_path: Path) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    options = KINDS["rerank"].overrides(tmp_path, dev_rows=23)
    first = ("model.pooling=first", "trainer.max_duration=4st", f"hydra.run.dir={tmp_path}/first")
    train(*options, *first)
    export(f"run={tmp_path}/first", "format=huggingface", f"out={tmp_path}/exported")
    records = kept(tmp_path / "first")
    model = sentence_transformers.CrossEncoder(str(tmp_path / "exported"), device="cpu")
    scores = model.predict([(one["text_a"], one["text_b"]) for one in records], show_progress_bar=False)
    assert scores == pytest.approx([one["score"] for one in records], abs=1e-6)
    theirs = ("model=hf", f"model.pretrained={tmp_path}/exported", "model.pooling=first", "head=transformers")
    rows = [one for one in options if not one.startswith(("model", "loss"))]
    train(*rows, *theirs, "trainer.max_duration=1st", "optimizer.lr=1e-30", f"hydra.run.dir={tmp_path}/again")
    assert [one["score"] for one in kept(tmp_path / "again")] == pytest.approx(list(scores), abs=1e-5)
