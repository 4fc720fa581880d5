"""The training loop, one for all tasks: step, log, evaluate, save, stop.

Every decision of the loop is a function of the step number, so a run that continues from any checkpoint makes the same
decisions as an uninterrupted one.
"""

import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from nlu.config import stopping
from nlu.data.building import gc_frozen
from nlu.data.examples import Examples
from nlu.optim.adamw import set_learning_rate
from nlu.runs.records import Cell
from nlu.runs.state import Best
from nlu.tasks.composite import task_of
from nlu.tasks.task import comparing_loss
from nlu.training.evaluation import Scored, decided_for, keep_predictions, score, with_summary
from nlu.training.meter import Meter, count_costs, log_window
from nlu.training.parts import Training
from nlu.training.pending import PendingStep
from nlu.training.step import Stepper


@gc_frozen()
def train(run: Training) -> bool:
    """Train until the run is complete, its stage is over, or a signal arrives; returns whether it was a signal.

    Call it inside `stopping.polled`. On return the last state is saved and, if the run is complete, every evaluation
    set is scored at the last step. A pruned run has `state.pruned` set and counts as complete. A run whose trial is
    paused ends as if a signal had arrived.
    """
    state, due = run.state, run.due
    # `train_s` is the time of all processes of this run together.
    began_s = time.perf_counter() - state.train_s
    pending: deque[PendingStep] = deque()
    is_stopping = False
    run.stepper.model.train()
    # A run that starts from the state of another one may have another loss, whose micro-batches stay whole.
    run.stepper.pieces = 1 if comparing_loss(run.task) else state.pieces
    run.progress.start(due.total_steps, state.step)
    phases = run.stepper.phases
    phases.start()
    meter = Meter(run)
    # The job before this one may have ended after its save, without an answer.
    if state.step and is_paused(run):
        return True
    while not run.is_complete and not due.is_stage_over(state.step):
        number = state.step + 1
        phases.begin("data")
        try:
            batches, epoch = run.rank_batches(state.step), run.order.epoch_of(state.step)
        except stopping.Stopped:
            # On all ranks, while rows were waited for.
            while pending:
                meter.count(pending.popleft().result())
            state.train_s = time.perf_counter() - began_s
            # Without a step there is nothing to save.
            if state.step:
                save_last(run)
            return True
        run.stepper.ranks.at(f"step {number}")
        # The rate is a function of the step, so no state of a scheduler has to be saved.
        lr = set_learning_rate(run.stepper.optimizer, run.scheduler.factor(number, due.total_steps, run.clock))
        with run.journal.listening():
            # The request to stop is shared with the counts of rows, so that all ranks stop after the same step.
            step = run.stepper.step(
                run.train_set(state.step), batches, number, stopping.asked(), epoch,
                run.inspector if due.logs(number) else None, settles=False,
            )  # fmt: skip
        pending.append(step)
        if is_whole := due.is_whole(number):
            # Raises for a step that failed while this rank still has the weights from before it.
            while pending and not run.stepper.parallel.sums_gradients(number):
                meter.count(pending.popleft().result())
            run.stepper.synchronize(number)
        is_stopping |= step.stop
        # Counted before its numbers have arrived; before anything is written, the loop below waits for them.
        state.step = number

        logging, evaluating, saving = due.logs(number), due.evaluates(number), due.saves(number)
        if is_whole:
            # At once, since memory may not run out at the same step again.
            saving |= run.stepper.pieces != state.pieces
            state.pieces = run.stepper.pieces
        # In other steps nothing reads weights before the next one, in which ranks meet.
        if logging or evaluating or saving or is_stopping or run.is_complete:
            run.stepper.parallel.settle()
        # An accelerator runs one step ahead of the host, unless the numbers of this step are needed now.
        ahead = 1 if run.stepper.is_asynchronous and not (logging or evaluating or saving) else 0
        while len(pending) > (0 if is_stopping else ahead):
            # Raises for a loss that is not finite, before a save could contain it.
            meter.count(pending.popleft().result())
        if evaluating:
            with phases.within("evaluation"):
                evaluate(run)
                # The scores have waited for the device already.
                phases.catch_up()
            # The value is also reported at the last step, at which nothing is left to prune.
            state.pruned = is_to_be_pruned(run) and not due.is_last(number)
            is_stopping |= is_paused(run)
        # After the evaluation, so that the last row has the time of the last one.
        if logging:
            log_window(run, lr, meter.loss_scale)
        state.train_s = time.perf_counter() - began_s
        # A run whose ranks train apart continues to the step after which they hold the same weights.
        is_ending = is_stopping and is_whole
        saving = saving or is_ending or run.is_complete
        if saving:
            save_last(run)
        if saving or evaluating:
            meter.restart()
        if is_ending:
            return True
    run.stepper.parallel.settle()
    # Check for a signal since the last step: the ranks must agree, and the end of a run may take long.
    return run.stepper.ranks.from_first(stopping.asked())


