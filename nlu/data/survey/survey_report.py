"""The report on some sets: what to check before training, and a command to begin with.

Axes: N rows of a set.
"""

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations

import numpy as np

from nlu.config.sentences import counted, listed
from nlu.data.fields import IN_WINDOWS, SUFFIX_FORMATS
from nlu.data.findings import of_balance
from nlu.data.readers import has_header
from nlu.data.survey.repeated_texts import Between, Within, between, find_shown, within
from nlu.data.survey.walk import NO_LABEL, Advance, Survey
from nlu.data.tokenizing import Tokenizer

PERCENTILES = 50, 95, 100
FITTING_PERCENT = 99
"""percentage of rows that fit in the suggested max_len"""
LENGTH_STEP = 8
SHORTEST = 16
TRIED_LENGTHS = 16, 32, 64, 96, 128, 192, 256, 384, 512
MUCH_CUT, MUCH_UNKNOWN, MUCH_REPEATED = 0.05, 0.01, 0.05
TASKS = {"labels": "multilabel", "numbers": "regress", "spans": "tag"}
POSITIONS = 512
MOST_BINS = 64


@dataclass
class Report:
    """The surveys of some sets, and comparisons of them."""

    surveys: list[Survey]
    tokenizer: str | None
    """the tokenizer as given; None: words are counted"""
    specials: int
    """special tokens of a row, which counts of words lack"""
    positions: int
    """the most tokens that the model accepts"""
    asked_max_len: int | None
    withins: dict[str, Within] = field(default_factory=dict)
    betweens: list[Between] = field(default_factory=list)

    @property
    def train(self) -> Survey:
        """The training set: one with "train" in its name, else the first set."""
        return next((one for one in self.surveys if "train" in one.name.lower()), self.surveys[0])

    @property
    def unit(self) -> str:
        return "words" if self.tokenizer is None else "tokens"

    @property
    def max_len(self) -> int:
        """The max_len that was given, or the suggested one."""
        return self.asked_max_len or self.suggested_max_len

    @property
    def suggested_max_len(self) -> int:
        # "higher": a length that occurs, not one between two.
        wanted = int(np.percentile(self.lengths(self.train), FITTING_PERCENT, method="higher"))
        return min(self.positions, max(SHORTEST, -(-wanted // LENGTH_STEP) * LENGTH_STEP))

    def lengths(self, survey: Survey) -> np.ndarray:
        """Return the length of each row before truncation, including special tokens; (N,)."""
        return survey.tokens_N + (self.specials if self.tokenizer is None else 0)

    def cut(self, survey: Survey, max_len: int) -> tuple[float, float]:
        """Return the share of rows that a max_len cuts, and the share of tokens that it cuts off."""
        lengths_N = self.lengths(survey)
        lost_N = np.maximum(lengths_N - max_len, 0)
        return float((lost_N > 0).mean()), float(lost_N.sum() / max(1, lengths_N.sum()))

    def cuts(self, survey: Survey) -> list[tuple[int, float, float]]:
        """Return (max_len, share of rows, share of tokens) for usual values of max_len and that of the report."""
        longest = int(self.lengths(survey).max())
        tried = sorted({*TRIED_LENGTHS, self.max_len})
        last = next((one for one in tried if one >= longest), tried[-1])
        most = max(self.max_len, min(last, self.positions))
        return [(one, *self.cut(survey, one)) for one in tried if one <= most]


def report_on(
    surveys: Sequence[Survey],
    tokenizer: Tokenizer | None,
    named: str | None,
    *,
    positions: int | None,
    max_len: int | None,
    examples: int,
    advance: Advance,
) -> Report:
    """Compare the sets with one another, and read the texts that are shown."""
    is_pair = surveys[0].source.layout.name == "pair"
    specials = (tokenizer.pair if is_pair else tokenizer.single).size if tokenizer else 2 + is_pair
    report = Report(list(surveys), named, specials, positions or POSITIONS, max_len)
    report.withins = {survey.name: within(survey) for survey in surveys}
    report.betweens = [between(first, second) for first, second in combinations(surveys, 2)]
    find_shown(surveys, report.withins, report.betweens, examples, advance)
    return report


def remarks(report: Report) -> list[str]:
    """Return what to check before training, the gravest first."""
    found = [*_of_shared(report)]
    for survey in report.surveys:
        doubts = [*_of_labels(report, survey), *map(str, survey.findings())]
        found += [*_of_rows(report, survey), *(f"{survey.name}: {doubt}" for doubt in doubts)]
        found += _of_texts(report, survey)
    return found


def _of_shared(report: Report) -> Iterator[str]:
    for pair in report.betweens:
        if not any(pair.rows):
            continue
        others = f", {counted(pair.conflicts, 'text')} of them with other labels" if pair.conflicts else ""
        yield (
            f"{counted(pair.rows[1], 'row')} of {pair.second} {'has' if pair.rows[1] == 1 else 'have'} a text that "
            f"{pair.first} has too{others}: scores on training rows are optimistic; take them out of one of the two"
        )
    for name, one in report.withins.items():
        if one.conflicts:
            yield f"{name}: {counted(one.conflicts, 'text')} with several labels; no model gets all of their rows right"


def _of_rows(report: Report, survey: Survey) -> Iterator[str]:
    one = report.withins[survey.name]
    if survey.bad.count:
        yield f"{survey.name}: {counted(survey.bad.count, 'row')} cannot be used; fix them, or set data.on_bad_row=skip"
    if one.duplicates > MUCH_REPEATED * len(survey):
        yield (
            f"{survey.name}: {counted(one.duplicates, 'row')} ({one.duplicates / len(survey):.0%}) with a text that "
            "occurred before; data.drop_duplicates=true keeps the first of the rows with equal text and label"
        )


def _of_labels(report: Report, survey: Survey) -> Iterator[str]:
    train = report.train
    if survey.has_labels and survey.kind != "labels" and (without := survey.labels[NO_LABEL]):
        yield f"{counted(without, 'row')} without a label, which data.on_bad_row=skip leaves out"
    own, of_train = (
        Counter({name: rows for name, rows in one.labels.items() if name != NO_LABEL}) for one in (survey, train)
    )
    if survey.kind == "numbers" or not own:
        return
    known = dict.fromkeys(of_train or own, 0)
    if lacks_labels(report, survey):
        yield (
            f"none of its labels ({listed(list(own), 8)}) is one of {train.name}, so it cannot be scored, and the "
            "command below leaves it out"
        )
        return
    if new := [label for label in own if label not in known]:
        yield (
            f"has labels that {train.name} lacks, which are never learned: {listed(new, 8)}; data.on_bad_row=skip "
            "leaves their rows out"
        )
    are_classes = survey.kind == "classes"
    yield from of_balance(known | own, len(survey), is_train=survey is train, are_classes=are_classes)


def lacks_labels(report: Report, survey: Survey) -> bool:
    """Return whether a set cannot be scored: its rows have no labels, or none of those of the training set."""
    if not survey.has_labels or not report.train.has_labels or "numbers" in (survey.kind, report.train.kind):
        return not survey.has_labels
    return report.train.labels.keys().isdisjoint(survey.labels.keys() - {NO_LABEL})


def _of_texts(report: Report, survey: Survey) -> Iterator[str]:
    rows, _ = report.cut(survey, report.max_len)
    if rows > MUCH_CUT:
        rest = " and are cut"
        if reads_windows(report):
            rest = ", the most that models take; data.long=windows reads them whole, in windows of so many tokens"
        yield f"{survey.name}: {rows:.1%} of the rows are longer than max_len {report.max_len}{rest}"
    if survey.unknown is not None:
        share = survey.unknown.tokens / max(1, int(survey.tokens_N.sum()))
        if share > MUCH_UNKNOWN:
            yield (
                f"{survey.name}: {share:.1%} of the tokens are unknown to the tokenizer, which may be for another "
                f"language than these texts ({survey.letters.language()})"
            )
    if damaged := survey.letters.damaged:
        yield f"{survey.name}: {damaged:,} damaged or private characters, which suggest a wrong encoding"
    if hidden := survey.letters.invisible:
        yield f"{survey.name}: {counted(hidden, 'invisible or control character')}; tokenizers drop them"


def command(report: Report, model: str | None) -> str:
    """Return a command that trains on these files, with the options that the rows need.

    `model`: value of model.pretrained.
    """
    train = report.train
    words = ["task=" + _task(report)] if _task(report) != "classify" else []
    if model:
        words.append(f"model.pretrained={model}")
    elif not train.letters.language().startswith("Chinese"):
        # The default model is for Chinese; this one knows 100 languages.
        words.append("model=e5_small")
    words += _set_words(report)
    words.append(f"data.max_len={report.max_len}")
    if reads_windows(report):
        words.append("data.long=windows")
    if report.withins[train.name].with_same_label:
        words.append("data.drop_duplicates=true")
    if train.seen is not None and train.seen.tag_numbers:
        words.append(f"data.labels=[{','.join(f'TAG{number}' for number in range(train.seen.tag_numbers))}]")
    if (separator := train.separator) is not None:
        words.append(f"data.label_separator={_written(separator)}")
    if any(survey.bad.count or _has_rows_to_skip(report, survey) for survey in report.surveys):
        words.append("data.on_bad_row=skip")
    return shlex.join(["python", "-m", "nlu.train", *words])


def _has_rows_to_skip(report: Report, survey: Survey) -> bool:
    """Return whether a set that is used has rows whose label cannot be read."""
    if survey.kind in ("labels", "nothing") or lacks_labels(report, survey):
        return False
    is_closed = survey is not report.train and survey.kind != "numbers"
    return bool(survey.labels[NO_LABEL]) or (is_closed and not survey.labels.keys() <= report.train.labels.keys())


def reads_windows(report: Report) -> bool:
    """Return whether many training rows are longer than a model can read at once, and can be read in windows."""
    train = report.train
    is_one_text = train.source.layout.name in IN_WINDOWS and _task(report) != "mlm"
    return is_one_text and report.max_len >= report.positions and report.cut(train, report.max_len)[0] > MUCH_CUT


def _set_words(report: Report) -> list[str]:
    """Return the overrides that name files and columns, and say how files are read."""
    train, reading = report.train, report.train.source.reading
    words = ["data=files", f"data.train={_files(train)}"]
    rest = [survey for survey in report.surveys if survey is not train and not lacks_labels(report, survey)]
    test = next((one for one in rest if "test" in one.name.lower()), None)
    dev = next((one for one in rest if one is not test), None)
    words += [f"data.dev={_files(dev)}"] if dev else []
    words += [f"data.test={_files(test)}"] if test else []
    if reading.fields:
        words.append(
            f"data.fields={{{', '.join(f'{role}: {_column(column)}' for role, column in reading.fields.items())}}}"
        )
    # Only what differs from what nlu.train would assume is written.
    suffixes = [SUFFIX_FORMATS.get(file.path.suffix.lower()) for file in train.source.files]
    if reading.file_format != "auto" and set(suffixes) != {reading.file_format}:
        words.append(f"data.format={reading.file_format}")
    dialect = reading.dialect.settings()
    if train.seen is not None and train.seen.has_doubled_quotes:
        dialect["quote"] = '"'
    words += [f"data.{key}={_written(value)}" for key, value in dialect.items() if value is not None]
    if reading.header is not None and reading.header != has_header(reading.fields, None):
        words.append(f"data.header={str(reading.header).lower()}")
    return words


def _task(report: Report) -> str:
    kind = report.train.kind
    if kind == "nothing" and report.train.source.layout.name == "single":
        return "mlm"
    return TASKS.get(kind) or ("match" if report.train.source.layout.name == "pair" else "classify")


def _files(survey: Survey) -> str:
    files = survey.source.files
    if any(file.label is not None for file in files):
        return f"{{{', '.join(f'{file.label}: {file.name}' for file in files)}}}"
    return files[0].name if len(files) == 1 else f"[{','.join(file.name for file in files)}]"


def _written(value: object) -> str:
    """Return a value as an override has it; a text in the quotes that it does not hold."""
    if not isinstance(value, str):
        return str(value).lower()
    mark = "'" if '"' in value else '"'
    return f"{mark}{value}{mark}"


def _column(column: str | int | list[str | int]) -> str:
    if isinstance(column, list):
        return f"[{', '.join(map(_column, column))}]"
    return str(column) if isinstance(column, int) or column.isidentifier() else f"'{column}'"


def percentiles(values_N: np.ndarray) -> list[int]:
    """Return the median, the 95th percentile and the maximum of integers."""
    return [int(one) for one in np.percentile(values_N, PERCENTILES)]


def histogram(values_N: np.ndarray) -> dict[str, object]:
    """Return a histogram with bins of equal width from 0; the last bin also counts all larger values.

    The bins end at the 99.5th percentile, so that a single long row does not squeeze the others.
    """
    end = max(1, int(np.percentile(values_N, 99.5, method="higher")))
    width = -(-(end + 1) // MOST_BINS)
    counts = np.bincount(np.minimum(values_N // width, end // width))
    return {"width": width, "counts": counts.tolist(), "most": int(values_N.max())}


def as_record(report: Report, model: str | None) -> dict[str, object]:
    """Return the report as JSON."""
    return {
        "tokenizer": report.tokenizer,
        "unit": report.unit,
        "train": report.train.name,
        "max_len": report.max_len,
        "suggested_max_len": report.suggested_max_len,
        "sets": {survey.name: _set_record(report, survey) for survey in report.surveys},
        "overlap": [
            {
                "first": pair.first,
                "second": pair.second,
                "rows_of_first": pair.rows[0],
                "rows_of_second": pair.rows[1],
                "texts_with_other_labels": pair.conflicts,
                "examples": [asdict(shown) for shown in pair.shown],
            }
            for pair in report.betweens
        ],
        "remarks": remarks(report),
        "command": command(report, model),
    }


def _set_record(report: Report, survey: Survey) -> dict[str, object]:
    one, unknown = report.withins[survey.name], survey.unknown
    return {
        "files": [file.name for file in survey.source.files],
        "fields": dict(survey.source.reading.fields),
        "fields_because": survey.source.how,
        "rows": len(survey),
        "bad_rows": survey.bad.count,
        "listed_bad_rows": survey.bad.described(),
        "kind": survey.kind,
        "labels": dict(survey.labels.most_common()) if survey.kind != "numbers" else None,
        "numbers": numbers_of(survey),
        "characters": percentiles(survey.characters_N),
        "lengths": percentiles(report.lengths(survey)),
        "length_histogram": histogram(report.lengths(survey)),
        "cut": [{"max_len": max_len, "rows": rows, "tokens": lost} for max_len, rows, lost in report.cuts(survey)],
        "unknown": unknown and asdict(unknown),
        "duplicates": one.duplicates,
        "duplicates_with_same_label": one.with_same_label,
        "conflicts": one.conflicts,
        "shown_duplicates": [asdict(shown) for shown in one.shown_duplicates],
        "shown_conflicts": [asdict(shown) for shown in one.shown_conflicts],
        "language": survey.letters.language(),
    }


def numbers_of(survey: Survey) -> dict[str, float] | None:
    """Return the minimum, the quartiles and the maximum of labels that are numbers, else None."""
    if survey.kind != "numbers":
        return None
    there_N = survey.numbers_N[np.isfinite(survey.numbers_N)]
    names = ("least", "25 %", "median", "75 %", "greatest")
    return dict(zip(names, np.percentile(there_N, [0, 25, 50, 75, 100]).tolist(), strict=True))
