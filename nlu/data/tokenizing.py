"""Text to token numbers, in batches; special tokens and cutting are ours, so that one rule holds everywhere.

Axes: N rows, flat arrays hold the rows one after another.
"""

import hashlib
import json
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
from nlu.data.pieces import MOST_REMEMBERED, PIECES, PieceTokenizer, can_cut
from nlu.data.ragged import flatten

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SPACE_BYTE = "\u0120"
"""how vocabularies of bytes write a space"""


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
    """A tokenizer with its special tokens; `digest` identifies everything that shapes its output."""

    def __init__(
        self, backend: Backend, single: Template, pair: Template, unknown_id: int, *, spells_everything: bool = False
    ):
        """`unknown_id` stands for what is not in the vocabulary, and for a unit of which nothing is left. A tokenizer
        that spells everything needs it for the latter only."""
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
        """Whether a word by itself gets other tokens than behind a space, as with byte-level vocabularies.

        Found by trying, since pre-tokenizers, normalizers and their options all have a say in it.
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
        """Return the tokens of all texts without special ones: flat int32 and the count of each text."""
        if self._pieces is not None:
            return self._pieces.ids(texts)
        encoded = self.backend.encode_batch_fast(texts, add_special_tokens=False)
        return flatten([item.ids for item in encoded])

    def is_unknown(self, tokens: np.ndarray) -> np.ndarray:
        """Return of each token whether it stands for something that is not in the vocabulary."""
        return np.zeros(tokens.shape, bool) if self._spells_everything else tokens == self.unknown_id

    def save(self, folder: Path) -> None:
        """Write tokenizer.json, from which `load_tokenizer` makes the same tokenizer again."""
        (folder / "tokenizer.json").write_text(self.backend.to_str(), encoding="utf-8")


def wordpiece(vocab: list[str], lowercase: bool, source: str) -> Tokenizer:
    """Return BERT's tokenizer over a vocabulary in id order; `source` names it in errors."""
    numbers = {token: number for number, token in enumerate(vocab)}
    if len(numbers) != len(vocab):
        twice = [token for token, count in Counter(vocab).items() if count > 1]
        raise DataError(f"{source}: the vocabulary holds {twice[:3]} more than once; each line must be a new token")
    if absent := [token for token in ("[UNK]", "[CLS]", "[SEP]") if token not in numbers]:
        raise DataError(f"{source}: the vocabulary lacks {', '.join(absent)}; give a BERT vocab.txt")
    backend = Backend(WordPieceModel(numbers, unk_token="[UNK]", max_input_chars_per_word=100))
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    begin, end = (numbers["[CLS]"],), (numbers["[SEP]"],)
    return Tokenizer(backend, Template(begin, (), end), Template(begin, end, end), numbers["[UNK]"])


def read_vocab(path: Path) -> list[str]:
    """Return the tokens of a vocab.txt; lines end at a newline only, since tokens may be other line separators."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start} is not UTF-8 ({error.reason}); give a BERT vocab.txt") from None
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def load_tokenizer(folder: Path, lowercase: bool | None) -> Tokenizer | None:
    """Return the tokenizer of a folder of weights (tokenizer.json or vocab.txt), or None where it has neither."""
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
            raise DataError(f"{path}: fixes the case itself; set tokenizer.lowercase=null")
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
        begin, end = (vocab["[CLS]"],), (vocab["[SEP]"],)
        return Tokenizer(backend, Template(begin, (), end), Template(begin, end, end), unknown)
    backend.no_truncation()
    backend.no_padding()
    single, pair = _probe(backend, "a"), _probe(backend, "a", "b")
    return Tokenizer(backend, single, pair, unknown, spells_everything=spells_everything)


def _is_byte_level(backend: Backend) -> bool:
    """Whether every byte is a token and texts are split into bytes, so that any text can be spelled."""
    if not set(pre_tokenizers.ByteLevel.alphabet()) <= backend.get_vocab().keys():
        return False
    return '"ByteLevel"' in json.dumps([json.loads(backend.to_str())[part] for part in ("normalizer", "pre_tokenizer")])


def _probe(backend: Backend, *texts: str) -> Template:
    """Read off which special tokens a post-processor puts where, by encoding one-letter texts."""
    encoding = backend.encode(texts[0], texts[1] if len(texts) == 2 else None)
    groups: list[list[int]] = [[], [], []]
    seen = 0
    for token, sequence, special in zip(encoding.ids, encoding.sequence_ids, encoding.special_tokens_mask, strict=True):
        if sequence is not None and not special:
            seen = sequence + 1
        else:
            groups[seen].append(token)
    if seen != len(texts):
        raise DataError("tokenizer.json gives no token for the letter a; give a tokenizer that can spell any text")
    before, middle, after = (tuple(group) for group in groups)
    return Template(before, middle, after) if len(texts) == 2 else Template(before, (), middle)


class WordPiece:
    """BERT's WordPiece tokenizer, or the one that the pretrained weights bring."""

    def __init__(
        self,
        *,
        vocab: str | None = None,
        lowercase: bool | None = None,
        min_count: PositiveInt = 2,
        max_size: PositiveInt = 30_000,
    ):
        """`vocab` is a vocab.txt (path or URL); null takes the pretrained model's, or builds one from the rows that are
        trained on: their words that occur `min_count` times, the most frequent first, at most `max_size` with the
        special tokens. The other words count as [UNK], so that its vector is trained too. `lowercase` null follows the
        pretrained tokenizer, else true."""
        self.vocab = vocab
        self.lowercase = lowercase
        self.min_count = min_count
        self.max_size = max_size

    def settings(self) -> dict[str, object]:
        """What shapes a vocabulary built from text, for the fingerprint of the store."""
        settings = {"lowercase": self.lowercase, "min_count": self.min_count, "max_size": self.max_size}
        return {**settings, "counted": "rows that are trained on"}

    def given(self, path: Path | None, pretrained: Path | None) -> Tokenizer | None:
        """Return the tokenizer of the vocab file or of the pretrained folder; None means: build it from text."""
        if path is not None:
            if path.suffix == ".json":
                return _from_file(path, self.lowercase)
            return wordpiece(read_vocab(path), True if self.lowercase is None else self.lowercase, str(path))
        if pretrained is None:
            return None
        if (tokenizer := load_tokenizer(pretrained, self.lowercase)) is None:
            raise DataError(
                f"{pretrained} has neither tokenizer.json nor vocab.txt, so nothing says which word each row of its "
                "weights is; set tokenizer.vocab to the vocabulary they were trained with"
            )
        return tokenizer

    def build(self, texts: Iterable[list[str]]) -> Tokenizer:
        """Return a tokenizer of all words that occur `min_count` times in batches of texts.

        The texts are those of all training rows, before any is held out; `restrict` then makes the vocabulary of the
        rows that are trained on. A word that is too rare among all rows is too rare among some of them.
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
        """Return the tokenizer of some rows, and its number for each token of the one that `build` made; (V,), int32.

        `counts_V` is how often each token occurs in those rows. Nothing else of the other rows is left in the result.
        A word is one token in both, so that renumbered rows are what the new tokenizer makes of their texts.
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
