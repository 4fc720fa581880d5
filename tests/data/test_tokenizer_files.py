"""Tokenizers of the hub's folders, as transformers reads them: their tokens, settings, added tokens and equal lines."""

import json
import random
import sys
import unicodedata
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nlu.config.errors import DataError, UserError
from nlu.data import tokenizer_files
from nlu.data.tokenizing import Tokenizer, WordPiece
from nlu.data.whitespace import Whitespace
from tests.data.hub_folders import BERT, DEBERTA, ENTITIES, KINDS, SENTENCES, merges, modernbert, words

DATA = Path(__file__).parents[3] / "shared/data"
MARKED = ["Café [E1] foo[/E1] <url>x[e1]y <X> <x> [unused1]", "東京都 ÀÉ İ ﬁ ＡＢ", "a  b\t\tc\nd \u3000e", ""]


@pytest.fixture
def transformers() -> Any:
    return pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def strange() -> list[str]:
    """Texts of random characters of all planes and scripts."""
    rng = random.Random(0)
    every = [chr(n) for n in range(32, 0x20000) if unicodedata.category(chr(n)) not in ("Cn", "Cs", "Co")]
    return ["".join(rng.choices([*every, *" abAB.," * 2000], k=rng.randint(1, 30))) for _ in range(2000)]


def ids_of(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    flat, counts_N = tokenizer.ids(texts)
    around = tokenizer.single
    return [[*around.before, *own.tolist(), *around.after] for own in np.split(flat, np.cumsum(counts_N)[:-1])]


def words_of(tokenizer: Tokenizer, text: str) -> list[str]:
    token_of = {number: token for token, number in tokenizer.vocabulary.items()}
    return [token_of[number] for number in tokenizer.ids([text])[0].tolist()]


@pytest.mark.parametrize("kind", KINDS)
def test_token_numbers_are_those_of_auto_tokenizer(
    tmp_path: Path, transformers: Any, strange: list[str], kind: str
) -> None:
    KINDS[kind](tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    texts = [*SENTENCES, *MARKED, *strange[:300]]
    ours = WordPiece().given(None, tmp_path)
    assert ours is not None
    for text, found, right in zip(texts, ids_of(ours, texts), theirs(texts)["input_ids"], strict=True):
        assert found == right, text
    pair = [*ours.pair.before, *ours.ids(["a b"])[0], *ours.pair.between, *ours.ids(["c"])[0], *ours.pair.after]
    assert pair == theirs("a b", "c")["input_ids"]
    # What a run saves is read without transformers, and has the same tokens.
    (tmp_path / "run").mkdir()
    ours.save(tmp_path / "run")
    again = WordPiece().given(None, tmp_path / "run")
    assert again is not None and again.digest == ours.digest and ids_of(again, MARKED) == ids_of(ours, MARKED)


def test_the_last_of_equal_lines_has_the_word_and_rows_keep_their_numbers(
    tmp_path: Path, transformers: Any, caplog: Any
) -> None:
    lines = [*BERT, "good", "box", "", "bad", "box", "", "the", "##s"]
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(lines) + "\n")
    theirs = transformers.BertTokenizer.from_pretrained(tmp_path)
    for vocabulary in (WordPiece(vocab=str(path)), Whitespace(vocab=str(path))):
        found = vocabulary.given(path, None)
        assert found is not None and found.vocab_size == 13
        assert found.ids(["the good box is bad"])[0].tolist() == [11, 5, 9, 1, 8]
    assert theirs("the good box is bad", add_special_tokens=False)["input_ids"] == [11, 5, 9, 1, 8]
    assert (
        "vocab.txt: 'box' in lines 7 and 10, '' in lines 8 and 11: the last of equal lines has the word" in caplog.text
    )
    folder = Whitespace().given(None, tmp_path)
    assert folder is not None and folder.ids(["the boxs ##s"])[0].tolist() == [11, 1, 12]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("word_tokenizer_type", "mecab"), ("subword_tokenizer_type", "character"), ("do_basic_tokenize", False),
        ("never_split", ["ab"]), ("tokenizer_class", "BertJapaneseTokenizer"),
    ],
)  # fmt: skip
def test_a_setting_that_cannot_be_followed_is_refused_by_name(tmp_path: Path, key: str, value: object) -> None:
    words(**{key: value})(tmp_path)
    with pytest.raises(
        DataError, match=rf"tokenizer_config.json: .*{key} is .*set tokenizer.vocab to a tokenizer.json"
    ):
        WordPiece().given(None, tmp_path)


