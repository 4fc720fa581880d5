"""From files to an opened store: found again, refused with file and row, split by text."""

import hashlib
import json
import logging
import random
import re
import subprocess
from collections import Counter

import numpy as np
import pytest

from nlu.config.errors import DataError, UserError
from nlu.data import reading as reading_module
from nlu.data import store as store_module
from nlu.data.collate import collate
from nlu.data.dataset import Files
from nlu.data.folds import Fold
from nlu.data.prepare import prepare_scoring
from nlu.data.tokenizing import SPECIALS, WordPiece
from nlu.storage.cache import cache_dir

TRAIN = "good film\t1\nbad film\t0\nfine\t1\n"
DEV = "bad\t0\ngood\t1\n"


def stores():
    return sorted(path.name for path in (cache_dir() / "stores").glob("*"))


def words_of(store, name):
    """The tokens of each example without special ones, as one text."""
    part = store.sets[name]
    rows = [part.stored.tokens(part.rows_N[[i]]) for i in range(len(part))]
    return [" ".join(store.tokenizer.backend.id_to_token(int(t)) for t in row[1:-1]) for row in rows]


def labels_of(store, name):
    part = store.sets[name]
    return [store.labels[number] for number in part.stored.scalars("target", part.rows_N)]


def texts_of(path, part):
    """The texts that the file has at the rows of a set, found by their numbers."""
    lines = path.read_text().split("\n")
    return [lines[number - 1].split("\t")[0] for number in part.stored.number_N[part.rows_N]]


def refused(open_files, *match, **settings):
    with pytest.raises(DataError) as caught:
        open_files(**settings)
    for part in match:
        assert part in str(caught.value)
    return caught.value


def test_every_set_holds_its_rows_in_file_order_with_their_labels(write, open_files):
    train = write("train.tsv", "z b\tb\nz a\ta\nz c\tc\nz b\tb\n")
    store = open_files(train=train, dev=write("dev.tsv", "a\ta\nb\tb\nc\tc\n"), test=write("test.tsv", "c\tc\na\ta"))
    assert list(store.sets) == ["train", "dev", "test"]
    for name, letters in (("train", "bacb"), ("dev", "abc"), ("test", "ca")):
        assert labels_of(store, name) == list(letters)
        assert [text.removeprefix("z ") for text in words_of(store, name)] == list(letters)


def test_numeric_labels_found_in_the_data_mean_the_same_in_every_set(write, open_files):
    train = write("train.tsv", "".join(f"{label}\t{label}\n" for label in (10, 2, 1, 10)))
    store = open_files(train=train, dev=write("dev.tsv", "1\t1\n10\t10\n2\t2\n"))
    assert store.labels == ["1", "2", "10"]
    for name in ("train", "dev"):
        assert words_of(store, name) == labels_of(store, name)


def test_a_store_is_found_again_and_not_built_again(write, open_files):
    settings = {"train": write("train.tsv", TRAIN), "dev": write("dev.tsv", DEV)}
    first = open_files(**settings)
    files = {path: path.stat().st_mtime_ns for path in first.folder.rglob("*")}
    second = open_files(**settings)
    assert second.folder == first.folder and second.tokenizer.digest == first.tokenizer.digest
    assert {path: path.stat().st_mtime_ns for path in second.folder.rglob("*")} == files


@pytest.mark.parametrize(
    "change",
    [{"max_len": 9}, {"labels": ["0", "1"]}, {"label_separator": ";"}, {"on_bad_row": "skip"}, {"max_rows": 3},
     {"fields": {"text": 0, "label": 0}}, {"tokenizing": WordPiece(min_count=3)},
     {"tokenizing": WordPiece(min_count=1, lowercase=False)}],
    ids=["max_len", "labels", "label_separator", "on_bad_row", "max_rows", "fields", "min_count", "lowercase"],
)  # fmt: skip
def test_settings_that_shape_the_rows_make_another_store(write, open_files, change):
    settings = {"train": write("train.tsv", "good\t1\nbad\t0\nfine\t1\n"), "dev": write("dev.tsv", "good\t1\n")}
    if "fields" in change:
        settings["dev"] = settings["train"]
    assert open_files(**settings).folder != open_files(**{**settings, **change}).folder


