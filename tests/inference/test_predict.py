"""python -m nlu.predict: what the run predicted when it was scored, beside all that stood in the rows."""

import csv
import json
import shutil
import subprocess
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow.parquet as pq
import pytest

from nlu.inference import predict_files
from tests import warm
from tests.inference.runs import kept, predict, unlabelled
from tests.training.kinds import TASKS, read, write
from tests.training.runs import REPOSITORY, SAME_THREADS


@pytest.fixture(scope="module")
def run(run_of: Callable[[str], Path]) -> Path:
    """A classifier whose rows have columns of other names than the fields."""
    return run_of("classify")


def test_scores_and_logits_are_consistent_with_the_probabilities(run: Path, tmp_path: Path) -> None:
    write(tmp_path / "new.jsonl", unlabelled(TASKS["classify"], 23))
    predict(f"run={run}", f"input={tmp_path}/new.jsonl", f"output={tmp_path}/o.jsonl", "scores=true", "logits=true")
    for one, own in zip(read(tmp_path / "o.jsonl"), kept(run), strict=True):
        assert {name: one[f"probability_{name}"] for name in ("bad", "good")} == own["probabilities"]
        bad, good = one["logits"]
        assert one["probability_good"] == pytest.approx(1 / (1 + 2.718281828459045 ** (bad - good)), rel=1e-6)


def test_a_csv_keeps_every_byte_of_its_rows(run: Path, tmp_path: Path) -> None:
    lines = [
        "\ufeffid;x,text,note\r\n", '1,"a b, c","say ""hi"""\r\n', "2,c d,\r\n", '3,"two\nlines, d", spaced \r\n',
        "4,b,'\r\n",
    ]  # fmt: skip
    (tmp_path / "new.csv").write_text("".join(lines), newline="")
    predict(f"run={run}", f"input={tmp_path}/new.csv", f"output={tmp_path}/out.csv")
    with open(tmp_path / "out.csv", newline="") as file:
        written = file.read()
    rest = written
    for line in lines:
        assert rest.startswith(line.removesuffix("\r\n") + ",")
        rest = rest[rest.index("\r\n", len(line) - 1) + 2 :]
    assert rest == ""
    with open(tmp_path / "out.csv", newline="", encoding="utf-8-sig") as file:
        assert [row["prediction"] for row in csv.DictReader(file)] == [
            one["prediction"] for one in of_texts(run, tmp_path, ["a b, c", "c d", "two\nlines, d", "b"])
        ]


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet"])
def test_without_its_columns_the_output_has_only_the_predictions(run: Path, tmp_path: Path, suffix: str) -> None:
    rows = unlabelled(TASKS["classify"], 23)
    # A column of the same name is no clash if it is not written.
    write(tmp_path / "new.jsonl", [{**row, "prediction": "old"} for row in rows])
    order = (f"run={run}", f"input={tmp_path}/new.jsonl", f"output={tmp_path}/out.{suffix}")
    predict(*order, "columns=false", "scores=true")
    own = [{key: one[key] for key in ("prediction", "probability")} for one in kept(run)]
    of_labels = [{f"probability_{name}": one["probabilities"][name] for name in ("bad", "good")} for one in kept(run)]
    expected: Any = [{**first, **second} for first, second in zip(own, of_labels, strict=True)]
    path = tmp_path / f"out.{suffix}"
    if suffix == "jsonl":
        found = read(path)
    elif suffix == "parquet":
        found = pq.read_table(path).to_pylist()
    else:
        text = csv.DictReader(path.read_text().splitlines(), delimiter="," if suffix == "csv" else "\t")
        found = [{key: cell if key == "prediction" else float(cell) for key, cell in line.items()} for line in text]
    assert found == expected


def of_texts(run: Path, folder: Path, texts: list[str]) -> list[dict[str, Any]]:
    write(folder / "texts.jsonl", [{"text": text} for text in texts])
    predict(f"run={run}", f"input={folder}/texts.jsonl", f"output={folder}/of_texts.jsonl")
    return read(folder / "of_texts.jsonl")


