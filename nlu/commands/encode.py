"""Encode texts with pretrained weights or a trained run: a vector for each.

A vector depends only on its text, to the last bit. A killed command continues when it is run again.

python -m nlu.encode model=e5_small input=texts.csv output=vectors.npy 'prompt="query: "'
python -m nlu.encode run=outputs/mine input=texts.txt output=vectors.parquet prompt=passage dims=64 dtype=int8
python -m nlu.encode model=hf model.pretrained=hf://thenlper/gte-small input=texts.jsonl output=vectors.jsonl
"""

from functools import partial
from typing import NoReturn

from omegaconf import DictConfig

from nlu.config.choices import SCHEMAS
from nlu.config.entry.app import prepare, run_app


def main(composed: DictConfig) -> int:
    """Validate, then encode in one process for each device."""
    plain = prepare(composed, SCHEMAS["encode"])
    from nlu.config.command_keys import Encode

    config = Encode.of(plain)
    from nlu.inference.locate import locate_unless_weights
    from nlu.inference.output_pieces import require_places

    located = locate_unless_weights(config)
    require_places(config.input.path, config.output, config.jobs)
    if plain["dry_run"]:
        from nlu.jobs.queue import end_dry_run

        return end_dry_run(plain)
    from nlu.inference.encode_files import run_encoding
    from nlu.training.processes import count_of, spread

    return spread(partial(run_encoding, config, located), count_of(config.devices, config.device))


def command() -> NoReturn:
    """The program nlu-encode."""
    run_app(main, "encode")


if __name__ == "__main__":
    command()
