"""Score a trained run, or the initial weights of a configuration, on this rank.

Further results of a set are confidence intervals, calibration and confusion matrix. A trained run is compared with the
scores that it recorded; reasons why they may differ are named.

Axes: N rows of a set.
"""

import json
import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

import numpy as np

from nlu.config.command_keys import Evaluate
from nlu.config.errors import CheckpointError, UserError, keys_called
from nlu.config.schema import Run
from nlu.config.sentences import counted
from nlu.config.targets import build
from nlu.data.dataset import Files
from nlu.data.examples import Examples, sample
from nlu.data.mixture import own_sets
from nlu.data.opening import Store
from nlu.data.prepare import prepare_scoring
from nlu.display.progress_bars import Progress, bars
from nlu.display.score_figures import draw_scores, print_scores
from nlu.inference.claimed import Team, require_shareable
from nlu.inference.compiling import choose_shapes, compiled_for
from nlu.inference.int8.precision import int8_of
from nlu.inference.locate import Located, digests_of
from nlu.inference.score_pieces import Read, score_in_pieces
from nlu.inference.scores_table import append_scores
from nlu.inference.self_check import warn_of_batches
from nlu.inference.trained import Trained, load_trained, scores_at
from nlu.metrics.bootstrap import Blocks, Intervals, blocks_of, intervals_of_means, metrics_of
from nlu.metrics.calibration import AreaScorer, Bin, CalibrationScorer
from nlu.metrics.classes import ConfusionScorer
from nlu.metrics.kinds import kind_named
from nlu.metrics.scores import LabelRow, Record, Scorer
from nlu.models.task_model import TaskModel
from nlu.runs import logs
from nlu.storage.files import plain, write_json
from nlu.storage.outputs import output_folder, require_free
from nlu.tasks.task import Task
from nlu.training.auto import with_precision
from nlu.training.build import build_data, build_model, build_task
from nlu.training.compiled import require_compilable
from nlu.training.evaluation import Evaluator, Scored, keep_predictions, score
from nlu.training.precision import Precision
from nlu.training.ranks import Ranks, process_group

log = logging.getLogger(__name__)

EXIT_DIFFERS = 1
"""exit status with compare=true: a score differs from the recorded one"""
RESULT = "result.json"
CALLED = {"folds.group_by": "group_by", "trainer.compile": "compile"}
Metrics = dict[str, dict[str, float | None]]


@dataclass
class Findings:
    """The results of one set."""

    rows: int
    own_metrics: dict[str, float]
    """the metrics of the task, as a run records them"""
    metrics: dict[str, float]
    """the metrics of the task and further ones"""
    by_label: list[LabelRow]
    intervals: Intervals = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    confusion: list[list[int]] | None = None
    """the number of rows by label (line) and prediction (column), in the order of `names`"""
    calibration: list[Bin] | None = None

    def about(self) -> dict[str, object]:
        """Return the content of result.json other than metrics and intervals."""
        return {
            "rows": self.rows,
            "by_label": self.by_label,
            "labels": self.names,
            "confusion": self.confusion,
            "calibration": self.calibration,
        }


