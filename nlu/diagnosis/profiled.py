"""What `nlu.profile` found: its values, tables and the figure of memory."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from matplotlib.figure import Figure

from nlu.diagnosis.bottlenecks import Finding, Measured
from nlu.diagnosis.traced import ModuleTime, OperatorTime
from nlu.display.canvas import SET_COLOURS, TITLE, new_figure, save_drawn, styled
from nlu.display.progress import format_time
from nlu.display.tables import numbers, print_table, table_of, texts

SHOWN = 15
"""rows of a table"""
PLAIN_WIDTH = 120


@dataclass
class Profiled:
    """The result of a profile; a rate or a time that was not measured is None."""

    what: str
    """what a step is: of training, or a batch that is predicted"""
    steps: int
    device: str
    measured: Measured
    examples_per_s: float
    real_tokens_per_s: float
    computed_tokens_per_s: float
    gflops: float | None = None
    """10^9 operations per second of matrix products and attention"""
    limit_gflops: float | None = None
    """10^9 operations per second of a large matrix product on this device"""
    total_steps: int | None = None
    """of the whole run"""
    evaluations: float = 0.0
    """in the whole run"""
    evaluation_s: float = 0.0
    """of one evaluation"""
    checkpoints: float = 0.0
    """in the whole run"""
    checkpoint_s: float = 0.0
    """of one checkpoint"""
    modules: list[ModuleTime] = field(default_factory=list)
    """by the time of a step, the slowest first"""
    operators: list[OperatorTime] = field(default_factory=list)
    """by the time of a step, the slowest first"""
    findings: list[Finding] = field(default_factory=list)

    @property
    def run_s(self) -> float | None:
        """The time of the whole run, if it continues as in these steps."""
        return None if self.total_steps is None else self.total_steps * self.measured.whole_s

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "run_s": self.run_s}


def print_profile(found: Profiled, files: Sequence[str]) -> None:
    """Print tables by phase, module and operator, the facts, what to change first, and the paths of files."""
    measured = found.measured
    step_s = measured.step_s
    phases = sorted(measured.seconds.items(), key=lambda item: -item[1])
    by_phase = [[name, f"{1e3 * seconds:.2f}", f"{seconds / step_s:.1%}"] for name, seconds in phases if seconds]
    by_phase.append(["together", f"{1e3 * step_s:.2f}", "100.0%"])
    modules = [
        [one.name, str(one.modules), f"{1e3 * one.forward_s:.2f}", f"{1e3 * one.backward_s:.2f}",
         f"{(one.forward_s + one.backward_s) / step_s:.1%}"]
        for one in found.modules[:SHOWN]
    ]  # fmt: skip
    operators = [
        [one.name, f"{one.calls:,.0f}", f"{1e3 * one.own_s:.2f}", f"{one.own_s / step_s:.1%}"]
        for one in found.operators[:SHOWN]
    ]
    facts = table_of(texts("", ""), _facts(found))
    facts.show_header = False
    print_table(
        f"{found.what}, mean of {found.steps}, on {found.device}",
        "",
        table_of([*texts("phase"), *numbers("ms", "share")], by_phase),
        "",
        facts,
        "",
        table_of([*texts("module"), *numbers("number", "forward ms", "backward ms", "of a step")], modules),
        "",
        table_of([*texts("operator"), *numbers("calls", "ms", "of a step")], operators),
        "",
        "What to change first",
        *_advice(found.findings),
        "",
        *files,
        plain_width=PLAIN_WIDTH,
    )


def _advice(findings: Sequence[Finding]) -> list[str]:
    if not findings:
        return ["nothing stands out: rows, operators, evaluations, checkpoints, padding, threads and memory"]
    return [f"{place}. {one.name}: {one.says}" for place, one in enumerate(findings, start=1)]


def _facts(found: Profiled) -> Iterator[list[str]]:
    measured = found.measured
    yield ["speed", f"{found.examples_per_s:,.0f} examples/s, {found.real_tokens_per_s:,.0f} real tokens/s"]
    padding = 1 - measured.real_tokens / max(1.0, measured.computed_tokens)
    yield ["padding", f"{padding:.1%} of the computed tokens"]
    if found.gflops and found.limit_gflops:
        share = found.gflops / found.limit_gflops
        yield ["computing", f"{found.gflops:,.1f} of {found.limit_gflops:,.1f} GFLOP/s, {share:.0%} of the limit"]
    yield ["peak memory", f"{measured.peak_mb:,.0f} of {measured.limit_mb:,.0f} MB"]
    if found.total_steps is not None:
        yield ["an evaluation", f"{format_time(found.evaluation_s)}, {found.evaluations:,.0f} in the run"]
        yield ["a checkpoint", f"{format_time(found.checkpoint_s)}, {found.checkpoints:,.0f} in the run"]
        yield ["the whole run", f"{found.total_steps:,} steps, about {format_time(found.run_s or 0)}"]


def draw_memory(path: Path, points: Sequence[tuple[float, float]]) -> list[Path]:
    """Draw the memory of tensors over time as a PNG at `path`; returns the files written."""

    def draw() -> Figure:
        with styled():
            figure, axes = new_figure()
            axes.plot(
                [1e3 * seconds for seconds, _ in points],
                [used_mb for _, used_mb in points],
                color=SET_COLOURS[0],
                linewidth=0.9,
                drawstyle="steps-post",
            )
            axes.set_title("memory of tensors", **TITLE)
            axes.set_xlabel("milliseconds under the profiler")
            axes.set_ylabel("MB")
            axes.set_ylim(bottom=0)
        return figure

    return save_drawn(path, draw if points else lambda: None)
