"""Predict rows with a trained run.

python -m nlu.predict run=outputs/mine input=new.csv output=predicted.csv
python -m nlu.predict run=outputs/mine input=new.jsonl output=predicted.jsonl scores=true
python -m nlu.predict run=outputs/search input=- input.format=lines output=-     of a search, its best trial
"""

from functools import partial
from typing import NoReturn

from omegaconf import DictConfig

from nlu.config.entry.app import prepare, run_app
from nlu.config.errors import keys_called
from nlu.config.inference import Predict
from nlu.config.schemas import SCHEMAS


def main(composed: DictConfig) -> int:
    """Validate, then predict in one process for each device."""
    with keys_called({"input.path": "input"}):
        config = Predict.of(prepare(composed, SCHEMAS["predict"]))
    from nlu.inference.prediction import run_prediction
    from nlu.launching.local import spread

    return spread(partial(run_prediction, config), config.devices)


def command() -> NoReturn:
    """Be the program nlu-predict."""
    run_app(main, "predict")


if __name__ == "__main__":
    command()