def test_a_tsv_without_a_header_a_jsonl_and_lines_keep_theirs(run: Path, tmp_path: Path) -> None:
    (tmp_path / "new.tsv").write_text('x\ta "b\nc\td e\n')
    predict(f"run={run}", f"input={tmp_path}/new.tsv", "input.fields={text: 1}", f"output={tmp_path}/out.tsv")
    rows = [line.split("\t") for line in (tmp_path / "out.tsv").read_text().splitlines()]
    assert [row[:2] for row in rows] == [["x", 'a "b'], ["c", "d e"]] and {len(row) for row in rows} == {4}
    (tmp_path / "new.jsonl").write_text('{"text" :"a",  "n": 1.50}\n{"text": "b", "n": {"k": [1e3]}}')
    predict(f"run={run}", f"input={tmp_path}/new.jsonl", f"output={tmp_path}/out.jsonl")
    first, second = (tmp_path / "out.jsonl").read_text().splitlines()
    assert first.startswith('{"text" :"a",  "n": 1.50, "prediction": ') and second.startswith(
        '{"text": "b", "n": {"k": [1e3]}, '
    )
    (tmp_path / "new.txt").write_text("a b\n\nc\n")
    predict(f"run={run}", f"input={tmp_path}/new.txt", "input.format=lines", f"output={tmp_path}/out.csv")
    assert [line.split(",")[0] for line in (tmp_path / "out.csv").read_text().splitlines()] == ["text", "a b", "c"]


def test_parquet_keeps_its_types_and_other_tables_become_text(run: Path, tmp_path: Path) -> None:
    import pyarrow as pa

    own = pa.table(
        {"n": pa.array([1, None], pa.int32()), "text": ["a b", "c"], "t": pa.array([0, 1], pa.timestamp("s"))}
    )
    pq.write_table(own, tmp_path / "new.parquet")
    predict(f"run={run}", f"input={tmp_path}/new.parquet", f"output={tmp_path}/out.parquet", "logits=true")
    found = pq.read_table(tmp_path / "out.parquet")
    assert found.select(own.column_names).equals(pq.read_table(tmp_path / "new.parquet"))
    assert [str(field.type) for field in found.schema][3:] == ["string", "double", "list<element: double>"]
    (tmp_path / "new.csv").write_text("n,text\n1,a b\n,c\n")
    predict(f"run={run}", f"input={tmp_path}/new.csv", f"output={tmp_path}/other.parquet")
    other = pq.read_table(tmp_path / "other.parquet")
    assert other["n"].to_pylist() == ["1", ""] and other["prediction"].equals(found["prediction"])


