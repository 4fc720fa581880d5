"""Scripts and languages of texts, which a vocabulary and a pretrained model must cover, and damaged characters."""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

SCRIPTS = {"h": "Chinese", "k": "Japanese", "g": "Korean", "l": "Latin", "c": "Cyrillic", "a": "Arabic", "o": "other"}
"""names by the letter that stands for each script in a coded text"""
BY_NAME = (
    ("CJK ", "h"), ("HIRAGANA", "k"), ("KATAKANA", "k"), ("HANGUL", "g"), ("LATIN", "l"), ("CYRILLIC", "c"),
    ("ARABIC", "a"), ("IDEOGRAPHIC", "h"), ("FULLWIDTH", " "),
)  # fmt: skip
KANA_SHARE = 0.05
"""a text with a larger share of kana among kana and Chinese characters is Japanese"""


class _Coding(dict[int, str]):
    """A table for str.translate that classifies a character on its first occurrence."""

    def __missing__(self, point: int) -> str:
        self[point] = found = _code_of(chr(point))
        return found


def _code_of(character: str) -> str:
    """Return the script of a letter, r for a damaged or private character, i for an invisible one, else a blank."""
    category = unicodedata.category(character)
    if character == "\ufffd" or category in ("Co", "Cs", "Cn"):
        return "r"
    if category in ("Cc", "Cf") and character not in "\t\n\r":
        return "i"
    if category[0] not in "LM":
        return " "
    name = unicodedata.name(character, "")
    return next((code for start, code in BY_NAME if name.startswith(start)), "o")


@dataclass
class Letters:
    """Counts over any number of texts."""

    damaged: int = 0
    """characters that are damaged or private"""
    invisible: int = 0
    """invisible and control characters"""
    scripts: Counter[str] = field(default_factory=Counter)
    """texts by the script of most of their letters; "none" for texts without letters"""
    _coding: _Coding = field(default_factory=_Coding)

    def add(self, rows: Iterable[Sequence[str]]) -> None:
        """Count rows of one text or more."""
        for texts in rows:
            # One pass in C over a text. Each distinct character is classified only once.
            coded = "".join(texts).translate(self._coding)
            # Not a set, whose order differs between processes, and so would the winner of a tie.
            counts = {code: coded.count(code) for code in dict.fromkeys(coded)}
            self.damaged += counts.get("r", 0)
            self.invisible += counts.get("i", 0)
            letters = {code: count for code, count in counts.items() if code in SCRIPTS}
            code = max(letters, key=lambda one: letters[one]) if letters else ""
            if code == "h" and counts.get("k", 0) > KANA_SHARE * (counts["h"] + counts.get("k", 0)):
                code = "k"
            self.scripts[SCRIPTS.get(code, "none")] += 1

    def language(self) -> str:
        """Return the language of most texts, as far as their script shows it."""
        script = next((name for name, _ in self.scripts.most_common(1)), None)
        if script in ("Latin", "Cyrillic", "Arabic", "other"):
            return f"in {script} letters"
        return "no letters" if script == "none" else script or "none"
