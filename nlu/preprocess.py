"""Build the data store of a configuration and report on it, without training.

python -m nlu.preprocess data=afqmc
python -m nlu.preprocess data=afqmc show=5                     prints the first rows as the model gets them
python -m nlu.preprocess data=files data.train=big.jsonl 'data.fields={text: text, label: label}'
"""

import json
from typing import Any, NoReturn

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from nlu.config.choices import SCHEMAS
from nlu.config.entry.app import prepare, run_app
from nlu.config.errors import UserError


def main(composed: DictConfig) -> int:
    """Validate, build the store or find it, log its content and print it as a line of JSON.

    With `show`, print the first rows of each set as they are encoded, and build no store unless its words are needed.
    """
    config = prepare(composed, SCHEMAS["preprocess"])
    _require_rows(HydraConfig.get())
    if config["dry_run"]:
        from nlu.launching.queue import end_dry_run

        return end_dry_run(config)
    from nlu.config.schema import Run
    from nlu.training.experiment import describe_data, show_data, stream_data

    if config["show"]:
        show_data(Run.of(config), config["show"])
        return 0
    if config["data"].get("stream"):
        stream_data(Run.of(config))
        config["data"]["stream"] = False
    print(json.dumps(describe_data(Run.of(config)), ensure_ascii=False))
    return 0


def _require_rows(hydra: Any) -> None:
    """Raise UserError for a command without rows, which would fetch and encode the default data."""
    # A configuration of a user's own may name its rows without overrides.
    if hydra.job.config_name == "preprocess" and not hydra.overrides.task:
        raise UserError("the rows to encode are not set; set data=NAME, or data=files data.train=FILE for your own")


def command() -> NoReturn:
    """The program nlu-preprocess."""
    run_app(main, "preprocess")


if __name__ == "__main__":
    command()
