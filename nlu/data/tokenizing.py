"""Text to token numbers, in batches. Special tokens and truncation are left to `nlu.data.layouts`.

Axes: N texts or rows; flat arrays hold them one after another.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from tokenizers import Encoding, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordPiece as WordPieceModel

from nlu.config.errors import DataError
from nlu.config.types import PositiveInt
from nlu.data.pieces import PIECES, PieceTokenizer, can_cut, count_words, encoded
from nlu.data.word_starts import SPACE_BYTE, ids_of_units, marks_beginnings, options_of, without_mark

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROLES = {"pad": "<pad>", "unk": "<unk>", "cls": "<s>", "sep": "</s>", "mask": "<mask>"}
"""SentencePiece's name of each special token; BERT's are those of SPECIALS, in the same order"""


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
        self,
        backend: Backend,
        single: Template,
        pair: Template,
        unknown_id: int,
        *,
        spells_everything: bool = False,
        has_segments: bool = True,
    ):
        """`unknown_id` replaces words outside the vocabulary, and units of which the tokenizer leaves nothing. A
        tokenizer that `spells_everything`, such as a byte-level one, uses it only for the latter. `has_segments`:
        whether the texts of a pair have different segment numbers."""
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self._pieces = PieceTokenizer(backend) if can_cut(backend) else None
        self.single = single
        self.pair = pair
        self.unknown_id = unknown_id
        self.has_segments = has_segments
        self._spells_everything = spells_everything
        self.marks_beginnings = marks_beginnings(backend)
        self.vocab_size = max(backend.get_vocab(with_added_tokens=True).values()) + 1
        text = backend.to_str() + repr((single, pair, unknown_id))
        if self.marks_beginnings:
            # Earlier versions also marked units inside of words.
            text += "beginnings of words only"
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
        return encoded(self.backend, texts) if self._pieces is None else self._pieces.ids(texts)

    def ids_of_units(self, units: list[str], inside: list[bool]) -> tuple[np.ndarray, np.ndarray]:
        """Return what `ids` returns, but a unit that is `inside` of a word without the mark of a word's beginning."""
        return ids_of_units(self.backend, self._unmarked, units, inside)

    @cached_property
    def _unmarked(self) -> Backend:
        return without_mark(self.backend)

    def special(self, role: str) -> str | None:
        """Return the token for "pad", "unk", "cls", "sep" or "mask"; None if the vocabulary has none."""
        names = SPECIALS[list(ROLES).index(role)], ROLES[role]
        return next((name for name in names if self.backend.token_to_id(name) is not None), None)

    @property
    def pad_id(self) -> int:
        """The token that fills rows of several lengths; attention does not see it."""
        name = self.special("pad")
        return (name and self.backend.token_to_id(name)) or 0

    def is_unknown(self, tokens: np.ndarray) -> np.ndarray:
        """Return whether each token replaces a word outside the vocabulary; bool, the shape of `tokens`."""
        return np.zeros(tokens.shape, bool) if self._spells_everything else tokens == self.unknown_id

    @property
    def special_ids(self) -> list[int]:
        """The special tokens that are put around texts, and those that the tokenizer itself calls special."""
        added = self.backend.get_added_tokens_decoder().items()
        around = [*self.single.before, *self.single.after, *self.pair.between]
        return sorted({*around, *(number for number, token in added if token.special)})

    def save(self, folder: Path) -> None:
        """Write tokenizer.json, which `load_tokenizer` reads."""
        (folder / "tokenizer.json").write_text(self.backend.to_str(), encoding="utf-8")


def wordpiece(vocab: list[str], lowercase: bool, source: str) -> Tokenizer:
    """Return BERT's tokenizer with a vocabulary in the order of ids. Raises DataError as `of_vocabulary` does."""

    def backend_of(numbers: dict[str, int]) -> Backend:
        backend = Backend(WordPieceModel(numbers, unk_token="[UNK]", max_input_chars_per_word=100))
        backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        return backend

    return of_vocabulary(vocab, source, backend_of)


def of_vocabulary(vocab: list[str], source: str, backend_of: Callable[[dict[str, int]], Backend]) -> Tokenizer:
    """Return a tokenizer with BERT's special tokens: that of `backend_of`, given the number of each token.

    `vocab` is in the order of ids, and `source` names it in errors. Raises DataError if a token occurs twice, or [UNK],
    [CLS] or [SEP] is missing.
    """
    numbers = {token: number for number, token in enumerate(vocab)}
    if len(numbers) != len(vocab):
        twice = [token for token, count in Counter(vocab).items() if count > 1]
        raise DataError(f"{source}: the vocabulary holds {twice[:3]} more than once; each line must be a new token")
    if absent := [token for token in ("[UNK]", "[CLS]", "[SEP]") if token not in numbers]:
        raise DataError(f"{source}: the vocabulary lacks {', '.join(absent)}; give a BERT vocab.txt")
    return Tokenizer(backend_of(numbers), *_bert_templates(numbers), numbers["[UNK]"])


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
    return of_backend(backend, str(path))


