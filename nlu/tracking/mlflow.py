"""MLflow: a SQLite database for one run or for many, which `mlflow ui` shows.

This is for MLflow 3, which no longer writes plain files.
"""

import logging
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path

from nlu.config.errors import UserError
from nlu.config.keys import takes
from nlu.storage.files import read_json, write_json
from nlu.storage.locks import hold_lock
from nlu.tracking import keys as schemas
from nlu.tracking.tracker import Beginning, Outcome, Point

log = logging.getLogger(__name__)

QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_LOGGING_LEVEL": "WARNING", "GIT_PYTHON_REFRESH": "quiet"}
"""set before the import, to switch off telemetry and messages"""
DATABASE, RUN, ARTIFACTS = "mlflow.db", "mlflow.json", "artifacts"
PER_CALL_MAX = 100
LONGEST_VALUE = 6000
"""limits of the library: entries in a call, and characters of a parameter"""
STATUS: dict[Outcome, str] = {"finished": "FINISHED", "pruned": "KILLED", "stopped": "KILLED", "failed": "FAILED"}
LOCK_WAIT_S = 120.0


@takes(schemas.MLflow)
class MLflow:
    """Parameters, metrics by step, and the status of the run.

    Points that the database already has are not logged again, so a run that continues has each step once.
    """

    def __init__(self, keys: schemas.MLflow):
        if keys.database is not None and "://" in keys.database:
            raise UserError(
                f"tracker.database is {keys.database}, but SQLite writes to a local file; give a path or null"
            )
        self.experiment, self.database = keys.experiment, keys.database

    def start(self, beginning: Beginning) -> None:
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient

        logging.getLogger("alembic").setLevel(logging.WARNING)
        folder = beginning.folder
        folder.mkdir(parents=True, exist_ok=True)
        path = Path(self.database).expanduser() if self.database else folder / DATABASE
        path.parent.mkdir(parents=True, exist_ok=True)
        # Runs of a search that start together must not create the tables at the same time.
        with hold_lock(path.with_name(f".{path.name}.lock"), wait_s=LOCK_WAIT_S, optional=True):
            self._client: MlflowClient = MlflowClient(tracking_uri=f"sqlite:///{path.resolve()}")
            self._run = self._run_of(beginning)
        # The largest step of each metric in the database, which may be later than the saved state after a kill.
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
        """Do nothing: each call is a transaction."""

    def end(self, outcome: Outcome, results: Mapping[str, float]) -> None:
        self.log(Point(self._step, dict(results)))
        self._client.set_tag(self._run, "outcome", outcome)
        self._client.set_terminated(self._run, status=STATUS[outcome])

    def _run_of(self, beginning: Beginning) -> str:
        """Return the id of the run to which this folder has written before, or of a new run."""
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
        if experiment is not None:
            number = experiment.experiment_id
        else:
            artifacts = (beginning.folder / ARTIFACTS).resolve().as_uri()
            number = self._client.create_experiment(self.experiment, artifact_location=artifacts)
        tags = {"group": beginning.group} if beginning.group else {}
        run = self._client.create_run(number, run_name=beginning.name, tags=tags).info.run_id
        params = [Param(_name(key), str(value)[:LONGEST_VALUE]) for key, value in beginning.config.items()]
        for first in range(0, len(params), PER_CALL_MAX):
            self._client.log_batch(run, params=params[first : first + PER_CALL_MAX], synchronous=True)
        self._client.log_batch(run, tags=[RunTag("outcome", "running")], synchronous=True)
        # Last: a kill before this line leaves a run without metrics in MLflow, and the next start makes another.
        write_json(beginning.folder / RUN, {"run_id": run})
        return run


def _name(name: str) -> str:
    """Return a name in the characters that MLflow accepts: letters of any script, digits, and some signs."""
    return re.sub(r"[^/\w.\- :]", "_", name).strip("/")
