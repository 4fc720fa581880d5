"""python -m nlu.mine: near texts that do not answer a query, as numpy finds them by the run's own vectors."""

import csv
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import nlu
from nlu.commands import mine as mining_command
from nlu.inference import mining
from nlu.inference.output_pieces import Pieces
from tests.training.in_process import of_composed, train
from tests.training.kinds import pair_of_classes, read, write

Row = dict[str, Any]
QUERIES = 17


@pytest.fixture(scope="module")
def run(run_of: Callable[[str], Path]) -> Path:
    return run_of("retrieve")


@pytest.fixture(scope="module")
def pairs() -> list[Row]:
    """Pairs of few queries, of which some have several answers and each has one at least."""
    rng = random.Random(3)
    rows = [pair_of_classes(rng) for _ in range(60)]
    queries = [row["text_a"] for row in rows[:QUERIES]]
    return [row | {"text_a": queries[number % QUERIES], "label": int(number < 25)} for number, row in enumerate(rows)]


def mine(run: Path, folder: Path, *overrides: str, name: str = "mined.jsonl", status: int = 0) -> list[Row]:
    """Do what `python -m nlu.mine` does with these overrides; return the rows that it wrote."""
    order = (f"run={run}", f"input={folder}/pairs.jsonl", f"output={folder}/{name}", "device=cpu", "number=3")
    of_composed(mining_command.main, "mine", *order, *overrides, status=status)
    return read(folder / name) if not status and name.endswith("jsonl") else []


def expected(run: Path, pairs: list[Row], more: list[str], first: int, behind: int, share: float | None) -> list[Row]:
    """Return the rows that should be written, by all cosines at once."""
    corpus = list(dict.fromkeys([*more, *(row["text_b"] for row in pairs)]))
    answers: dict[str, list[str]] = {}
    for row in pairs:
        if row["label"]:
            answers.setdefault(row["text_a"], []).append(row["text_b"])
    loaded = nlu.load(run, device="cpu")
    vectors = loaded.encode(corpus, "", normalize=True).astype(np.float64)
    found = []
    for query, own in answers.items():
        cosines = vectors @ loaded.encode([query], "", normalize=True)[0].astype(np.float64)
        cosine = dict(zip(corpus, cosines.astype(np.float32).tolist(), strict=True))
        least = min(cosine[text] for text in own)
        limit = np.inf if share is None else least - abs(least) * (1 - share)
        # The sort is stable, so that equal ones stay in the order of the corpus.
        ranked = sorted((text for text in corpus if text not in (query, *own)), key=lambda text: -cosine[text])
        negatives = [text for text in ranked[first:behind] if cosine[text] <= limit][:3]
        suspects = [text for text in ranked[:behind] if cosine[text] > limit][:10]
        for text in dict.fromkeys(own):
            found.append({"text_a": query, "text_b": text, "negatives": negatives, "suspects": suspects})
            found[-1] |= {"similarity": pytest.approx(cosine[text], abs=1e-5)}
            found[-1] |= {"negative_similarities": pytest.approx([cosine[one] for one in negatives], abs=1e-5)}
            found[-1] |= {"suspect_similarities": pytest.approx([cosine[one] for one in suspects], abs=1e-5)}
    return found


@pytest.mark.parametrize(
    ("first", "behind", "share", "corpus"), [(0, 100, 0.95, False), (2, 9, 0.999, True), (1, 30, None, False)]
)
def test_negatives_and_suspects_are_those_of_all_cosines(
    run: Path, pairs: list[Row], tmp_path: Path, first: int, behind: int, share: float | None, corpus: bool
) -> None:
    write(tmp_path / "pairs.jsonl", pairs)
    # A query may be a text of the corpus too.
    more = ["h g f", "a b c d", pairs[0]["text_a"], "h g f"] if corpus else []
    (tmp_path / "more.txt").write_text("\n\n".join(more))
    given = [f"corpus={tmp_path}/more.txt"] if corpus else []
    shown = "null" if share is None else share
    found = mine(run, tmp_path, f"range=[{first},{behind}]", f"max_share={shown}", *given)
    assert found == expected(run, pairs, more, first, behind, share)
    assert not any(set(row["negatives"]) & {row["text_a"], row["text_b"]} for row in found)


