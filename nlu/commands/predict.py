"""Predict rows with a trained run.

The output keeps every column of the input, in its order and quoting, and adds the prediction and its probability. A
killed command continues when it is run again.

python -m nlu.predict run=outputs/mine input=new.csv output=predicted.csv
python -m nlu.predict run=outputs/mine input=new.jsonl output=predicted.jsonl scores=true
python -m nlu.predict run=outputs/mine 'input=[new.csv,my.csv]' 'output=predicted-*.csv'
python -m nlu.predict run=outputs/mine input=new.csv output=predicted.csv jobs=16 hydra/launcher=slurm
python -m nlu.predict run=outputs/search input=- input.format=lines output=-     the best trial of a search
"""

from functools import partial
from typing import TYPE_CHECKING, NoReturn

from omegaconf import DictConfig

from nlu.config.choices import SCHEMAS
from nlu.config.entry.app import prepare, run_app

if TYPE_CHECKING:
    from nlu.config.command_keys import Predict
    from nlu.inference.locate import Located


def main(composed: DictConfig) -> int:
    """Validate, then predict in one process for each device."""
    plain = prepare(composed, SCHEMAS["predict"])
    from nlu.config.command_keys import Predict

    config = Predict.of(plain)
    # Located once for all processes that this command starts: in a search that continues, another trial could be the
    # best one a moment later.
    located = _located(config)
    if plain["dry_run"]:
        from nlu.jobs.queue import end_dry_run

        return end_dry_run(plain)
    from nlu.inference.predict_files import run_prediction
    from nlu.training.processes import count_of, spread

    return spread(partial(run_prediction, config, located), count_of(config.devices, config.device))


def _located(config: "Predict") -> "Located":
    """Return the checkpoint.

    Reports missing files before torch is imported, which takes longer than all other checks.
    """
    from nlu.inference.locate import locate
    from nlu.inference.output_pieces import require_places

    located = locate(config.run, config.checkpoint).of_head(config.head_name)
    require_places(config.input.path, config.output, config.jobs)
    return located


def command() -> NoReturn:
    """The program nlu-predict."""
    run_app(main, "predict")


if __name__ == "__main__":
    command()
