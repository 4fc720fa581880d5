"""Run the cases: small files as people have them, each with the commands that read it and what is right.

python tests/cases.py                  all cases that take less than a minute
python tests/cases.py C3 N07           some, by the beginning of their names
python tests/cases.py --all            also the one that takes minutes

A case is a folder of tests/cases: `run.sh` has its commands, `right.txt` what they should give, in words. The checks
are here. Prints a line for each case; the exit status is the number of cases that give something else.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CASES = Path(__file__).parent / "cases"
SLOW = ("F4",)
"""cases that take minutes"""


@dataclass
class Outcome:
    """What the commands of a case gave."""

    folder: Path
    printed: str
    """standard output and standard error together"""
    status: int
    facts: list[dict[str, Any]]
    """the facts that nlu.preprocess prints as a line of JSON"""

    def says(self, *patterns: str) -> bool:
        """Return whether all patterns are found in what was printed."""
        return all(re.search(pattern, self.printed) for pattern in patterns)

    def labels(self, store: int = 0) -> dict[str, int]:
        """Return the number of rows with each label in all sets; of tags, the number of units."""
        counts: Counter[str] = Counter()
        for one in self.facts[store]["sets"].values():
            counts.update(one["labels"])
        return dict(counts)

    def examples(self, store: int = 0) -> int:
        return sum(one["examples"] for one in self.facts[store]["sets"].values())

    def half(self) -> dict[str, int]:
        """Return the labels of a case whose dev is the file of train again."""
        return {name: count // 2 for name, count in self.labels().items()}

    def spans(self) -> dict[str, int]:
        """Return the number of units that begin a span, by type."""
        return {name[2:]: count for name, count in self.labels().items() if name.startswith("B-")}

    @property
    def is_refused(self) -> bool:
        return self.status == 2 and "Traceback" not in self.printed


Check = Callable[[Outcome], bool]
CHECKS: dict[str, Check] = {}


def case(name: str) -> Callable[[Check], Check]:
    def add(check: Check) -> Check:
        CHECKS[name] = check
        return check

    return add


@case("A2-python-list-cell")
def list_cells(found: Outcome) -> bool:
    return found.labels() == {"cs.CL": 30, "cs.CV": 30, "cs.LG": 30} if found.facts else found.says(r"\['cs\.C")


@case("A3-comma-cell")
def cells_with_commas(found: Outcome) -> bool:
    if found.labels() == {"Action": 30, "Comedy": 30, "Drama": 30}:
        return True
    return found.says(r"no row .*more than one label", r"2 of the 4 labels", r"data\.label_separator")


@case("B2-comment-lines")
def comment_lines(found: Outcome) -> bool:
    return found.examples() == 60 and found.spans() == {"Disease": 60} and not _bad_rows(found)


@case("B4-parquet-class-names")
def names_in_a_schema(found: Outcome) -> bool:
    return found.spans() == {"Disease": 60} and found.labels(1) == {"neg": 30, "pos": 30}


@case("B5-token-classes")
def classes_of_tokens(found: Outcome) -> bool:
    counts = json.loads((found.folder / "counts.json").read_text())
    facts = json.loads((found.folder / "out/data.json").read_text())["sets"]
    total: Counter[str] = Counter()
    for one in facts.values():
        total.update(one["labels"])
    return found.status == 0 and dict(total) == counts and found.says("accuracy", "f1_macro")


@case("B6-token-per-row-csv")
def a_token_in_each_row(found: Outcome) -> bool:
    # The second command is what an error advised before; only the first one has to read the file.
    return found.examples() == 60 and found.spans() == {"geo": 60}


@case("B8-blank-token")
def a_blank_token(found: Outcome) -> bool:
    return found.examples() == 60 and sum(found.labels().values()) == 48 * 4 + 12 * 5 and found.spans() == {"LOC": 60}


@case("C2-extra-trailing-columns")
def further_columns(found: Outcome) -> bool:
    if found.facts:
        return found.examples() == 60
    # A key that the error names, and that reads all rows.
    return found.says(r"9 columns", r"data\.further_columns=true") and _again(found, "data.further_columns=true") == 60


@case("C3-pandas-tsv")
def doubled_quotes(found: Outcome) -> bool:
    return found.says(r"20 ", r"quote", r"data\.quote=")


@case("C5-json-object")
def one_object(found: Outcome) -> bool:
    if found.facts:
        return [found.examples(store) for store in range(len(found.facts))] == [60, 60]
    return found.says(r"nested\.json.* one JSON object", r"pretty\.jsonl:1.*line 4", r"\bdata\b")


@case("C6-label-variants")
def labels_written_otherwise(found: Outcome) -> bool:
    names = ("positive", "Positive", "POSITIVE")
    of_case = all(found.says(rf"in case \([^)]*\b{name}\b[^)]*30 rows") for name in names)
    return of_case and found.says(r"Unicode form .*\b17 rows", r"final mark .*\b13 rows")


@case("C7-list-of-one-label")
def a_list_of_one_label(found: Outcome) -> bool:
    return found.labels() == {"neg": 30, "pos": 30} if found.facts else found.says("list of labels", "task=multilabel")


@case("D2-null-in-choice")
def null_among_choices(found: Outcome) -> bool:
    if found.is_refused:
        return found.says(r"loss\.class_weights=null,inverse_frequency")
    return found.status == 0 and (found.folder / "out/1/result.json").exists()


@case("D3-long-folder-name")
def a_long_folder_name(found: Outcome) -> bool:
    return found.is_refused and found.says(r"hydra\.sweep\.subdir", "255", "exclude_keys")


@case("E1-metric-that-cannot-be-a-number")
def never_a_number(found: Outcome) -> bool:
    started = [name for name in ("out", "out2") if (found.folder / name / "train.tsv").exists()]
    return found.is_refused and not started and found.says(r"major_metric is auc.*\bneg\b.*35", r"spearman.*\b20 rows")


@case("F2-many-classes")
def many_classes(found: Outcome) -> bool:
    return (found.folder / "out/predictions/dev.jsonl").stat().st_size < 2_000_000


@case("F3-vocabulary-with-equal-lines")
def equal_lines(found: Outcome) -> bool:
    saved = json.loads(next((found.folder / "out").glob("checkpoints/*/tokenizer.json")).read_text())
    words = saved["model"]["vocab"]
    return found.status == 0 and (words["box"], words["the"]) == (8, 9) and found.says(r"vocab\.txt:7|line 7|lines 7")


@case("F4-memory-of-a-loaded-run")
def memory_stays(found: Outcome) -> bool:
    sizes = [int(size) for size in re.findall(r"^\d+ (\d+)$", found.printed, re.MULTILINE)]
    return len(sizes) == 7 and sizes[-1] - sizes[0] <= 256


@case("N01-json-list-cell")
def json_cells(found: Outcome) -> bool:
    return found.half() == {"art": 20, "law": 40, "sport": 20}


@case("N02-one-column-per-label")
def a_column_for_each_label(found: Outcome) -> bool:
    return list(found.half().items()) == [("toxic", 26), ("obscene", 11), ("threat", 5)] and found.examples() == 120


@case("N03-doccano-spans")
def spans_of_doccano(found: Outcome) -> bool:
    return found.examples() == 120 and found.spans() == {"PER": 108, "LOC": 108}


@case("N04-label-studio-min")
def spans_of_label_studio(found: Outcome) -> bool:
    return found.examples() == 120 and found.spans() == {"Person": 120, "City": 120}


@case("N05-conllu-pos")
def classes_of_conllu(found: Outcome) -> bool:
    return found.half() == json.loads((found.folder / "counts.json").read_text())


@case("N06-words-and-tags-in-cells")
def words_in_cells(found: Outcome) -> bool:
    return found.examples() == 120 and found.spans() == {"per": 120, "geo": 120}


@case("N07-korean-spans")
def spans_within_words(found: Outcome) -> bool:
    return found.examples() == 120 and found.spans() == {"LC": 120}


@case("N08-gzip-and-nested")
def compressed_objects(found: Outcome) -> bool:
    return found.half() == {"1": 30, "5": 30} if found.facts else found.says("review", "body")


@case("N09-pandas-columns-json")
def an_object_of_columns(found: Outcome) -> bool:
    return found.examples() == 120 if found.facts else found.is_refused and found.says("one JSON object", "records")


@case("N10-arrow-dictionary")
def a_column_of_categories(found: Outcome) -> bool:
    return found.half() == {"ham": 40, "spam": 20}


@case("N11-labels-of-blanks")
def absent_values_as_labels(found: Outcome) -> bool:
    names = r"(?=.*NaN)(?=.*N/A)(?=.*None)"
    return found.says(rf"{names}.*\b20 rows|\b20 rows {names}", r"\b01\b.*\b20 rows")


@case("N12-excel-utf16")
def an_encoding_of_excel(found: Outcome) -> bool:
    return found.examples() == 60 if found.facts else found.is_refused and found.says(r"UTF-16", r"iconv|data\.")


@case("N13-dev-of-one-row")
def a_single_row_to_score(found: Outcome) -> bool:
    return found.is_refused and not (found.folder / "out/train.tsv").exists() and found.says("spearman", "major_metric")


@case("N14-open-quote")
def an_open_quote(found: Outcome) -> bool:
    train = found.facts[0]["sets"]["train"]
    return train["examples"] in (58, 59) and train["bad_rows"] in (1, 2) and found.says(r"train\.csv:20\b")


def _again(found: Outcome, override: str) -> int:
    """Return the number of examples that the first command gives with an override more."""
    command = (found.folder / "run.sh").read_text().splitlines()[0]
    ended = subprocess.run(
        ["bash", "-c", f"{command} {override}"], cwd=found.folder, env=_environment(found.folder.parent), text=True,
        capture_output=True,
    )  # fmt: skip
    return sum(one["examples"] for one in json.loads(ended.stdout.splitlines()[-1])["sets"].values())


def _bad_rows(found: Outcome) -> int:
    return sum(one["bad_rows"] for one in found.facts[0]["sets"].values())


def run(name: str, work: Path) -> Outcome:
    """Run the commands of a case in a copy of its folder."""
    folder = work / name
    shutil.copytree(CASES / name, folder)
    # Stores of earlier runs would hide what is said while one is built.
    ended = subprocess.run(
        ["bash", "run.sh"], cwd=folder, env=_environment(work), text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )  # fmt: skip
    facts = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith('{"store"')]
    return Outcome(folder, ended.stdout, ended.returncode, facts)


def _environment(work: Path) -> dict[str, str]:
    """Return variables with which `python` is this one, and finds this code and a cache of its own."""
    root = CASES.parent.parent
    paths = {"PATH": [os.path.dirname(sys.executable)], "PYTHONPATH": [str(root), str(root / "launchers")]}
    joined = {name: os.pathsep.join([*own, os.environ.get(name, "")]) for name, own in paths.items()}
    return {**os.environ, **joined, "NLU_CACHE": str(work / "cache")}


def right(name: str, found: Outcome) -> bool:
    try:
        return CHECKS[name](found)
    except (LookupError, OSError, StopIteration):
        # The output that the check reads is absent.
        return False


def main(arguments: list[str]) -> int:
    """Run the chosen cases, print what each gives, and return the number of those that give something else."""
    wanted = [argument for argument in arguments if not argument.startswith("-")]
    names = [name for name in sorted(CHECKS) if not wanted or name.startswith(tuple(wanted))]
    if not wanted and "--all" not in arguments:
        names = [name for name in names if not name.startswith(SLOW)]
    wrong = 0
    with tempfile.TemporaryDirectory() as work:
        for name in names:
            found = run(name, Path(work))
            is_right = right(name, found)
            wrong += not is_right
            print(f"{'right' if is_right else 'WRONG'}  {name}", flush=True)
            if not is_right or "--show" in arguments:
                print("       " + "\n       ".join(found.printed.rstrip().splitlines()[-25:]), flush=True)
    print(f"{len(names) - wrong} of {len(names)} cases are right")
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