def find(config: Evaluate, task: Task, part: Examples, scored: Scored, progress: Progress) -> Findings:
    """Compute the results from the records of a scored set; without a score there are no others.

    Raises UserError for groups of a task that has its own.
    """
    own = scored.scores.metrics
    names = part.target.names
    found = Findings(len(part), own, dict(own), scored.scores.by_label, names=names)
    if scored.not_finite:
        return found
    kind = kind_named(task.kind)
    has_probabilities = kind.is_one_label and kind.has_probabilities
    group_N = None if config.group_by is None else part.stored.scalars("group", part.rows_N)

    def resampled() -> list[Scorer]:
        # Resamples keep the threshold: an interval shows the effect of the rows, not of the choice of a threshold.
        more: list[Scorer] = [CalibrationScorer(names)] if has_probabilities else []
        return [task.scorer(own), *more]

    # Rows of a query are resampled together; records of retrieval do not even contain vectors.
    joins = getattr(scored.scorer, "joins", True) and not scored.scores.by_query
    # Without resamples all rows form one block: the scorers are still needed once, for the metrics of the whole set.
    block_N = blocks_of(len(part), config.seed, group_N) if config.resamples else np.zeros(len(part), np.int64)
    blocks = Blocks(resampled, block_N) if joins else None
    confusion = ConfusionScorer(names) if kind.is_one_label else None
    # With many classes, a thousand resamples of their areas would take minutes.
    by_class = AreaScorer(names) if has_probabilities and len(names) > 2 else None
    for example, record in _records(task, part, scored):
        if blocks is not None:
            blocks.add(example, record)
        if confusion is not None:
            confusion.add(record)
        if by_class is not None:
            by_class.add(record)
    if confusion is not None:
        found.confusion = confusion.matrix()
    if by_class is not None:
        found.metrics |= by_class.result().metrics
    if blocks is None:
        by_query = scored.scores.by_query
        if by_query and config.group_by is not None:
            raise UserError("group_by is set, but retrieval is always scored by query; leave it out")
        if by_query and config.resamples:
            with progress.task(f"resampling {part.name}", config.resamples) as bar:
                found.intervals = intervals_of_means(by_query, config.resamples, config.seed, bar.advance)
        return found
    whole = blocks.whole()
    found.metrics |= {name: value for name, value in metrics_of(whole).items() if name not in own}
    found.calibration = next((one.bins() for one in whole if isinstance(one, CalibrationScorer)), None)
    if config.resamples:
        with progress.task(f"resampling {part.name}", config.resamples) as bar:
            found.intervals = blocks.intervals(config.resamples, config.seed, bar.advance)
    return found


def _records(task: Task, part: Examples, scored: Scored) -> Iterator[tuple[int, Record]]:
    for example, record in scored.spool:
        yield example, task.finished(record, scored.scores.metrics)


@dataclass
class Subject:
    """A model and the sets on which it is scored."""

    task: Task
    model: TaskModel
    sets: dict[str, Examples]
    store: str
    """the name of the data store, which tells its content"""
    decided: dict[str, float]
    """metrics with the threshold of the task; {}: the first set decides it"""


def run_evaluation(config: Evaluate, located: Located | None, named: list[str]) -> int:
    """Score, print and, with `out`, write the results; returns the exit status.

    `named` are those of dev and test for which the command gives rows; if empty, the sets of the configuration are
    scored. Raises UserError for the user's mistakes, before anything is written.
    """
    with process_group(config.trainer.device) as ranks, keys_called(CALLED):
        logs.set_up(None, ranks.rank)
        if config.compile:
            require_compilable(ranks.device)
        config = with_precision(config, ranks)
        if int8 := int8_of(config.precision):
            int8.require(ranks.device)
        require_shareable(Team.of(config), ranks.world_size, config.out, "out")
        if config.out is not None and config.jobs == 1:
            require_free(config.out, "out")
        with Progress(enabled=ranks.is_first) as progress:
            subject = _subject(config, located, named, ranks, progress)
            if config.jobs > 1:
                _score_together(config, located, subject, ranks, progress)
                return 0
            return _score_and_write(config, located, subject, ranks, progress)


def _score_and_write(
    config: Evaluate,
    located: Located | None,
    subject: Subject,
    ranks: Ranks,
    progress: Progress,
    read: Read | None = None,
) -> int:
    """Score every set, write and print the results; returns the exit status. `read` as in `_score_all`."""
    with _folder(config.out, ranks) as folder:
        # Other ranks leave after their last collective call. Rank 0 writes while the folder is still the temporary
        # one, so a failed comparison leaves nothing at `out`.
        found = _score_all(config, subject, folder, ranks, progress, read)
        if not ranks.is_first:
            return 0
        result = _result(config, located, found)
        status = _compare_and_write(config, located, found, result, folder)
    print_scores(found, config.out)
    if config.table is not None:
        _append(config, result, found)
    return status


def _score_together(
    config: Evaluate, located: Located | None, subject: Subject, ranks: Ranks, progress: Progress
) -> None:
    """Compute records as one of several jobs; one of them scores and writes what all have computed."""
    evaluator, sets = _evaluator(config, subject, ranks)
    plan = {
        "config": plain({**config.to_config(), "job": None}),
        "store": subject.store,
        "checkpoint": located and digests_of(located.checkpoint),
        "device": ranks.device.type,
        "compile": evaluator.compiled and [list(astuple(shape)) for shape in evaluator.compiled.scored.shapes],
    }
    write = partial(_score_and_write, config, located, subject, ranks, progress)
    score_in_pieces(evaluator, sets, str(config.out), plan, Team.of(config), write)


