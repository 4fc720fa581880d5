"""What is doubtful in the labels and texts of a set whose rows can all be used: one list of checks.

A `Collector` sees each row once, as it was read, in memory that does not grow with the rows. Its findings are stored
with the tokens, so that training, nlu.preprocess and nlu.data say the same of the same files. What depends on the split
(`of_balance`) is said of the counts of labels.
"""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nlu.config.sentences import called, counted, listed, shortened
from nlu.data.dataset import SourceFile
from nlu.data.dialect import SEPARATED_BY
from nlu.data.fields import NAMES_OF_TEXTS, TEXT_ROLES
from nlu.data.layouts import Values
from nlu.data.lists_in_cells import FLAGS, PAIRS, listed_labels
from nlu.data.readers import TABLES, WIDTH, format_of, has_header
from nlu.data.reading import Reading

RARE, RARE_WITHOUT_NAME = 0.001, 0.05
"""share of the training rows below which a label may be a typing error; the second for marks such as -"""
FEWEST = 100
"""with fewer rows, no label is called rare"""
IMBALANCE = 20
"""ratio of the most frequent to the rarest label from which accuracy says little"""
MOST_LABELS = 10_000
"""distinct labels that are looked at"""
NAMED_ROWS, NAMED_LABELS = 3, 8
MOST_OF_NAME, MOST_OF_HEADER = 40, 20
"""characters of a label that is one of several, and of the name of a column"""
RECURRENCE = 1.3
"""how often a label occurs in the different cells of a column, on average, if cells have several"""
MARKS = ".,;:!?。，；：！？、…"
SEPARATORS, BETWEEN_WORDS = ",;|，；、\t", "/+& "
"""what stands between several labels of a cell; the second ones stand within names too"""
NO_LABELS = frozenset(("nan", "none", "null", "n/a", "na", "#n/a", "nil", "<na>"))
"""spellings of an absent value"""
INVISIBLE = re.compile("[\u200b-\u200f\u2060\ufeff\u00ad]")
JOINTS = re.compile(r"(?<=[^\W\d])[\s_-]+(?=\w)|(?<=\w)[\s_-]+(?=[^\W\d])")
"""blanks, hyphens and underscores in a name, but not the minus of a number"""
DECIMAL = re.compile(r"[+-]?\d+,\d+")
TEXTS = frozenset(role for several in TEXT_ROLES.values() for roles in several for role in roles)
Place = tuple[int, int]
"""the index of a row's file, and its number there"""


@dataclass
class Finding:
    """One doubt: how many rows of which field it concerns, the first of them, and the keys that settle it."""

    field: str
    count: int
    rows: list[str]
    """FILE:ROW of three of the rows"""
    sentence: str
    remedy: str

    def __str__(self) -> str:
        rows = f" ({', '.join(self.rows)}{', ...' if self.count > len(self.rows) else ''})" if self.rows else ""
        return f"{self.sentence}{rows}; {self.remedy}"


@dataclass
class Seen:
    """Rows that have something in common: their number, and the places of the first ones."""

    count: int = 0
    places: list[Place] = field(default_factory=list)

    def add(self, place: Place) -> None:
        """Count a row."""
        self.count += 1
        if len(self.places) < NAMED_ROWS:
            self.places.append(place)


NO_ROWS = Seen()


