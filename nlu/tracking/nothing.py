"""No tracker."""

from collections.abc import Mapping

from nlu.config.keys import takes
from nlu.tracking import keys as schemas
from nlu.tracking.tracker import Beginning, Outcome, Point


@takes(schemas.Nothing)
class Nothing:
    """Writes nothing; the run has its own tables."""

    def start(self, beginning: Beginning) -> None:
        pass

    def log(self, point: Point) -> None:
        pass

    def flush(self) -> None:
        pass

    def end(self, outcome: Outcome, results: Mapping[str, float]) -> None:
        pass
