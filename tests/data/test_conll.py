"""Lines of CoNLL columns: which are tokens, which are comments, and what separates the cells of one."""

import pytest

from nlu.data.readers import read_rows


def sentences(path, tokens=0, tags=1):
    rows = read_rows(path, "auto", {"tokens": tokens, "tags": tags}, None)
    return [list(zip(row.values["tokens"], row.values["tags"], strict=True)) for row in rows]


def test_lines_of_a_comment_are_left_out_by_their_columns(write):
    path = write(
        "a.conll",
        "# id 7\tdomain=en\nEU _ _ B-ORG\n# _ _ O\n\n#begin document (a b); part 1\n# _ _ O\nx _ _ O\n#end document\n",
    )
    assert sentences(path, tags=3) == [[("EU", "B-ORG"), ("#", "O")], [("#", "O"), ("x", "O")]]


def test_a_hash_with_the_columns_of_a_token_is_a_token(write):
    path = write("a.conll", "#sale0\tO\n#\tO\nanna\tB-PER\n\n# \tB-X\nx\tO\n")
    assert sentences(path) == [[("#sale0", "O"), ("#", "O"), ("anna", "B-PER")], [("#", "B-X"), ("x", "O")]]


def test_a_comment_with_as_many_words_as_columns_has_no_known_tag(write):
    path = write("a.conll", "# one\nEU B-ORG\nx O\n\n# O\nx O\n")
    assert sentences(path) == [[("EU", "B-ORG"), ("x", "O")], [("#", "O"), ("x", "O")]]


def test_conll_u_has_comments_ranges_and_empty_nodes(write):
    def line(number, token, tag):
        return f"{number}\t{token}\t_\t{tag}" + "\t_" * 6 + "\n"

    text = "# newdoc\n# text = do n't a b c d e\n" + line("1-2", "don't", "_") + line("1", "do", "AUX")
    path = write(
        "a.conllu",
        text + line("2", "n't", "PART") + line("2.1", "x", "_") + "\n# sent_id = 2\n" + line("1", "#", "SYM"),
    )
    assert sentences(path, 1, 3) == [[("do", "AUX"), ("n't", "PART")], [("#", "SYM")]]


@pytest.mark.parametrize(
    ("line", "cells"),
    [(" \tO", (" ", "O")), ("New York\tB-LOC", ("New York", "B-LOC")), ("a \t O", ("a", "O")), ("a O", ("a", "O")),
     ("\u3000\tO", ("\u3000", "O")), ("a\t\tO", ("a", "O"))],
)  # fmt: skip
def test_a_tab_in_a_line_separates_its_cells_so_that_a_token_may_be_blank(write, line, cells):
    assert sentences(write("a.conll", f"x\tO\n{line}\n")) == [[("x", "O"), cells]]
