"""A trimmed tokenizer cuts texts of its pieces as the whole one does, and other texts into smaller pieces."""

import random
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, processors

from nlu.config.errors import UserError
from nlu.data.tokenizing import SPECIALS, Tokenizer, load_tokenizer, of_backend, wordpiece
from nlu.data.trimming import require_trimmable, rows_of, trimmed
from tests.inference.hubs import bpe

SCORES = {
    "<s>": 0.0, "<pad>": 0.0, "</s>": 0.0, "<unk>": 0.0, "▁": -2.0, "xyz": -30.0, "a": -4.0, "b": -4.5, "c": -5.0,
    "ab": -5.0, "abc": -5.5, "▁ab": -5.2, "bc": -5.1, "ca": -6.0, "▁c": -6.1, "cab": -7.0,
}  # fmt: skip


def unigram() -> Tokenizer:
    backend = Backend(models.Unigram(list(SCORES.items()), unk_id=3))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.add_special_tokens(["<s>", "</s>", "<pad>", "<unk>"])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return of_backend(backend, "here")


def berts() -> Tokenizer:
    return wordpiece(["[unused]", *SPECIALS, *"abc", "##a", "##b", "##c", "ab", "##bc", "abc", "##cab"], True, "here")


def berts_of_transformers() -> Tokenizer:
    tokenizer = berts()
    number_of = tokenizer.vocabulary
    tokenizer.backend.post_processor = processors.BertProcessing(
        ("[SEP]", number_of["[SEP]"]), ("[CLS]", number_of["[CLS]"])
    )
    return of_backend(tokenizer.backend, "here")


KINDS = {"unigram": unigram, "wordpiece": berts, "wordpiece with a post-processor": berts_of_transformers}


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.backend.id_to_token(int(number)) for number in tokenizer.ids([text])[0]]


def used_by(tokenizer: Tokenizer, texts: list[str]) -> np.ndarray:
    return np.bincount(tokenizer.ids(texts)[0], minlength=tokenizer.vocab_size)


@pytest.mark.parametrize("kind", KINDS)
def test_texts_whose_pieces_are_kept_have_the_same_pieces(kind: str) -> None:
    whole, rng = KINDS[kind](), random.Random(0)
    texts = ["".join(rng.choice("abc d") for _ in range(rng.randint(1, 9))) for _ in range(300)]
    small = trimmed(whole, used_by(whole, texts[:4]))
    kept = set(small.vocabulary)
    assert len(kept) < whole.vocab_size and sorted(small.vocabulary.values()) == list(range(small.vocab_size))
    same = [text for text in texts if set(pieces(whole, text)) <= kept]
    assert len(same) > 50
    for text in same:
        assert pieces(small, text) == pieces(whole, text), text


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_and_special_tokens_are_those_of_the_kept_pieces(kind: str, tmp_path: Path) -> None:
    whole = KINDS[kind]()
    small = trimmed(whole, used_by(whole, ["ab", "cab"]))
    names = {number: piece for piece, number in whole.vocabulary.items()}
    assert [names[row] for row in rows_of(small, whole)] == sorted(small.vocabulary, key=small.vocabulary.__getitem__)
    for one, other in ((small.single, whole.single), (small.pair, whole.pair)):
        for part in ("before", "between", "after"):
            assert [small.backend.id_to_token(number) for number in getattr(one, part)] == [
                whole.backend.id_to_token(number) for number in getattr(other, part)
            ]
    assert small.backend.id_to_token(small.unknown_id) == whole.backend.id_to_token(whole.unknown_id)
    assert small.has_segments == whole.has_segments == (kind != "unigram")
    small.save(tmp_path)
    again = load_tokenizer(tmp_path, None)
    assert again is not None and (again.digest, again.vocab_size) == (small.digest, small.vocab_size)
    assert pieces(again, "cab ab") == pieces(small, "cab ab")


def test_an_unseen_piece_is_cut_into_smaller_ones_that_are_kept() -> None:
    whole = unigram()
    small = trimmed(whole, used_by(whole, ["ab ab"]))
    assert set(SCORES) - set(small.vocabulary) == {"ab", "abc", "bc", "ca", "▁c", "cab"}
    assert pieces(whole, "cab") == ["▁", "cab"]
    assert pieces(small, "cab") == ["▁", "c", "a", "b"]
    # The lowest score decides what an unknown character costs, so its piece stays.
    assert pieces(small, "aq") == pieces(whole, "aq") == ["▁", "a", "<unk>"]
    of_words = berts()
    assert pieces(trimmed(of_words, used_by(of_words, ["ab"])), "abcab") == ["ab", "##c", "##a", "##b"]
    assert pieces(of_words, "abcab") == ["abc", "##a", "##b"]


@pytest.mark.parametrize("kind", ["BPE", "WordLevel"])
def test_a_tokenizer_that_cannot_cut_unknown_pieces_is_refused(kind: str) -> None:
    backend = bpe() if kind == "BPE" else Backend(models.WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>"))
    backend.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])
    reason = {"BPE": "a BPE, whose merges need all pieces", "WordLevel": "a WordLevel, which does not split words"}
    with pytest.raises(UserError, match=f"the tokenizer of the weights is {reason[kind]}"):
        require_trimmable(of_backend(backend, "here"))
