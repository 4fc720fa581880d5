"""Build the data store of a configuration and report on it, without training.

python -m nlu.preprocess data=afqmc
python -m nlu.preprocess data=files data.train=big.jsonl 'data.fields={text: text, label: label}'
"""

import json
from typing import NoReturn

from omegaconf import DictConfig

from nlu.config.entry.app import prepare, run_app
from nlu.config.schema import Run


def main(composed: DictConfig) -> int:
    """Validate, build the store (or find it), log what is in it, print the same as a line of JSON."""
    config = prepare(composed)
    if config["dry_run"]:
        from nlu.config.entry.dry_run import show

        return show(config)
    from nlu.training.experiment import describe_data

    print(json.dumps(describe_data(Run.of(config)), ensure_ascii=False))
    return 0


def command() -> NoReturn:
    """Be the program nlu-preprocess."""
    run_app(main, "preprocess")


if __name__ == "__main__":
    command()