def _append(config: Evaluate, result: Mapping[str, object], found: Mapping[str, Findings]) -> None:
    """Add the rows of the scored sets to `table`."""
    append_scores(
        str(config.table),
        str(result["run"] or ""),
        str(result["checkpoint"] or ""),
        {name: config.data.get(name) for name in found},
        {name: one.rows for name, one in found.items()},
        {name: one.metrics for name, one in found.items()},
    )
    log.info("%s: %s added", config.table, counted(len(found), "row"))


def _compare_and_write(
    config: Evaluate, located: Located | None, found: Mapping[str, Findings], result: dict[str, object], folder: Path
) -> int:
    """Compare the scores with `compare`, write them with `out`; returns the exit status."""
    status = 0
    if config.compare:
        assert located is not None, "validated together"
        status = _compare(config, located, found, result)
    if config.out is not None:
        write_json(folder / RESULT, result)
        draw_scores(folder / "plots", found)
    return status


def _subject(config: Evaluate, located: Located | None, named: list[str], ranks: Ranks, progress: Progress) -> Subject:
    if located is None:
        data = build_data(config, ranks, progress)
        task = build_task(config, data.store)
        # Nothing is trained here, so the rows of train serve only to weigh classes and to read labels.
        model = build_model(config, data, task, progress).to(ranks.device)
        if int8 := int8_of(config.precision):
            int8.quantize(model)
        return Subject(task, model, _but_train(data.store.sets), data.store.folder.name, {})
    trained = load_trained(located, precision=config.precision)
    model = trained.model.to(ranks.device)
    if named:
        store = _store_of(config, named, trained, ranks, progress)
    else:
        store = store_of_run(config, ranks, progress, located.checkpoint)
        if store.labels != trained.labels:
            raise CheckpointError(
                f"the rows of {located.run_dir} now have the labels {store.labels}, but it was trained for "
                f"{trained.labels}; give the rows to score as data.test=FILE"
            )
    return Subject(trained.task, model, _but_train(store.sets), store.folder.name, trained.decided)


def store_of_run(config: Run, ranks: Ranks, progress: Progress, checkpoint: Path | None) -> Store:
    """Return the store of a run that was trained, to score its sets; `checkpoint` as in `build_data`."""
    store = build_data(config, ranks, progress, checkpoint).store
    # The task decides what its target makes of a row, such as the share of masked words.
    build_task(config, store)
    return store


def _store_of(config: Evaluate, named: list[str], trained: Trained, ranks: Ranks, progress: Progress) -> Store:
    """Return the store of the named sets."""
    files: Files = build(config.data)
    names = [name for name in files.sources() if name != "train" and ("test" if name == "test" else "dev") in named]
    # The first rank of a node encodes the rows; the others find its store on the disk.
    with ranks.leaders_go_first():
        store = prepare_scoring(
            files, names, trained.target, trained.layout.key, trained.tokenizer,
            group_by=config.group_by, progress=bars(progress),
        )  # fmt: skip
    for name in store.sets if ranks.is_first else ():
        if wrong := store.meta["sets"][name]["bad_rows"]:
            log.warning("%s: left out %s that cannot be used", name, counted(wrong, "row"))
    return store


def _but_train(sets: Mapping[str, Examples]) -> dict[str, Examples]:
    return {name: part for name, part in sets.items() if name != "train"}


def _evaluator(config: Evaluate, subject: Subject, ranks: Ranks) -> tuple[Evaluator, dict[str, Examples]]:
    """Return what scores, and the sets that are scored."""
    precision: Precision = build(config.precision)
    batch_size = config.trainer.rows_to_score
    evaluator = Evaluator(subject.model, subject.task, ranks, precision, batch_size, Path(gettempdir()))
    warn_of_batches(subject.model, precision, ranks.device)
    sets = subject.sets
    if config.max_rows is not None:
        sets = {name: sample(whole, config.max_rows, config.seed) for name, whole in sets.items()}
    if config.compile:
        evaluator.compiled = compiled_for(subject.model, subject.task, config.data, precision, ranks.device)
    if evaluator.compiled is not None:
        choose_shapes(evaluator.compiled, sets.values(), batch_size, config.data["max_len"], ranks)
    return evaluator, sets


