"""Export a trained run to a format of another library, checked against the logits of the run.

Before the output folder appears, each export is read back; a table shows the largest difference, size and latency.

python -m nlu.export run=outputs/mine format=huggingface out=mine-hf          for AutoModelForSequenceClassification
python -m nlu.export run=outputs/mine format=onnx-int8 out=mine-onnx              for onnxruntime, in 8 bits
python -m nlu.export run=outputs/search format=torchscript out=mine-traced    the best trial of a search
"""

from typing import NoReturn

from omegaconf import DictConfig

from nlu.config.choices import SCHEMAS
from nlu.config.entry.app import prepare, run_app


def main(composed: DictConfig) -> int:
    """Validate, then export."""
    plain = prepare(composed, SCHEMAS["export"])
    from nlu.config.command_keys import Export
    from nlu.inference.locate import locate
    from nlu.storage.outputs import require_free

    config = Export.of(plain)
    # Report missing files first: importing torch takes longer than all other checks.
    located = locate(config.run, config.checkpoint).of_head(config.head_name)
    # Again when the output is written: this check only saves the time of an export that would be refused.
    require_free(config.out, "out")
    if plain["dry_run"]:
        from nlu.jobs.queue import end_dry_run

        return end_dry_run(plain)
    from nlu.inference.exporting import run_export

    return run_export(config, located)


def command() -> NoReturn:
    """The program nlu-export."""
    run_app(main, "export")


if __name__ == "__main__":
    command()
