"""What this machine can compile and compute."""

from functools import cache

from nlu.config.errors import UserError
from nlu.models.layers.compiled import training_kernels


@cache
def compiles_training() -> bool:
    """Return whether trainer.kernels=compiled works here."""
    try:
        training_kernels.require_kernels()
    except UserError:
        return False
    return True