def _score_all(
    config: Evaluate, subject: Subject, folder: Path, ranks: Ranks, progress: Progress, read: Read | None
) -> dict[str, Findings]:
    """Score every set; the results are on rank 0. `read` returns the records of a set that several jobs computed."""
    evaluator, sets = _evaluator(config, subject, ranks)
    evaluator.folder = folder / "predictions"
    found: dict[str, Findings] = {}
    decided = dict(subject.decided)
    for name, part in sets.items():
        with progress.task(f"scoring {name}", len(part)) as bar:
            scored = score(evaluator, part, decided, bar.advance, None if read is None else read(name))
        # Weights that were never scored lack a threshold. As in training, the first set decides it for all.
        decided = decided or scored.scores.metrics
        if config.out is not None:
            keep_predictions(folder, name, scored, subject.task, ranks, step=None)
        else:
            scored.spool.gather(ranks)
        if ranks.is_first:
            found[name] = find(config, subject.task, part, scored, progress)
        scored.spool.close()
    return found


@contextmanager
def _folder(out: str | None, ranks: Ranks) -> Iterator[Path]:
    """Yield the folder for the output until it is complete, the same on all ranks; a temporary one without `out`."""
    # Only rank 0 makes the folder and removes it, and tells the others its name: a temporary one is random.
    with ExitStack() as held:
        own = None
        if ranks.is_first:
            own = str(
                held.enter_context(
                    TemporaryDirectory(prefix="nlu-evaluate-")
                    if out is None
                    else output_folder(out, "out", last=RESULT)
                )
            )
        yield Path(ranks.from_first(own))


def _result(config: Evaluate, located: Located | None, found: Mapping[str, Findings]) -> dict[str, object]:
    """Return the content of result.json."""
    return {
        "run": None if located is None else str(located.run_dir),
        "checkpoint": None if located is None else located.checkpoint.name,
        "metrics": {name: one.metrics for name, one in found.items()},
        "interval": {name: one.intervals for name, one in found.items()},
        "sets": {name: one.about() for name, one in found.items()},
        "seed": config.seed,
        "resamples": config.resamples,
        "group_by": config.group_by,
        "max_rows": config.max_rows,
    }


def _compare(config: Evaluate, located: Located, found: Mapping[str, Findings], result: dict[str, object]) -> int:
    """Log whether the scores equal the recorded ones; returns the exit status."""
    recorded = recorded_scores(located)
    if not set(recorded) & set(found):
        raise UserError(
            f"compare is true, but {located.run_dir} recorded no scores for its checkpoint {located.checkpoint.name}; "
            "choose checkpoint=best"
        )
    wrong = [
        f"{name} {metric}: {recorded[name][metric]!r} there, {value!r} here"
        for name, one in found.items()
        for metric, value in one.own_metrics.items()
        # Compared without a tolerance: the same weights, rows and machine give the same bits.
        if differs(recorded.get(name, {}).get(metric), value)
    ]
    known = [name for name in found if name in recorded]
    result["compare"] = {"sets": known, "equal": not wrong, "differences": wrong}
    if not wrong:
        log.info("compare: the scores of %s equal the recorded ones exactly", ", ".join(known))
        return 0
    for line in wrong:
        log.warning("compare: %s", line)
    if config.trainer.compile:
        log.warning("compare: the run was scored with trainer.compile=true, which rounds otherwise than this command")
    log.warning("compare: python -m nlu.doctor %s names what has changed since", located.run_dir)
    return EXIT_DIFFERS


def differs(recorded: float | None, value: float) -> bool:
    """Return whether a score was recorded and is another one; a score that is no number equals one that is none."""
    return recorded is not None and recorded != value and not (math.isnan(recorded) and math.isnan(value))


def recorded_scores(located: Located) -> Metrics:
    """Return the recorded scores of a checkpoint, by set and name; for the best one also those of the test set."""
    checkpoint = located.checkpoint
    scores, are_its_own = scores_at(checkpoint, located.head_name)
    metrics: Metrics = {name: dict(values) for name, values in scores.items()} if are_its_own else {}
    result = located.run_dir / "result.json"
    if checkpoint.name == "best-1" and result.is_file():
        # The test set is scored once, after training, with the best weights. So score.json of the checkpoint lacks it,
        # and result.json has it.
        kept = json.loads(result.read_text(encoding="utf-8"))["metrics"]
        kept = kept if located.head_name is None else own_sets(kept, located.head_name)
        metrics |= {name: values for name, values in kept.items() if name == "test" or not are_its_own}
    return metrics