def test_another_content_makes_another_store_and_another_place_does_not(write, open_files):
    train, dev = write("train.tsv", TRAIN), write("dev.tsv", DEV)
    first = open_files(train=train, dev=dev).folder
    assert open_files(train=write("moved.tsv", TRAIN), dev=dev).folder == first
    train.write_text(TRAIN.replace("fine", "poor"))
    assert open_files(train=train, dev=dev).folder != first


def test_settings_that_only_select_rows_open_the_same_store(write, open_files):
    train = write("train.tsv", "".join(f"text {i}\t{i % 2}\n" for i in range(60)))
    opened = [open_files(train=train, **choice) for choice in ({}, {"dev_fraction": 0.5}, {"drop_duplicates": True})]
    assert len({store.folder for store in opened}) == 1
    # The rows that are trained on are others with another share, and the same where nothing is dropped.
    assert opened[0].digests != opened[1].digests and opened[0].digests == opened[2].digests
    assert all(opened[0].digests[name] != opened[1].digests[name] for name in ("train", "dev"))


def test_bad_rows_are_all_listed_by_file_row_field_and_value_and_leave_no_store(write, open_files, empty_cache):
    train = write("train.tsv", "good\t1\n \t0\nbad\nfine\t\n")
    error = refused(open_files, train=train, dev=write("dev.tsv", DEV))
    assert error.problems == [
        f"{train}:2: field text (column 0): ' ' is empty",
        f"{train}:3: the row 'bad' makes 1 column where the first row of the file has 2",
        f"{train}:4: field label (column 1): '' is an empty label",
    ]
    assert "data.on_bad_row=skip" in error.remedy
    assert stores() == [] and list((empty_cache / "staging").iterdir()) == []


def test_a_file_that_is_not_utf_8_is_refused_at_its_line_however_far_down(write, open_files):
    train = write("train.tsv", b"good\t1\n" * 30_000 + "坏\t0\n".encode("gb18030") + b"bad\t0\n")
    refused(open_files, f"{train}:30001: is not UTF-8", "iconv", train=train, dev=write("dev.tsv", DEV))


@pytest.mark.parametrize(
    ("content", "place", "remedy"),
    [("good\t1\n".encode("utf-16"), "", "is UTF-16, not UTF-8; convert the file: iconv -f utf-16 "),
     ("\ufeffgood\t1\n".encode("utf-16-be"), "", "iconv -f utf-16 "),
     ("good\t1\n".encode("utf-32"), "", "iconv -f utf-32 "),
     ("good\t1\ncafé schön\t0\n".encode("latin-1"), ":2", "iconv -f cp1252 "),
     ("坏\t0\n".encode("gb18030"), ":1", "iconv -f gb18030 "), (b"good\t1\n\x8d \t0\n", ":2", "it was written,")],
)  # fmt: skip
def test_only_an_encoding_that_fits_the_bytes_is_advised(write, open_files, content, place, remedy):
    train = write("a file.tsv", content)
    error = refused(open_files, f"{train}{place}: is ", remedy, train=train, dev=write("dev.tsv", DEV))
    # The command of the message makes a file of the same format.
    if (command := re.search("iconv -f .*", str(error))) is not None:
        subprocess.run(command[0].partition(", or set")[0], shell=True, check=True)
        encoding = command[0].split()[2]
        assert train.with_name("a file.utf-8.tsv").read_text() == content.decode(encoding)


@pytest.mark.parametrize("empty", ["train", "dev", "test"])
def test_a_set_without_a_usable_row_is_refused(write, open_files, empty):
    content = {"train": TRAIN, "dev": DEV, "test": DEV, empty: "\n\n"}
    sets = {name: write(f"{name}.tsv", text) for name, text in content.items()}
    refused(open_files, f"the set {empty} is empty", f"{empty}.tsv", f"set data.{empty} to a file", **sets)


