"""The tables of a run that goes on elsewhere, fetched from its mirror to be shown here; never its checkpoints."""

import logging
from pathlib import Path

from nlu.config.errors import UserError
from nlu.runs.mirrored import NOTE
from nlu.storage.files import write_bytes, write_json
from nlu.storage.ledger import Ledger
from nlu.storage.objects import ObjectStore

log = logging.getLogger(__name__)

PEEKED = ("train.tsv", "valid.tsv", "log.txt", "config.yaml")


def show_tables(mirror: ObjectStore, folder: Path) -> None:
    """Have the tables of a mirror in a folder, as far as they are there and the store answers."""
    try:
        newest = Ledger(mirror).newest()
        names = [name for name in PEEKED if newest is not None and name in newest.content.get("loose", {})]
        contents = {name: mirror.get(name) for name in names}
    except (OSError, UserError) as error:
        log.debug("the run in %s is not shown: %s", mirror.shown, error)
        return
    if not contents:
        return
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / NOTE).exists():
        write_json(folder / NOTE, {"mirror": mirror.shown, "saves": []})
    for name, content in contents.items():
        write_bytes(folder / name, content)
