"""Build the data store of a configuration and report on it, without training.

python -m nlu.preprocess data=afqmc
python -m nlu.preprocess --multirun data.parts=4 data.part=0,1,2,3 stores=s3://bucket/stores    in several jobs
python -m nlu.preprocess data=afqmc show=5                     prints the first rows as the model gets them
python -m nlu.preprocess data=files data.train=big.jsonl 'data.fields={text: text, label: label}'
"""

import json
import shlex
from collections.abc import Sequence
from typing import Any, NoReturn

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from nlu.config.choices import SCHEMAS
from nlu.config.entry.app import prepare, run_app
from nlu.config.errors import UserError
from nlu.storage.redaction import hide


def main(composed: DictConfig) -> int:
    """Validate, build the store or find it, log its content and print it as a line of JSON.

    With `show`, print the first rows of each set as they are encoded, and build no store unless its words are needed.
    """
    config = prepare(composed, SCHEMAS["preprocess"])
    _require_rows(HydraConfig.get())
    part = part_of(config["data"])
    if config["dry_run"]:
        from nlu.launching.queue import end_dry_run

        return end_dry_run(config)
    from nlu.config.schema import Run
    from nlu.training.experiment import describe_data, encode_part, show_data, stream_part

    if config["show"]:
        show_data(Run.of(config), config["show"])
        return 0
    # The job that finishes last continues here and joins all parts.
    if config["data"].get("stream"):
        is_whole = stream_part(Run.of(config), part or (0, 1), command_of(HydraConfig.get().overrides.task))
        config["data"]["stream"] = False
    else:
        is_whole = part is None or encode_part(Run.of(config), part)
    if part is not None and not is_whole:
        print(json.dumps({"part": part[0], "parts": part[1]}))
        return 0
    print(json.dumps(describe_data(Run.of(config)), ensure_ascii=False))
    return 0


def _require_rows(hydra: Any) -> None:
    """Raise UserError for a command without rows, which would fetch and encode the default data."""
    # A configuration of a user's own may name its rows without overrides.
    if hydra.job.config_name == "preprocess" and not hydra.overrides.task:
        raise UserError("the rows to encode are not set; set data=NAME, or data=files data.train=FILE for your own")


def command_of(overrides: Sequence[str]) -> str:
    """Return the command that has these overrides, without secrets."""
    return hide(shlex.join(["python", "-m", "nlu.preprocess", *overrides]))


def part_of(data: dict[str, Any]) -> tuple[int, int] | None:
    """Return the number of the requested part of the store, and the number of parts; None for the whole store."""
    from nlu.config.schema import PARTS

    part, parts = (data.get(name) for name in PARTS)
    if (part is None) != (parts is None):
        raise UserError(
            f"data.part is {part} and data.parts is {parts}; set both, such as data.parts=4 data.part=0,1,2,3 with "
            "--multirun"
        )
    if part is None or parts is None:
        return None
    if part >= parts:
        raise UserError(
            f"data.part is {part}, but the last of {parts} parts is {parts - 1}, since they count from 0; set "
            "data.part lower, or data.parts higher"
        )
    return part, parts


def command() -> NoReturn:
    """The program nlu-preprocess."""
    run_app(main, "preprocess")


if __name__ == "__main__":
    command()