def test_exact_duplicates_are_dropped_and_counted_while_other_labels_stay(write, open_files):
    train = write("train.tsv", "a\t1\nb\t0\na\t1\na\t0\nb\t0\nb\t0\n")
    store = open_files(train=train, dev=write("dev.tsv", "a\t1\na\t1\n"), drop_duplicates=True)
    part = store.sets["train"]
    assert part.stored.number_N[part.rows_N].tolist() == [1, 2, 4]
    assert store.meta["dropped_duplicates"] == 3
    assert len(store.sets["dev"]) == 2


def test_duplicates_at_the_start_of_the_file_move_no_text_to_the_other_side(write, open_files):
    # The rows that stay are not the first ones, so that a hash of another row would decide.
    texts = [f"text {i}" for i in range(120)]
    once = [f"{text}\t{label}\n" for text in texts for label in (0, 1)]
    sides = []
    for name, lines in (("once", once), ("twice", [once[0]] * 37 + once)):
        train = write(f"{name}.tsv", "".join(lines))
        store = open_files(train=train, dev_fraction=0.3, drop_duplicates=True)
        sides.append([set(texts_of(train, store.sets[part])) for part in ("train", "dev")])
        assert not sides[-1][0] & sides[-1][1], "a text with two labels stands on both sides"
        assert store.meta["dropped_duplicates"] == (0 if name == "once" else 37)
        assert len(store.sets["train"]) + len(store.sets["dev"]) == 240
    assert sides[0] == sides[1] and len(sides[0][1]) > 20


PAIR_FIELDS = {"text_a": 0, "text_b": 1, "label": 2}


@pytest.mark.parametrize(("layout", "fold"), [("pair", None), ("sides", Fold(1, 4, 1))], ids=["split", "fold"])
def test_pairs_that_share_a_text_on_either_side_stay_on_one_side(write, open_files, layout, fold):
    rows = [(f"{a} {i}", f"{b} {i}") for i in range(60) for a, b in ("xy", "zx", "wz")]
    train = write("train.tsv", "".join(f"{a}\t{b}\t{n % 2}\n" for n, (a, b) in enumerate(rows)))
    store = open_files(layout, train=train, fields=PAIR_FIELDS, dev_fraction=0.3, fold=fold)
    sides = [{text for row in store.sets[name].rows_N for text in rows[row]} for name in ("train", "dev")]
    assert not sides[0] & sides[1] and min(map(len, sides)) >= 30


