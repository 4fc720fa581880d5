"""What to change first: rules over what was measured of a run, each with the keys that it is about."""

from dataclasses import dataclass, field

MUCH = 0.2
"""the share of the time above which something is worth a change"""
PADDED = 1.2
"""computed tokens for each real one"""
FULL = 0.9
"""the share of the memory above which a longer batch may not fit"""
IDLE = 0.4
"""the share of forward, backward and update in which little is computed"""
MANY_CORES = 4


@dataclass
class Measured:
    """What was measured of some steps; times are seconds of one step, unless they say otherwise."""

    seconds: dict[str, float]
    """by phase of a step (`nlu.training.phases`)"""
    evaluation_s: float = 0.0
    """all evaluations of the run, as long as one was measured, over all of its steps"""
    saving_s: float = 0.0
    """all checkpoints, likewise"""
    real_tokens: float = 0.0
    computed_tokens: float = 0.0
    """with padding"""
    operators: float = 0.0
    """calls of operators"""
    computing_s: float = 0.0
    """time in operators, without those that are mostly the cost of calling them (`nlu.diagnosis.traced`)"""
    traced_s: float = 0.0
    """forward, backward and update of the steps under the profiler, in which `computing_s` was measured"""
    is_accelerator: bool = False
    is_prediction: bool = False
    """whether a step is a batch that a trained run predicts"""
    peak_mb: float = 0.0
    limit_mb: float = 0.0
    """memory of the device; 0: not known"""
    threads: int = 1
    cores: float = 1.0
    """that this process may use"""

    @property
    def step_s(self) -> float:
        return sum(self.seconds.values())

    @property
    def whole_s(self) -> float:
        """A step with its share of evaluations and checkpoints."""
        return self.step_s + self.evaluation_s + self.saving_s


@dataclass(frozen=True)
class Finding:
    """Something that takes more than it should."""

    name: str
    says: str
    keys: tuple[str, ...] = field(default_factory=tuple)
    """the keys, or variables of the environment, to change"""
    share: float = 0.0
    """of the time that it takes; the largest is first"""


def findings(measured: Measured) -> list[Finding]:
    """Return what to change, the largest share of the time first."""
    found = [rule(measured) for rule in (_data, _operators, _evaluation, _saving, _padding, _threads)]
    known = sorted((one for one in found if one is not None), key=lambda one: -one.share)
    # A run that ends without memory has no speed.
    return [one for one in (_memory(measured),) if one is not None] + known


def _data(measured: Measured) -> Finding | None:
    if measured.is_prediction:
        return _rows(measured)
    share = measured.seconds.get("data", 0.0) / measured.whole_s
    if share <= MUCH:
        return None
    return Finding(
        "input",
        f"{share:.0%} of the time is waiting for rows, {1e3 * measured.seconds['data']:.1f} ms in a step. Put the "
        "cache on a local disk (NLU_CACHE; nlu.doctor measures it); a target or a layout of your own should gather "
        "whole columns",
        ("NLU_CACHE", "task"),
        share,
    )


def _rows(measured: Measured) -> Finding | None:
    parts = {"reading": "reading", "encoding": "tokenizing", "data": "gathering batches", "writing": "writing"}
    shares = {name: measured.seconds.get(phase, 0.0) / measured.whole_s for phase, name in parts.items()}
    if (share := sum(shares.values())) <= MUCH:
        return None
    named = ", ".join(f"{name} {one:.0%}" for name, one in sorted(shares.items(), key=lambda item: -item[1]))
    return Finding(
        "input",
        f"{share:.0%} of the time is reading and writing rows ({named}). Predict in several processes (devices=2), "
        "each of which tokenizes its own part",
        ("devices",),
        share,
    )


