"""Find hard negatives for pairs of a query and its answer, and answers that the pairs may lack.

The output has each pair with texts that are near to its query and do not answer it; nlu.train reads it as its data. A
killed command continues when it is run again.

python -m nlu.mine run=outputs/mine input=pairs.csv output=mined.jsonl
python -m nlu.mine model=e5_small input=pairs.csv corpus=passages.txt output=mined.jsonl 'range=[10,50]' number=8
python -m nlu.mine run=outputs/mine input=pairs.csv output=mined.parquet max_share=0.9 index=faiss
"""

from functools import partial
from typing import NoReturn

from omegaconf import DictConfig

from nlu.config.choices import SCHEMAS
from nlu.config.entry.app import prepare, run_app
from nlu.config.errors import UserError
from nlu.config.nearest import hint

PROMPTS = ("query", "passage")


def main(composed: DictConfig) -> int:
    """Validate, then mine in this process."""
    plain = prepare(composed, SCHEMAS["mine"])
    from nlu.config.command_keys import STANDARD, Mine
    from nlu.jobs.placement import placement

    config = Mine.of(plain)
    first, behind = config.range
    if behind - first < config.number:
        raise UserError(
            f"number is {config.number}, but range is {config.range}, of {max(0, behind - first)} ranks; set a wider "
            "range, or number lower"
        )
    if wrong := [name for name in config.prompts or () if name not in PROMPTS]:
        raise UserError(f"prompts has {wrong[0]}, but queries and passages have prompts; {hint(wrong[0], PROMPTS)}")
    if not config.output.endswith((".jsonl", ".parquet")):
        raise UserError(f"output is {config.output}, but must end in .jsonl or .parquet, whose rows can hold lists")
    if not isinstance(config.input.path, str) or STANDARD in (config.input.path, config.corpus):
        raise UserError("input and corpus must each name one file; write the rows into one")
    if placement().world_size > 1:
        raise UserError(f"there are {placement().world_size} processes, but one mines; start it without torchrun")
    from nlu.data.dataset import find_file
    from nlu.inference.locate import locate_unless_weights
    from nlu.inference.output_pieces import require_places

    # Before torch is imported, which takes longer.
    located = locate_unless_weights(config)
    require_places(config.input.path, config.output, config.jobs)
    if config.corpus is not None:
        find_file("corpus", config.corpus)
    if plain["dry_run"]:
        from nlu.jobs.queue import end_dry_run

        return end_dry_run(plain)
    from nlu.inference.mining import run_mining
    from nlu.training.processes import spread

    return spread(partial(run_mining, config, located), 1)


def command() -> NoReturn:
    """The program nlu-mine."""
    run_app(main, "mine")


if __name__ == "__main__":
    command()