@pytest.mark.parametrize("fold", [None, Fold(1, 4, 1)], ids=["split", "fold"])
def test_pairs_with_few_second_texts_are_held_out_by_their_first(write, open_files, fold, caplog):
    train = write("train.tsv", "".join(f"question {i // 2}\tanswer {i % 3}\t{i % 2}\n" for i in range(120)))
    store = open_files("sides", train=train, fields=PAIR_FIELDS, dev_fraction=0.3, fold=fold)
    questions = [{row // 2 for row in store.sets[name].rows_N} for name in ("train", "dev")]
    assert not questions[0] & questions[1] and min(map(len, questions)) >= 10
    assert "120 of the 120 pairs of data.train are grouped by their first text only" in caplog.text


def test_groups_stay_on_one_side_of_the_dev_split_and_so_do_texts_that_join_them(write, open_files):
    # Shop 0 and shop 1 share a text, so that they stand on the side of the smaller hash of the two.
    rows = [(f"text {i}", i % 40) for i in range(200)] + [("text 0", 1)]
    train = write("train.tsv", "".join(f"{text}\t{shop % 2}\tshop {shop}\n" for text, shop in rows))
    store = open_files(train=train, dev_fraction=0.3, group_by=2)
    shops = [{rows[row][1] for row in store.sets[name].rows_N} for name in ("train", "dev")]
    assert not shops[0] & shops[1] and shops[0] | shops[1] == set(range(40))

    # The two joined shops are the largest of 39 clusters, of which three tenths are held out.
    assert len(shops[1]) == 12 + (0 in shops[1]) and {0, 1} & shops[1] in (set(), {0, 1})


@pytest.mark.parametrize("rows", [20, 200])
def test_the_dev_split_holds_out_the_same_share_of_each_label_by_hashes_of_texts(write, open_files, rows):
    texts = {f"text {i}": "abcc"[i * 7 % 4] if i % 10 else "rare" for i in range(rows)}
    lines = [f"{text}\t{label}\n" for text, label in texts.items()]
    held = []
    for name, some in (("one", lines), ("other", sorted(lines, reverse=True))):
        train = write(f"{name}.tsv", "".join(some))
        held.append(set(texts_of(train, open_files(train=train, dev_fraction=0.2).sets["dev"])))
    counts = Counter(texts.values())
    assert held[0] == held[1] and len(held[0]) == rows // 5
    for label, found in Counter(texts[text] for text in held[0]).items():
        assert abs(found - 0.2 * counts[label]) < 1
    # By hand: the rarest label first, in each label by 63 bits of BLAKE2b of the text, every fifth from the third.
    hashes = {
        text: int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") // 2 for text in texts
    }
    ranks = sorted(counts, key=lambda label: (counts[label], label))
    assert held[0] == set(sorted(texts, key=lambda text: (ranks.index(texts[text]), hashes[text]))[2::5])


def test_the_dev_split_spreads_sets_of_labels(write, open_files):
    rng = random.Random(5)
    rows = [
        (n, sorted(name for name, share in zip("abc", (0.5, 0.2, 0.05), strict=True) if rng.random() < share))
        for n in range(400)
    ]
    train = write("sets.tsv", "".join(f"text {n}\t{'|'.join(names)}\n" for n, names in rows))
    store = open_files(train=train, dev_fraction=0.1, target="nlu.data.targets.LabelSet")
    flat, _ = store.target.sets(store.sets["dev"].stored, store.sets["dev"].rows_N)
    for number, name in enumerate("abc"):
        total = sum(name in names for _, names in rows)
        assert abs(int((flat == number).sum()) - total / 10) <= max(2, 0.03 * total)


@pytest.mark.parametrize("choice", [{"dev_fraction": 0.4}, {"fold": Fold(2, 3, 1), "drop_duplicates": True}])
def test_the_vocabulary_is_that_of_the_training_rows_and_every_set_is_written_in_it(write, open_files, choice):
    rng = random.Random(0)
    texts = [" ".join(f"w{rng.randrange(60)}" for _ in range(rng.randint(1, 8))) for _ in range(60)]
    train = write("train.tsv", "".join(f"{text}\t{i % 2}\n" for i, text in enumerate(texts)))
    test = write("test.tsv", "w1 unseen\t0\nw2\t1\n")
    store = open_files(train=train, test=test, tokenizing=WordPiece(max_size=30), **choice)
    trained = " ".join(texts[row] for row in store.sets["train"].rows_N).split()
    frequent = sorted((w for w in set(trained) if trained.count(w) > 1), key=lambda w: (-trained.count(w), w))[:25]
    backend = store.tokenizer.backend
    assert [backend.id_to_token(number) for number in range(store.tokenizer.vocab_size)] == [*SPECIALS, *frequent]
    for name, lines in (("train", texts), ("dev", texts), ("test", ["w1 unseen", "w2"])):
        own = [lines[row] for row in store.sets[name].rows_N]
        assert words_of(store, name) == [
            " ".join(word if word in frequent else "[UNK]" for word in text.split()) for text in own
        ]


def test_a_split_that_leaves_no_dev_row_is_refused(write, open_files):
    few = open_files(train=write("train.tsv", TRAIN), dev_fraction=0.01)
    assert {name: len(part) for name, part in few.sets.items()} == {"train": 2, "dev": 1}
    train = write("groups.tsv", "good\t1\tx\nbad\t0\tx\n")
    refused(open_files, "splitting 2 rows with data.dev_fraction=0.01 by folds.group_by=2; set data.dev to a file",
            train=train, dev_fraction=0.01, group_by=2)  # fmt: skip


def test_a_set_may_be_a_list_of_files(write, open_files):
    files = [str(write("one.tsv", "a\t1\nb\t0\n")), str(write("two.tsv", "c\t1\n"))]
    store = open_files(train=files, dev=write("dev.tsv", "a\t1\n"))
    assert words_of(store, "train") == ["a", "b", "c"]
    assert store.sets["train"].stored.scalars("file", np.arange(3)).tolist() == [0, 0, 1]
    assert store.sets["train"].stored.number_N.tolist() == [1, 2, 1]


def test_plain_lines_take_their_label_from_their_file(write, open_files):
    negative, positive = write("neg.txt", "bad, really\n\npoor\n"), write("pos.txt", "good\n")
    labelled = {"negative": str(negative), "positive": str(positive)}
    store = open_files(train=labelled, dev=labelled, format="lines")
    for name in ("train", "dev"):
        assert words_of(store, name) == ["bad , really", "poor", "good"]
        assert labels_of(store, name) == ["negative", "negative", "positive"]


def test_several_named_dev_sets_are_kept_apart_in_the_order_given(write, open_files):
    easy, hard = str(write("easy.tsv", "good\t1\n")), str(write("hard.tsv", "bad\t0\nfine\t1\n"))
    train = write("train.tsv", TRAIN)
    for named in ({"easy": easy, "hard": hard}, {"hard": hard, "easy": easy}):
        store = open_files(train=train, dev=named, test=easy)
        assert list(store.sets) == ["train", *named, "test"]
        assert [len(store.sets[name]) for name in ("easy", "hard")] == [1, 2]


def test_max_rows_keeps_the_first_rows_of_each_file(write, open_files):
    one, two = write("one.tsv", "a\t1\nb\t0\nc\t1\n"), write("two.tsv", "d\t1\n")
    store = open_files(train=[str(one), str(two)], dev=one, max_rows=2)
    assert words_of(store, "train") == ["a", "b", "d"]
    assert words_of(store, "dev") == ["a", "b"]


def test_chunks_and_shards_change_nothing_that_is_seen(write, open_files, empty_cache, monkeypatch):
    lines = [f"{'word ' * (i % 7)}number {i}\t{i % 3}" for i in range(50)]
    # Words and number, between two special tokens: those with five and six words are too long.
    settings = {"train": write("train.tsv", "\n".join(lines)), "dev_fraction": 0.3, "max_len": 8}
    whole = open_files(**settings)
    assert whole.meta["sets"]["train"]["cut"] == 14
    wanted = {name: (words_of(whole, name), labels_of(whole, name)) for name in whole.sets}
    whole.folder.rename(empty_cache / "aside")
    monkeypatch.setattr(reading_module, "CHUNK_ROWS", 4)
    monkeypatch.setattr(store_module, "SHARD_ROWS", 7)
    pieces = open_files(**settings)
    assert len(list((pieces.folder / "train").glob("*.arrow"))) == 8
    assert pieces.meta["sets"] == whole.meta["sets"]
    assert {name: (words_of(pieces, name), labels_of(pieces, name)) for name in pieces.sets} == wanted


def test_a_pair_is_one_example_and_its_texts_do_not_run_together(write, open_files):
    train = write("train.tsv", "ab\tc\t1\na\tbc\t1\nab\tc\t1\nd\te\t0\n")
    fields = {"text_a": 0, "text_b": 1, "label": 2}
    store = open_files("pair", train=train, dev=train, fields=fields, drop_duplicates=True)
    assert words_of(store, "train") == ["ab [SEP] c", "a [SEP] bc", "d [SEP] e"]


@pytest.mark.parametrize(
    ("text", "spans", "tags"),
    [
        ("Ann Lee left", {"person": {"Ann Lee": [[0, 6]]}}, ["B-person", "I-person", "O"]),
        ("Ann Lee left", {"person": {"Ann": [[0, 2]], "Lee": [[4, 6]]}}, ["B-person", "B-person", "O"]),
        ("see iPhone4 now", {"thing": {"Phone": [[5, 9]], "4": [[10, 10]]}}, ["O", "B-thing", "O"]),
        ("a (B) c", {"thing": {" (B)": [[1, 4]]}}, ["O", "B-thing", "I-thing", "I-thing", "O"]),
        ("no: yes", {"thing": {"o: y": [[1, 4]]}}, ["B-thing", "I-thing", "I-thing"]),
        ("a  b", {"thing": {" ": [[1, 1]]}}, ["O", "O"]),
    ],
)
def test_a_word_is_of_the_first_span_that_has_a_character_of_it(write, open_files, text, spans, tags):
    other = {"text": "x", "label": {"person": {}, "thing": {"x": [[0, 0]]}}}
    train = write("t.jsonl", "\n".join(map(json.dumps, [{"text": text, "label": spans}, other])))
    store = open_files("units", train=train, dev=train, fields={"text": "text", "spans": "label"})
    batch = collate(store.sets["train"], np.array([0]))
    assert [store.labels[tag] for tag in batch.targets["labels"]] == tags


@pytest.mark.parametrize(
    ("row", "message"),
    [('{"t": ["a"], "g": ["O", "O"]}', "field g: [\"O\", \"O\"] has 2 tags for 1 token"),
     ('{"t": 5, "g": ["O", "O"]}', "field t: 5 is not a list of texts"),
     ('{"t": [], "g": []}', "field t: [] is empty"),
     ('{"t": ["a"], "g": 5}', "field g: 5 is not a list of tags"),
     ('{"t": ["a"], "g": ["X-X"]}', "is a tag of no known scheme")],
)  # fmt: skip
def test_a_row_of_tokens_that_cannot_be_used_is_refused_at_its_row(write, open_files, row, message):
    train = write("train.jsonl", '{"t": ["a"], "g": ["B-X"]}\n' + row)
    refused(open_files, f"{train}:2: {message.partition('is a tag of')[0]}", message, layout="units", train=train,
            dev=train, fields={"tokens": "t", "tags": "g"})  # fmt: skip


def table(rows, columns="text,label"):
    return "\n".join([columns, *rows]) + "\n"


def held_out(open_files, count, seed=1, **settings):
    """The rows that each fold holds out, after checking that it trains on the others."""
    found = []
    for number in range(count):
        store = open_files(fold=Fold(number, count, seed), **settings)
        train, dev = (store.sets[name].rows_N.tolist() for name in ("train", "dev"))
        assert sorted(train + dev) == list(range(len(store.sets["train"].stored)))
        found.append(dev)
    return found


def test_folds_hold_every_training_row_out_once_from_one_store(write, open_files, empty_cache):
    rows = [f"text {i},{'ab'[i % 2]}" for i in range(25)]
    settings = {"train": write("train.csv", table(rows)), "fields": {"text": "text", "label": "label"}}
    folds = held_out(open_files, 4, **settings)
    assert sorted(row for fold in folds for row in fold) == list(range(25))
    assert sorted(map(len, folds)) == [6, 6, 6, 7] and len(stores()) == 1
    assert held_out(open_files, 4, seed=2, **settings) != folds


def test_declared_dev_sets_are_left_out_of_folds_and_a_test_set_is_not(write, open_files):
    train = write("train.tsv", "".join(f"text {i}\t{i % 2}\n" for i in range(20)))
    other = write("other.tsv", "a\t1\nb\t0\nc\t0\n")
    store = open_files(train=train, dev={"dev": str(other), "hard": str(other)}, test=other, fold=Fold(0, 2, 1))
    assert [(name, len(part)) for name, part in store.sets.items()] == [("train", 10), ("dev", 10), ("test", 3)]
    assert store.sets["dev"].stored is store.sets["train"].stored
    assert list(store.meta["sets"]) == ["train", "test"]


def test_more_folds_than_texts_or_groups_are_refused(write, open_files):
    train = write("train.tsv", "one\t1\tx\ntwo\t0\tx\none\t1\ty\nthree\t0\tz\n")
    fields = {"text": 0, "label": 1}
    with pytest.raises(UserError, match="folds.count is 4, but the training set has 3 different texts in 4 rows"):
        open_files(train=train, fields=fields, fold=Fold(0, 4, 1))
    with pytest.raises(UserError, match="has 2 groups of folds.group_by=2 that share no text; set it to <= 2"):
        open_files(train=train, fields=fields, group_by=2, fold=Fold(0, 3, 1))


def test_labels_with_fewer_rows_than_folds_are_named(write, open_files, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("nlu"), "propagate", True)
    train = write("train.tsv", "".join(f"text {i}\t{'rare' if i < 2 else 'ab'[i % 2]}\n" for i in range(20)))
    open_files(train=train, fold=Fold(0, 5, 1))
    assert "fewer rows than the 5 folds have the labels rare" in caplog.text


def test_a_group_column_that_is_absent_is_refused_with_the_nearest(write, open_files):
    train = write("t.csv", table(["s,one,1", "s,two,0"], "shop,text,label"))
    fields = {"text": "text", "label": "label"}
    refused(open_files, str(train), "folds.group_by", "nearest: shop", train=train, fields=fields, group_by="shp")


def test_a_row_without_a_group_is_refused(write, open_files):
    train = write("train.tsv", "one\t1\tx\ntwo\t0\t\n")
    refused(open_files, f"{train}:2: field 2: '' is not a group", train=train, group_by=2)
    half = write("half.jsonl", '{"text": "one", "label": 1, "of": "\\ud800"}\n{"text": "two", "label": 0, "of": "x"}\n')
    refused(open_files, f"{half}:1: field of: '\\ud800' is not a group", train=half, fields=None, group_by="of")


@pytest.mark.parametrize(
    ("name", "layout", "settings"),
    [
        ("9c0493d2a0a1d76dffe22066", "single", {}),
        ("43d528d4ebec7b5bb92e7b35", "single",
         {"group_by": 1, "max_len": 64, "on_bad_row": "skip", "max_rows": 7, "labels": ["1", "0"]}),
        ("0a5400d70dd614fc166e4312", "pair", {"fields": {"text_a": 0, "text_b": 0, "label": 1}, "header": False}),
        ("0a5cf8c51f150943eb8dcaa3", "single",
         {"separator": ";", "target": "nlu.data.targets.LabelSet", "label_separator": ","}),
        ("b353a634bb8f23e58e9692ab", "units", {"fields": {"text": "text", "spans": "label"}}),
    ],
    ids=["plain", "settings", "pair", "dialect", "spans"],
)  # fmt: skip
def test_the_name_of_a_store_is_the_same_in_every_version(write, open_files, name, layout, settings):
    files = {
        "units": ("t.jsonl", '{"text": "a b", "label": {"x": {"a": [[0, 0]]}}}\n'),
        "dialect": ("t.csv", "a b;1\nc;0\n"),
    }.get("dialect" if "separator" in settings else layout, ("t.tsv", "a b\t1\nc\t0\n"))
    train = write(*files)
    # Where it must be another one, FORMAT_VERSION says so; by accident all users would build all stores again.
    assert open_files(layout, train=train, dev=train, **settings).folder.name == name


def test_a_file_of_labels_is_the_same_as_a_list_of_them(write, open_files):
    train, labels = write("train.tsv", TRAIN), write("labels.txt", "\ufeff1\r\n0\n\n2")
    listed = open_files(train=train, labels=["1", "0", "2"])
    of_file = open_files(train=train, labels=labels)
    assert of_file.labels == ["1", "0", "2"] and of_file.folder == listed.folder
    refused(open_files, "labels.txt: data.labels names this file, which holds no label", train=train,
            labels=write("labels.txt", " \n"))  # fmt: skip
    refused(open_files, "data.labels is 'none.txt', which does not exist", train=train, labels="none.txt")


def test_rows_are_scored_without_the_file_that_listed_the_labels_of_training(write, open_files, tmp_path):
    labels = write("labels.txt", "1\n0\n")
    store = open_files(train=write("train.tsv", TRAIN), labels=labels)
    labels.unlink()
    files = Files(train="none", test=str(write("test.tsv", DEV)), fields={"text": 0, "label": 1}, labels=str(labels))
    scored = prepare_scoring(files, ["test"], store.target, "single", store.tokenizer)
    assert labels_of(scored, "test") == ["0", "1"]
