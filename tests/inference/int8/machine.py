"""What this machine can compile and compute."""

from nlu.config.errors import UserError
from nlu.inference.int8.layers import INSTRUCTIONS
from nlu.inference.int8.library import has_instructions
from nlu.inference.int8.linear import multiplies_integers


def compiles_int8() -> bool:
    """Return whether precision=int8_compiled works here."""
    try:
        return multiplies_integers() and all(map(has_instructions, INSTRUCTIONS))
    except UserError:
        return False
