"""Build the data store of a configuration and report on it, without training.

python -m nlu.preprocess data=afqmc
python -m nlu.preprocess data=files data.train=big.jsonl 'data.fields={text: text, label: label}'
"""

from omegaconf import DictConfig

from nlu.config.app import prepare, run_app


def main(composed: DictConfig) -> int:
    """Validate, build the store (or find it), print what is in it."""
    config = prepare(composed)
    if config["dry_run"]:
        from nlu.config.dry_run import show

        return show(config)
    from nlu.training.experiment import report_data

    report_data(config)
    return 0


if __name__ == "__main__":
    run_app(main, "preprocess")
