"""What this machine can compile and compute."""

import shutil

from nlu.inference.int8.compiled import COMPILERS, INSTRUCTIONS
from nlu.inference.int8.int8_linear import multiplies_integers
from nlu.training.precision import instruction_sets


def compiles_int8() -> bool:
    """Return whether precision=int8_compiled works here."""
    return multiplies_integers() and instruction_sets().issuperset(INSTRUCTIONS) and any(map(shutil.which, COMPILERS))
