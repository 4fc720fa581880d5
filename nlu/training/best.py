"""Evaluations of a run: every set is scored and recorded, the best weights are kept, and a search hears of it."""

import logging
import math
from collections.abc import Mapping

from nlu.data.examples import Examples
from nlu.metrics.thresholds import SETTING
from nlu.optim.optimizer import averaged
from nlu.runs import summary
from nlu.runs.records import Cell
from nlu.runs.state import Best
from nlu.training.evaluation import Scored, decided_for, score, with_summary
from nlu.training.fitted_head import settle_head
from nlu.training.parts import Training

log = logging.getLogger(__name__)


def evaluate(run: Training) -> bool:
    """Score every evaluation set, record it, and keep the weights if they are among the best; returns whether they are.

    Every rank must call it.
    """
    state = run.state
    is_first_one, state.evaluated_at = not state.evaluated_at, state.step
    settle_head(run)
    with run.stepper.phases.within("evaluation"), averaged(run.stepper.model, run.stepper.average):
        metrics, scored = scored_sets(run)
        entry = entry_of(run, state.step, metrics)
        state.last_metrics = metrics
        run.progress.metric(f"{run.decisive.set_name} {run.metric}", entry.value)
        if is_first_one and math.isnan(entry.value):
            log.warning(
                "%s of %s is not a number at step %d; while it is none, no weights are kept as the best; "
                "trainer.major_metric chooses another metric",
                run.metric,
                run.decisive.set_name,
                state.step,
            )
        log_evaluation(run, entry)
        # The scores are equal on all ranks, so all of them decide alike and enter the collective below.
        if is_best := enters_best(run, entry):
            keep_weights(run)
        # The scores have waited for the device already.
        run.stepper.phases.catch_up()
    # Only the records of the best evaluation are needed: the next save writes them.
    replaced = scored
    if state.best and state.best[0] is entry:
        replaced, run.unsaved = run.unsaved, scored
    for one in replaced.values():
        one.spool.close()
    return is_best


def last_resort(run: Training) -> Best:
    """Keep the last weights, if none were the best because the metric was never a number; returns their evaluation.

    Every rank must call it.
    """
    log.warning(
        "%s of %s was never a number, so the last weights are kept, and result.json has null as the best value; "
        "trainer.major_metric chooses another metric",
        run.metric,
        run.decisive.set_name,
    )
    entry = entry_of(run, run.state.step, run.state.last_metrics)
    run.state.best = [entry]
    with averaged(run.stepper.model, run.stepper.average):
        keep_weights(run)
    if run.stepper.ranks.is_first:
        run.checkpoints.arrange([entry])
    run.stepper.ranks.barrier()
    return entry


def scored_sets(run: Training) -> tuple[dict[str, dict[str, float]], dict[str, Scored]]:
    """Score every evaluation set with the current weights; returns its metrics, with those of all together, and its
    records."""
    scored: dict[str, Scored] = {}
    for name, part in run.eval_sets.items():
        # In order: a later set may take the threshold that the first one has chosen.
        known = {other: one.scores.metrics for other, one in scored.items()}
        # What a model records while it trains is not meant here.
        with summary.unheard():
            scored[name] = score_set(run, name, part, decided_for(run.store, name, known))
    return with_summary(run.task, run.store, {name: one.scores.metrics for name, one in scored.items()}), scored


def entry_of(run: Training, step: int, metrics: dict[str, dict[str, float]]) -> Best:
    """Return the evaluation of a step."""
    examples, epoch = run.clock.examples(step), run.clock.epoch(step)
    return Best(step, examples, epoch, run.value_of(metrics), metrics, run.sampled_rows)


def keep_weights(run: Training) -> None:
    """Write the weights of the newest of the best evaluations, on rank 0."""
    if run.stepper.ranks.is_first:
        with run.stepper.phases.within("saving"):
            run.checkpoints.save_best(run.stepper.model.state_dict(), run.state.best)


def score_set(run: Training, name: str, part: Examples, decided: Mapping[str, float]) -> Scored:
    """Score a set with the current weights; `decided` are the metrics of the first set, for later ones."""
    with run.progress.task(f"scoring {name}", len(part)) as bar:
        return score(run.evaluator(part.member), part, decided, bar.advance)


def log_evaluation(run: Training, entry: Best) -> None:
    """Add a row to valid.tsv for every metric of every set."""
    if "valid" in run.tables:
        for name, values in entry.metrics.items():
            for metric, value in values.items():
                row: dict[str, Cell] = {
                    "step": entry.step,
                    "epoch": entry.epoch,
                    "examples": entry.examples,
                    "set": name,
                    "metric": metric,
                    "value": value,
                    **({"rows": len(run.eval_sets[name]) if name in run.eval_sets else None} if entry.rows else {}),
                }
                run.tables["valid"].append(**row)
                # The thresholds of a hundred classes are no curves to follow.
                if not metric.startswith(f"{SETTING}/"):
                    run.journal.evaluation(row)


def enters_best(run: Training, entry: Best) -> bool:
    """Insert an evaluation into the list of the best; returns whether it is one of them."""
    state = run.state
    best = run.ranked([*(old for old in state.best if old.step != entry.step), entry])
    if best and best[0] is entry:
        state.improved_at = entry.step
    state.best = best
    return entry in best


def is_to_be_pruned(run: Training) -> bool:
    """Report the last evaluation to the trial of this run, if any, on rank 0; returns the answer on all ranks."""
    if not run.is_trial:
        return False
    value = run.value_of(run.state.last_metrics)
    answer = None if run.trial is None else run.trial.report(run.clock.examples(run.state.step), value)
    return bool(run.stepper.ranks.from_first(answer))


def is_paused(run: Training) -> bool:
    """Return on all ranks whether the search pauses the trial of this run, if any, after the present step."""
    if not run.is_trial or run.is_complete:
        return False
    answer = None if run.trial is None else run.trial.pauses(run.clock.examples(run.state.step))
    return bool(run.stepper.ranks.from_first(answer))
