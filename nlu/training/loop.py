"""The training loop, one for all tasks: data, step, log, evaluate, save, stop.

Every decision of the loop is a function of the step number, so a run that continues from any checkpoint makes the same
decisions as an uninterrupted one.
"""

import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor

from nlu.config import stopping
from nlu.data.building import gc_frozen
from nlu.optim.optimizer import set_learning_rate
from nlu.tasks.task import comparing_loss
from nlu.training.ahead import Ahead
from nlu.training.best import evaluate, is_paused, is_to_be_pruned
from nlu.training.meter import Meter, log_window
from nlu.training.parts import Training
from nlu.training.passes import Step
from nlu.training.resuming import save_last
from nlu.training.warm_up import warm_up


@gc_frozen()
def train(run: Training) -> bool:
    """Train until the run is complete, its stage is over, or a signal arrives; returns whether it was a signal.

    Call it inside `stopping.polled`. On return the last state is saved and, if the run is complete, every evaluation
    set is scored at the last step. A pruned run has `state.pruned` set and counts as complete. A run whose trial is
    paused ends as if a signal had arrived. After an error `state.step` is the last step that was done.
    """
    # A processor that trains has no time to give to a thread.
    with ThreadPoolExecutor(1, "nlu-batches") as pool:
        return _trained(run, Ahead(run, pool, run.stepper.is_asynchronous))


def _trained(run: Training, ahead: Ahead) -> bool:
    state, due, stepper = run.state, run.due, run.stepper
    # `train_s` is the time of all processes of this run together.
    began_s = time.perf_counter() - state.train_s
    stepper.model.train()
    # A run that starts from the state of another one may have another loss, whose micro-batches stay whole.
    stepper.pieces = 1 if comparing_loss(run.task) else state.pieces
    warm_up(run)
    run.progress.start(due.total_steps, state.step)
    stepper.phases.start()
    meter, pending, is_stopping = Meter(run), deque[Step](), False
    # The job before this one may have ended after its save, without an answer.
    if state.step and is_paused(run):
        return True
    if run.is_complete and state.evaluated_at < state.step:
        # It was taken over from another run, whose scores are not those of this one.
        evaluate(run)
        save_last(run)

    while not run.is_complete and not due.is_stage_over(state.step):
        number = state.step + len(pending) + 1
        # The rate is a function of the step, so no state of a scheduler has to be saved.
        lr = set_learning_rate(stepper.optimizer, run.scheduler.factor(number, due.total_steps, run.clock))

        # Data, forward, backward, clip, update. The request to stop is shared with the counts of rows, so that all
        # ranks stop after the same step.
        stepper.phases.begin("data")
        inspector = run.inspector if due.logs(number) else None
        try:
            part, micro_batches, epoch, shares = ahead.rows(number)
            is_asked = stopping.signals.received is not None
            step = stepper.step(part, micro_batches, number, is_asked, epoch, inspector, shares)
        except (Exception, stopping.Stopped) as error:
            # The weights are those of the step before, which was not counted yet on an accelerator.
            while pending:
                meter.count(stepper.read(pending.popleft()))
            if not isinstance(error, stopping.Stopped):
                raise
            # On all ranks, while they waited for rows that another command writes.
            state.train_s = time.perf_counter() - began_s
            if state.step:
                save_last(run)
            return True
        if step.stop:
            is_stopping = True
            # Logs it, which the handler of a signal must not do.
            stopping.asked()

        # An accelerator computes one step ahead of the host, unless the numbers of this step are needed now.
        pending.append(step)
        saving = is_stopping or due.saves(number) or stepper.pieces != state.pieces
        while len(pending) > (0 if saving or due.logs(number) or due.evaluates(number) else stepper.ahead):
            # Raises for a step that is not finite, whose update was left out.
            meter.count(stepper.read(pending.popleft()))

        if due.evaluates(number):
            saving |= evaluate(run)
            # The value is also reported at the last step, at which nothing is left to prune.
            state.pruned = is_to_be_pruned(run) and not due.is_last(number)
            is_stopping |= is_paused(run)
            saving |= is_stopping or run.is_complete
        # After the evaluation, so that the last row has the time of the last one.
        if due.logs(number):
            log_window(run, lr, meter.loss_scale)
        state.train_s = time.perf_counter() - began_s
        if saving:
            # Chooses the shapes of pieces, as the process that continues from here does.
            warm_up(run)
            # With the number of pieces, since memory may not run out at the same step again.
            state.pieces = stepper.pieces
            save_last(run)
            if is_stopping:
                return True
        if saving or due.evaluates(number):
            meter.restart()
        run.settled = state.step

    # Check for a signal since the last step: the ranks must agree, and the end of a run may take long.
    return stepper.ranks.from_first(stopping.asked())
