"""What to write for an unknown key: that of a name of another program, of another choice, or the nearest key."""

from collections.abc import Collection

from nlu.config.choices import RUN
from nlu.config.foreign import key_elsewhere, key_of_another_choice
from nlu.config.nearest import hint

LONGEST_HINT = 200
"""Characters of a hint; a longer one names too many keys to be read."""


def hint_of_key(key: str, valid: Collection[str], schema: str = RUN) -> str:
    """Return what to write for an unknown key, given the `valid` ones; `schema` names the command's top-level keys.

    If all keys of the group are too many to be read, the hint points to `--cfg job`.
    """
    # With its group, as in loss.threshold, a key of ours is meant, even if another program has the same name.
    if "." in key and (of_choice := key_of_another_choice(key, schema)) is not None:
        return of_choice
    name = key.rpartition(".")[2].lower()
    same = [each for each in valid if each.rpartition(".")[2].lower() == name]
    if same and len(text := hint(key, valid)) <= LONGEST_HINT:
        # Only its group is wrong.
        return text
    for answer in (key_elsewhere, key_of_another_choice):
        if (known := answer(key, schema)) is not None:
            return known
    group = key.rpartition(".")[0]
    siblings = [each for each in valid if group and each.rpartition(".")[0] == group]
    hints = (hint(key, names) for names in (valid, siblings) if names)
    few = (text for text in hints if len(text) <= LONGEST_HINT)
    return next(few, "see --cfg job for all keys")
