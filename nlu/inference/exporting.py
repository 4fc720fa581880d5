"""Export a run to another format, which is read back and compared with the run before it is published."""

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import islice
from typing import Any

from nlu.config.choices import choice_of
from nlu.config.command_keys import Export
from nlu.config.errors import UserError
from nlu.config.targets import TARGET
from nlu.data.windows import WINDOWS
from nlu.display.console_tables import metric_text, print_table, table_of
from nlu.inference.cells import require_predicting
from nlu.inference.exports.checking import TEXTS, Checked, check, check_run
from nlu.inference.exports.export_decisions import Row
from nlu.inference.exports.formats import FORMATS, require_packages
from nlu.inference.exports.huggingface_export import FORMAT, write_masked
from nlu.inference.locate import ABOUT, Located
from nlu.inference.trained import Trained, load_trained
from nlu.metrics.thresholds import AUTO
from nlu.models.heads.words import WordsHead
from nlu.runs import logs
from nlu.runs.predictions import evaluation_sets, predictions_of
from nlu.storage.files import write_json
from nlu.storage.outputs import output_folder

log = logging.getLogger(__name__)

USUALLY_SAME = 0.95
"""an export with a smaller share of equal predictions gets a warning"""
MOST_DIFFERENCE = 1e-3
"""of the vectors or scores of an export without logits"""


def run_export(config: Export, located: Located) -> int:
    """Export, check and print a table; returns the exit status. Raises UserError for the user's mistakes."""
    logs.set_up(None, 0)
    chosen = FORMATS[config.format]
    # Before the checkpoint is loaded, which takes longer.
    require_packages(chosen)
    trained = load_trained(located)
    if trained.config.data.get("layout") is not None:
        raise UserError(
            f"run is {config.run}, which makes sequences by data.layout, a class of your own that no export contains; "
            "use the run by nlu.predict, nlu.serve or nlu.load"
        )
    if isinstance(trained.model.head, WordsHead):
        if chosen.name != FORMAT:
            task = choice_of("task", trained.config.task[TARGET])
            raise UserError(
                f"format is {chosen.name}, but a run of task={task} is exported only as {FORMAT}; set format={FORMAT}, "
                "or fine-tune the run with model.pretrained=RUN and export the new one"
            )
        return _export_alone(config, trained.without_adapter(), write_masked)
    if chosen.read is None:
        return _export_alone(config, trained, chosen.write)
    require_predicting(trained)
    merged = trained.without_adapter()
    if trained.lengths.long == WINDOWS:
        # They are compared in rows that are cut, which are one sequence each.
        trained.lengths = merged.lengths = replace(trained.lengths, long="cut")
        log.info("data.long is windows: an export computes one window at a time, and you cut texts; docs/exporting.md")
    rows = rows_to_check(trained, config.max_rows)
    with output_folder(config.out, "out", last=ABOUT) as staging:
        with _quiet():
            chosen.write(merged, staging)
            found = check(chosen, merged, staging, rows, trained)
        # Timed after the export, in the same process and on the same rows, so that the times can be compared.
        own = check_run(trained, rows)
        write_json(staging / ABOUT, _about(trained, [asdict(own), asdict(found)]))
    _print(own, found)
    threshold = trained.config.task.get("threshold")
    if threshold is not None and trained.target.kind in ("classes", "label_set"):
        where = ", whose values are in export.json" if threshold == AUTO else ""
        log.info(
            "task.threshold is %s%s: an export gives logits, and you apply it; docs/exporting.md", threshold, where
        )
    print_table("", config.out)
    return 0


def _export_alone(config: Export, trained: Trained, write: Callable[..., Any]) -> int:
    """Export a run to a format of vectors or of scores of words, which compares these itself."""
    name, rows = config.format, rows_to_check(trained, config.max_rows)
    what = "score" if name == FORMAT else "vector"
    with output_folder(config.out, "out", last=ABOUT) as staging:
        with _quiet():
            largest = write(trained, staging, rows)
        if not largest <= MOST_DIFFERENCE:
            raise UserError(
                f"the {what}s by the export differ from those of the run by {largest:.3g}, more than rounding; report "
                "it as an error of nlu, with the versions that python -m nlu.doctor prints"
            )
        write_json(staging / ABOUT, _about(trained, [{"format": name, "largest_difference": largest}]))
    print_table("", config.out)
    log.info("%s: the largest difference of a %s from the run is %.2g", name, what, largest)
    return 0


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide warnings and progress bars of other libraries; the comparison shows whether an export is right."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def rows_to_check(trained: Trained, count: int) -> list[Row]:
    """Return the texts of the first rows of the run's first evaluation set, from its kept predictions.

    Raises UserError if it kept none.
    """
    run_dir = trained.located.run_dir
    found: list[Row] = []
    for name in evaluation_sets(run_dir, trained.located.head_name):
        with_text = (
            {key: one[key] for key in (*TEXTS, "label") if key in one} for one in predictions_of(run_dir, name)
        )
        # A label without its text cannot be predicted again.
        found += islice((row for row in with_text if len(row) > 1), count - len(found))
    if not found:
        raise UserError(f"{run_dir} has no texts in predictions/, which check an export; give another run")
    return found


def _about(trained: Trained, checked: Sequence[Mapping[str, object]]) -> dict[str, object]:
    return {
        "run": str(trained.located.run_dir),
        "checkpoint": trained.located.checkpoint.name,
        "labels": trained.labels,
        "decided": trained.decided,
        "checked": checked,
    }


def _print(own: Checked, found: Checked) -> None:
    headers = ("format", "rows", "largest difference", "same prediction", "accuracy", "MB", "ms for 1", "ms for 32")
    table = table_of([(header, header != "format") for header in headers])
    for one in (own, found):
        table.add_row(
            one.format,
            str(one.rows),
            f"{one.largest_difference:.2g}",
            f"{one.same:.2%}",
            metric_text(one.accuracy),
            f"{one.size_mb:.1f}",
            digits(one.latency_1_ms),
            digits(one.latency_32_ms),
        )
    print_table("", table)
    name, same = found.format, 100 * found.same
    if found.same < USUALLY_SAME:
        log.warning("%s: only %.2f %% of the rows get the prediction of the run; %s", name, same, _cure(found))
    elif found.same < 1:
        print_table(f"{name}: {found.decided_by}; docs/exporting.md explains the differences from the run")


def _cure(one: Checked) -> str:
    """Return why an export gives other predictions than its run, and what to do."""
    if one.same_by_rule is None:
        return FORMATS[one.format].beyond
    if one.same_by_rule >= USUALLY_SAME:
        return (
            "its logits are those of the run, but pipeline(...) of transformers splits or joins units. Take the "
            "largest logit of each unit's first token, as docs/exporting.md shows: "
            f"then {100 * one.same_by_rule:.2f} % are the same"
        )
    return (
        "its logits are those of the run, which takes the best legal sequence of tags, not the largest logit of each "
        "unit. Use the run by nlu.predict, nlu.serve or nlu.load, or train it longer, or with task.decode=greedy"
    )


def digits(time_ms: float) -> str:
    """Return a time with three significant digits; more are not reproducible."""
    return f"{time_ms:,.0f}" if time_ms >= 99.95 else f"{time_ms:#.3g}"
