"""Classes of characters, scripts and languages of texts, which a vocabulary and a pretrained model must cover."""

import re
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
COMMON_WORDS = {
    "English": "the of and to in is that it for was on with as are this",
    "German": "der die und das ist nicht ein zu den mit von sich auf für es",
    "French": "le la les et des est une que pas dans pour qui un du ce",
    "Spanish": "el la los que y en una es por con para del las no se",
    "Italian": "il di che e la per un non una sono con del si le i",
    "Portuguese": "o que de e do da em um para com não uma os no se",
    "Dutch": "de het een van en is dat niet op te in zijn voor met die",
}
"""the most frequent words of languages in Latin letters, lower case"""
WORDS = re.compile(r"[^\W\d_]+")
FEWEST_COMMON = 0.03
"""the least share of a language's common words among all words that identifies the language"""
KANA_SHARE = 0.05
"""a text with a larger share of kana among kana and Chinese characters is Japanese"""
SAMPLED_TEXTS = 5000


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
    _sample: list[str] = field(default_factory=list)

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
            if len(self._sample) < SAMPLED_TEXTS:
                self._sample.append(" ".join(texts))

    def shares(self) -> dict[str, float]:
        """Return the share of each class among all characters, the most frequent first."""
        total = max(1, sum(self.classes.values()))
        return {CLASSES[code]: count / total for code, count in self.classes.most_common() if count}

    def language(self) -> str:
        """Return the language of most texts, or their script if common words do not identify the language."""
        if not self.scripts:
            return "none"
        (script, _), *_ = self.scripts.most_common(1)
        if script == "Chinese":
            return f"Chinese{_written_in(self._sample)}"
        if script == "Latin":
            return _of_latin_letters(self._sample)
        return {
            "none": "no letters",
            "Cyrillic": "in Cyrillic letters",
            "Arabic": "in Arabic letters",
            "other": "in other letters",
        }.get(script, script)


def _written_in(texts: Iterable[str]) -> str:
    """Return which Chinese characters the texts use, by those that only one of GB 2312 (simplified) and Big5 has."""
    counts: Counter[str] = Counter()
    for character, count in Counter("".join(texts)).items():
        simplified, traditional = (_is_in(character, name) for name in ("gb2312", "big5"))
        if simplified != traditional:
            counts["simplified" if simplified else "traditional"] += count
    total = sum(counts.values())
    if not total:
        return ""
    name, count = counts.most_common(1)[0]
    return f", {name}" if count >= 0.9 * total else ", simplified and traditional"


def _is_in(character: str, encoding: str) -> bool:
    try:
        character.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def _of_latin_letters(texts: Iterable[str]) -> str:
    words = Counter(word.lower() for text in texts for word in WORDS.findall(text))
    total = max(1, sum(words.values()))
    shares = {name: sum(words[word] for word in common.split()) / total for name, common in COMMON_WORDS.items()}
    name = max(shares, key=lambda one: shares[one])
    return name if shares[name] >= FEWEST_COMMON else "in Latin letters"
