"""MLflow: a database of SQLite, in the run's folder or one for many runs, shown by `mlflow ui`.

Written for MLflow 3, which refuses its former store of plain files. Of histograms it knows nothing: they stand in
histograms.tsv.
"""

import logging
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nlu.config.errors import UserError
from nlu.storage.files import read_json, write_json
from nlu.storage.locks import hold_lock
from nlu.tracking.tracker import Beginning, Outcome, Point

log = logging.getLogger(__name__)

QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_LOGGING_LEVEL": "WARNING", "GIT_PYTHON_REFRESH": "quiet"}
"""read when the library is imported; it would tell its makers that it is used"""
DATABASE, RUN, ARTIFACTS = "mlflow.db", "mlflow.json", "artifacts"
PER_CALL_MAX = 100
LONGEST_VALUE = 6000
"""what the library takes at once, and of one parameter"""
STATUS: dict[Outcome, str] = {
    "finished": "FINISHED", "pruned": "KILLED", "stopped": "KILLED", "failed": "FAILED",
}  # fmt: skip
LOCK_WAIT_S = 120.0


class MLflow:
    """Parameters, metrics by step, and the status of the run.

    What the database holds already is not logged again, so that a run that continues has each step once.
    """

    packages = {"mlflow": "mlflow-skinny", "alembic": "alembic"}
    extra = "mlflow"

    def __init__(self, *, experiment: str = "nlu", database: str | None = None):
        """`experiment` is what MLflow calls a list of runs. `database`: path of an SQLite file that many runs may
        share; null = one in the run's folder."""
        if database is not None and "://" in database:
            raise UserError(
                f"tracker.database is {database}, but SQLite writes to a file of this machine; give a path or null"
            )
        self.experiment, self.database = experiment, database

    def start(self, beginning: Beginning) -> None:
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient

        logging.getLogger("alembic").setLevel(logging.WARNING)
        folder = beginning.folder
        folder.mkdir(parents=True, exist_ok=True)
        path = Path(self.database).expanduser() if self.database else folder / DATABASE
        path.parent.mkdir(parents=True, exist_ok=True)
        # Several runs of a search that begin together would each lay out the tables.
        with hold_lock(path.with_name(f".{path.name}.lock"), wait_s=LOCK_WAIT_S, optional=True):
            self._client: Any = MlflowClient(tracking_uri=f"sqlite:///{path.resolve()}")
            self._run = self._run_of(beginning)
        self._known = {
            name: max(one.step for one in self._client.get_metric_history(self._run, name))
            for name in self._client.get_run(self._run).data.metrics
        }
        for point in beginning.past():
            self.log(point)

    def log(self, point: Point) -> None:
        from mlflow.entities import Metric

        self._step, now_ms = point.step, int(time.time() * 1000)
        named = {_name(name): value for name, value in point.values.items()}
        metrics = [
            Metric(name, value, now_ms, point.step)
            for name, value in named.items()
            if self._known.get(name, -1) < point.step
        ]
        for first in range(0, len(metrics), PER_CALL_MAX):
            self._client.log_batch(self._run, metrics=metrics[first : first + PER_CALL_MAX], synchronous=True)

    def flush(self) -> None:
        """Each call is a transaction by itself."""

    def end(self, outcome: Outcome, results: Mapping[str, float]) -> None:
        self.log(Point(self._step, dict(results)))
        self._client.set_tag(self._run, "outcome", outcome)
        self._client.set_terminated(self._run, status=STATUS[outcome])

    def _run_of(self, beginning: Beginning) -> str:
        """Return the number of the run that this folder wrote to before, or of a new one."""
        from mlflow.entities import Param, RunTag
        from mlflow.exceptions import MlflowException

        self._step = beginning.step
        known = read_json(beginning.folder / RUN)
        if known is not None:
            try:
                self._client.update_run(known["run_id"], status="RUNNING")
                return known["run_id"]
            except MlflowException:
                log.warning("%s has lost the run of this folder; it is written again", self.database or DATABASE)
        experiment = self._client.get_experiment_by_name(self.experiment)
        number = experiment.experiment_id if experiment else self._client.create_experiment(
            self.experiment, artifact_location=(beginning.folder / ARTIFACTS).resolve().as_uri()
        )  # fmt: skip
        tags = {"group": beginning.group} if beginning.group else {}
        run = self._client.create_run(number, run_name=beginning.name, tags=tags).info.run_id
        params = [Param(_name(key), str(value)[:LONGEST_VALUE]) for key, value in beginning.config.items()]
        for first in range(0, len(params), PER_CALL_MAX):
            self._client.log_batch(run, params=params[first : first + PER_CALL_MAX], synchronous=True)
        self._client.log_batch(run, tags=[RunTag("outcome", "running")], synchronous=True)
        write_json(beginning.folder / RUN, {"run_id": run})
        return run


def _name(name: str) -> str:
    """What MLflow takes as a name: letters of any script, digits, and a few signs."""
    return re.sub(r"[^/\w.\- :]", "_", name).strip("/")
