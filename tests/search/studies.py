"""Studies as a sweep leaves them: trials with parameters, reports, outcomes, in any mixture of states."""

import math
import random
from collections.abc import Callable
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState, create_trial

from nlu.search.channel import OUTCOME
from nlu.search.trial_steps import VALUES

SPACE = {
    "optimizer.lr": FloatDistribution(1e-5, 5e-4, log=True),
    "model.dropout": CategoricalDistribution([0.0, 0.1]),
    "trainer.batch_size": IntDistribution(8, 64, log=True),
    "model": CategoricalDistribution(["bert_tiny", "textcnn"]),
    "optimizer.layer_lr_decay": FloatDistribution(0.6, 1.0),
}
"""The last one is drawn for bert_tiny only."""
STEP_EXAMPLES = 1000


def study_of(states: str | Callable[[int], str], trials: int, *, maximize: bool = True, seed: int = 0) -> optuna.Study:
    """Return a study in memory whose trial i has the state that `states` gives; an error names markup and lines."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    rng = random.Random(seed)
    study = optuna.create_study(direction="maximize" if maximize else "minimize", study_name="a <b>sweep</b>")
    for number in range(trials):
        state = states if isinstance(states, str) else states(number)
        params: dict[str, Any] = {
            "optimizer.lr": 10 ** rng.uniform(-5, math.log10(5e-4)), "model.dropout": rng.choice([0.0, 0.1]),
            "trainer.batch_size": rng.choice([8, 16, 32, 64]), "model": rng.choice(["bert_tiny", "textcnn"]),
        }  # fmt: skip
        if params["model"] == "bert_tiny":
            params["optimizer.layer_lr_decay"] = rng.uniform(0.6, 1.0)
        top = 0.6 - 0.05 * (math.log10(params["optimizer.lr"]) + 3.8) ** 2
        count = {"COMPLETE": 4, "PRUNED": 2, "RUNNING": 1}.get(state, 0)
        steps = {STEP_EXAMPLES * (step + 1): top * (1 - math.exp(-step - 1)) for step in range(count)}
        outcome = {
            "state": state.lower(), "value": max(steps.values(), default=None), "examples": STEP_EXAMPLES * count,
            "wall_s": 7.5 * count,
            "error": "ValueError: </script> & a\tb" if state == "FAIL" else "",
        }  # fmt: skip
        study.add_trial(
            create_trial(
                state=TrialState[state], value=max(steps.values()) if state == "COMPLETE" else None, params=params,
                distributions={name: SPACE[name] for name in params}, intermediate_values=steps,
                user_attrs={VALUES: params, **({} if state in ("RUNNING", "WAITING") else {OUTCOME: outcome})},
            )
        )  # fmt: skip
    return study