def _operators(measured: Measured) -> Finding | None:
    passes_s = sum(measured.seconds.get(phase, 0.0) for phase in ("forward", "backward", "optimizer"))
    if not measured.operators or not passes_s:
        return None
    # The profiler lengthens its own steps by the cost of recording operators, and another load of the machine the ones
    # before it. A finding that one of the two has made up is missing in the comparison with the other steps.
    compared_s = min(passes_s, measured.traced_s or passes_s)
    idle = 1 - min(1.0, measured.computing_s / compared_s)
    if idle <= IDLE:
        return None
    keys: tuple[str, ...]
    if measured.is_prediction:
        remedy, keys = "Raise batch_size", ("batch_size",)
    else:
        remedy = "Raise trainer.batch_size, and optimizer.lr with it, or lower trainer.accumulation for the same step"
        keys = ("trainer.batch_size", "trainer.accumulation", "optimizer.lr")
    what = "the device has nothing to do" if measured.is_accelerator else "small operators are called and Python runs"
    return Finding(
        "operators",
        f"in {idle:.0%} of forward, backward and update {what}, since a step has {measured.operators:,.0f} operators. "
        f"{remedy}",
        keys,
        idle * passes_s / measured.whole_s,
    )


def _evaluation(measured: Measured) -> Finding | None:
    return _between_steps(
        "evaluation",
        measured.evaluation_s / measured.whole_s,
        "evaluations. Set a longer trainer.eval_interval, score a sample (trainer.eval_rows=1000), or raise "
        "trainer.eval_batch_size",
        ("trainer.eval_interval", "trainer.eval_rows", "trainer.eval_batch_size"),
    )


def _saving(measured: Measured) -> Finding | None:
    return _between_steps(
        "saving",
        measured.saving_s / measured.whole_s,
        "writing checkpoints. Set a longer trainer.save_interval and trainer.eval_interval, or put the run folder on a "
        "local disk",
        ("trainer.save_interval", "trainer.eval_interval", "hydra.run.dir"),
    )


def _between_steps(kind: str, share: float, said: str, keys: tuple[str, ...]) -> Finding | None:
    return Finding(kind, f"{share:.0%} of the run would be {said}", keys, share) if share > MUCH else None


def _padding(measured: Measured) -> Finding | None:
    if measured.computed_tokens <= PADDED * measured.real_tokens:
        return None
    padding = 1 - measured.real_tokens / measured.computed_tokens
    passes_s = measured.seconds.get("forward", 0.0) + measured.seconds.get("backward", 0.0)
    keys = ("data.max_len", "model") if measured.is_prediction else ("trainer.bucket_batches", "data.max_len", "model")
    sort = "" if measured.is_prediction else "sort more batches by length together (trainer.bucket_batches), or "
    return Finding(
        "padding",
        f"{padding:.0%} of the computed tokens are padding: {sort}train with shorter texts (data.max_len) or a model "
        "that computes without padding (model=bert)",
        keys,
        padding * passes_s / measured.whole_s,
    )


def _threads(measured: Measured) -> Finding | None:
    passes_s = measured.seconds.get("forward", 0.0) + measured.seconds.get("backward", 0.0)
    if measured.threads > measured.cores:
        says = f"{measured.threads} threads compute on {measured.cores:g} cores and wait for one another. Set "
        says += f"OMP_NUM_THREADS={max(1, int(measured.cores))}"
        return Finding("threads", says, ("OMP_NUM_THREADS",), passes_s / measured.whole_s)
    if measured.threads == 1 and measured.cores >= MANY_CORES and not measured.is_accelerator:
        says = f"one thread computes, and {measured.cores:g} cores may be used. Set "
        says += f"OMP_NUM_THREADS={int(measured.cores)}, or use the others for other runs"
        return Finding("threads", says, ("OMP_NUM_THREADS",), passes_s / measured.whole_s / 2)
    return None


def _memory(measured: Measured) -> Finding | None:
    if not measured.limit_mb or measured.peak_mb <= FULL * measured.limit_mb:
        return None
    used = f"{measured.peak_mb:,.0f} of {measured.limit_mb:,.0f} MB are in use"
    if measured.is_prediction:
        return Finding("memory", f"{used}. Lower batch_size", ("batch_size",), 1.0)
    return Finding(
        "memory",
        f"{used}. Halve trainer.batch_size and double trainer.accumulation, lower data.max_len, or set precision=bf16",
        ("trainer.batch_size", "trainer.accumulation", "data.max_len", "precision"),
        1.0,
    )