def of_backend(backend: Backend, source: str) -> Tokenizer:
    """Return a tokenizer with the special tokens of its post-processor, else with BERT's; `source` names it in errors.

    Raises DataError if it cannot spell any text, and has no token for what it cannot spell.
    """
    vocab = backend.get_vocab(with_added_tokens=True)
    # BERT's name, then that of SentencePiece.
    unknown = next((vocab[token] for token in ("[UNK]", "<unk>") if token in vocab), None)
    spells_everything = unknown is None and _is_byte_level(backend)
    if spells_everything:
        unknown = vocab[SPACE_BYTE]
    if unknown is None:
        raise DataError(
            f"{source}: no [UNK] or <unk> token, and not every byte is a token; give a tokenizer that can spell any "
            "text"
        )
    if backend.post_processor is None:
        if absent := [token for token in ("[CLS]", "[SEP]") if token not in vocab]:
            raise DataError(f"{source}: has neither a post-processor nor {', '.join(absent)}; give a BERT vocab.txt")
        return Tokenizer(backend, *_bert_templates(vocab), unknown)
    backend.no_truncation()
    backend.no_padding()
    single, pair = backend.encode("a"), backend.encode("a", "b")
    return Tokenizer(
        backend,
        _template_of(single, 1),
        _template_of(pair, 2),
        unknown,
        spells_everything=spells_everything,
        has_segments=len(set(pair.type_ids)) > 1,
    )


def _is_byte_level(backend: Backend) -> bool:
    """Return whether every byte is a token and texts are split into bytes, so that any text can be spelled."""
    if not set(pre_tokenizers.ByteLevel.alphabet()) <= backend.get_vocab().keys():
        return False
    options = options_of(backend)
    return '"ByteLevel"' in json.dumps([options["normalizer"], options["pre_tokenizer"]])


def _template_of(encoding: Encoding, texts: int) -> Template:
    """Return the special tokens that a post-processor has added to texts of one letter."""
    # Special tokens before the first text, after it, and after the second one.
    groups: list[list[int]] = [[], [], []]
    seen = 0
    for token, sequence, special in zip(encoding.ids, encoding.sequence_ids, encoding.special_tokens_mask, strict=True):
        if sequence is not None and not special:
            seen = sequence + 1
        else:
            groups[seen].append(token)
    if seen != texts:
        raise DataError("tokenizer.json drops the letter a; give a tokenizer that can spell any text")
    before, middle, after = (tuple(group) for group in groups)
    return Template(before, middle, after) if texts == 2 else Template(before, (), middle)


