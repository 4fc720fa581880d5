"""Classes of characters, scripts and languages of texts, which a vocabulary and a pretrained model must cover."""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

CLASSES = {
    "h": "Chinese characters", "k": "kana", "g": "hangul", "l": "Latin letters", "c": "Cyrillic letters",
    "a": "Arabic letters", "o": "other letters", "d": "digits", "w": "full-width letters and digits",
    "p": "punctuation", "f": "full-width punctuation", "s": "symbols and emoji", "b": "blanks",
    "i": "invisible and control characters", "r": "damaged or private characters",
}  # fmt: skip
"""names by the letter that stands for each class in a coded text"""
SCRIPTS = {"h": "Chinese", "k": "Japanese", "g": "Korean", "l": "Latin", "c": "Cyrillic", "a": "Arabic", "o": "other"}
BY_NAME = (
    ("CJK ", "h"), ("HIRAGANA", "k"), ("KATAKANA", "k"), ("HANGUL", "g"), ("LATIN", "l"), ("CYRILLIC", "c"),
    ("ARABIC", "a"), ("IDEOGRAPHIC", "h"),
)  # fmt: skip
KANA_SHARE = 0.05
"""a text with a larger share of kana among kana and Chinese characters is Japanese"""


class _Coding(dict[int, str]):
    """A table for str.translate that classifies a character on its first occurrence."""

    def __missing__(self, point: int) -> str:
        self[point] = found = _class_of(chr(point))
        return found


def _class_of(character: str) -> str:
    category, point = unicodedata.category(character), ord(character)
    if character == "\ufffd" or category in ("Co", "Cs", "Cn"):
        return "r"
    if category[0] == "Z" or character in "\t\n\r":
        return "b"
    if category in ("Cc", "Cf"):
        return "i"
    if category[0] in "LMN":
        if 0xFF00 <= point <= 0xFF5E:
            return "w"
        if category[0] == "N":
            return "h" if "CJK" in unicodedata.name(character, "") else "d"
        name = unicodedata.name(character, "")
        return next((code for start, code in BY_NAME if name.startswith(start)), "o")
    if category[0] == "P":
        return "f" if 0x3000 <= point <= 0x303F or 0xFF00 <= point <= 0xFFEF else "p"
    return "s"


@dataclass
class Letters:
    """Counts over any number of texts."""

    classes: Counter[str] = field(default_factory=Counter)
    """characters by the letter of their class"""
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
            self.classes.update(counts)
            letters = {code: count for code, count in counts.items() if code in SCRIPTS}
            code = max(letters, key=lambda one: letters[one]) if letters else ""
            if code == "h" and counts.get("k", 0) > KANA_SHARE * (counts["h"] + counts.get("k", 0)):
                code = "k"
            self.scripts[SCRIPTS.get(code, "none")] += 1

    def shares(self) -> dict[str, float]:
        """Return the share of each class among all characters, the most frequent first."""
        total = max(1, sum(self.classes.values()))
        return {CLASSES[code]: count / total for code, count in self.classes.most_common() if count}

    def language(self) -> str:
        """Return the language of most texts, as far as their script shows it."""
        if not self.scripts:
            return "none"
        (script, _), *_ = self.scripts.most_common(1)
        return {
            "none": "no letters",
            "Latin": "in Latin letters",
            "Cyrillic": "in Cyrillic letters",
            "Arabic": "in Arabic letters",
            "other": "in other letters",
        }.get(script, script)