class Collector:
    """Sees the rows of one set; `found` returns what is doubtful in them."""

    def __init__(
        self,
        reading: Reading,
        path: Path,
        split: Callable[[str], list[object] | None] | None = None,
        *,
        has_labels: bool = False,
    ):
        """`path` is a file of the set. `split` returns the labels of a cell that has several; None: a cell is one.
        `has_labels`: data.labels names them."""
        kind = format_of(path, reading.file_format)
        self._split, self._column = split, reading.column
        self._has_labels = has_labels
        self._quotes_are_text = kind in SEPARATED_BY and reading.dialect.around(kind) is None
        self._may_have_header = kind in TABLES and reading.header is None and not has_header(reading.fields, None)
        self._labels: defaultdict[str, Seen] = defaultdict(Seen)
        self._first: dict[int, tuple[Place, str, str]] = {}
        self._of: defaultdict[str, Seen] = defaultdict(Seen)
        self._cell: dict[str, str] = {}
        """the first value of each doubt"""
        self.rows = 0

    def see(self, place: Place, values: Values) -> None:
        """Look at the fields of a row that can be used."""
        self.rows += 1
        if WIDTH in values:
            self._doubt("width", place, values[WIDTH])
        if "label" in values:
            self._see_label(place, values["label"])
        elif isinstance(tags := values.get("tags"), list):
            for name in {str(tag) for tag in tags}:
                self._add_label(name[2:] if name[1:2] in ("-", "_") else name, place)
            if tags and isinstance(tags[0], int):
                self._doubt("numbers", place, tags)
        for role in TEXTS.intersection(values) if self._quotes_are_text else ():
            text = values[role]
            if isinstance(text, str) and text[:1] == '"' == text[-1:] and '""' in text[1:-1]:
                self._doubt(f"quoted {role}", place, text)
        if self._may_have_header and place[0] not in self._first:
            texts = [str(values[role]).strip() for role in TEXTS.intersection(values)]
            self._first[place[0]] = place, max(texts, key=len, default=""), str(values.get("label", "")).strip()

    def _see_label(self, place: Place, written: object) -> None:
        parts: list[object] = written if isinstance(written, list) else [written]
        if isinstance(written, str) and self._split is not None:
            parts = [written] if (split := self._split(written)) is None else split
        elif isinstance(written, str) and written[:1] in PAIRS and listed_labels(written):
            self._doubt("list cells", place, written.strip())
        names = [name for part in parts if (name := "" if part is None else str(part).strip())]
        if len(names) != 1:
            self._of["several" if names else "empty"].count += bool(names) or not isinstance(written, list)
        if len(set(names)) < len(names):
            if FLAGS.issuperset(map(str.lower, names)):
                self._doubt("flags", place, written)
                return
            self._doubt("twice", place, next(name for name in names if names.count(name) > 1))
        for name in dict.fromkeys(names):
            self._add_label(name, place)

    def _add_label(self, name: str, place: Place) -> None:
        if name in self._labels or len(self._labels) < MOST_LABELS:
            self._labels[name].add(place)

    def _doubt(self, name: str, place: Place, value: object) -> None:
        self._of[name].add(place)
        self._cell.setdefault(name, shortened(str(value)))

    def found(
        self, kind: str, sources: Sequence[SourceFile], cut: Seen = NO_ROWS, max_len: int | None = None
    ) -> list[Finding]:
        """Return the findings in the rows of `sources`, of which those in `cut` were cut to `max_len`.

        `kind` of target: classes, label_set, tags or another one, whose labels have no names.
        """

        def finding(role: str, seen: Seen, sentence: str, remedy: str) -> Finding:
            rows = [f"{called(sources[file].path)}:{number}" for file, number in seen.places]
            return Finding(self._column(role), seen.count, rows, sentence, remedy)

        out = [finding(*one) for one in self._of_texts()]
        if "numbers" in self._of and not self._has_labels:
            sentence = f"tags are numbers, such as {self._cell['numbers']}"
            remedy = "data.labels gives their names in the order of the numbers, such as [O, B-PER, I-PER]"
            out.append(finding("tags", self._of["numbers"], sentence, remedy))
        if kind in ("number", "numbers") and self._labels and {*self._labels} <= FLAGS:
            seen = self._rows_of(list(self._labels))
            remedy = "for two classes set task=classify, which predicts probabilities"
            out.append(finding("label", seen, "every number is 0 or 1", remedy))
        if kind in ("classes", "label_set"):
            out += [finding("label", *one) for one in self._of_labels(kind)]
        if kind in ("classes", "label_set", "tags"):
            out += [finding("label" if kind != "tags" else "tags", *one) for one in self._spellings()]
        if cut.count:
            share = f"{counted(cut.count, 'row')} ({cut.count / max(1, self.rows):.1%})"
            have = "is" if cut.count == 1 else "are"
            sentence = f"{share} {have} longer than data.max_len, {max_len}, and {have} cut there"
            remedy = "a higher data.max_len reads more of them, and data.long=windows one text as a whole"
            out.append(finding("text", cut, sentence, remedy))
        return out

    @property
    def tag_numbers(self) -> int:
        """How many numbers the tags are, from 0; 0 if they have names."""
        return 1 + max(map(int, filter(str.isdecimal, self._labels)), default=-1) if "numbers" in self._of else 0

    @property
    def has_doubled_quotes(self) -> bool:
        """Whether texts are written with quotes as csv writers do."""
        return any(name.startswith("quoted ") for name in self._of)

    def separator(self) -> str | None:
        """Return what seems to stand between several labels of a cell, if cells seem to have several."""
        names = [name for name in self._labels if name[:1] not in "[{("]
        for mark in (*SEPARATORS, *BETWEEN_WORDS) if not self._of["several"].count else ():
            joined = [name for name in names if mark in name]
            alone = {name for name in names if mark not in name}
            parts = [part.strip() for name in joined for part in name.split(mark)]
            if max(map(len, parts), default=0) > MOST_OF_NAME or not all(any(map(str.isalnum, part)) for part in parts):
                continue
            if not alone and all(map(DECIMAL.fullmatch, joined)):
                continue
            known = sum(part in alone for part in parts)
            # Several labels occur again, by themselves or with others; the parts of a name rarely do.
            recurs = len(parts) + len(alone) >= RECURRENCE * len(alone.union(parts)) or 2 * known >= len(parts)
            if joined and (2 * known >= len(parts) if mark in BETWEEN_WORDS else recurs):
                return f"{mark} " if mark in SEPARATORS and all(f"{mark} " in name for name in joined) else mark
        return None

    def _of_texts(self) -> Iterator[tuple[str, Seen, str, str]]:
        for role in sorted(TEXTS):
            if (seen := self._of.get(f"quoted {role}")) is not None:
                sentence = (
                    f"{counted(seen.count, 'cell')} of {role} begin and end with a quote and have doubled quotes "
                    f"inside, as csv writers write them: {self._cell[f'quoted {role}']}"
                )
                yield role, seen, sentence, "data.quote='\"' reads them"
        if "width" in self._of:
            sentence = (
                f"{counted(self._of['width'].count, 'row')} with more or fewer columns than the first row of the file, "
                f"such as {self._cell['width']}, which are counted from the left"
            )
            yield "text", self._of["width"], sentence, "look whether a text holds the separator"
        titles, title = Seen(), ""
        for where, text, label in self._first.values():
            occurs_once = label.isidentifier() and self._labels[label].count <= len(self._first)
            if text.lower() in NAMES_OF_TEXTS or (occurs_once and text.isidentifier() and len(text) <= MOST_OF_HEADER):
                titles.add(where)
                title = f"{text}, {label}".strip(", ")
        if titles.count:
            sentence = f"the first row seems to be a header ({title}), but is read as a row, since columns are numbered"
            yield "text", titles, sentence, "data.header=true leaves it out, data.header=false says that it is a row"

    def _of_labels(self, kind: str) -> Iterator[tuple[Seen, str, str]]:
        of, cell, names = self._of, self._cell, self._labels
        several = of["several"].count
        if "twice" in of:
            sentence = f"{counted(of['twice'].count, 'row')} with a label twice, such as {cell['twice']}"
            yield of["twice"], sentence, "it counts once"
        if "flags" in of and not self._has_labels:
            sentence = (
                f"{counted(of['flags'].count, 'row')} with a list of a 0 or 1 for each label, such as {cell['flags']}, "
                "whose labels are called by their places from 0"
            )
            yield of["flags"], sentence, "data.labels gives their names, in the order of the list"
        if "list cells" in of:
            sentence = (
                f"{counted(of['list cells'].count, 'cell')}, such as {cell['list cells']!r}, look like lists, but each "
                "is read as one name"
            )
            yield of["list cells"], sentence, "task=multilabel reads lists"
        if (separator := self.separator()) is not None:
            joined = [name for name in names if (separator.strip() or separator) in name]
            key = f"data.label_separator={separator!r}"
            remedy = f"set {key}" if kind == "label_set" else f"task=multilabel {key} reads them"
            sentence = (
                f"no row has more than one label, and {len(joined)} of the {len(names)} labels "
                f"hold{'s' * (len(joined) == 1)} {separator!r}, such as {shortened(joined[0])!r}"
            )
            yield self._rows_of(joined), sentence, f"if they are several labels, {remedy}"
        if kind == "label_set" and not several and names and set(names) <= {"0", "1"}:
            remedy = "task=classify learns two classes; of several columns of 0 and 1, data.fields.label names the list"
            yield self._rows_of(list(names)), "every row has one label, 0 or 1", remedy
        if of["empty"].count > self.rows / 2:
            sentence = f"the label is empty in {of['empty'].count:,} of {self.rows:,} rows"
            yield Seen(of["empty"].count), sentence, "check data.fields.label"

    def _spellings(self) -> Iterator[tuple[Seen, str, str]]:
        """Yield labels that differ only as they are written."""
        names, known = list(self._labels), set[str]()
        alike = "write them alike in the files, or list the right ones in data.labels and set data.on_bad_row=skip"
        for how, form in FORMS.items():
            by_form: defaultdict[str, list[str]] = defaultdict(list)
            for name in names:
                by_form[form(name)].append(name)
            groups = [own for own in by_form.values() if len(own) > 1 and not known.issuperset(own)]
            known.update(name for own in groups for name in own)
            if groups:
                shown = "; ".join(
                    f"{listed(own, NAMED_LABELS)}: {counted(self._rows_of(own).count, 'row')}" for own in groups[:4]
                )
                rarer = [min(own, key=lambda name: self._labels[name].count) for own in groups]
                seen = Seen(self._rows_of([name for own in groups for name in own]).count, self._rows_of(rarer).places)
                rest = "; ..." * (len(groups) > 4)
                yield seen, f"labels that differ only {how} ({shown}{rest}) are different labels", alike
        if missing := [name for name in names if name.lower() in NO_LABELS]:
            seen = self._rows_of(missing)
            yield (
                seen,
                f"{counted(seen.count, 'row')} with the label {listed(missing)}, which may mean none",
                ("if so, list the labels in data.labels and set data.on_bad_row=skip"),
            )

    def _rows_of(self, names: Sequence[str]) -> Seen:
        places = sorted(place for name in names for place in self._labels[name].places)
        return Seen(sum(self._labels[name].count for name in names), places[:NAMED_ROWS])


