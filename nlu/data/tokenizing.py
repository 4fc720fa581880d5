"""Text to token numbers, in batches. Special tokens and truncation are left to `nlu.data.layouts`.

BERT's tokenizer puts spaces around every ideograph and splits at white space and punctuation before it uses the
vocabulary, and its normalizer (lowercasing, stripping accents) treats each letter without regard to its neighbors. So
the tokens of a text are those of its pieces, one after another, if it is cut beside an ideograph, a mark or a blank.
Most pieces of a text have occurred before, and looking a piece up costs a small part of tokenizing it. PIECES lists
only marks and blanks that are sure to separate; all other characters stay in one piece, which the tokenizer splits.

Axes: N texts or rows; flat arrays hold them one after another; W pieces of all texts, P distinct pieces.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer as Backend
from tokenizers import normalizers, pre_tokenizers
from tokenizers.models import WordPiece as WordPieceModel

from nlu.config.errors import DataError
from nlu.config.types import PositiveInt
from nlu.data.arrays import flatten, ranges, starts_of

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SPACE_BYTE = "\u0120"
"""a space in a byte-level vocabulary"""
IDEOGRAPHS = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
MARKS = (
    r"!-/:-@\[-`{-~"
    "\u2010-\u2027\u3001-\u3003\u3008-\u3011\u3014-\u301b\uff01-\uff03\uff05-\uff0a\uff0c-\uff0f\uff1a\uff1b\uff1f\uff20"
)
BLANKS = r" \t\n\r\u3000"
PIECES = re.compile(f"[{IDEOGRAPHS}{MARKS}]|[^{IDEOGRAPHS}{MARKS}{BLANKS}]+")
WORDS = re.compile(rf"[{IDEOGRAPHS}{MARKS}]|[^{IDEOGRAPHS}{MARKS}\s]+")
"""the units of a text in which spans are tagged; any white space separates them"""
MOST_REMEMBERED = 300_000
MOST_LETTERS = 2_000_000
"""limits of the cached pieces and of their characters; beyond either one the cache is emptied, so that memory grows
neither with the number of rows nor with their length"""


class PieceTokenizer:
    """Caches the tokens of pieces of text; returns exactly the tokens that the tokenizer returns for whole texts."""

    def __init__(self, backend: Backend):
        """`backend` must satisfy `can_cut`."""
        self._backend = backend
        added = [re.escape(token.content) for token in backend.get_added_tokens_decoder().values()]
        self._added = re.compile("|".join(added)) if added else None
        self._forget()

    def _forget(self) -> None:
        self._number_of: dict[str, int] = {}
        self._letters = 0
        self._tokens = np.zeros(0, np.int32)
        self._counts_P = np.zeros(0, np.int64)
        self._starts_P = np.zeros(0, np.int64)

    def ids(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens of all texts, flat int32, and the count of each text, int64."""
        # An added token, such as [MASK], is found before texts are split.
        if self._added is not None and any(map(self._added.search, texts)):
            return _encoded(self._backend, texts)
        pieces_of = [PIECES.findall(text) for text in texts]
        pieces_N = np.fromiter(map(len, pieces_of), np.int64, len(texts))
        pieces_W = list(chain.from_iterable(pieces_of))
        self._learn(pieces_W)
        number_W = np.fromiter(map(self._number_of.__getitem__, pieces_W), np.int64, len(pieces_W))
        counts_W = self._counts_P[number_W]
        ends_W = np.concatenate([[0], np.cumsum(counts_W)])
        ends_N = ends_W[np.concatenate([[0], np.cumsum(pieces_N)])]
        found = self._tokens[ranges(self._starts_P[number_W], counts_W)], np.diff(ends_N)
        if self._letters > MOST_LETTERS:
            # The texts of a single call may exceed the limit.
            self._forget()
        return found

    def _learn(self, pieces_W: list[str]) -> None:
        new = set(pieces_W).difference(self._number_of)
        if not new:
            return
        if len(self._number_of) + len(new) > MOST_REMEMBERED or self._letters + sum(map(len, new)) > MOST_LETTERS:
            self._forget()
            new = set(pieces_W)
        self._letters += sum(map(len, new))
        # Sorted, because the order of a set differs between processes.
        named = sorted(new)
        tokens, counts = _encoded(self._backend, named)
        self._number_of.update(zip(named, range(len(self._number_of), len(self._number_of) + len(named)), strict=True))
        self._tokens = np.concatenate([self._tokens, tokens])
        self._counts_P = np.concatenate([self._counts_P, counts])
        self._starts_P = starts_of(self._counts_P)