def test_the_bytes_depend_neither_on_batches_nor_on_a_kill(
    run: Path, pairs: list[Row], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mining, "CHUNK_QUERIES", 5)
    monkeypatch.setattr(mining, "CHUNK_TEXTS", 7)
    write(tmp_path / "pairs.jsonl", pairs)
    mine(run, tmp_path, name="whole.jsonl")
    made: list[int] = []
    write_piece = Pieces.write

    def killed(self: Pieces, number: int, content: bytes) -> None:
        # One kill among the vectors of the corpus, one among the queries.
        if len(made) in (3, 12):
            made.append(-1)
            raise KeyboardInterrupt
        write_piece(self, number, content)
        made.append(number)

    monkeypatch.setattr(Pieces, "write", killed)
    for _ in range(2):
        mine(run, tmp_path, "batch_size=3", status=130)
        assert not (tmp_path / "mined.jsonl").exists()
    mine(run, tmp_path, "batch_size=3")
    assert (tmp_path / "mined.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    texts, queries = len({row["text_b"] for row in pairs}), QUERIES
    assert len([one for one in made if one >= 0]) == -(-texts // 7) + -(-queries // 5), "a piece was made twice"
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_several_jobs_of_which_one_is_stopped_write_the_bytes_of_one(
    run: Path, pairs: list[Row], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mining, "CHUNK_QUERIES", 5)
    monkeypatch.setattr(mining, "CHUNK_TEXTS", 7)
    write(tmp_path / "pairs.jsonl", pairs)
    mine(run, tmp_path, name="whole.jsonl")
    whole = mining.Mining.piece
    made: list[int] = []

    def stopped(self: mining.Mining, number: int) -> bytes:
        made.append(number)
        if len(made) == 3:
            raise KeyboardInterrupt
        return whole(self, number)

    monkeypatch.setattr(mining.Mining, "piece", stopped)
    mine(run, tmp_path, "jobs=2", "job=0", status=130)
    assert not (tmp_path / "mined.jsonl").exists()
    mine(run, tmp_path, "jobs=2", "job=1")
    mine(run, tmp_path, "jobs=2", "job=0")
    assert made == [0, 1, 2, 2, 3], "only the piece of the stopped job is made again"
    assert (tmp_path / "mined.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_parquet_and_jsonl_hold_the_same_rows(run: Path, pairs: list[Row], tmp_path: Path) -> None:
    write(tmp_path / "pairs.jsonl", pairs)
    # Some queries keep no negative, and their lists are empty.
    rows = mine(run, tmp_path)
    mine(run, tmp_path, name="mined.parquet")
    assert pq.read_table(tmp_path / "mined.parquet").to_pylist() == rows
    assert {len(row["negatives"]) for row in rows} > {0}


def test_every_row_is_an_answer_without_labels_whatever_the_columns(
    run: Path, pairs: list[Row], tmp_path: Path
) -> None:
    answers = [row for row in pairs if row["label"]]
    write(tmp_path / "pairs.jsonl", answers)
    rows = mine(run, tmp_path)
    with open(tmp_path / "pairs.csv", "w", newline="") as file:
        csv.writer(file).writerows([("id", "ask", "say"), *((0, row["text_a"], row["text_b"]) for row in answers)])
    given = f"input={tmp_path}/pairs.csv", "input.fields={text_a: ask, text_b: say}"
    assert mine(run, tmp_path, *given, name="of_csv.jsonl") == rows


def test_a_run_trains_on_the_mined_rows(run: Path, pairs: list[Row], tmp_path: Path) -> None:
    write(tmp_path / "pairs.jsonl", pairs)
    mined = mine(run, tmp_path, "max_share=null")
    train(
        "model=textcnn", "model.hidden_size=8", "model.embedding_size=8", "data.max_len=32", "data=files",
        "task=retrieve", f"data.train={tmp_path}/mined.jsonl", f"data.dev={tmp_path}/mined.jsonl", "trainer.device=cpu",
        "trainer.batch_size=8", "trainer.max_duration=2st", f"hydra.run.dir={tmp_path}/run",
    )  # fmt: skip
    result = json.loads((tmp_path / "run/result.json").read_text())
    queries = len({row["text_a"] for row in mined})
    assert queries == QUERIES and "mrr" in json.dumps(result)


def test_an_approximate_index_that_looks_at_all_lists_finds_the_same(
    run: Path, pairs: list[Row], tmp_path: Path
) -> None:
    pytest.importorskip("faiss")
    write(tmp_path / "pairs.jsonl", pairs)
    exact, near = mine(run, tmp_path), mine(run, tmp_path, "index=faiss", name="near.jsonl")
    assert [row["negatives"] for row in near] == [row["negatives"] for row in exact]


def test_what_is_found_is_said_with_the_nearest_suspects(
    run: Path, pairs: list[Row], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "pairs.jsonl", pairs)
    rows = mine(run, tmp_path)
    said = capsys.readouterr()
    assert f"{len(rows)} pairs with {sum(len(row['negatives']) for row in rows)} negatives" in said.err
    cosines = sorted({(row["text_a"], one) for row in rows for one in row["suspect_similarities"]}, key=lambda o: -o[1])
    shown = [float(line.split()[0]) for line in said.out.splitlines()[1:]]
    assert shown == [pytest.approx(one, abs=1e-4) for _, one in cosines[:10]]


def test_pretrained_weights_mine_as_a_run_with_their_vectors(
    run: Path, pairs: list[Row], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "pairs.jsonl", pairs)
    weights = ("run=null", "model=bert", f"model.pretrained={run}/checkpoints/best-1", "model.pooling=mean")
    assert mine(run, tmp_path, *weights, name="by_weights.jsonl") == mine(run, tmp_path)
    mine(run, tmp_path, "model=bert", name="neither.jsonl", status=2)
    assert "run and model are both set" in capsys.readouterr().err


def test_given_prompts_stand_before_queries_and_passages(run: Path, pairs: list[Row], tmp_path: Path) -> None:
    write(tmp_path / "pairs.jsonl", pairs)
    first = mine(run, tmp_path, "prompts={query: 'a b ', passage: 'c '}")[0]
    loaded = nlu.load(run, device="cpu")
    query, text = loaded.encode([first["text_a"]], "a b ")[0], loaded.encode([first["text_b"]], "c ")[0]
    assert first["similarity"] == pytest.approx(float(query @ text), abs=1e-5)


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("range=[500,600]", "range is [500, 600], but there are only"),
        ("range=[4,6]", "number is 3, but range is [4, 6], of 2 ranks"),
        ("prompts={{quer: 'a '}}", "prompts has quer, but queries and passages have prompts; nearest: query"),
        ("output={folder}/mined.csv", "but must end in .jsonl or .parquet"),
        ("corpus={folder}/nowhere.txt", "nowhere.txt"),
        ("corpus={folder}/pairs.jsonl", "text"),
        ("input={folder}/none.jsonl", "no row has an answer"),
        ("input={folder}/bad.jsonl", "bad.jsonl:2: field text_b: '' is empty"),
        ("input={folder}/other.csv", "other.csv:1: input.fields.text_a"),
    ],
)
def test_what_cannot_be_mined_is_refused_before_anything_is_written(
    run: Path, pairs: list[Row], tmp_path: Path, capsys: pytest.CaptureFixture[str], override: str, told: str
) -> None:
    write(tmp_path / "pairs.jsonl", pairs)
    write(tmp_path / "none.jsonl", [row | {"label": 0} for row in pairs])
    write(tmp_path / "bad.jsonl", [pairs[0], pairs[1] | {"text_b": ""}])
    (tmp_path / "other.csv").write_text("question,reply\na,b\n")
    mine(run, tmp_path, override.format(folder=tmp_path), status=2)
    assert told in capsys.readouterr().err
    assert not list(tmp_path.glob("mined*")) and not list(tmp_path.glob(".*"))


def test_sentence_transformers_mines_the_same_negatives(run: Path, pairs: list[Row], tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    from datasets import Dataset
    from sentence_transformers.util import mine_hard_negatives

    from tests.inference.runs import export

    answers = [row for row in pairs if row["label"]]
    write(tmp_path / "pairs.jsonl", answers)
    export(f"run={run}", "format=sentence_transformers", f"out={tmp_path}/exported")
    theirs = mine_hard_negatives(
        Dataset.from_list([{"a": row["text_a"], "b": row["text_b"]} for row in answers]),
        library.SentenceTransformer(str(tmp_path / "exported"), device="cpu"), relative_margin=0.05, num_negatives=3,
        range_max=100, output_format="labeled-pair", verbose=False,
    )  # fmt: skip
    found: dict[str, set[str]] = {}
    for one in theirs:
        if not one["label"]:
            found.setdefault(one["a"], set()).add(one["b"])
    own = {row["text_a"]: set(row["negatives"]) for row in mine(run, tmp_path)}
    assert {query: texts for query, texts in own.items() if texts} == found