def evaluate(run: Training) -> None:
    """Score every evaluation set, record it, and keep the weights if they are among the best."""
    state, ranks = run.state, run.stepper.ranks
    state.evaluated_at = state.step
    ranks.at(f"the evaluation at step {state.step}")
    with averaged_weights(run.stepper):
        scored: dict[str, Scored] = {}
        for name, part in run.eval_sets.items():
            # In order: a later set may take the threshold that the first one has chosen.
            known = {other: one.scores.metrics for other, one in scored.items()}
            scored[name] = score_set(run, name, part, decided=decided_for(run.store, name, known))
        metrics = with_summary(run.task, run.store, {name: one.scores.metrics for name, one in scored.items()})
        entry = Best(
            step=state.step,
            examples=run.clock.examples(state.step),
            epoch=run.clock.epoch(state.step),
            value=run.value_of(metrics),
            metrics=metrics,
            rows=run.sampled_rows,
        )
        state.last_metrics = metrics
        run.progress.metric(f"{run.decisive.set_name} {run.metric}", entry.value)
        log_evaluation(run, entry)
        # The scores are equal on all ranks, so all of them decide alike and enter the collective below.
        if enters_best(run, entry):
            if ranks.is_first:
                require_newest(run)
            # Every rank must call it, since each may hold only a part of every tensor.
            weights = run.stepper.parallel.state_dict(run.stepper.model)
            if ranks.is_first:
                with run.stepper.phases.within("saving"):
                    run.checkpoints.save_best(weights, state.best)
    # Only the records of the best evaluation are needed: the next save writes them.
    replaced = scored
    if state.best and state.best[0] is entry:
        replaced, run.unsaved = run.unsaved, scored
    for one in replaced.values():
        one.spool.close()


def require_newest(run: Training) -> None:
    """Raise UserError if another job has taken the trial of this run."""
    if run.trial is not None:
        run.trial.require_newest()


def is_to_be_pruned(run: Training) -> bool:
    """Report the last evaluation to the trial of this run, if any, on rank 0; returns the answer on all ranks."""
    if run.trial is None:
        return False
    ranks = run.stepper.ranks
    value = run.value_of(run.state.last_metrics)
    return ranks.from_first(run.trial.report(run.clock.examples(run.state.step), value) if ranks.is_first else None)


def is_paused(run: Training) -> bool:
    """Return on all ranks whether the search pauses the trial of this run, if any, after the present step."""
    if run.trial is None or run.is_complete:
        return False
    ranks = run.stepper.ranks
    return ranks.from_first(run.trial.pauses(run.clock.examples(run.state.step)) if ranks.is_first else None)


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
                run.journal.evaluation(row)


def score_set(run: Training, name: str, part: Examples, decided: Mapping[str, float]) -> Scored:
    """Score a set with the current weights; `decided` are the metrics of the first set, for later ones."""
    with run.progress.task(f"scoring {name}", len(part)) as bar:
        return score(run.evaluator(part.member), part, decided, bar.advance)


def enters_best(run: Training, entry: Best) -> bool:
    """Insert an evaluation into the list of the best; returns whether it is one of them."""
    state = run.state
    best = run.ranked([*(old for old in state.best if old.step != entry.step), entry])
    if best and best[0] is entry:
        state.improved_at = entry.step
    state.best = best
    return entry in best


def save_last(run: Training) -> None:
    """Replace checkpoints/last.

    Every rank must call it, since each may hold only a part of every tensor. Rank 0 writes, and the others wait, so
    that no rank runs ahead of the saved state.

    The predictions of the best evaluation are also replaced here, so that they match the best evaluation in the state.
    Best checkpoints that the new state no longer names are removed last: if the run is killed before, it continues from
    the old state, which still names them.
    """
    run.stepper.ranks.at(f"the save at step {run.state.step}")
    run.stepper.phases.begin("saving")
    run.journal.gather(run.state.window)
    # A continued run adds to them, so its next row has the time of all steps since this one.
    count_costs(run)
    if run.stepper.ranks.is_first:
        require_newest(run)
    # Equal on all ranks, since keep_predictions is a collective. After a kill between these files and the state, the
    # run reaches the same evaluation again and writes the same bytes.
    for name, one in run.unsaved.items():
        task = task_of(run.task, one.part.member)
        step, rows = run.state.best[0].step, run.sampled_rows.get(name)
        keep_predictions(run.run_dir, name, one, task, run.stepper.ranks, step=step, sampled_rows=rows)
        one.spool.close()
    run.unsaved = {}
    tensors = run.stepper.saved.gather() if run.trainer.save else {}
    run.state.precision = run.stepper.precision.state()
    if run.stepper.ranks.is_first:
        # A run that continues from this state does not write earlier rows again, so they must be on the disk.
        for table in run.tables.values():
            table.sync()
        run.journal.sync()
        run.checkpoints.save_last(tensors, run.state, run.order_key)
        run.checkpoints.arrange(run.state.best)
        run.after_save()
    run.stepper.ranks.barrier()
    run.stepper.phases.begin("other")


@contextmanager
def averaged_weights(stepper: Stepper) -> Iterator[None]:
    """Replace the weights by their moving average, if any, within the block."""
    if stepper.average is None:
        yield
        return
    with stepper.parallel.averaged(stepper.model, stepper.average):
        yield