@pytest.mark.parametrize(
    ("name", "content", "output", "words"),
    [
        ("a.jsonl", '{"text": "a"}\n{"text": "b", "extra": 1}\n', "o.csv", "has a field extra"),
        ("a.jsonl", '{"text": "a"}\n{"text": "b", "prediction": 1}\n', "o.jsonl", "has a field prediction already"),
        ("a.json", '[{"text": "a"}, {"text": "b", "prediction": 1}]', "o.jsonl", "has a field prediction already"),
        ("a.json", '[{"text": "a"}, "b"]', "o.jsonl", "is not an object"),
        ("a.csv", "id,text,id\n1,a,2\n", "o.jsonl", "columns called id"),
        ("a.csv", "id,text\n1\t,a\n", "o.tsv", "which a tsv cannot"),
        ("a.csv", "id,text\n1,a\n2\n", "o.jsonl", "has 1 column where"),
    ],
)
def test_rows_that_the_output_cannot_hold_are_refused_before_predicting(
    run: Path, tmp_path: Path, capsys: Any, name: str, content: str, output: str, words: str
) -> None:
    (tmp_path / name).write_text(content)
    predict(f"run={run}", f"input={tmp_path}/{name}", f"output={tmp_path}/{output}", "on_bad_row=skip", status=2)
    assert words in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_rows_that_cannot_be_used_stop_it_or_stay_empty(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "new.csv").write_text("text,n\na b,1\n  ,2\nc,3,4\nd,5\n")
    order = (f"run={run}", f"input={tmp_path}/new.csv", f"output={tmp_path}/out.csv")
    predict(*order, status=2)
    refusal = capsys.readouterr().err
    assert "new.csv:3: field text: '  ' is empty" in refusal and "new.csv:4: the row " in refusal
    assert "on_bad_row=skip" in refusal and not list(tmp_path.glob("*out*"))
    predict(*order, "on_bad_row=skip")
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert lines[2:4] == ["  ,2,,", "c,3,4,,"] and all(len(lines[place].split(",")) == 4 for place in (0, 1, 4))
    assert "no prediction for 2 rows" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("orders", "words"),
    [
        (["output=OUT/out.xyz"], ["unknown suffix '.xyz'", ".csv"]),
        (["output=IN"], ["exists; nothing was written"]),
        (["output=OUT/no/out.csv"], ["no does not exist"]),
        (["output=OUT/o.csv", "input=OUT/absent.csv"], ["does not exist here"]),
        (["output=OUT/o.csv", "input.fields={text: texts}"], ["is 'texts', but the header has", "nearest: text"]),
        (["output=OUT/o.csv", "input.fields={label: text}"], ["the run reads text"]),
        (["output=OUT/o.csv", "input.separator=ab"], ["input.separator is 'ab' but must be one character"]),
        (
            ["output=OUT/o.csv", "input.sheet=a"],
            ["input.sheet is 'a', but the files are csv, and it applies to xlsx only; leave out input.sheet"],
        ),
        (["output=OUT/o.csv", "checkpoint=best-7"], ["lacks a checkpoint best-7", "best-1, best-2, last"]),
        (["output=OUT/o.csv", "checkpoint=OUT"], ["is not a checkpoint"]),
        (["output=OUT/o.csv", "run=ABOVE"], ["lacks the config.yaml", "run: name one"]),
        (["output=OUT/o.csv", "run=OUT/absent"], ["is not a folder here"]),
        (["output=OUT/o.csv", "input=-"], ["set input.format"]),
        (["output=OUT/o.conll"], ["unknown suffix '.conll'"]),
        (["output=OUT/o.csv", "input=3"], ["error: input is 3 but must be a list or a file, a URL", "set input"]),
        (["output=OUT/o.csv", "input=???"], ["error: input is not set; set it to a list", "- for standard input\n"]),
        (["output=OUT/o.csv", "input.path={a: 1}", "inpt=b"], ["- input is {'a': 1} but", "inpt: unknown key"]),
        (["output=OUT/o.csv", "run=null"], ["run is null but must be a run, RUN/best-2, RUN/last"]),
        (["output=OUT/o.csv", "devics=2"], ["devics: unknown key; nearest: devices"]),
    ],
)  # fmt: skip
def test_an_impossible_command_is_refused_and_writes_nothing(run, tmp_path, capsys, orders, words) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "new.csv").write_text("text,n\na b,1\n")
    before = sorted(tmp_path.iterdir())
    given = [order.replace("OUT", str(tmp_path)).replace("IN", f"{tmp_path}/new.csv") for order in orders]
    given = [order.replace("ABOVE", str(run.parent)) for order in given]
    own = [f"{key}={value}" for key, value in (("run", run), ("input", tmp_path / "new.csv")) if not any(
        order.startswith(f"{key}=") for order in given)]  # fmt: skip
    predict(*own, *given, status=2)
    refusal = capsys.readouterr().err
    assert all(word in refusal for word in words), refusal
    assert "Traceback" not in refusal and sorted(tmp_path.iterdir()) == before