class Vocabulary:
    """The contract of a tokenizer that is chosen by `tokenizer=`: its vocabulary is given, or built from text.

    To define another tokenizer, derive from this class and implement `count` and `tokenizer`. The result is a
    `Tokenizer` around one of the package tokenizers, so that the tokenizer.json of a checkpoint is all that predictions
    need. A word that `count` counts must be one token.
    """

    _kept: tuple[str, Callable[[Collection[str]], set[str]]] | None = None

    def __init__(self, vocab: str | None, min_count: int, max_size: int):
        """`vocab`: the path of a given vocabulary; None: that of the weights, else a built one. `min_count` and
        `max_size` limit a built one."""
        self.vocab, self.min_count, self.max_size = vocab, min_count, max_size

    def keep(self, digest: str, chosen: Callable[[Collection[str]], set[str]]) -> None:
        """Keep words in a built vocabulary that are rarer than `min_count`: those of some words that `chosen` returns.

        `digest` identifies that function for the fingerprint of the store.
        """
        self._kept = digest, chosen

    def _frequent(self, counts: Mapping[str, int]) -> set[str]:
        """Return the words with at least `min_count` occurrences, and the rarer ones that are kept."""
        frequent = {word for word, count in counts.items() if count >= self.min_count}
        rare = {word for word, count in counts.items() if 0 < count < self.min_count}
        return frequent | self._kept[1](rare) if self._kept and rare else frequent

    def count(self, texts: Iterable[list[str]]) -> Counter[str]:
        """Return the number of occurrences of each word in these lists of texts, split as the tokenizer splits."""
        raise NotImplementedError

    def tokenizer(self, vocab: list[str], source: str) -> Tokenizer:
        """Return the tokenizer with a vocabulary in the order of ids; `source` names it in errors."""
        raise NotImplementedError

    def settings(self) -> dict[str, object]:
        """Return all settings that shape a vocabulary built from text, as JSON, for the fingerprint of the store."""
        settings = {"min_count": self.min_count, "max_size": self.max_size, "counted": "rows that are trained on"}
        return settings | ({"kept": self._kept[0]} if self._kept else {})

    def given(self, path: Path | None, pretrained: Path | None) -> Tokenizer | None:
        """Return the tokenizer of the vocab file or of the pretrained folder; None: it must be built from text.

        Raises DataError for a vocabulary that cannot be used, and for a folder without one.
        """
        if path is not None:
            return self._of_file(path)
        if pretrained is None:
            return None
        found = (pretrained / name for name in ("tokenizer.json", "vocab.txt"))
        if (path := next(filter(Path.is_file, found), None)) is None:
            raise DataError(
                f"{pretrained} has neither tokenizer.json nor vocab.txt, so the word of each row of its weights is "
                "unknown; set tokenizer.vocab to the vocabulary that they were trained with"
            )
        return self._of_folder(pretrained, path)

    def _of_file(self, path: Path) -> Tokenizer:
        return _from_file(path, None) if path.suffix == ".json" else self.tokenizer(read_vocab(path), str(path))

    def _of_folder(self, folder: Path, path: Path) -> Tokenizer:
        return self._of_file(path)

    def build(self, texts: Iterable[list[str]]) -> Tokenizer:
        """Return a tokenizer of all words that occur at least `min_count` times in the texts, and of those to `keep`.

        The texts are those of all rows of the training set, before any is held out. `restrict` then makes the
        vocabulary of the rows that remain; a word that is too rare in all rows is too rare in some of them.
        """
        kept = sorted(self._frequent(self.count(texts)) - set(SPECIALS))
        return self.tokenizer(SPECIALS + kept, "built vocabulary")

    def restrict(self, built: Tokenizer, counts_V: np.ndarray) -> tuple[Tokenizer, np.ndarray]:
        """Return the tokenizer of some of the rows, and its number for each token of `built`; (V,), int32.

        `counts_V` has the number of occurrences of each token in these rows. The result does not depend on other rows.
        A word is one token in both tokenizers, so renumbered rows are equal to rows that the new one encodes.
        """
        number_of = built.backend.get_vocab()
        # The second key makes the order of equally frequent words the same on every machine.
        words = sorted(number_of.keys() - set(SPECIALS), key=lambda word: (-counts_V[number_of[word]], word))
        frequent = self._frequent({word: counts_V[number_of[word]] for word in words})
        kept = [word for word in words if word in frequent][: max(0, self.max_size - len(SPECIALS))]
        restricted = self.tokenizer(SPECIALS + kept, "built vocabulary")
        # Words that are not kept become [UNK].
        numbers_V = np.full(len(counts_V), restricted.unknown_id, np.int32)
        for number, word in enumerate([*SPECIALS, *kept]):
            numbers_V[number_of[word]] = number
        return restricted, numbers_V


class WordPiece(Vocabulary):
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
        super().__init__(vocab, min_count, max_size)
        self.lowercase = lowercase

    def settings(self) -> dict[str, object]:
        return {**super().settings(), "lowercase": self.lowercase}

    def tokenizer(self, vocab: list[str], source: str) -> Tokenizer:
        return wordpiece(vocab, self._lowercase, source)

    def _of_file(self, path: Path) -> Tokenizer:
        return _from_file(path, self.lowercase) if path.suffix == ".json" else super()._of_file(path)

    def _of_folder(self, folder: Path, path: Path) -> Tokenizer:
        # The settings of the folder may say the case.
        tokenizer = load_tokenizer(folder, self.lowercase)
        assert tokenizer is not None, "the folder has one"
        return tokenizer

    def count(self, texts: Iterable[list[str]]) -> Counter[str]:
        normalizer = normalizers.BertNormalizer(lowercase=self._lowercase)
        splitter = pre_tokenizers.BertPreTokenizer()

        def words_of(piece: str) -> list[str]:
            return [word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(piece))]

        return count_words(texts, PIECES, words_of)

    @property
    def _lowercase(self) -> bool:
        return True if self.lowercase is None else self.lowercase
