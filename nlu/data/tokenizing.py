"""Text to token numbers, in batches. Special tokens and truncation are left to `nlu.data.layouts`.

Axes: N texts or rows; flat arrays hold them one after another.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Encoding, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from nlu.config.errors import DataError, UserError
from nlu.config.keys import takes
from nlu.data import keys as schemas
from nlu.data.pieces import (
    PIECES,
    SPACE_BYTE,
    PieceTokenizer,
    can_cut,
    count_words,
    encoded,
    ids_of_units,
    marks_beginnings,
    options_of,
    without_mark,
)
from nlu.data.tokenizer_files import backend_at, backend_of_file, bert, numbers_of, read_vocab, set_case, with_tokens

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
        self.new_tokens = 0
        """how many of its tokens, the last ones, the weights do not have"""
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

    return of_vocabulary(vocab, source, lambda numbers: bert(numbers, lowercase))


def of_vocabulary(vocab: list[str], source: str, backend_of: Callable[[dict[str, int]], Backend]) -> Tokenizer:
    """Return a tokenizer with BERT's special tokens: that of `backend_of`, given the number of each token.

    `vocab` is in the order of ids, and `source` names it in errors. Raises DataError without [UNK], [CLS] or [SEP].
    """
    numbers = numbers_of(vocab, source)
    return Tokenizer(backend_of(numbers), *_bert_templates(numbers), numbers["[UNK]"])


def _bert_templates(numbers: dict[str, int]) -> tuple[Template, Template]:
    """Return the templates [CLS] a [SEP] and [CLS] a [SEP] b [SEP]."""
    begin, end = (numbers["[CLS]"],), (numbers["[SEP]"],)
    return Template(begin, (), end), Template(begin, end, end)


def load_tokenizer(folder: Path, lowercase: bool | None) -> Tokenizer | None:
    """Return the tokenizer of a folder of weights, or None if it has none; see `backend_at`.

    `lowercase`: None follows the folder's settings, else true.
    """
    backend = backend_at(folder, lowercase)
    return None if backend is None else of_backend(backend, str(folder))


def of_backend(backend: Backend, source: str) -> Tokenizer:
    """Return a tokenizer with the special tokens of its post-processor, else with BERT's; `source` names it in errors.

    Raises DataError if it cannot spell any text, and has no token for what it cannot spell.
    """
    # Its own name, then BERT's, then that of SentencePiece.
    names = [name for name in (getattr(backend.model, "unk_token", None), "[UNK]", "<unk>") if name is not None]
    # One token at a time, since a table of all takes a quarter of a second of 250,000.
    unknown = next((number for name in names if (number := backend.token_to_id(name)) is not None), None)
    spells_everything = unknown is None and _is_byte_level(backend)
    if spells_everything:
        unknown = backend.token_to_id(SPACE_BYTE)
    if unknown is None:
        raise DataError(
            f"{source}: no [UNK] or <unk> token, and not every byte is a token; give a tokenizer that can spell any "
            "text"
        )
    if backend.post_processor is None:
        vocab = backend.get_vocab(with_added_tokens=True)
        if absent := [token for token in ("[CLS]", "[SEP]") if token not in vocab]:
            raise DataError(f"{source}: has neither a post-processor nor {', '.join(absent)}; give a BERT vocab.txt")
        return Tokenizer(backend, *_bert_templates(vocab), unknown)
    backend.no_truncation()
    backend.no_padding()
    try:
        single, pair = backend.encode("a"), backend.encode("a", "b")
    except Exception as error:  # the library raises nothing more special
        raise DataError(f"{source}: its tokenizer cannot read the letter a ({error}); give an undamaged one") from None
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
    _case: bool | None = None
    """whether the tokenizer of a file or folder lowercases; None: as it says"""

    def __init__(self, vocab: str | None, min_count: int, max_size: int, added_tokens: Sequence[str] | None = None):
        """`vocab`: the path of a given vocabulary; None: that of the weights, else a built one. `min_count` and
        `max_size` limit a built one. `added_tokens`: see `marked`. Raises UserError for a blank one."""
        self.vocab, self.min_count, self.max_size = vocab, min_count, max_size
        self.added_tokens = list(dict.fromkeys(added_tokens or ()))
        if blank := [token for token in self.added_tokens if not token.strip() or token != token.strip()]:
            raise UserError(
                f"tokenizer.added_tokens has {blank[0]!r}, which begins or ends with a blank; remove the blank"
            )

    def marked(self, tokenizer: Tokenizer) -> Tokenizer:
        """Return the tokenizer with `added_tokens`, each of which is one token wherever a text has it.

        Tokens that the vocabulary lacks follow its last row; `new_tokens` counts them. Where the tokenizer only changes
        their case, they are found in any case.
        """
        if not self.added_tokens:
            return tokenizer
        known, normalizer = tokenizer.vocabulary, tokenizer.backend.normalizer
        new = [token for token in self.added_tokens if token not in known]
        numbers = known | {token: tokenizer.vocab_size + place for place, token in enumerate(new)}
        lowers = normalizer is not None and normalizer.normalize_str("A") == "a"
        tokens = {
            # Other normalizers put a mark before the token, which a text has only where a word begins.
            numbers[token]: AddedToken(
                token, normalized=lowers and normalizer.normalize_str(token) == token.lower(), special=False
            )
            for token in self.added_tokens
        }
        found = of_backend(with_tokens(tokenizer.backend, tokens, "tokenizer.added_tokens"), "tokenizer.added_tokens")
        found.new_tokens = len(new)
        return found

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
        settings |= {"added_tokens": self.added_tokens} if self.added_tokens else {}
        return settings | ({"kept": self._kept[0]} if self._kept else {})

    def given(self, path: Path | None, pretrained: Path | None) -> Tokenizer | None:
        """Return the tokenizer of the vocab file or of the pretrained folder; None: it must be built from text.

        Raises DataError for a vocabulary that cannot be used, and for a folder without one.
        """
        if path is not None:
            return self.marked(self._of_file(path))
        return None if pretrained is None else self.marked(self._of_folder(pretrained))

    def _of_file(self, path: Path) -> Tokenizer:
        """Return the tokenizer of a tokenizer.json, of the lines of a vocab.txt, or of the folder of other files."""
        if path.suffix == ".json" and path.name != "vocab.json":
            backend = backend_of_file(path)
            if self._case is not None:
                set_case(backend, self._case, path)
            return of_backend(backend, str(path))
        if path.suffix in (".model", ".spm") or path.name in ("vocab.json", "merges.txt"):
            path = path.parent
        return self._of_folder(path) if path.is_dir() else self.tokenizer(read_vocab(path), str(path))

    def _of_folder(self, folder: Path) -> Tokenizer:
        if (found := load_tokenizer(folder, self._case)) is None:
            raise DataError(
                f"{folder} has neither tokenizer.json nor vocab.txt nor another vocabulary, so the word of each row of "
                "its weights is unknown; set tokenizer.vocab to the vocabulary that they were trained with"
            )
        return found

    def build(self, texts: Iterable[list[str]]) -> Tokenizer:
        """Return a tokenizer of all words that occur at least `min_count` times in the texts, and of those to `keep`.

        The texts are those of all rows of the training set, before any is held out. `restrict` then makes the
        vocabulary of the rows that remain; a word that is too rare in all rows is too rare in some of them.
        """
        kept = sorted(self._frequent(self.count(texts)) - set(self._fixed))
        return self.marked(self.tokenizer(self._fixed + kept, "built vocabulary"))

    @property
    def _fixed(self) -> list[str]:
        """The tokens of every built vocabulary."""
        return list(dict.fromkeys([*SPECIALS, *self.added_tokens]))

    def restrict(self, built: Tokenizer, counts_V: np.ndarray) -> tuple[Tokenizer, np.ndarray]:
        """Return the tokenizer of some of the rows, and its number for each token of `built`; (V,), int32.

        `counts_V` has the number of occurrences of each token in these rows. The result does not depend on other rows.
        A word is one token in both tokenizers, so renumbered rows are equal to rows that the new one encodes.
        """
        number_of = built.backend.get_vocab()
        # The second key makes the order of equally frequent words the same on every machine.
        words = sorted(number_of.keys() - set(self._fixed), key=lambda word: (-counts_V[number_of[word]], word))
        frequent = self._frequent({word: counts_V[number_of[word]] for word in words})
        kept = [word for word in words if word in frequent][: max(0, self.max_size - len(self._fixed))]
        restricted = self.marked(self.tokenizer(self._fixed + kept, "built vocabulary"))
        # Words that are not kept become [UNK].
        numbers_V = np.full(len(counts_V), restricted.unknown_id, np.int32)
        for number, word in enumerate([*self._fixed, *kept]):
            numbers_V[number_of[word]] = number
        return restricted, numbers_V


@takes(schemas.WordPiece)
class WordPiece(Vocabulary):
    """BERT's WordPiece tokenizer, or the tokenizer of the pretrained weights.

    A built vocabulary has the most frequent words first. Other words become [UNK], so that its vector is trained too.
    """

    def __init__(self, keys: schemas.WordPiece):
        super().__init__(keys.vocab, keys.min_count, keys.max_size, keys.added_tokens)
        self.lowercase = self._case = keys.lowercase

    def settings(self) -> dict[str, object]:
        return {**super().settings(), "lowercase": self.lowercase}

    def tokenizer(self, vocab: list[str], source: str) -> Tokenizer:
        return wordpiece(vocab, self._lowercase, source)

    def count(self, texts: Iterable[list[str]]) -> Counter[str]:
        normalizer = normalizers.BertNormalizer(lowercase=self._lowercase)
        splitter = pre_tokenizers.BertPreTokenizer()

        def words_of(piece: str) -> list[str]:
            return [word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(piece))]

        return count_words(texts, PIECES, words_of)

    @property
    def _lowercase(self) -> bool:
        return True if self.lowercase is None else self.lowercase
