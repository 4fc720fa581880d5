"""The folder of a step whose loss or gradient was not finite, as `replay` names it. Nothing heavy is imported."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from nlu.config.errors import UserError
from nlu.runs.freeing import NONFINITE
from nlu.storage.files import read_json
from nlu.storage.settle import is_whole

REPORT, CONFIG = "report.json", "run.json"
"""in the folder: what is known of the step, and the configuration of its run"""
KEY = "replay"
ALLOWED = (KEY, "trainer.device", "precision", "method.teacher", "trusted_packages")
"""keys that may be set with `replay`, and those below them"""
METHOD = "method"
"""may be chosen as it was in the run, so that its teacher can be set"""


def failed_step_at(reference: str) -> tuple[Path, dict[str, Any]]:
    """Return the folder and its report. Raises UserError if it is not the folder of such a step."""
    if "://" in reference:
        raise UserError(f"{KEY} is {reference}, but must be a folder here; copy it with python -m nlu.io cp -r")
    folder = Path(reference).expanduser()
    if not folder.is_dir():
        raise UserError(f"{KEY} is {reference}, which is not a folder here; give RUN/{NONFINITE}STEP")
    if is_whole(folder) and (report := read_json(folder / REPORT)) is not None and (folder / CONFIG).is_file():
        return folder, report
    inside = sorted(str(path) for path in folder.glob(f"{NONFINITE}*") if is_whole(path))
    remedy = f"give {' or '.join(inside)}" if inside else f"give RUN/{NONFINITE}STEP, whole"
    raise UserError(f"{KEY} is {reference}, which holds no step whose loss or gradient was not finite; {remedy}")


def override_problems(overrides: Iterable[str]) -> Iterator[str]:
    """Yield a problem for each override that a replay would not follow."""
    for override in overrides:
        key = override.partition("=")[0].lstrip("+~").partition("@")[0]
        if key != METHOD and not any(key == allowed or key.startswith(f"{allowed}.") for allowed in ALLOWED):
            yield (
                f"{key} cannot be set with {KEY}, which runs a step of the run as it was; leave out {key}: only "
                "trainer.device, precision and method.teacher may differ"
            )
