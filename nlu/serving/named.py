"""The names of the runs that a server serves. Imports nothing heavy, so that a missing run is reported at once."""

from nlu.config.command_keys import Serve
from nlu.config.errors import UserError
from nlu.config.sentences import counted
from nlu.inference.locate import locate


def named(config: Serve) -> dict[str, str]:
    """Return what names each run, by its name: that of its folder, unless the key says another one.

    Raises UserError for a run that does not exist, for two of one name, and for what is done by one run only.
    """
    given = config.run
    if isinstance(given, dict):
        runs = [(str(name), locate(one, config.checkpoint), one) for name, one in given.items()]
    else:
        each = [(locate(one, config.checkpoint), one) for one in ([given] if isinstance(given, str) else given)]
        runs = [(located.run_dir.resolve().name, located, one) for located, one in each]
    if not runs:
        raise UserError("run is empty, but must name at least one run; set run=outputs/mine")
    found: dict[str, str] = {}
    for name, located, one in runs:
        located.of_head(config.head_name)
        if name in found:
            raise UserError(
                f"run has two runs of the name {name}, {found[name]} and {one}; name them: run={{a: PATH, b: PATH}}"
            )
        found[name] = one
    for key in ("interactive", "compile"):
        if len(found) > 1 and getattr(config, key):
            raise UserError(f"{key} is true, but run has {counted(len(found), 'run')}; name one, or leave out {key}")
    return found
