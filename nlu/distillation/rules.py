"""The rules of teachers, which validation calls with the whole configuration before anything heavy is imported."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from nlu.config.choices import choice_of
from nlu.config.errors import UserError
from nlu.config.keys import facts_of
from nlu.config.mixtures import is_mixture
from nlu.config.resolving import MISSING
from nlu.config.targets import TARGET

LEARNED = tuple(f"nlu.metrics.kinds.{name}" for name in ("ClassKind", "SpanKind", "LabelSetKind", "NumberKind"))
"""kinds of records of the tasks whose predictions can be learned"""


def teacher_problems(config: Mapping[str, Any], task: Mapping[str, Any]) -> Iterator[str]:
    """Yield each broken rule of `method.teacher` and `method.logits`, as key, value, rule and remedy."""
    method, kind = config["method"], task.get("kind")
    is_other = isinstance(kind, str) and kind.startswith("nlu.") and kind not in LEARNED
    if (is_other or _reads(config) != "logits") and method.get("prediction") != 0:
        name = choice_of("task", config["task"][TARGET])
        yield (
            f"task is {name}, but method={choice_of('method', method[TARGET])} learns predictions of classes, tags, "
            "label sets and numbers, which are logits; choose another task or loss, or set method=plain"
        )
    if is_mixture(config):
        yield (
            "data is mixture, but method.teacher teaches one task; distil each set in a separate run, or leave out "
            "method="
        )
    runs, files = _listed(method.get("teacher")), _listed(method.get("logits"))
    if not runs:
        yield "method.teacher is [], which names no run; name a trained run, or set method=plain"
    for run in runs:
        # The folder of RUN/best-2 does not exist: it is short for RUN/checkpoints/best-2.
        path = Path(with_head(run)[0]).expanduser()
        is_there = path.is_dir() or (path.name == "last" or path.name.startswith("best")) and path.parent.is_dir()
        if "://" not in run and run != MISSING and not is_there:
            yield f"method.teacher is {run!r}, which does not exist here; set it to the folder of a trained run"
    for file in files:
        if "://" not in file and not Path(file).expanduser().is_file():
            yield (
                f"method.logits is {file!r}, which does not exist; write it with python -m nlu.predict logits=true, "
                "or set method.logits=null"
            )


def with_head(reference: str) -> tuple[str, str | None]:
    """Split RUN#TASK, the head of a task of a run with several, into both; the second is None without a #."""
    run, mark, head = reference.rpartition("#")
    # A folder may have a # in its name.
    return (run, head) if mark and not Path(reference).expanduser().exists() else (reference, None)


def _reads(config: Mapping[str, Any]) -> str:
    """Return what the loss reads: logits, or cosines of texts."""
    # A loss that cannot be read is another problem, which is reported anyway.
    with suppress(UserError, KeyError, TypeError):
        return str(facts_of(config["loss"][TARGET]).get("reads", "logits"))
    return "logits"


def _listed(given: object) -> Sequence[str]:
    return [] if given is None else [given] if isinstance(given, str) else list(given)  # type: ignore[call-overload]
