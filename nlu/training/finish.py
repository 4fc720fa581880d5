"""The end of a run: scores of the best weights, predictions, figures, result.json and the table."""

import json
import logging
from pathlib import Path

from safetensors.torch import load_file

from nlu.config.errors import UserError
from nlu.data.facts import length_histograms
from nlu.display.figures import draw_lengths, draw_run
from nlu.display.results import print_parts, print_result
from nlu.metrics.classes import commonest
from nlu.runs.predictions import kept_sets, predictions_of
from nlu.storage.files import write_json
from nlu.tasks.composite import task_of
from nlu.training.evaluation import decided_for, keep_predictions
from nlu.training.loop import score_set
from nlu.training.parts import Training

log = logging.getLogger(__name__)


def finish(run: Training) -> None:
    """Score the test set, if any, with the best weights, draw the figures, and write result.json last."""
    if not run.state.best:
        raise UserError(f"{run.metric} was never a number, so no checkpoint is the best; set trainer.major_metric")
    metrics = dict(run.state.best[0].metrics)
    if tests := run.store.of_role("test"):
        best = run.run_dir / "checkpoints" / "best-1" / "model.safetensors"
        # Every rank reads the file, because a strategy may let each rank keep another part of every tensor.
        run.stepper.parallel.load(run.stepper.model, load_file(best))
        for name, part in tests.items():
            scored = score_set(run, name, decided=decided_for(run.store, name, metrics))
            metrics[name] = scored.scores.metrics
            task = task_of(run.task, part.member)
            keep_predictions(run.run_dir, name, scored, task, run.stepper.ranks, step=run.state.best[0].step)
            scored.spool.close()
    if run.stepper.ranks.is_first:
        draw(run)
        warn_of_a_score_for_nothing(run)
        # Before result.json, whose existence says that the run is complete: after a kill here, the same command does
        # this part again.
        run.journal.end("pruned" if run.state.pruned else "finished", metrics)
        write_json(run.run_dir / "result.json", result_of(run, metrics))


def warn_of_a_score_for_nothing(run: Training) -> None:
    """Warn if the best weights are not more accurate than predicting the most frequent class."""
    name = run.eval_sets[0]
    if "accuracy" in run.task.metrics and name in kept_sets(run.run_dir):
        header = predictions_of(run.run_dir, name).header
        label, share = commonest(header["by_label"])
        if share < 1 and header["metrics"]["accuracy"] <= share:
            log.warning(
                "the accuracy of %s, %.4f, is no more than that of %r for every example, %.4f; train longer "
                "(trainer.max_duration) or faster (optimizer.lr)",
                name,
                header["metrics"]["accuracy"],
                label,
                share,
            )


def show_result(run_dir: Path) -> None:
    """Print the table of a finished run, or of its parts, and the paths of its files."""
    result = json.loads((run_dir / "result.json").read_text())
    if "parts" in result:
        print_parts(result, run_dir)
    else:
        print_result(result, run_dir, sorted((run_dir / "plots").glob("*.png")))


def result_of(run: Training, metrics: dict[str, dict[str, float]]) -> dict[str, object]:
    """Return the content of result.json; `metrics` are those of the best weights, `last` those of the last step."""
    state, throughput, best = run.state, run.state.throughput, run.state.best[0]
    steps_s = throughput.steps_s or float("nan")
    return {
        "metrics": metrics,
        "best": {
            "set": run.decisive.set_name, "metric": run.metric, "value": best.value, "step": best.step,
            "examples": best.examples, "epoch": best.epoch, "checkpoint": "checkpoints/best-1",
        },
        **{key: run.order_key[key] for key in ("seed", "folds", "fold")},
        "pruned": state.pruned,
        "last": state.last_metrics,
        "steps": state.step,
        "examples": run.clock.examples(state.step),
        "examples_per_s": throughput.examples / steps_s,
        "real_tokens_per_s": throughput.real_tokens / steps_s,
        "padding": 1 - throughput.real_tokens / throughput.computed_tokens if throughput.computed_tokens else None,
        "train_s": state.train_s,
    }  # fmt: skip


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
