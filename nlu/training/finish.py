"""The end of a run: scores of the best weights, predictions, figures, result.json and the table."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path

from nlu.config.errors import UserError
from nlu.data.examples import Examples
from nlu.data.facts import length_histograms
from nlu.display.curve_figures import draw_lengths, draw_run
from nlu.display.results import print_parts, print_result
from nlu.optim.optimizer import averaged
from nlu.runs.freeing import RESULT, remove_unkept
from nlu.search.goals import MEASURED
from nlu.storage.files import write_json
from nlu.tasks.composite import task_of
from nlu.training.best import last_resort, score_set
from nlu.training.evaluation import Metrics, decided_for, keep_predictions, with_summary
from nlu.training.measuring import measured
from nlu.training.parts import Training

log = logging.getLogger(__name__)


def finish(run: Training) -> None:
    """Score the test set, if any, with the best weights, draw the figures, and write result.json last.

    After evaluations on samples (`trainer.eval_rows`) the whole evaluation sets are scored here, with the last and with
    the best weights. Thresholds stay those of the sample, with which the checkpoint predicts.
    """
    require_trained(run)
    has_best = bool(run.state.best)
    if not has_best:
        run.state.best = [last_resort(run)]
    best = run.state.best[0]
    metrics, last = dict(best.metrics), run.state.last_metrics
    # Without a best evaluation, the predictions of the last one were not kept.
    dev = run.store.of_role("dev") if run.sampled_rows or not has_best else {}
    if dev and best.step != run.state.step:
        with averaged(run.stepper.model, run.stepper.average):
            last = with_summary(run.task, run.store, scores_of(run, dev, last, kept_step=None))
    if whole := dev | run.store.of_role("test"):
        if has_best:
            run.stepper.model.load_state_dict(run.checkpoints.best_weights())
        # Without a best evaluation they are the last weights, which the model has.
        with averaged(run.stepper.model, None if has_best else run.stepper.average):
            metrics |= scores_of(run, whole, metrics, kept_step=best.step)
        if dev:
            summed = with_summary(run.task, run.store, {name: metrics[name] for name in dev})
            metrics = summed | {name: values for name, values in metrics.items() if name not in summed}
            last = summed if best.step == run.state.step else last
    # A collective, and before anything is written: a kill amid it leaves nothing half measured.
    quantities = measured(run)
    if run.stepper.ranks.is_first:
        if run.is_out_of_patience and run.state.step < run.due.total_steps:
            log.info(
                "stopped at step %d of %d: %s of %s has not improved for trainer.patience=%s",
                run.state.step,
                run.due.total_steps,
                run.metric,
                run.decisive.set_name,
                run.trainer.patience,
            )
        draw(run)
        # Before result.json, whose existence says that the run is complete: after a kill here, the same command does
        # this part again.
        run.journal.end("pruned" if run.state.pruned else "finished", metrics)
        told = {MEASURED: quantities} if quantities else {}
        write_json(run.run_dir / RESULT, result_of(run, metrics, last) | told)
        remove_unkept(run.run_dir)


def require_trained(run: Training) -> None:
    """Raise UserError if every step of the run was skipped, so that its weights are those it began with."""
    if run.state.step and run.state.skipped == run.state.step:
        raise UserError(
            f"all {run.state.step:,} steps were skipped, since their gradients overflowed at every loss scale that was "
            "tried, so nothing was trained; set precision.init_scale lower, or precision=bf16, or continue this run in "
            f"another folder with resume={run.run_dir} and a higher trainer.max_duration"
        )


def scores_of(
    run: Training, sets: Mapping[str, Examples], decided: Metrics, *, kept_step: int | None
) -> dict[str, dict[str, float]]:
    """Score whole sets with the current weights; their predictions are kept as those of `kept_step`, unless None."""
    found = {}
    for name, part in sets.items():
        scored = score_set(run, name, part, decided=decided_for(run.store, name, decided))
        found[name] = scored.scores.metrics
        if kept_step is not None:
            task = task_of(run.task, part.member)
            keep_predictions(run.run_dir, name, scored, task, run.stepper.ranks, step=kept_step)
        scored.spool.close()
    return found


def reason_to_keep_no_best(run: Training, value: float) -> str | None:
    """Return why the run keeps no best checkpoint; None if it keeps one. `value` decides, on whole sets."""
    if not run.trainer.save:
        return "trainer.save is false"
    bound = run.trainer.save_above
    if bound is None or (value > bound if run.higher_is_better else value < bound):
        return None
    side = "above" if run.higher_is_better else "below"
    return f"its best {run.metric} of {run.decisive.set_name}, {value:.4g}, is not {side} trainer.save_above, {bound:g}"


def show_result(run_dir: Path) -> None:
    """Print the table of a finished run, or of its parts, and the paths of its files."""
    result = json.loads((run_dir / RESULT).read_text())
    if "parts" in result:
        print_parts(result, run_dir)
    else:
        print_result(result, run_dir, sorted((run_dir / "plots").glob("*.png")))


def result_of(
    run: Training, metrics: dict[str, dict[str, float]], last: dict[str, dict[str, float]]
) -> dict[str, object]:
    """Return the content of result.json; `metrics` are those of the best weights, `last` those of the last step."""
    state, throughput, best = run.state, run.state.throughput, run.state.best[0]
    steps_s, reason = throughput.steps_s or float("nan"), reason_to_keep_no_best(run, run.value_of(metrics))
    kept = {"checkpoint": "checkpoints/best-1"} if reason is None else {"checkpoint": None, "no_checkpoint": reason}
    return {
        "metrics": metrics,
        "best": {
            "set": run.decisive.set_name,
            "metric": run.metric,
            "value": run.value_of(metrics),
            "step": best.step,
            "examples": best.examples,
            "epoch": best.epoch,
            **kept,
        },
        **{key: run.order_key[key] for key in ("seed", "folds", "fold")},
        "pruned": state.pruned,
        **({"sample": sample_of(run)} if run.sampled_rows else {}),
        "last": last,
        "steps": state.step,
        "examples": run.clock.examples(state.step),
        "examples_per_s": throughput.examples / steps_s,
        "real_tokens_per_s": throughput.real_tokens / steps_s,
        "train_s": state.train_s,
    }


def sample_of(run: Training) -> dict[str, object]:
    """Return what result.json says of scores on samples: their rows by set, and the values that decided."""
    best, last = run.state.best[0], run.state.last_metrics
    return {"rows": run.sampled_rows, "best": best.value, "last": run.value_of(last)}


def draw(run: Training) -> None:
    """Draw the figures of the run into plots/."""
    draw_run(
        run.run_dir,
        major_metric=run.metric,
        major_set=run.decisive.set_name,
        higher_is_better=run.higher_is_better,
        epoch_examples=run.clock.num_examples,
    )
    draw_lengths(run.run_dir / "plots" / "lengths.png", length_histograms(run.store), run.store.meta["max_len"])