def test_a_column_of_the_same_name_is_never_written_over(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "new.csv").write_text("text,prediction\na b,mine\n")
    order = (f"run={run}", f"input={tmp_path}/new.csv", f"output={tmp_path}/out.csv")
    predict(*order, status=2)
    assert "has a column prediction already; set prefix" in capsys.readouterr().err
    predict(*order, "prefix=model_")
    header, row = (tmp_path / "out.csv").read_text().splitlines()
    assert header == "text,prediction,model_prediction,model_probability" and row.startswith("a b,mine,")


def test_a_killed_prediction_continues_to_the_same_bytes(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predict_files, "CHUNK_ROWS", 4)
    write(tmp_path / "new.jsonl", unlabelled(TASKS["classify"], 23))
    whole, broken = ((f"run={run}", f"input={tmp_path}/new.jsonl", f"output={tmp_path}/{name}.csv") for name in "ab")
    predict(*whole)
    made: list[int] = []
    write_piece = predict_files.Pieces.write

    def killed(self: Any, number: int, content: bytes) -> None:
        if len(made) in (2, 3):
            made.append(-1)
            raise KeyboardInterrupt
        write_piece(self, number, content)
        made.append(number)

    monkeypatch.setattr(predict_files.Pieces, "write", killed)
    for _ in range(2):
        predict(*broken, status=130)
        assert not (tmp_path / "b.csv").exists()
    predict(*broken)
    assert [number for number in made if number >= 0] == list(range(6)), "a piece was made twice"
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_a_killed_command_over_several_files_leaves_complete_ones_as_they_are(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "two"):
        write(tmp_path / f"{name}.jsonl", unlabelled(TASKS["classify"], 5))
    order = (f"run={run}", f"input=[{tmp_path}/one.jsonl,{tmp_path}/two.jsonl]", f"output={tmp_path}/of-*.csv")
    finish = predict_files.Pieces.finish

    def killed(self: Any, *given: Any) -> None:
        if "two" in self.place.name:
            raise KeyboardInterrupt
        finish(self, *given)

    with monkeypatch.context() as patched:
        patched.setattr(predict_files.Pieces, "finish", killed)
        predict(*order, status=130)
    before = (tmp_path / "of-one.csv").stat()
    predict(*order, "prefix=x_", status=2)
    assert "which was started with other settings (columns differ)" in capsys.readouterr().err
    predict(*order)
    assert (tmp_path / "of-one.csv").stat() == before and (tmp_path / "of-two.csv").exists()
    assert [path.name for path in tmp_path.glob(".*")] == []
    predict(*order, status=2)
    assert "of-one.csv, which exists; nothing was written" in capsys.readouterr().err


