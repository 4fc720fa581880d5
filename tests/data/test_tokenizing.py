"""Vocabularies from files, from text and from other libraries, and what surrounds the tokens."""

import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from nlu.config.errors import DataError
from nlu.data.tokenizer_files import read_vocab
from nlu.data.tokenizing import SPECIALS, Template, WordPiece, load_tokenizer, wordpiece

CHINESE_VOCAB = Path(__file__).parents[3] / "shared/data/bert_base_chinese_vocab/vocab.txt"


def words_of(tokenizer, text):
    flat, _ = tokenizer.ids([text])
    return [tokenizer.backend.id_to_token(int(number)) for number in flat]


def built(texts, **settings):
    """The vocabulary of some texts of which none is held out, with every word unless said otherwise."""
    tokenizing = WordPiece(**{"min_count": 1, **settings})
    whole = tokenizing.build([texts])
    counts_V = np.bincount(whole.ids(texts)[0], minlength=whole.vocab_size)
    return tokenizing.restrict(whole, counts_V)[0]


def vocabulary(tokenizer):
    return sorted(tokenizer.backend.get_vocab(), key=tokenizer.backend.token_to_id)


def roberta_like(path, *, padded=False):
    vocab = {token: number for number, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", "a", "b", "c"])}
    backend = Backend(models.BPE(vocab, [], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    if padded:
        backend.enable_padding(length=16, pad_id=1, pad_token="<pad>")
        backend.enable_truncation(3)
    backend.save(str(path))
    return path


def test_vocab_lines_end_at_a_newline_only(write):
    tokens = ["[UNK]", "[CLS]", "[SEP]", "a\u2028", "\u2028", "\x85", "\u2029", "\x0b", "\x1c", "b\rc"]
    assert read_vocab(write("vocab.txt", "\n".join(tokens) + "\n")) == tokens
    assert read_vocab(write("windows.txt", "\r\n".join(tokens[:3]) + "\r\n")) == tokens[:3]


def test_a_vocab_file_that_is_not_utf_8_is_refused(write):
    with pytest.raises(DataError, match=r"vocab\.txt: byte 6 is not UTF-8"):
        read_vocab(write("vocab.txt", b"[UNK]\n\xff\xfe\n"))


def test_a_vocabulary_that_lacks_a_special_token_is_refused():
    with pytest.raises(DataError, match=r"lacks \[CLS\], \[SEP\]"):
        wordpiece(["[UNK]", "a"], True, "vocab.txt")


def test_a_built_vocabulary_is_ordered_by_count_then_token_within_its_bounds():
    texts = ["b b b a a c c d", "a"]
    assert vocabulary(built(texts)) == [*SPECIALS, "a", "b", "c", "d"]
    assert vocabulary(built(texts, min_count=3)) == [*SPECIALS, "a", "b"]
    assert vocabulary(built(texts, max_size=8)) == [*SPECIALS, "a", "b", "c"]
    assert vocabulary(built(texts, max_size=2)) == SPECIALS


def test_rare_words_train_the_unknown_token_by_default():
    texts = ["good film", "good day", "bad film", "dull"]
    tokenizing = WordPiece()
    whole = tokenizing.build([texts])
    tokenizer, _ = tokenizing.restrict(whole, np.bincount(whole.ids(texts)[0], minlength=whole.vocab_size))
    assert vocabulary(tokenizer) == [*SPECIALS, "film", "good"]
    assert [words_of(tokenizer, text) for text in texts] == [
        ["good", "film"], ["good", "[UNK]"], ["[UNK]", "film"], ["[UNK]"]
    ]  # fmt: skip


def test_special_tokens_written_in_a_text_are_plain_text():
    tokenizer = built(["a [SEP] b"])
    assert "[SEP]" not in words_of(tokenizer, "a [SEP] b")


def test_ids_of_many_texts_are_concatenated_with_their_counts():
    flat, counts_N = built(["a b c"]).ids(["a b", "", "c", "\u200b"])
    assert flat.tolist() == [5, 6, 7]
    assert counts_N.tolist() == [2, 0, 1, 0]


def test_a_saved_tokenizer_is_loaded_unchanged(tmp_path):
    for lowercase in (True, False):
        tokenizer = built(["Größe b c 中文"], lowercase=lowercase)
        tokenizer.save(tmp_path)
        again = load_tokenizer(tmp_path, None)
        assert again.digest == tokenizer.digest
        assert (again.single, again.pair, again.unknown_id) == (tokenizer.single, tokenizer.pair, tokenizer.unknown_id)
        assert words_of(again, "GRÖSSE Größe 中x") == words_of(tokenizer, "GRÖSSE Größe 中x")


def test_the_digest_tells_tokenizers_of_other_output_apart():
    digests = {built(["a b"]).digest, built(["a b"], lowercase=False).digest, built(["a c"]).digest}
    assert len(digests) == 3


def test_the_special_tokens_of_another_kind_of_tokenizer_are_read_off(tmp_path):
    tokenizer = WordPiece().given(roberta_like(tmp_path / "tokenizer.json"), None)
    assert tokenizer.single == Template((0,), (), (2,))
    assert tokenizer.pair == Template((0,), (2, 2), (2,))
    assert tokenizer.unknown_id == 3
    assert words_of(tokenizer, "abz") == ["a", "b", "<unk>"]


def test_padding_and_truncation_in_a_tokenizer_file_are_ignored(tmp_path):
    plain = WordPiece().given(roberta_like(tmp_path / "plain.json"), None)
    padded = WordPiece().given(roberta_like(tmp_path / "padded.json", padded=True), None)
    assert (padded.single, padded.pair, padded.digest) == (plain.single, plain.pair, plain.digest)
    assert padded.ids(["abcabcabc"])[1].tolist() == [9]


def test_a_tokenizer_without_an_unknown_token_or_that_cannot_spell_is_refused(tmp_path):
    backend = Backend(models.BPE({"<s>": 0, "a": 1}, []))
    backend.save(str(tmp_path / "closed.json"))
    with pytest.raises(DataError, match=r"no \[UNK\] or <unk> token, and not every byte is a token"):
        WordPiece().given(tmp_path / "closed.json", None)
    mute = Backend(models.BPE({"<s>": 0, "<unk>": 1, "中": 2}, []))
    mute.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 0)])
    mute.save(str(tmp_path / "mute.json"))
    with pytest.raises(DataError, match="drops the letter a"):
        WordPiece().given(tmp_path / "mute.json", None)


