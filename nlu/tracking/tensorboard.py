"""TensorBoard: event files in RUN/tracker, which `tensorboard --logdir outputs` shows."""

import json
import sys
from collections.abc import Mapping
from types import ModuleType

from nlu.config.keys import takes
from nlu.tracking import keys as schemas
from nlu.tracking.tracker import Beginning, Outcome, Point

OF_END = ".end"
"""the suffix of the file with the results, which is replaced if the run ends again"""
WITHOUT_TENSORFLOW = "tensorboard.compat.notf"
"""a module that makes TensorBoard work without TensorFlow"""


@takes(schemas.TensorBoard)
class TensorBoard:
    """Scalars, the configuration and the results as text.

    A run that continues writes another file, which replaces the earlier ones from its first step on.
    """

    def start(self, beginning: Beginning) -> None:
        # With this module TensorBoard does not import TensorFlow, which takes seconds and prints messages.
        sys.modules.setdefault(WITHOUT_TENSORFLOW, ModuleType(WITHOUT_TENSORFLOW))
        from torch.utils.tensorboard import SummaryWriter

        folder = self._folder = beginning.folder
        # The run goes further than the end that these results are of.
        for path in folder.glob(f"events.*{OF_END}"):
            path.unlink()
        self._step = beginning.step
        is_new = not any(folder.glob("events.*"))
        self._writer: SummaryWriter = SummaryWriter(str(folder), purge_step=None if is_new else beginning.step + 1)
        if is_new:
            self._writer.add_text("config", _as_text(beginning.config), 0)
            for point in beginning.past():
                self.log(point)

    def log(self, point: Point) -> None:
        self._step = point.step
        for name, value in point.values.items():
            self._writer.add_scalar(name, value, point.step)

    def flush(self) -> None:
        self._writer.flush()

    def end(self, outcome: Outcome, results: Mapping[str, float]) -> None:
        self._writer.close()
        # In a separate file, which `start` removes if the run is trained further than this end.
        if results:
            from torch.utils.tensorboard import SummaryWriter

            last = SummaryWriter(str(self._folder), filename_suffix=OF_END)
            last.add_text("result", _as_text({"outcome": outcome, **results}), self._step)
            for name, value in results.items():
                last.add_scalar(name, value, self._step)
            last.close()


def _as_text(values: Mapping[str, object]) -> str:
    """Return the values as indented lines, which Markdown shows unchanged."""
    return "\n".join(
        f"    {key}: {json.dumps(value, ensure_ascii=False, default=str)}" for key, value in values.items()
    )
