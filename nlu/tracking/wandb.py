"""Weights & Biases, offline: `wandb sync` sends RUN/tracker/wandb from a machine with a network.

The library writes in blocks of 32 KiB and loses the last block if the run is killed. So a run that continues logs
everything again from its own tables, to a new file of the same run that replaces the old one.
"""

import os
import secrets
import shutil
from collections.abc import Mapping

from nlu.config.keys import takes
from nlu.storage.files import read_json, write_json
from nlu.tracking import keys as schemas
from nlu.tracking.tracker import Beginning, Outcome, Point

RUN = "wandb.json"


@takes(schemas.WandB)
class WandB:
    """Metrics, the configuration and the results, never over the network."""

    def __init__(self, keys: schemas.WandB):
        self.project = keys.project

    def start(self, beginning: Beginning) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        folder = beginning.folder
        folder.mkdir(parents=True, exist_ok=True)
        number = (read_json(folder / RUN) or {}).get("id") or secrets.token_hex(4)
        # Before the first file of the run exists, so that after a kill at any line the next start finds that file by
        # its id.
        write_json(folder / RUN, {"id": number})
        former = [path for path in folder.glob(f"wandb/offline-run-*-{number}") if path.is_dir()]
        for path in former:
            shutil.rmtree(path)
        self._run: wandb.Run = wandb.init(
            mode="offline",
            dir=str(folder),
            id=number,
            project=self.project,
            name=beginning.name,
            group=beginning.group,
            config=dict(beginning.config),
            settings=wandb.Settings(
                silent=True,
                console="off",
                disable_git=True,
                disable_code=True,
                save_code=False,
                x_disable_stats=True,
                x_disable_meta=True,
            ),
        )
        for point in beginning.past():
            self.log(point)

    def log(self, point: Point) -> None:
        self._run.log(dict(point.values), step=point.step)

    def flush(self) -> None:
        """Do nothing: the library only writes everything at the end, see above."""

    def end(self, outcome: Outcome, results: Mapping[str, float]) -> None:
        import wandb

        self._run.summary.update({**results, "outcome": outcome})
        status = 1 if outcome == "failed" else 0
        self._run.finish(exit_code=status)
        # Wait for the library's writing process, which must not outlive this process or be killed with it.
        wandb.teardown(exit_code=status)
