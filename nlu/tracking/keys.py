"""The keys of trackers, and the packages that they need; see `nlu.config.keys`."""

from dataclasses import dataclass


@dataclass(kw_only=True)
class Nothing:
    """No other tool; the run has its own tables."""


@dataclass(kw_only=True)
class TensorBoard:
    """Event files in RUN/tracker, which `tensorboard --logdir outputs` shows."""

    packages = {"tensorboard": "tensorboard"}
    """names to import of the packages that it needs, and their names for pip"""
    extra = "tensorboard"
    """the extra of nlu with these packages"""


@dataclass(kw_only=True)
class MLflow:
    """An SQLite database for one run or for many, which `mlflow ui` shows."""

    packages = {"mlflow": "mlflow-skinny", "alembic": "alembic"}
    extra = "mlflow"
    experiment: str = "nlu"
    """MLflow experiment that lists the run."""
    database: str | None = None
    """Path of an SQLite file, which runs may share; null = RUN/tracker/mlflow.db."""


@dataclass(kw_only=True)
class WandB:
    """Weights & Biases, offline: `wandb sync` sends RUN/tracker/wandb from a machine with a network."""

    packages = {"wandb": "wandb"}
    extra = "wandb"
    project: str = "nlu"
    """W&B project that lists the run."""