def test_settings_that_change_no_token_say_nothing_and_others_are_named(tmp_path: Path, caplog: Any) -> None:
    words(do_basic_tokenize=True, never_split=None, model_max_length=512, padding_side="left")(tmp_path)
    WordPiece().given(None, tmp_path)
    assert not caplog.text
    words(truncation_side="left", spelling="new")(tmp_path)
    WordPiece().given(None, tmp_path)
    assert "truncation_side is left, but a text that is longer than data.max_len loses its end" in caplog.text
    assert "spelling: unknown to nlu" in caplog.text


def test_only_what_transformers_must_convert_asks_for_it_by_name(tmp_path: Path, monkeypatch: Any) -> None:
    def absent(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(tokenizer_files, "version", absent)
    monkeypatch.setitem(sys.modules, "transformers", None)
    for name, make in (("words", words(files=ENTITIES)), ("bytes", modernbert)):
        (tmp_path / name).mkdir()
        make(tmp_path / name)
        assert WordPiece().given(None, tmp_path / name) is not None
    for name, make, file in (("spm", DEBERTA, "spm.model"), ("merges", merges("roberta"), "vocab.json")):
        (tmp_path / name).mkdir()
        make(tmp_path / name)
        with pytest.raises(
            UserError, match=rf"its tokenizer in {file}, which transformers converts; pip install 'nlu\[hf\]'"
        ):
            WordPiece().given(None, tmp_path / name)


def test_a_folder_of_no_known_kind_names_the_remedy_which_works(tmp_path: Path) -> None:
    DEBERTA(tmp_path)
    right = WordPiece().given(None, tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(DataError, match="name the right tokenizer_class in tokenizer_config.json"):
        WordPiece().given(None, tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "DebertaV2Tokenizer"}')
    # tokenizer.vocab may name the file, or the folder.
    for path in (tmp_path / "spm.model", tmp_path):
        found = WordPiece().given(path, None)
        assert found is not None and right is not None and found.digest == right.digest


def test_code_in_a_folder_is_not_run(tmp_path: Path, monkeypatch: Any) -> None:
    DEBERTA(tmp_path)
    own = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(own))
    (tmp_path / "config.json").write_text('{"model_type": "own"}')
    (tmp_path / "own.py").write_text("raise SystemExit('run')")
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a question"))
    with pytest.raises(DataError, match="transformers makes no tokenizer.json of spm.model: .*contains custom code"):
        WordPiece().given(None, tmp_path)


def test_a_damaged_tokenizer_is_refused_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"')
    with pytest.raises(DataError, match="tokenizer.json: not a tokenizer.json .*; give an undamaged file"):
        WordPiece().given(None, tmp_path)
    words()(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(DataError, match=r"tokenizer_config.json: not JSON \(.*line 1.*\); give an undamaged file"):
        WordPiece().given(None, tmp_path)


@pytest.mark.parametrize("kind", ["bert", "bert, cased", "roberta", "xlm-roberta", "t5", "deberta"])
def test_an_added_token_is_one_token_wherever_a_text_has_it(tmp_path: Path, kind: str) -> None:
    KINDS[kind](tmp_path)
    plain = WordPiece().given(None, tmp_path)
    ours = WordPiece(added_tokens=["[E1]", "<url>", "【人】", "the"]).given(None, tmp_path)
    assert plain is not None and ours is not None
    new = 4 - ("the" in plain.vocabulary)
    assert ours.new_tokens == new and ours.vocab_size == plain.vocab_size + new
    for text in ("[E1] fox", "a[E1]b", "[E1][E1]", "中[E1]国", "see <url>.", "x【人】y"):
        found = words_of(ours, text)
        assert [token for token in found if token in ("[E1]", "<url>", "【人】")], (text, found)
        assert "[" not in found and "<" not in found and "【" not in found
    # Where the tokenizer ignores case, so do the added tokens.
    assert ("<url>" in words_of(ours, "<URL>")) == (kind == "bert")
    assert ids_of(ours, ["fox and dog"]) == ids_of(plain, ["fox and dog"])


def test_a_built_vocabulary_holds_added_tokens_also_where_no_row_has_them(tmp_path: Path) -> None:
    for kind in (WordPiece, Whitespace):
        vocabulary = kind(min_count=2, added_tokens=["[E1]", "[X]"])
        built = vocabulary.build([["[E1] film good", "good film day"]])
        counts_V = np.bincount(built.ids(["good film", "day"])[0], minlength=built.vocab_size)
        found, _ = vocabulary.restrict(built, counts_V)
        assert {"[E1]", "[X]"} <= found.vocabulary.keys() and "day" not in found.vocabulary
        assert words_of(found, "[E1] x [X]") == ["[E1]", "[UNK]", "[X]"]
        assert kind().settings() != vocabulary.settings()


def test_an_added_token_that_is_blank_is_refused() -> None:
    with pytest.raises(UserError, match="added_tokens has ' x'"):
        WordPiece(added_tokens=["<url>", " x"])
