"""What a server counts and times, for Prometheus."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Measures:
    """The metrics of one server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter("nlu_requests", "Requests answered", ["path", "status"], registry=self._registry)
        what = "Time from a request to its answer"
        self.seconds = Histogram("nlu_request_seconds", what, ["path"], buckets=SECONDS, registry=self._registry)
        self.rows = Counter("nlu_rows", "Rows predicted", registry=self._registry)
        self.batch_rows = Histogram("nlu_batch_rows", "Rows computed together", buckets=ROWS, registry=self._registry)
        what = "Time of predictions by phase: reading, waiting, tokenizing, computing, writing"
        self.phases = Counter("nlu_phase_seconds", what, ["phase"], registry=self._registry)
        self.reloads = Counter("nlu_reloads", "Newer checkpoints loaded", registry=self._registry)

    def add(self, phase: str, seconds: float) -> None:
        """Add the time of a phase. Requests wait at the same time, so waiting may grow faster than time passes."""
        self.phases.labels(phase).inc(seconds)

    def watch_waiting(self, waiting_rows: Callable[[], int]) -> None:
        """Read the number of waiting rows from a function."""
        gauge = Gauge("nlu_waiting_rows", "Rows that wait to be computed", registry=self._registry)
        gauge.set_function(waiting_rows)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)
