"""Classes, scripts and languages of texts, each at the bounds where it changes."""

import pytest

from nlu.data.survey.letters import CLASSES, Letters


def told(*texts: str) -> Letters:
    letters = Letters()
    letters.add([[text] for text in texts])
    return letters


@pytest.mark.parametrize(
    ("characters", "code"),
    [
        ("好㐀\uf900", "h"), ("かカー", "k"), ("한ᄀ", "g"), ("aéßǅ", "l"), ("дЖ", "c"), ("عب", "a"),
        ("กΩא\u0301", "o"), ("07½٣", "d"), ("Ａｚ９", "w"), ("!—«", "p"), ("。！「", "f"), ("€😀+～", "s"),
        (" \t\n\r\u3000\u00a0", "b"), ("\u200b\x00\u202e", "i"), ("\ufffd\ue000\u0378", "r"),
    ],
)  # fmt: skip
def test_each_character_is_of_its_class(characters: str, code: str) -> None:
    for character in characters:
        assert told(character).shares() == {CLASSES[code]: 1.0}, f"U+{ord(character):04X}"


def test_shares_are_of_all_characters_of_all_rows_and_texts_the_most_frequent_first() -> None:
    letters = Letters()
    assert letters.shares() == {} and letters.language() == "none"
    letters.add([["ab", "1"], ["c好"]])
    letters.add([["!!!!!"]])
    assert list(letters.shares().items()) == [
        ("punctuation", 0.5), ("Latin letters", 0.3), ("digits", 0.1), ("Chinese characters", 0.1)
    ]  # fmt: skip
    # Of as many letters the script that comes first counts.
    letters.add([["好c"]])
    assert letters.scripts == {"Latin": 2, "none": 1, "Chinese": 1}


@pytest.mark.parametrize(
    ("texts", "language"),
    [
        (["好" * 19 + "か"], "Chinese"), (["好" * 18 + "か"], "Japanese"),
        (["عربي"], "in Arabic letters"), (["ภาษาไทย"], "in other letters"), (["!", "?", "한"], "no letters"),
        (["한", "한", "a b c d"], "Korean"), (["кот abc"], "in Cyrillic letters"),
        (["this text"], "in Latin letters"),
    ],
)  # fmt: skip
def test_a_language_is_recognized_up_to_its_bounds(texts: list[str], language: str) -> None:
    assert told(*texts).language() == language


def test_two_texts_of_a_row_count_as_one() -> None:
    letters = Letters()
    letters.add([["zz this", "with"]])
    assert letters.scripts == {"Latin": 1}
    letters.add([["甲 a b", "c d"]] * 3)
    assert letters.scripts == {"Latin": 4}
