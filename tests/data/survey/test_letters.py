"""Scripts and languages of texts, each at the bounds where it changes."""

import pytest

from nlu.data.survey.letters import Letters


def told(*texts: str) -> Letters:
    letters = Letters()
    letters.add([[text] for text in texts])
    return letters


def test_damaged_and_invisible_characters_are_counted() -> None:
    letters = told("a\ufffd\ue000", "\u0378\u200b\x00", " \t\n\r\u3000")
    assert (letters.damaged, letters.invisible) == (3, 2)


def test_the_script_of_most_letters_is_that_of_a_text() -> None:
    letters = Letters()
    assert letters.language() == "none"
    letters.add([["ab", "1"], ["c好"]])
    letters.add([["!!!!!"], ["ＡＢ９"]])
    # Of as many letters the script that comes first counts.
    letters.add([["好c"]])
    assert letters.scripts == {"Latin": 2, "none": 2, "Chinese": 1}


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