def _encoded(backend: Backend, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    encoded = backend.encode_batch_fast(texts, add_special_tokens=False)
    return flatten([item.ids for item in encoded])


def can_cut(backend: Backend) -> bool:
    """Return whether the tokenizer is BERT's: split at ideographs and marks, then WordPiece, only special tokens
    added."""
    normalizer = backend.normalizer
    return (
        isinstance(normalizer, normalizers.BertNormalizer)
        and normalizer.clean_text
        and normalizer.handle_chinese_chars
        and isinstance(backend.pre_tokenizer, pre_tokenizers.BertPreTokenizer)
        and isinstance(backend.model, WordPieceModel)
        and not any(token.normalized for token in backend.get_added_tokens_decoder().values())
    )


@dataclass(frozen=True)
class Template:
    """The special tokens around one text or two: `before` a `between` b `after`."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def size(self) -> int:
        return len(self.before) + len(self.between) + len(self.after)


class Tokenizer:
    """A tokenizer with its special tokens. `digest` identifies everything that affects its output."""

    def __init__(
        self, backend: Backend, single: Template, pair: Template, unknown_id: int, *, spells_everything: bool = False
    ):
        """`unknown_id` replaces words outside the vocabulary, and units of which the tokenizer leaves nothing. A
        tokenizer that `spells_everything`, such as a byte-level one, uses it only for the latter."""
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self._pieces = PieceTokenizer(backend) if can_cut(backend) else None
        self.single = single
        self.pair = pair
        self.unknown_id = unknown_id
        self._spells_everything = spells_everything
        self.vocab_size = max(backend.get_vocab(with_added_tokens=True).values()) + 1
        text = backend.to_str() + repr((single, pair, unknown_id))
        self.digest = hashlib.sha256(text.encode()).hexdigest()
        self.needs_spaces = self._tells_words_by_spaces()

    def _tells_words_by_spaces(self) -> bool:
        """Return whether a word has different tokens after a space, as in byte-level vocabularies.

        Tested on an example, because it depends on the pre-tokenizer, the normalizer and their options.
        """
        together, apart, spaced = (
            [token for text in texts for token in self.ids([text])[0].tolist()]
            for texts in (["a b"], ["a", "b"], ["a", " b"])
        )
        return together != apart and together == spaced

    @property
    def vocabulary(self) -> dict[str, int]:
        """The number of each token."""
        return dict(self.backend.get_vocab(with_added_tokens=True))

    def ids(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens of all texts without special tokens, flat int32, and the count of each text, int64."""
        return _encoded(self.backend, texts) if self._pieces is None else self._pieces.ids(texts)

    def is_unknown(self, tokens: np.ndarray) -> np.ndarray:
        """Return whether each token replaces a word outside the vocabulary; bool, the shape of `tokens`."""
        return np.zeros(tokens.shape, bool) if self._spells_everything else tokens == self.unknown_id

    def save(self, folder: Path) -> None:
        """Write tokenizer.json, which `load_tokenizer` reads."""
        (folder / "tokenizer.json").write_text(self.backend.to_str(), encoding="utf-8")


def wordpiece(vocab: list[str], lowercase: bool, source: str) -> Tokenizer:
    """Return BERT's tokenizer with a vocabulary in the order of ids; `source` names it in errors.

    Raises DataError if a token occurs twice, or [UNK], [CLS] or [SEP] is missing.
    """
    numbers = {token: number for number, token in enumerate(vocab)}
    if len(numbers) != len(vocab):
        twice = [token for token, count in Counter(vocab).items() if count > 1]
        raise DataError(f"{source}: the vocabulary holds {twice[:3]} more than once; each line must be a new token")
    if absent := [token for token in ("[UNK]", "[CLS]", "[SEP]") if token not in numbers]:
        raise DataError(f"{source}: the vocabulary lacks {', '.join(absent)}; give a BERT vocab.txt")
    backend = Backend(WordPieceModel(numbers, unk_token="[UNK]", max_input_chars_per_word=100))
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return Tokenizer(backend, *_bert_templates(numbers), numbers["[UNK]"])


def _bert_templates(numbers: dict[str, int]) -> tuple[Template, Template]:
    """Return the templates [CLS] a [SEP] and [CLS] a [SEP] b [SEP]."""
    begin, end = (numbers["[CLS]"],), (numbers["[SEP]"],)
    return Template(begin, (), end), Template(begin, end, end)


def read_vocab(path: Path) -> list[str]:
    """Return the tokens of a vocab.txt. Only a line feed ends a line, because tokens may be other line separators."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start} is not UTF-8 ({error.reason}); give a BERT vocab.txt") from None
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def load_tokenizer(folder: Path, lowercase: bool | None) -> Tokenizer | None:
    """Return the tokenizer of a folder of weights (tokenizer.json or vocab.txt), or None if it has neither.

    `lowercase`: None follows the folder's settings, else true.
    """
    if (path := folder / "tokenizer.json").is_file():
        return _from_file(path, lowercase)
    if not (path := folder / "vocab.txt").is_file():
        return None
    settings = folder / "tokenizer_config.json"
    if lowercase is None and settings.is_file():
        lowercase = json.loads(settings.read_text(encoding="utf-8")).get("do_lower_case")
    lowercase = True if lowercase is None else lowercase
    return wordpiece(read_vocab(path), lowercase, str(path))


def _from_file(path: Path, lowercase: bool | None) -> Tokenizer:
    backend = Backend.from_file(str(path))
    if lowercase is not None:
        if not isinstance(backend.normalizer, normalizers.BertNormalizer):
            raise DataError(f"{path}: its normalizer determines the case; set tokenizer.lowercase=null")
        backend.normalizer.lowercase = lowercase
    vocab = backend.get_vocab(with_added_tokens=True)
    unknown = next((vocab[token] for token in ("[UNK]", "<unk>") if token in vocab), None)
    spells_everything = unknown is None and _is_byte_level(backend)
    if spells_everything:
        unknown = vocab[SPACE_BYTE]
    if unknown is None:
        raise DataError(
            f"{path}: no [UNK] or <unk> token, and not every byte is a token; give a tokenizer that can spell any text"
        )
    if backend.post_processor is None:
        if absent := [token for token in ("[CLS]", "[SEP]") if token not in vocab]:
            raise DataError(f"{path}: has neither a post-processor nor {', '.join(absent)}; give a BERT vocab.txt")
        return Tokenizer(backend, *_bert_templates(vocab), unknown)
    backend.no_truncation()
    backend.no_padding()
    single, pair = _probe(backend, "a"), _probe(backend, "a", "b")
    return Tokenizer(backend, single, pair, unknown, spells_everything=spells_everything)


def _is_byte_level(backend: Backend) -> bool:
    """Return whether every byte is a token and texts are split into bytes, so that any text can be spelled."""
    if not set(pre_tokenizers.ByteLevel.alphabet()) <= backend.get_vocab().keys():
        return False
    return '"ByteLevel"' in json.dumps([json.loads(backend.to_str())[part] for part in ("normalizer", "pre_tokenizer")])


def _probe(backend: Backend, *texts: str) -> Template:
    """Return the special tokens that a post-processor adds, found by encoding texts of one letter."""
    encoding = backend.encode(texts[0], texts[1] if len(texts) == 2 else None)
    groups: list[list[int]] = [[], [], []]
    seen = 0
    for token, sequence, special in zip(encoding.ids, encoding.sequence_ids, encoding.special_tokens_mask, strict=True):
        if sequence is not None and not special:
            seen = sequence + 1
        else:
            groups[seen].append(token)
    if seen != len(texts):
        raise DataError("tokenizer.json drops the letter a; give a tokenizer that can spell any text")
    before, middle, after = (tuple(group) for group in groups)
    return Template(before, middle, after) if len(texts) == 2 else Template(before, (), middle)


class WordPiece:
    """BERT's WordPiece tokenizer, or the tokenizer of the pretrained weights."""

    def __init__(
        self,
        *,
        vocab: str | None = None,
        lowercase: bool | None = None,
        min_count: PositiveInt = 2,
        max_size: PositiveInt = 30_000,
    ):
        """`vocab`: a vocab.txt (path or URL); null: that of the pretrained model, or one built from the training rows
        with the words that occur at least `min_count` times, the most frequent first, at most `max_size` including the
        special tokens. Other words become [UNK], so that its vector is trained too. `lowercase`: null follows the
        pretrained tokenizer, else true."""
        self.vocab = vocab
        self.lowercase = lowercase
        self.min_count = min_count
        self.max_size = max_size

    def settings(self) -> dict[str, object]:
        """Return the settings of a vocabulary built from text, for the fingerprint of the store."""
        settings = {"lowercase": self.lowercase, "min_count": self.min_count, "max_size": self.max_size}
        return {**settings, "counted": "rows that are trained on"}

    def given(self, path: Path | None, pretrained: Path | None) -> Tokenizer | None:
        """Return the tokenizer of the vocab file or of the pretrained folder; None: it must be built from text."""
        if path is not None:
            if path.suffix == ".json":
                return _from_file(path, self.lowercase)
            return wordpiece(read_vocab(path), True if self.lowercase is None else self.lowercase, str(path))
        if pretrained is None:
            return None
        if (tokenizer := load_tokenizer(pretrained, self.lowercase)) is None:
            raise DataError(
                f"{pretrained} has neither tokenizer.json nor vocab.txt, so the word of each row of its weights is "
                "unknown; set tokenizer.vocab to the vocabulary that they were trained with"
            )
        return tokenizer

    def build(self, texts: Iterable[list[str]]) -> Tokenizer:
        """Return a tokenizer of all words that occur at least `min_count` times in the texts.

        The texts are those of all rows of the training set, before any is held out. `restrict` then makes the
        vocabulary of the rows that remain; a word that is too rare in all rows is too rare in some of them.
        """
        lowercase = self._lowercase
        normalizer = normalizers.BertNormalizer(lowercase=lowercase)
        splitter = pre_tokenizers.BertPreTokenizer()
        counts: Counter[str] = Counter()
        pieces: Counter[str] = Counter()

        def split_pieces() -> None:
            for piece, count in pieces.items():
                for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(piece)):
                    counts[word] += count
            pieces.clear()

        for batch in texts:
            pieces.update(chain.from_iterable(map(PIECES.findall, batch)))
            if len(pieces) > MOST_REMEMBERED:
                split_pieces()
        split_pieces()
        kept = sorted(word for word, count in counts.items() if count >= self.min_count and word not in SPECIALS)
        return wordpiece(SPECIALS + kept, lowercase, "built vocabulary")

    def restrict(self, built: Tokenizer, counts_V: np.ndarray) -> tuple[Tokenizer, np.ndarray]:
        """Return the tokenizer of some of the rows, and its number for each token of `built`; (V,), int32.

        `counts_V` has the number of occurrences of each token in these rows. The result does not depend on other rows.
        A word is one token in both tokenizers, so renumbered rows are equal to rows that the new one encodes.
        """
        number_of = built.backend.get_vocab()
        words = sorted(number_of.keys() - set(SPECIALS), key=lambda word: (-counts_V[number_of[word]], word))
        kept = [word for word in words[: max(0, self.max_size - len(SPECIALS))]
                if counts_V[number_of[word]] >= self.min_count]  # fmt: skip
        restricted = wordpiece(SPECIALS + kept, self._lowercase, "built vocabulary")
        numbers_V = np.full(len(counts_V), restricted.unknown_id, np.int32)
        for number, word in enumerate([*SPECIALS, *kept]):
            numbers_V[number_of[word]] = number
        return restricted, numbers_V

    @property
    def _lowercase(self) -> bool:
        return True if self.lowercase is None else self.lowercase
