"""The difference between a run and a configuration in a file, such as `python -m nlu.train ... --cfg job` prints."""

import json
from dataclasses import dataclass
from pathlib import Path

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nlu.config.choices import RUN, with_defaults
from nlu.config.errors import UserError
from nlu.config.resolving import resolve
from nlu.config.schema import flat
from nlu.config.words import path_text
from nlu.display.tables import print_table
from nlu.reports.compare import Values, differences, identity_of, one_row, print_values
from nlu.reports.runs import RUN_KEYS, saved_config
from nlu.storage.files import plain

SUFFIXES = (".yaml", ".yml")


@dataclass
class Planned:
    """The keys in which a run and a file differ."""

    folder: Path
    file: Path
    config: Values
    """the value of the run and of the file, by key"""


def is_config(path: str) -> bool:
    """Whether a path names a file of a configuration, not the folder of a run."""
    return path.endswith(SUFFIXES) and "://" not in path and not Path(path).is_dir()


def planned_difference(folder: Path, file: Path) -> Planned:
    """Compare a run, or the runs of one configuration, with a composed configuration in a file.

    Keys that either lacks have their defaults. The seed is compared only with a single run. Raises UserError if the
    file does not hold the configuration of a run.
    """
    row = one_row(folder)
    # Both sides get the defaults of this version, so a key that is new since the run does not count as a difference.
    own = flat(with_defaults(saved_config(row.runs[0].folder), RUN))
    known = [identity_of(side, is_single=len(row.runs) == 1) for side in (own, flat(_read(file)))]
    return Planned(row.folder, file, differences(known))


def _read(file: Path) -> dict[str, object]:
    try:
        config = OmegaConf.load(file)
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}; give a file of a configuration") from error
    except (yaml.YAMLError, UnicodeDecodeError, OmegaConfBaseException) as error:
        raise UserError(
            f"{file} is not YAML ({str(error).partition(chr(10))[0]}); give a file of a configuration"
        ) from error
    if not isinstance(config, DictConfig) or not RUN_KEYS <= config.keys():
        raise UserError(
            f"{file} is not the configuration of a run; python -m nlu.train KEY=VALUE ... --cfg job prints one"
        )
    found, problems = resolve(config)
    if problems:
        raise UserError(*(f"{file}: {problem}" for problem in problems))
    return with_defaults(found, RUN)


def print_planned(found: Planned) -> None:
    """Print a line for each key that differs."""
    print_table(f"A  {path_text(found.folder)}", f"B  {found.file}", "")
    print_values("config", found.config, "no key of the configuration differs")


def planned_as_json(found: Planned) -> str:
    """Return the keys that differ as JSON."""
    content = {"config": {key: {"a": first, "b": second} for key, (first, second) in found.config.items()}}
    return json.dumps(plain(content), indent=2, ensure_ascii=False)
