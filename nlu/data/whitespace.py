"""A tokenizer of texts that were tokenized before: their tokens stand between white space."""

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer as Backend
from tokenizers import normalizers, pre_tokenizers
from tokenizers.models import WordLevel

from nlu.config.keys import takes
from nlu.data import keys as schemas
from nlu.data.pieces import count_words
from nlu.data.tokenizing import Tokenizer, Vocabulary, of_vocabulary

TOKENS = re.compile("[^\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")
"""the tokens of a text, between characters that Unicode calls white space, as the package tokenizers splits"""
LOWERCASE = normalizers.Lowercase()


@takes(schemas.Whitespace)
class Whitespace(Vocabulary):
    """Each part of a text between white space is a token; one outside the vocabulary is [UNK]."""

    def __init__(self, keys: schemas.Whitespace):
        super().__init__(keys.vocab, keys.min_count, keys.max_size, keys.added_tokens)
        self.lowercase = keys.lowercase

    def settings(self) -> dict[str, object]:
        return {**super().settings(), "lowercase": self.lowercase, "split": "at white space"}

    def count(self, texts: Iterable[list[str]]) -> Counter[str]:
        return count_words(texts, TOKENS, lambda token: [LOWERCASE.normalize_str(token) if self.lowercase else token])

    def tokenizer(self, vocab: list[str], source: str) -> Tokenizer:
        def backend_of(numbers: dict[str, int]) -> Backend:
            backend = Backend(WordLevel(numbers, unk_token="[UNK]"))
            if self.lowercase:
                backend.normalizer = LOWERCASE
            backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
            return backend

        return of_vocabulary(vocab, source, backend_of)

    def _of_file(self, path: Path) -> Tokenizer:
        return self._of_words(super()._of_file(path), path)

    def _of_folder(self, folder: Path) -> Tokenizer:
        return self._of_words(super()._of_folder(folder), folder)

    def _of_words(self, found: Tokenizer, path: Path) -> Tokenizer:
        if isinstance(found.backend.pre_tokenizer, pre_tokenizers.WhitespaceSplit):
            return found
        # A vocabulary of another tokenizer, whose tokens the texts consist of.
        token_of = {number: token for token, number in found.vocabulary.items()}
        return self.tokenizer([token_of.get(n, f"[unused {n}]") for n in range(found.vocab_size)], str(path))