def test_a_vocabulary_of_bytes_needs_no_unknown_token(tmp_path):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: number for number, token in enumerate(["<end>", *alphabet, "th"])}
    backend = Backend(models.BPE(vocab, [("t", "h")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.post_processor = processors.TemplateProcessing(
        single="$A <end>", pair="$A <end> $B <end>", special_tokens=[("<end>", 0)]
    )
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path, None)
    assert tokenizer.single == Template((), (), (0,)) and tokenizer.pair == Template((), (0,), (0,))
    texts = ["the 中\U0001f600 text", "\u200b\x85"]
    flat, counts_N = tokenizer.ids(texts)
    assert counts_N.tolist() == [len(text.encode()) - text.count("th") for text in texts]
    backend.decoder = decoders.ByteLevel()
    assert backend.decode(flat[: counts_N[0]].tolist()) == texts[0]
    # The token for a unit of which nothing is left does not count as unknown in a text that contains it.
    assert not tokenizer.is_unknown(tokenizer.ids(["a b"])[0]).any()
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(DataError, match="not every byte"):
        load_tokenizer(tmp_path, None)


def test_gaps_in_the_numbers_of_a_vocabulary_count_as_rows_of_the_embedding(tmp_path):
    backend = Backend(models.WordPiece({"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "a": 9}, unk_token="[UNK]"))
    backend.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path, None).vocab_size == 10


def test_the_case_follows_the_pretrained_folder_unless_it_is_set(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIALS, "Good", "good"]))
    assert words_of(WordPiece().given(None, tmp_path), "Good") == ["good"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False}))
    assert words_of(WordPiece().given(None, tmp_path), "Good") == ["Good"]
    assert words_of(WordPiece(lowercase=True).given(None, tmp_path), "Good") == ["good"]


def test_the_case_setting_also_reaches_a_tokenizer_file_or_is_refused_there(tmp_path):
    wordpiece([*SPECIALS, "Good", "good"], False, "here").save(tmp_path)
    assert words_of(WordPiece().given(None, tmp_path), "Good") == ["Good"]
    assert words_of(WordPiece(lowercase=True).given(None, tmp_path), "Good") == ["good"]
    roberta_like(tmp_path / "tokenizer.json")
    with pytest.raises(DataError, match=r"set tokenizer\.lowercase=null"):
        WordPiece(lowercase=True).given(None, tmp_path)


def test_pretrained_weights_without_a_vocabulary_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"neither tokenizer\.json nor vocab\.txt.*set tokenizer\.vocab"):
        WordPiece().given(None, tmp_path)


@pytest.mark.skipif(
    not CHINESE_VOCAB.is_file(), reason=f"needs {CHINESE_VOCAB.name} of bert_base_chinese in shared/data"
)
def test_the_chinese_vocabulary_has_all_its_tokens_and_spells_chinese():
    vocab = read_vocab(CHINESE_VOCAB)
    assert len(vocab) == 21_128
    tokenizer = WordPiece().given(CHINESE_VOCAB, None)
    assert tokenizer.vocab_size == 21_128
    words = words_of(tokenizer, "浙商银行企业信贷部叶老桂博士，则从另一个角度对五道门槛进行了解读。")
    assert len(words) == 33 and "[UNK]" not in words


def test_a_vocabulary_counts_the_words_that_the_tokenizer_itself_would_see(monkeypatch):
    texts = ["Über-ab 中国a\u200bb, ab\u3000cd! x\u0301y 中", "ab [中] ﬁne\u2003ab", "AB ab.ab\t\u00a0国国"] * 3
    normalizer, splitter = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    seen = [word for text in texts for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))]
    seen_once = set(seen)
    expected = sorted(seen_once, key=lambda word: (-seen.count(word), word))
    assert vocabulary(built(texts)) == [*SPECIALS, *expected]
    monkeypatch.setattr("nlu.data.pieces.MOST_REMEMBERED", 0)
    assert vocabulary(WordPiece(min_count=1).build([[text] for text in texts])) == [*SPECIALS, *sorted(seen_once)]
