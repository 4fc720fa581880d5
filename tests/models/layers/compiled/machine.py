"""What this machine can compile and compute."""

from functools import cache

from nlu.config.errors import UserError
from nlu.models.layers.compiled import training_kernels
from nlu.models.layers.compiled.int8_layers import INSTRUCTIONS
from nlu.models.layers.compiled.library import has_instructions
from nlu.models.layers.torch_private import multiplies_integers


@cache
def compiles_int8() -> bool:
    """Return whether precision=int8_compiled works here."""
    try:
        return multiplies_integers() and all(map(has_instructions, INSTRUCTIONS))
    except UserError:
        return False


@cache
def compiles_training() -> bool:
    """Return whether trainer.kernels=compiled works here."""
    try:
        training_kernels.require_kernels()
    except UserError:
        return False
    return True
