"""Masks, compared with a statement of the rule for one example at a time, and their statistics over many examples."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from nlu.config.errors import UserError
from nlu.data.collate import Batch, collate
from nlu.data.dataset import Files
from nlu.data.examples import Examples
from nlu.data.layouts import LAYOUTS, encode_single
from nlu.data.pieces import begins_word
from nlu.data.seeds import uniforms
from nlu.data.store import EncodedRows, Origin, StoredSet, record_batch
from nlu.data.targets import MaskedWords
from nlu.data.targets.masked import Masking
from nlu.data.tokenizer_files import bert
from nlu.data.tokenizing import Tokenizer, WordPiece, of_backend, wordpiece
from tests.data.hub_folders import BERT, KINDS, bytes_backend

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused1]"]
PIECES = [f"##{letter}" for letter in "abcdefgh"]
VOCAB = [*SPECIALS, *(f"w{number}" for number in range(40)), *PIECES]
UNK, CLS, SEP, MASK = (VOCAB.index(name) for name in ("[UNK]", "[CLS]", "[SEP]", "[MASK]"))
KEY = (3, 7)
UNSPACED = [
    "今日はとても良い天気ですね", "東京都に住んでいますがコンピューターを買いました",
    "ภาษาไทยเป็นภาษาที่ไม่มีช่องว่างระหว่างคำ", "ວັດພະແກ້ວຢູ່ນະຄອນຫຼວງວຽງຈັນ",
    "中国的经济发展很快我们都很高兴", "这部电影非常好看演员的表演也很自然", "金融科技公司发布年度报告净利润增长两成",
]  # fmt: skip
"""sentences and titles without a blank between words"""


def examples(count: int, masking: Masking, *, words: bool = False, longest: int = 40) -> Examples:
    """Return random rows of words with up to four pieces, with an unknown token here and there.

    `words`: words of two tokens that are given, instead of those that the pieces tell.
    """
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(count):
        row = [CLS]
        for _ in range(rng.integers(1, longest)):
            row += [int(rng.integers(6, 46)), *rng.integers(46, 54, rng.choice([0, 0, 0, 1, 2, 3])).tolist()]
            row += [UNK] if rng.random() < 0.03 else []
        rows.append([*row, SEP])
    lengths_N = np.array([len(row) for row in rows])
    encoded = EncodedRows(np.concatenate(rows).astype(np.int32), lengths_N, lengths_N, np.zeros(count, bool))
    if words:
        firsts = [np.arange(1, len(row) - 1, 2) for row in rows]
        encoded.words = np.concatenate(firsts).astype(np.int32)
        encoded.word_counts_N = np.array([len(first) for first in firsts])
    return masked_examples(encoded, wordpiece(VOCAB, True, "vocab"), masking)


def masked_examples(encoded: EncodedRows, tokenizer: Tokenizer, masking: Masking) -> Examples:
    count = len(encoded.lengths_N)
    nowhere = Origin(*(np.zeros(count, np.int64) for _ in range(4)))
    stored = StoredSet([record_batch(encoded, [], None, nowhere)])
    target = MaskedWords(Files(train="rows"))
    target.fit(stored, np.arange(count), tokenizer)
    target.choose(masking)
    # What a checkpoint keeps must give the same masks.
    return Examples("train", stored, np.arange(count), MaskedWords.from_meta(target.meta()), LAYOUTS["single"])


def separate(batch: Batch, part: Examples) -> Iterator[tuple[int, np.ndarray, np.ndarray, dict[int, int]]]:
    """Yield each example with its stored tokens, its masked ones, and the label of each masked place."""
    tokens, units = batch.tokens_T.numpy(), batch.units_U.numpy()  # type: ignore[union-attr]
    labels = batch.targets["labels"].numpy()
    for sequence, example in enumerate(batch.examples_B.tolist()):
        start = int(batch.starts_S[sequence])
        stop = start + batch.lengths[sequence]
        inside = (units >= start) & (units < stop)
        found = dict(zip((units[inside] - start).tolist(), labels[inside].tolist(), strict=True))
        yield example, part.stored.tokens(part.rows_N[[example]]), tokens[start:stop], found


def words_of(tokens: np.ndarray, whole: bool, pairs: bool) -> list[list[int]]:
    """Return the places of each word that may be masked."""
    found: list[list[int]] = []
    for place, token in enumerate(tokens.tolist()):
        if token in (UNK, CLS, SEP):
            continue
        continues = (place % 2 == 0) if pairs else VOCAB[token].startswith("##")
        if whole and continues and found and found[-1][-1] == place - 1:
            found[-1].append(place)
        else:
            found.append([place])
    return found


def at(purpose: str, example: int, place: int) -> float:
    return float(uniforms(KEY[0], purpose, KEY[1], example_T=np.array([example]), place_T=np.array([place]))[0])


def expected(example: int, tokens: np.ndarray, masking: Masking, pairs: bool) -> tuple[np.ndarray, dict[int, int]]:
    """State the rule of `MaskedWords` for one example."""
    words = words_of(tokens, masking.whole_words, pairs)
    grams: list[list[int]] = []
    number = 0
    while number < len(words):
        share = at("mask n-gram", example, words[number][0]) * sum(1 / n for n in range(1, masking.max_ngram + 1))
        size = next(
            (n for n in range(1, masking.max_ngram) if share < sum(1 / k for k in range(1, n + 1))), masking.max_ngram
        )
        size = 1 if masking.max_ngram == 1 else size
        gram = list(words[number])
        for further in words[number + 1 : number + size]:
            if further[0] != gram[-1] + 1:
                break
            gram += further
            number += 1
        number += 1
        grams.append(gram)
    grams.sort(key=lambda gram: at("mask order", example, gram[0]))
    total, taken, chosen = sum(map(len, grams)), 0, []
    for gram in grams:
        if taken + at("mask share", example, 0) * len(gram) < masking.fraction * total:
            chosen += gram
        taken += len(gram)
    masked = tokens.copy()
    free = [number for number in range(len(VOCAB)) if VOCAB[number] not in SPECIALS]
    for place in chosen:
        kind = at("mask kind", example, place)
        if kind >= masking.keep + masking.replace:
            masked[place] = MASK
        elif kind >= masking.keep:
            masked[place] = free[int(at("mask word", example, place) * len(free))]
    return masked, {place: int(tokens[place]) for place in sorted(chosen)}


@pytest.mark.parametrize(
    ("masking", "pairs"),
    [
        (Masking(), False), (Masking(fraction=0.4, whole_words=False), False), (Masking(0.3, max_ngram=3), False),
        (Masking(0.3, keep=0, replace=0.5), True),
    ],
)  # fmt: skip
def test_masks_are_those_of_the_rule_for_each_example_by_itself(masking: Masking, pairs: bool) -> None:
    part = examples(30, masking, words=pairs, longest=15)
    for example, tokens, masked, labels in separate(collate(part, np.arange(30), KEY), part):
        wanted, wanted_labels = expected(example, tokens, masking, pairs)
        assert masked.tolist() == wanted.tolist() and labels == wanted_labels


def test_masks_depend_on_seed_epoch_and_row_and_not_on_the_batch_or_a_sample() -> None:
    part = examples(40, Masking())

    def masks(key: tuple[int, int] | None, *batches: np.ndarray, of: Examples = part) -> dict[int, list[int]]:
        found = {}
        for rows in batches:
            batch = collate(of, rows) if key is None else collate(of, rows, key)
            for example, _, masked, _ in separate(batch, of):
                found[int(of.rows_N[example])] = masked.tolist()
        return found

    whole = masks(KEY, np.arange(40))
    assert whole == masks(KEY, *np.split(np.random.default_rng(1).permutation(40), 8))
    assert whole != masks((3, 8), np.arange(40)) != masks((4, 7), np.arange(40))
    scored = masks(None, np.arange(40))
    assert scored == masks(None, np.arange(40)[::-1]) != whole
    sample = part.some(np.array([5, 17, 30]))
    assert masks(None, np.arange(3), of=sample) == {row: scored[row] for row in (5, 17, 30)}


@pytest.mark.parametrize("kind", ["bytes", "merged bytes", "wordpiece", "xlm-roberta"])
def test_about_15_of_100_tokens_of_a_text_without_blanks_are_masked(kind: str, tmp_path: Path) -> None:
    if kind == "xlm-roberta":
        KINDS[kind](tmp_path)
        tokenizer = WordPiece().given(None, tmp_path)
    elif kind == "wordpiece":
        letters = sorted(set("".join(UNSPACED)))
        numbers = {token: number for number, token in enumerate([*BERT, *letters, *(f"##{one}" for one in letters)])}
        backend = bert(numbers, False)
        backend.normalizer.handle_chinese_chars = False
        tokenizer = of_backend(backend, kind)
    else:
        tokenizer = of_backend(bytes_backend(BERT, UNSPACED, size=262 if kind == "bytes" else 500), kind)
    assert tokenizer is not None
    texts = [text for text in UNSPACED for _ in range(20)]
    part = masked_examples(encode_single(tokenizer, texts, 512), tokenizer, Masking())
    free = chosen = 0
    for example, tokens, _, labels in separate(collate(part, np.arange(len(texts)), KEY), part):
        # The characters of the text tell which tokens are one: all bytes of a character, marks over a letter.
        offsets = tokenizer.backend.encode(texts[example], add_special_tokens=False).offsets
        number = sum(token not in tokenizer.special_ids and token != tokenizer.unknown_id for token in tokens.tolist())
        longest = max(offsets.count(offset) for offset in offsets) + 2
        assert abs(len(labels) - 0.15 * number) <= longest, texts[example]
        free, chosen = free + number, chosen + len(labels)
    # 140 texts; the standard error is about 0.004.
    assert chosen / free == pytest.approx(0.15, abs=0.015)


def test_words_between_blanks_stay_whole_in_a_vocabulary_of_bytes() -> None:
    tokenizer = of_backend(bytes_backend(BERT, UNSPACED, size=262), "bytes")
    text = "the naïve мир 서울에서 中国"
    tokens = tokenizer.ids([text])[0].tolist()
    known = tokenizer.vocabulary
    spelled = {number: token for token, number in known.items()}
    begins = [begins_word(spelled[number], known) for number in tokens]
    # The first byte of the text stands without a blank before it.
    starts = np.cumsum([0, *(len(part.encode()) + (n > 0) for n, part in enumerate(text.split(" ")))])[:-1].tolist()
    assert [place for place, is_one in enumerate(begins) if is_one] == [*starts[1:], starts[-1] + 1, starts[-1] + 4]


def test_random_words_are_as_frequent_as_the_power_of_their_occurrences() -> None:
    part = examples(600, Masking(0.9, keep=0, replace=1, frequency_power=0.5))
    counts_V = np.bincount(part.stored.tokens(np.arange(600)), minlength=len(VOCAB))
    batch = collate(part, np.arange(600), KEY)
    found_V = np.bincount(batch.tokens_T[batch.units_U].numpy(), minlength=len(VOCAB))
    weights_V = np.sqrt(counts_V) * [name not in SPECIALS for name in VOCAB]
    assert found_V[: len(SPECIALS)].sum() == 0
    np.testing.assert_allclose(found_V / found_V.sum(), weights_V / weights_V.sum(), atol=0.005)


def test_a_vocabulary_without_a_mask_is_refused() -> None:
    target = MaskedWords(Files(train="rows"))
    tokenizer = wordpiece(["[UNK]", "[CLS]", "[SEP]", "a"], True, "vocab")
    with pytest.raises(UserError, match=r"behind \[MASK\] or <mask>, but the vocabulary has neither"):
        target.fit(StoredSet([]), np.arange(0), tokenizer)
