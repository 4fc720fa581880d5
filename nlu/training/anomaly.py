"""PyTorch's anomaly detection, as an error that names the operation whose gradient is NaN and the call that ran it."""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from nlu.config.errors import UserError

_NAN = re.compile(r"Function '(?P<function>\w+)' returned nan values in its (?P<output>\d+)th output")
_CALL = "Traceback of forward call that caused the error:\n"
_TRIGGERED = " (Triggered internally at"
"""begins what torch adds to a warning of its C++ code"""
_FRAME = re.compile(r"(?m)^(?=  File )")
_PASS = "/nlu/training/passes.py"
"""the file whose last frame begins the pass; frames up to it are those of the loop"""
_SHOWN: set[tuple[str, str, int]] = set()
"""the text and place of each warning that was shown"""


@contextmanager
def detecting(is_on: bool, number: int) -> Iterator[None]:
    """Stop the backward passes of step `number` in the block at the first operation that returns NaN, if `is_on`.

    Raises UserError with the name of the operation and the traceback of the call that ran it in the forward pass. Each
    operation keeps its traceback and is checked, so a step takes several times as long. Numbers do not change.
    """
    if not is_on:
        yield
        return
    found = None
    with warnings.catch_warnings(record=True) as said:
        # torch gives the traceback only as a warning.
        warnings.simplefilter("always")
        try:
            with torch.autograd.set_detect_anomaly(True, check_nan=True):
                yield
        except RuntimeError as error:
            if (found := _NAN.search(str(error))) is None:
                raise
    texts = [str(warning.message) for warning in said]
    for warning, text in zip(said, texts, strict=True):
        # Python would repeat a warning at each step, since it forgets what it has shown when filters change.
        if _CALL not in text and (place := (text, warning.filename, warning.lineno)) not in _SHOWN:
            _SHOWN.add(place)
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    if found is not None:
        call = next((text.partition(_CALL)[2] for text in texts if _CALL in text), "")
        of_call = f" It belongs to this call of the forward pass:\n{_of_pass(call)}" if call else ""
        raise UserError(
            f"the gradient becomes NaN in the backward pass of step {number}: {found['function']} returned NaN in "
            f"output {found['output']}, and nothing was updated.{of_call}"
        )


def _of_pass(traceback: str) -> str:
    """Return the frames of a traceback within the pass."""
    frames = _FRAME.split(traceback.partition(_TRIGGERED)[0])
    last = max((place for place, frame in enumerate(frames) if _PASS in frame), default=-1)
    return "".join(frames[last + 1 :]).rstrip()
