"""What rows cannot mean, said while the store is built: headers, other encodings, sorted files, marks of documents."""

import pytest

from nlu.config.errors import DataError
from nlu.data.facts import describe, lines


def refused(open_files, *match, **settings):
    with pytest.raises(DataError) as caught:
        open_files(**settings)
    for part in match:
        assert part in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    "content",
    ["text\tlabel\n" + "a\t0\nb\t1\n" * 3, "review\tStars\na\tfew\nb\tmany\nc\tfew\n", "x\tverdict\n" + "a\t0\nb\t1\n"],
)
def test_a_header_is_refused_as_a_row_if_fields_are_given_by_number(write, open_files, content):
    train = write("train.tsv", content)
    label = content.split("\n")[0].split("\t")[1]
    refused(
        open_files, f"{train}:1: field label (column 1): {label!r} occurs in no other row",
        "set data.header=true to leave it out, or data.header=false", train=train, dev=train,
    )  # fmt: skip
    assert len(open_files(train=train, dev=train, header=False).labels) == 3
    assert len(open_files(train=train, dev=train, header=True).labels) == 2


@pytest.mark.parametrize(
    "content",
    ["a\t0\nb\t1\n", "a\tpositive\nb\tnegative\nc\tnegative\n", "a\tlabel\nb\tother\nc\tlabel\n", "a\t1\n"],
)  # fmt: skip
def test_a_first_row_like_the_others_is_a_row(write, open_files, content):
    train = write("train.tsv", content)
    labels = ["0", "1", "positive", "negative", "label", "other"]
    rows = content.count("\n")
    assert len(open_files(train=train, dev=train, labels=labels).sets["train"]) == rows


def test_a_header_above_numeric_labels_is_recognized(write, open_files):
    train = write("train.tsv", "text\thow good\na\t0.5\nb\t1.5\n")
    refused(open_files, "data.header=true", target="nlu.data.targets.Number", train=train, dev=train)


def test_a_column_that_the_header_has_twice_is_refused_with_its_numbers(write, open_files):
    train = write("train.csv", "text,label,text\na,0,b\nc,1,d\n")
    fields = {"text": "text", "label": "label"}
    refused(open_files, "the header has it 2 times, as columns 0, 2", train=train, dev=train, fields=fields)
    assert len(open_files(train=train, dev=train, fields={"text": 2, "label": 1}, header=True).sets["train"]) == 2


def test_marks_of_documents_are_left_out_and_counted(write, open_files):
    mark = "-DOCSTART- -X- O O\n\n"
    content = f"{mark}EU NNP I B-ORG\nrejects VBZ I O\n\n{mark}Peter NNP I B-PER\n{mark}Oslo NNP I B-LOC\n"
    train = write("train.conll", content)
    store = open_files("units", train=train, dev=train, fields={"tokens": 0, "tags": 3}, max_rows=3)
    facts = describe(store)
    part = store.sets["train"]
    assert part.stored.number_N.tolist() == [3, 8, 11]
    assert facts["sets"]["train"]["document_marks"] == 3 and facts["sets"]["train"]["bad_rows"] == 0
    assert "data: train: 3 lines -DOCSTART- left out" in lines(facts)


def test_all_bad_rows_are_counted_and_one_cause_of_them_said_once(write, open_files):
    train = write("train.tsv", "good\t1\n" * 5000 + "\t0\n" * 3000 + "bad\t0\n" * 2000)
    error = refused(open_files, train=train, dev=train)
    assert error.summary == "3,000 of the 10,000 rows of train cannot be used"
    assert error.problems == [f"{train}:5001, 5002, 5003 and 2,997 more: field text (column 0): '' is empty"]


def test_numbers_are_described_by_their_spread(write, open_files):
    train = write("train.tsv", "a\t1\nb\t2\nc\t6\n")
    facts = describe(open_files(target="nlu.data.targets.Number", train=train, dev=train))
    assert facts["sets"]["train"]["numbers"] == pytest.approx(
        {"mean": 3.0, "sd": (14 / 3) ** 0.5, "min": 1.0, "median": 2.0, "max": 6.0}
    )
    assert "labels" not in facts["sets"]["train"] and facts["labels"] == []
    assert any("numbers: mean 3, sd 2.16" in line for line in lines(facts))


def test_rows_without_a_target_are_described_and_split(write, open_files):
    train = write("train.csv", "text\n" + "".join(f"text {i}\n" for i in range(50)))
    fields = {"text": "text"}
    store = open_files(target="nlu.data.targets.NoTarget", train=train, dev_fraction=0.3, fields=fields)
    facts = describe(store)
    assert len(store.sets["train"]) + len(store.sets["dev"]) == 50 and len(store.sets["dev"])
    assert facts["sets"]["train"]["conflicts"] == 0 and lines(facts)


def test_fields_that_are_not_given_are_the_columns_of_their_names(write, open_files):
    contents = {
        "train.csv": "id,text,label\n1,a,x\n2,b,y\n", "train.tsv": "label\ttext\nx\ta\ny\tb\n",
        "train.jsonl": '{"text": "a", "label": "x"}\n{"text": "b", "label": "y"}\n',
        "train.json": '[{"text": "a", "label": "x"}, {"text": "b", "label": "y"}]',
    }  # fmt: skip
    for name, content in contents.items():
        train = write(name, content)
        store = open_files(train=train, dev=train, fields=None)
        assert store.meta["fields"] == {"text": "text", "label": "label"} and store.labels == ["x", "y"], name


def test_the_layout_is_the_tasks_first_whose_texts_are_there(write, open_files):
    train = write("train.csv", "text_a,text_b,label\na,b,0\nc,d,1\n")
    store = open_files(("single", "pair"), train=train, dev=train, fields=None)
    assert store.layout.name == "pair"
    refused(open_files, "the task needs text as well", layout=("single",), train=train, dev=train, fields=None)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [("train.csv", "review,stars\na,0\n", "no column is called like a field (text, text_a"),
     ("train.jsonl", '{"a": 1}\n', "no column is called like a field"),
     ("train.conll", "a B-X\n", "no column is called like a field"),
     ("train.csv", "text,stars\na,0\n", "but the task needs label as well")],
)  # fmt: skip
def test_columns_of_no_known_name_are_refused(write, open_files, name, content, message):
    train = write(name, content)
    refused(open_files, message, "set data.fields", train=train, dev=train, fields=None)


def test_lines_of_a_token_and_its_tag_in_a_text_file_name_the_format_to_set(write, open_files):
    train = write("ner.txt", "Anna B-PER\nlives O\n\nin O\nUlm B-LOC\n")
    settings: dict[str, object] = {"target": "nlu.data.targets.Tags", "layout": "units"}
    meant = "or data.format=conll and data.fields={tokens: 0, tags: 1} if each line is a token and its tag"
    refused(open_files, meant, train=train, dev=train, fields=None, **settings)
    fields = {"tokens": 0, "tags": 1}
    assert len(open_files(train=train, dev=train, fields=fields, format="conll", **settings).sets["train"]) == 2


def test_a_folder_is_refused(open_files, tmp_path):
    (tmp_path / "rows").mkdir()
    refused(open_files, "which is a folder; set data.train to a file in it", train=tmp_path / "rows")