def test_pieces_are_used_only_where_all_that_their_bytes_depend_on_is_the_same(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copy, rows = tmp_path / "run", tmp_path / "new.jsonl"
    shutil.copytree(run, copy)
    write(rows, [{**row, "other": "a"} for row in unlabelled(TASKS["classify"], 9)])
    order = (f"run={copy}", f"input={rows}", f"output={tmp_path}/b.csv")
    with monkeypatch.context() as patched:
        patched.setattr(predict_files.Pieces, "finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        predict(*order, status=130)
    plan, config, best = tmp_path / ".b.csv.pieces/plan.json", copy / "config.yaml", copy / "checkpoints/best-1"
    overrides = {
        "max_rows": "max_rows=5", "on_bad_row": "on_bad_row=skip", "columns": "prefix=x_",
        "reading": "input.fields={text: other}", "input columns": "columns=false",
    }  # fmt: skip
    files = {
        "input": (rows, '"a"', '"b"'), "checkpoint": (best / "labels.json", "{", "{ "),
        "decided": (best / "score.json", '"accuracy"', '"another"'), "max_len": (config, "max_len: 32", "max_len: 31"),
        "separator": (config, "label_separator: '|'", "label_separator: ;"),
        "precision": (config, "dtype: float32", "dtype: bfloat16"), "device": (plan, '"cpu"', '"cuda"'),
    }  # fmt: skip
    assert json.loads(plan.read_text()).keys() == {*overrides, *files, "chunk_rows"}

    def refused(key: str, *more: str) -> None:
        predict(*order, *more, status=2)
        assert f"which was started with other settings ({key} differ)" in capsys.readouterr().err

    for key, override in overrides.items():
        refused(key, override)
    for key, (path, before, after) in files.items():
        whole = path.read_text()
        assert before in whole, key
        path.write_text(whole.replace(before, after))
        refused(key)
        path.write_text(whole)
    with monkeypatch.context() as patched:
        patched.setattr(predict_files, "CHUNK_ROWS", 2)
        refused("chunk_rows")
    predict(*order)
    assert len((tmp_path / "b.csv").read_text().splitlines()) == 10


def test_two_processes_write_what_one_process_writes(run: Path, tmp_path: Path) -> None:
    write(tmp_path / "new.jsonl", unlabelled(TASKS["classify"], 4200))
    whole = (f"run={run}", f"input={tmp_path}/new.jsonl")
    predict(*whole, f"output={tmp_path}/one.jsonl")
    command = ["-m", "nlu.predict", "device=cpu", *whole]
    done = warm.run([*command, f"output={tmp_path}/two.jsonl", "devices=2"], cwd=REPOSITORY, env=SAME_THREADS)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(", checkpoint best-1; ") == 1, "one of them speaks for all"
    assert (tmp_path / "two.jsonl").read_bytes() == (tmp_path / "one.jsonl").read_bytes()


def test_a_reader_that_leaves_ends_it_without_a_summary(run: Path, tmp_path: Path) -> None:
    write(tmp_path / "new.jsonl", unlabelled(TASKS["classify"], 30))
    command = ["-m", "nlu.predict", "device=cpu", f"run={run}", f"input={tmp_path}/new.jsonl", "output=-"]
    process = warm.start(
        command, cwd=REPOSITORY, env=SAME_THREADS, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.close()
    said = process.stderr.read()
    assert process.wait() == 0 and "standard output was closed before 30 rows were written" in str(said)
    assert "predicted" not in str(said)


def test_rows_with_further_columns_are_written_by_name_and_not_below_each_other(
    run: Path, tmp_path: Path, capfd: Any
) -> None:
    (tmp_path / "new.tsv").write_text("1\ta b\n2\tc\thttp://x\n")
    order = (f"run={run}", f"input={tmp_path}/new.tsv", "input.fields={text: 1}")
    predict(*order, f"output={tmp_path}/out.tsv", status=2)
    assert "new.tsv:2 has 3 columns where the first row of the file has 2, so its prediction" in capfd.readouterr().err
    predict(*order, f"output={tmp_path}/out.jsonl")
    expected = of_texts(run, tmp_path, ["a b", "c"])
    assert [row["prediction"] for row in read(tmp_path / "out.jsonl")] == [row["prediction"] for row in expected]
    assert read(tmp_path / "out.jsonl")[1]["column_2"] == "http://x"


def test_the_rows_of_a_workbook_are_written_in_another_format(run: Path, tmp_path: Path, capfd: Any) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    rows: list[list[Any]] = [
        ["id", "text", "on", "share", "注"], [1, "a b", date(2026, 1, 2), 0.25, "=1+1"], [2, "c", None, 3, None],
        [None] * 5, [3, "d e", date(2026, 1, 3), True, "x"],
    ]  # fmt: skip
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    book.save(tmp_path / "new.xlsx")
    for name in ("out.csv", "out.jsonl", "out.parquet"):
        predict(f"run={run}", f"input={tmp_path}/new.xlsx", f"output={tmp_path}/{name}")
    texts = ["a b", "c", "d e"]
    expected = of_texts(run, tmp_path, texts)
    # The mark tells Excel that the file is UTF-8.
    assert (tmp_path / "out.csv").read_bytes().startswith("\ufeffid,text,on,share,注,prediction".encode())
    with open(tmp_path / "out.csv", newline="", encoding="utf-8-sig") as file:
        found = list(csv.DictReader(file))
    assert [row["share"] for row in found] == ["0.25", "3", "true"]
    assert [row["on"] for row in found] == ["2026-01-02", "", "2026-01-03"]
    assert [row["prediction"] for row in found] == [one["prediction"] for one in expected]
    assert [row["id"] for row in read(tmp_path / "out.jsonl")] == [1, 2, 3]
    assert pq.read_table(tmp_path / "out.parquet").column("text").to_pylist() == texts
    predict(f"run={run}", f"input={tmp_path}/new.xlsx", f"output={tmp_path}/out.xlsx", status=2)
    assert "a workbook, which is only read; give it the suffix .csv" in capfd.readouterr().err


def test_each_of_several_inputs_gets_a_file_with_what_it_gets_by_itself(run: Path, tmp_path: Path) -> None:
    rows = unlabelled(TASKS["classify"], 23)
    for number, part in enumerate((rows[:9], rows[9:11], rows[11:])):
        write(tmp_path / f"rows-{number}.jsonl", part)
        predict(f"run={run}", f"input={tmp_path}/rows-{number}.jsonl", f"output={tmp_path}/own-{number}.csv")
    with mock.patch.object(predict_files, "load_trained", wraps=predict_files.load_trained) as loading:
        predict(f"run={run}", f"input={tmp_path}/rows-?.jsonl", f"output={tmp_path}/all-*.csv")
        assert loading.call_count == 1
        one, other = f"{tmp_path}/rows-1.jsonl", f"{tmp_path}/rows-0.jsonl"
        predict(f"run={run}", f"input=[{one},{other}]", f"output={tmp_path}/two-*.csv", "max_rows=9")
    for number in range(3):
        own = (tmp_path / f"own-{number}.csv").read_bytes()
        assert (tmp_path / f"all-rows-{number}.csv").read_bytes() == own
        assert number == 2 or (tmp_path / f"two-rows-{number}.csv").read_bytes() == own
    assert [path.name for path in tmp_path.glob(".*")] == []


@pytest.mark.parametrize(
    ("inputs", "output", "says"),
    [
        ("[a.jsonl,b.jsonl]", "out.csv", "input names 2 files, but output is out.csv; write one * into output"),
        ("?.jsonl", "out.csv", "input names 2 files, but output is out.csv; write one * into output"),
        (
            "[a.jsonl,more/a.jsonl]",
            "*.csv",
            "input names a.jsonl and more/a.jsonl, whose outputs would have the same name",
        ),
        ("[a.jsonl,-]", "out-*.csv", "input names 2 files and output is out-*.csv; give files, and for each a file"),
        ("[]", "out-*.csv", "input is [], which names no file"),
        ("[a.jsonl,none.jsonl]", "out-*.csv", "input is 'none.jsonl', which does not exist"),
        ("none-*.jsonl", "out-*.csv", "input is 'none-*.jsonl', which no file matches"),
        ("[a.jsonl,bad.jsonl]", "out-*.csv", "bad.jsonl:1"),
    ],
)
def test_several_inputs_that_cannot_be_predicted_are_refused_before_any_is(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, inputs: str, output: str, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "more").mkdir()
    for name in ("a", "b", "more/a"):
        write(tmp_path / f"{name}.jsonl", unlabelled(TASKS["classify"], 3))
    write(tmp_path / "bad.jsonl", [{**row, "text": 3} for row in unlabelled(TASKS["classify"], 2)])
    predict(f"run={run}", f"input={inputs}", f"output={output}", status=2)
    assert says in capsys.readouterr().err
    assert list(tmp_path.glob("*.csv")) == [] and list(tmp_path.glob(".*")) == []
