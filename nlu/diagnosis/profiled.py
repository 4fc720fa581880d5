"""What `nlu.profile` found: its numbers, and what to change first."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import torch

from nlu.diagnosis.traced import Traced
from nlu.display.console_tables import numbers, print_table, table_of, texts

INPUT = ("reading", "encoding", "data", "writing")
"""phases in which nothing is computed since rows are read, tokenized, gathered or written"""
# These three limits are those of PyTorch's own advice, RunProfileData.analyze of torch_tb_profiler
# (https://github.com/pytorch/kineto/tree/main/tb_plugin).
WAITING, BUSY, FULL = 0.05, 0.5, 0.9


@dataclass(kw_only=True)
class Profiled:
    """The result of a profile."""

    what: str
    """what a step is: of training, or a batch that is predicted"""
    steps: int
    device: str
    seconds: dict[str, float]
    """of a step, by its phases (`nlu.training.phases`)"""
    examples_per_s: float
    real_tokens_per_s: float
    computed_tokens_per_s: float
    """with padding"""
    peak_mb: float
    limit_mb: float | None = None
    """memory of a CUDA device"""
    busy: float | None = None
    """share of a step in which a CUDA device computes"""

    @property
    def step_s(self) -> float:
        return sum(self.seconds.values())

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "step_s": self.step_s, "findings": list(findings(self))}


def device_name(device: torch.device) -> str:
    """Return the name of a device, with the number of threads of a processor."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu, threads: {torch.get_num_threads()}"


def memory_mb(device: torch.device) -> float | None:
    """Return the memory of a CUDA device."""
    return torch.cuda.mem_get_info(device)[1] / 1e6 if device.type == "cuda" else None


def findings(found: Profiled) -> Iterator[str]:
    """Yield what to change, by three rules of PyTorch's own advice."""
    is_prediction = "encoding" in found.seconds
    if found.limit_mb and found.peak_mb > FULL * found.limit_mb:
        used = f"memory: {found.peak_mb:,.0f} of {found.limit_mb:,.0f} MB are in use"
        remedy = "lower batch_size" if is_prediction else "lower trainer.batch_size and raise trainer.accumulation"
        yield f"{used}; {remedy}, or set precision=bf16"
    if (waits := sum(found.seconds.get(phase, 0.0) for phase in INPUT) / found.step_s) > WAITING:
        remedy = (
            "predict in several processes (devices=2), each of which tokenizes its own part"
            if is_prediction
            else "put the cache on a local disk (NLU_CACHE); a target of your own should gather whole columns"
        )
        yield f"input: {waits:.0%} of the time nothing is computed, since rows are read and gathered; {remedy}"
    if found.busy is not None and found.busy < BUSY:
        key = "batch_size" if is_prediction else "trainer.batch_size, and optimizer.lr with it"
        yield f"device: it computes in {found.busy:.0%} of the time; raise {key}"


def print_profile(found: Profiled, traced: Traced, files: Sequence[str]) -> None:
    """Print the phases, the facts, torch's tables, what to change first, and the paths of files."""
    phases = sorted(found.seconds.items(), key=lambda item: -item[1])
    rows = [[name, f"{1e3 * spent_s:.2f}", f"{spent_s / found.step_s:.1%}"] for name, spent_s in phases if spent_s]
    rows.append(["together", f"{1e3 * found.step_s:.2f}", "100.0%"])
    facts = table_of(texts("", ""), _facts(found))
    facts.show_header = False
    title = f"{found.what}, mean of {found.steps}, on {found.device}"
    print_table(title, "", table_of([*texts("phase"), *numbers("ms", "share")], rows), "", facts)
    print(f"\nunder torch.profiler, sums of {traced.steps}\n")
    print(*traced.tables(), sep="\n")
    advice = list(findings(found)) or ["nothing stands out: input, memory and the use of the device"]
    print_table("What to change first", *advice, "", *files)


def _facts(found: Profiled) -> Iterator[list[str]]:
    yield ["speed", f"{found.examples_per_s:,.0f} examples/s, {found.real_tokens_per_s:,.0f} real tokens/s"]
    yield ["padding", f"{1 - found.real_tokens_per_s / found.computed_tokens_per_s:.1%} of the computed tokens"]
    limit = f" of {found.limit_mb:,.0f}" if found.limit_mb else ""
    yield ["peak memory", f"{found.peak_mb:,.0f}{limit} MB"]
    if found.busy is not None:
        yield ["device computes", f"{found.busy:.0%} of the time"]
