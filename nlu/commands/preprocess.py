"""Build the data store of a configuration and report on it, without training.

python -m nlu.preprocess data=afqmc
python -m nlu.preprocess data=afqmc show=5                     prints the first rows as the model gets them
python -m nlu.preprocess data=files data.train=big.jsonl 'data.fields={text: text, label: label}'
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, NoReturn

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from nlu.config.choices import SCHEMAS
from nlu.config.console import printing
from nlu.config.entry.app import prepare, run_app
from nlu.config.errors import UserError

if TYPE_CHECKING:
    from nlu.config.schema import Run

log = logging.getLogger("nlu.preprocess")


def main(composed: DictConfig) -> int:
    """Validate, build the store or find it, log its content and print it as a line of JSON.

    With `show`, print the first rows of each set as they are encoded.
    """
    config = prepare(composed, SCHEMAS["preprocess"])
    _require_rows(HydraConfig.get())
    if config["dry_run"]:
        from nlu.jobs.queue import end_dry_run

        return end_dry_run(config)
    from nlu.config.schema import Run
    from nlu.runs import logs

    logs.set_up(None, 0)
    run = Run.of(config)
    if config["show"]:
        show_rows(run, config["show"])
        return 0
    if config["data"].get("stream"):
        write_for_readers(run)
        config["data"]["stream"] = False
        run = Run.of(config)
    text = json.dumps(facts_of(run), ensure_ascii=False)
    # The search that wanted it may have been killed meanwhile.
    with printing():
        print(text)
    return 0


def show_rows(config: Run, count: int) -> None:
    """Print the first `count` rows of each set that has files as the model gets them, of a mixture as NAME/SET."""
    from nlu.data.prepare import first_rows
    from nlu.display.encoded import print_encoded
    from nlu.display.progress_bars import Progress, bars
    from nlu.training.build import naming, planned

    samples = []
    with Progress() as progress:
        for name, own in (config.members or {"": config}).items():
            with naming(name):
                for sample in first_rows(planned(own)[2], count, bars(progress)):
                    samples.append((f"{name}/{sample.name}" if name else sample.name, sample))
    for name, sample in samples:
        print_encoded(name, list(sample.examples()))


def write_for_readers(config: Run) -> None:
    """Write the data store for runs that read its rows meanwhile."""
    from nlu.data.growing import write_stream
    from nlu.display.progress_bars import Progress, bars
    from nlu.training.build import planned

    with Progress() as progress:
        write_stream(planned(config)[2], bars(progress))


def facts_of(config: Run) -> dict[str, object]:
    """Build or find the data store; log its content and return it, as in data.json.

    If there are several folds, this is the content for the first one.
    """
    import torch

    from nlu.data.facts import describe, lines
    from nlu.display.progress_bars import Progress
    from nlu.training.build import build_data
    from nlu.training.ranks import Ranks

    if config.folds.count is not None and config.fold is None:
        config = config.repeat(seed=config.seed, fold=0)
    with Progress() as progress:
        store = build_data(config, Ranks(0, 1, torch.device("cpu")), progress).store
    facts = describe(store)
    log.info("data store %s: %s tokens in the vocabulary", store.folder, f"{facts['vocab_size']:,}")
    for line in lines(facts):
        log.info("%s", line)
    return facts


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
