"""Where a search keeps its trials: opening it by its URL, and refusing what cannot work before a trial starts.

A path, or null for the sweep folder, is a journal file; `postgresql://` any database that SQLAlchemy knows; `s3://` and
`oss://` a journal of objects; `sqlite://` one process only.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nlu.config.errors import UserError
from nlu.storage.redaction import credential_problems

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

log = logging.getLogger(__name__)

KEY = "hydra.sweeper.storage"
JOURNAL = "journal.log"
JOURNAL_SCHEME = "journal"
OBJECT_SCHEMES = ("s3", "s3a", "oss")
ALTERNATIVES = (
    "a journal file (null or a path), postgresql://HOST/DATABASE, or a journal on s3://BUCKET/FOLDER or "
    "oss://BUCKET/FOLDER"
)
CONNECT_TIMEOUT_S = 10
OUTAGE_S = 300.0
"""How long a storage may be away before a job or a search gives up."""


def storage_url(written: str | None, sweep_dir: Path) -> str:
    """Return the URL that jobs anywhere are handed: of a path, and of null, the journal's absolute file."""
    if written is None:
        return f"{JOURNAL_SCHEME}://{(sweep_dir / JOURNAL).absolute()}"
    if "://" in written:
        return written
    return f"{JOURNAL_SCHEME}://{Path(written).expanduser().absolute()}"


def url_problems(url: str, n_jobs: int) -> list[str]:
    """Return what is wrong with a storage URL, without opening it: nothing is connected, no file stays behind."""
    scheme = url.partition("://")[0].partition("+")[0]
    if problems := list(credential_problems(url, KEY)):
        return problems
    if scheme == "sqlite" and n_jobs > 1:
        return [
            f"{KEY} is {url} and hydra.sweeper.n_jobs is {n_jobs}, but sqlite locks up under several writers; set "
            f"{KEY} to {ALTERNATIVES}, or hydra.sweeper.n_jobs=1"
        ]
    if scheme == JOURNAL_SCHEME:
        problem = _path_problem(Path(url.partition("://")[2]))
    else:
        problem = None if scheme in OBJECT_SCHEMES else _driver_problem(url)
    return [problem] if problem else []


def _path_problem(path: Path) -> str | None:
    """Return why a journal cannot be written; what is made to find out, since rights alone do not tell, is removed."""
    missing = [folder for folder in path.parents if not folder.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            path.open("ab").close()
        else:
            tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        return _unwritable(path, error)
    finally:
        for folder in missing:
            with contextlib.suppress(OSError):
                folder.rmdir()
    return None


def _unwritable(path: Path, error: OSError) -> str:
    return (
        f"{KEY} is {path}, which cannot be written: {error.strerror or error}; choose a file in a folder that you may "
        "write to, postgresql://HOST/DATABASE, s3://BUCKET/FOLDER or oss://BUCKET/FOLDER"
    )


def _driver_problem(url: str) -> str | None:
    """Return what is wrong with the URL of a database before anything is connected."""
    from sqlalchemy import create_engine
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError

    try:
        create_engine(_with_driver(url)).dispose()
    except (ArgumentError, NoSuchModuleError):
        return f"{KEY} is {url}, which is no storage that is known; set it to {ALTERNATIVES}"
    except ImportError as error:
        remedy = "pip install psycopg2-binary" if url.startswith("postgresql") else "install it"
        return f"{KEY} is {url}, whose driver is not installed ({error}); {remedy}, or set {KEY} to {ALTERNATIVES}"
    return None


def _with_driver(url: str) -> str:
    # Of the drivers of PostgreSQL this is the one that is looked for, whatever SQLAlchemy's default may be.
    return url.replace("postgresql://", "postgresql+psycopg2://", 1) if url.startswith("postgresql://") else url


def open_storage(url: str) -> BaseStorage:
    """Open the storage of a URL from `storage_url`, for the sweeper as for a job.

    Raises UserError where it cannot be reached, within `CONNECT_TIMEOUT_S` for a database.
    """
    scheme, _, rest = url.partition("://")
    if scheme == JOURNAL_SCHEME:
        return _journal_file(url, rest)
    if scheme in OBJECT_SCHEMES:
        return _journal_of_objects(url)
    return _database(url, scheme)


def patiently(call: Callable[[], Any], wait_s: float = OUTAGE_S) -> Any:
    """Return what `call` returns; while the storage does not answer, try again until `wait_s` have passed.

    For calls that may be repeated: a search of many hours should not end because a database was started anew.
    """
    from optuna.exceptions import StorageInternalError

    deadline_s, pause_s = time.monotonic() + wait_s, 1.0
    while True:
        try:
            return call()
        except (StorageInternalError, OSError) as error:
            if time.monotonic() + pause_s > deadline_s:
                raise
            log.warning("the storage does not answer, trying again: %s", str(error).splitlines()[0])
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 30.0)


def unreachable(url: str, error: Exception) -> UserError:
    """Return what to say when the storage does not answer."""
    reason = str(getattr(error, "orig", None) or error).strip() or type(error).__name__
    # The first line of a database's message is the reason, the rest is SQL and links.
    return UserError(
        f"{KEY} is {url}, which cannot be reached: {reason.splitlines()[0]}; start it, correct the URL, or choose "
        f"{ALTERNATIVES}"
    )


def _journal_file(url: str, path: str) -> BaseStorage:
    from optuna.storages import JournalStorage

    from nlu.sweeps.journal_file import journal_file

    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        return JournalStorage(journal_file(path))
    except OSError as error:
        raise UserError(_unwritable(Path(path), error)) from error


def _journal_of_objects(url: str) -> BaseStorage:
    from optuna.storages import JournalStorage

    from nlu.sweeps.object_journal import ObjectJournalBackend

    return JournalStorage(ObjectJournalBackend(url))


def _database(url: str, scheme: str) -> BaseStorage:
    from optuna.storages import RDBStorage
    from sqlalchemy.exc import DBAPIError

    if problem := _driver_problem(url):
        raise UserError(problem)
    arguments = {"connect_args": {"connect_timeout": CONNECT_TIMEOUT_S}} if scheme.startswith("postgresql") else {}
    try:
        return RDBStorage(_with_driver(url), engine_kwargs={"pool_pre_ping": True, **arguments})
    except DBAPIError as error:
        raise unreachable(url, error) from error