def _as_number(name: str) -> str:
    try:
        return repr(float(name) + 0.0)
    except ValueError:
        return name


def _without_joints(name: str) -> str:
    return JOINTS.sub("", INVISIBLE.sub("", name))


def _without_marks(name: str) -> str:
    return name.rstrip(MARKS) or name


def _plain(name: str) -> str:
    """Return a label in the form that all spellings of FORMS share."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    return _as_number(_without_joints(_without_marks(folded)))


FORMS: dict[str, Callable[[str], str]] = {
    "in case": str.casefold,
    "in Unicode form": lambda name: unicodedata.normalize("NFKC", name),
    "in a final mark": _without_marks,
    "in blanks, hyphens or invisible characters": _without_joints,
    "in the digits of a number": _as_number,
    "in several of these": _plain,
}
"""how spellings of one label differ, and the form that they share"""


def of_balance(counts: Mapping[str, int], total: int, *, is_train: bool, are_classes: bool = True) -> Iterator[str]:
    """Yield what is doubtful in the numbers of rows of each label; a label of another set may have none here.

    `are_classes`: whether each row has exactly one of the labels.
    """
    there = {label: count for label, count in counts.items() if count}
    # An I- tag may be missing, because a span of one unit has none.
    absent = [label for label in counts if label not in there and not label.startswith("I-")]
    if len(there) == 1 and are_classes:
        rest = f"scores of this set say nothing about {listed(absent)}" if absent else "its scores say nothing"
        yield f"every row has the label {next(iter(there))}, so {'there is nothing to learn' if is_train else rest}"
        return
    if absent:
        effect = "so it cannot be learned" if is_train else "so scores of this set say nothing about it"
        yield f"no row has the label {listed(absent)}, {effect}"
    # Span types may be rare in units although many spans have them.
    if not there or any(label.startswith(("B-", "I-")) for label in counts):
        return
    if rare := [f"{label} ({count:,})" for label, count in there.items() if is_train and _is_rare(label, count, total)]:
        yield (
            f"few rows have the label {listed(rare)}; is it one? If not, set data.labels to the labels, and "
            "data.on_bad_row=skip to leave the rows of others out"
        )
    most, least = max(there.values()), min(there.values())
    if is_train and are_classes and most > IMBALANCE * least:
        yield (
            f"the most frequent label has {most / least:,.0f} times as many rows as the rarest, so look at f1_macro "
            "too; loss.class_weights=inverse_frequency gives all labels the same weight"
        )


def _is_rare(label: str, count: int, total: int) -> bool:
    """Return whether a label of the training set may be a typing error."""
    has_name = any(character.isalnum() for character in label)
    return total >= FEWEST and 0 < count < max(2, (RARE if has_name else RARE_WITHOUT_NAME) * total)
