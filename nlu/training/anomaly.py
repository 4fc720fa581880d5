"""PyTorch's anomaly detection, as an error that names the operation whose gradient is NaN."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from nlu.config.errors import UserError


@contextmanager
def detecting(number: int) -> Iterator[None]:
    """Stop the backward passes of step `number` in the block at the first operation that returns NaN.

    Raises UserError with its name; torch warns with the traceback of the call that ran it. Numbers do not change.
    """
    try:
        with torch.autograd.set_detect_anomaly(True, check_nan=True):
            yield
    except RuntimeError as error:
        if "returned nan values" not in str(error):
            raise
        raise UserError(
            f"the gradient becomes NaN in the backward pass of step {number}, and nothing was updated: {error} The "
            "traceback above is that of the call in the forward pass"
        ) from error
