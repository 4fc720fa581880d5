"""The storage of a search, opened by its URL, after checks that need no trial.

A path, or null for the sweep folder, is a journal file. `postgresql://` and other URLs of SQLAlchemy are databases,
`sqlite://` for one process only. `s3://` and `oss://` are journals of objects.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from nlu.config.errors import UserError
from nlu.config.redaction import credential_problems
from nlu.search import faults
from nlu.search.faults import KEY, StorageUnavailable, reason_of

if TYPE_CHECKING:
    from optuna import Study
    from optuna.storages import BaseStorage

    from nlu.search.storage.patience import PatientStorage

HELD = "search.json"
"""in the folder of a search: its study and storage, and the id that its study has as a user attribute"""
OVER = "over"
"""user attribute of a study: a user has ended the search for good"""
JOURNAL = "journal.log"
JOURNAL_FOLDER = "journal"
"""the journal in the mirror of a search"""
JOURNAL_SCHEME = "journal"
OBJECT_SCHEMES = ("s3", "s3a", "oss")
ALTERNATIVES = (
    "a journal file (null or a path), postgresql://HOST/DATABASE, or a journal on s3://BUCKET/FOLDER or "
    "oss://BUCKET/FOLDER"
)
CONNECT_TIMEOUT_S = 10


def storage_url(written: str | None, sweep_dir: Path) -> str:
    """Return the URL that jobs get; for a path or null it contains the absolute path of the journal."""
    if written is None:
        return f"{JOURNAL_SCHEME}://{(sweep_dir / JOURNAL).absolute()}"
    if "://" in written:
        return written
    return f"{JOURNAL_SCHEME}://{Path(written).expanduser().absolute()}"


def journal_of(mirror: str | None) -> str | None:
    """Return the URL of the journal in the mirror of a search, None without a mirror."""
    return None if mirror is None else f"{mirror.rstrip('/')}/{JOURNAL_FOLDER}"


def url_problems(url: str, n_jobs: int) -> list[str]:
    """Return what is wrong with a storage URL, without connecting to it."""
    scheme = url.partition("://")[0].partition("+")[0]
    if problems := list(credential_problems(url, KEY)):
        return problems
    if scheme == "sqlite" and n_jobs > 1:
        return [
            f"{KEY} is {url} and hydra.sweeper.n_jobs is {n_jobs}, but sqlite locks up under several writers; set "
            f"{KEY} to {ALTERNATIVES}, or hydra.sweeper.n_jobs=1"
        ]
    problem = None if scheme in (JOURNAL_SCHEME, *OBJECT_SCHEMES) else _driver_problem(url)
    return [problem] if problem else []


def _unwritable(path: Path, error: OSError) -> str:
    return (
        f"{KEY} is {path}, which cannot be written: {error.strerror or error}; choose a file in a folder that you may "
        "write to, postgresql://HOST/DATABASE, s3://BUCKET/FOLDER or oss://BUCKET/FOLDER"
    )


def _driver_problem(url: str) -> str | None:
    """Return what is wrong with the URL of a database, without connecting to it."""
    from sqlalchemy import create_engine
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError

    try:
        # Imports the driver, and connects only when it is used.
        create_engine(_with_driver(url)).dispose()
    except (ArgumentError, NoSuchModuleError):
        return f"{KEY} is {url}, which is not a known kind of storage; set it to {ALTERNATIVES}"
    except ImportError as error:
        remedy = "pip install 'nlu[postgresql]'" if url.startswith("postgresql") else "install it"
        return f"{KEY} is {url}, whose driver is not installed ({error}); {remedy}, or set {KEY} to {ALTERNATIVES}"
    return None


def _with_driver(url: str) -> str:
    # The extra `postgresql` installs this driver; SQLAlchemy's default may be another one.
    return url.replace("postgresql://", "postgresql+psycopg2://", 1) if url.startswith("postgresql://") else url


def open_storage(url: str, *, is_known: bool = False) -> PatientStorage:
    """Open the storage of a URL from `storage_url`.

    Later calls wait up to `OUTAGE_S` seconds while the storage does not answer. Raises UserError if it cannot be
    opened, StorageUnavailable if it does not answer. `is_known` is for jobs, whose storage must hold their study:
    opening it waits as long, nothing is created, and no connection to a database is kept between requests, since there
    may be hundreds of jobs that report rarely.
    """
    from nlu.search.storage.patience import PatientStorage, patiently

    wait_s = faults.OUTAGE_S
    first_wait_s = wait_s if is_known else 0.0
    # Within `patiently` only what shows an outage is repeated; a wrong URL fails at once.
    inner, errors = patiently(lambda: _opened(url, is_known), url, (StorageUnavailable,), first_wait_s)
    return PatientStorage(inner, url, errors, wait_s)


def held_search(folder: Path) -> dict[str, str] | None:
    """Return study, storage and id of the search in the folder; None before the first search."""
    path = folder / HELD
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def study_in(folder: Path) -> Study:
    """Return the study of the search in a folder. Raises UserError without one."""
    import optuna

    if (held := held_search(folder)) is None:
        raise UserError(f"{folder} holds no search; give the hydra.sweep.dir of one")
    # A journal inside the folder moves with it.
    url = storage_url(None, folder) if (folder / JOURNAL).is_file() else held["storage"]
    storage = open_storage(url, is_known=True)
    try:
        return optuna.load_study(study_name=held["study"], storage=storage)
    except KeyError:
        raise UserError(f"{folder} names the study {held['study']}, which its storage {url} lacks") from None


def _opened(url: str, is_known: bool) -> tuple[BaseStorage, tuple[type[Exception], ...]]:
    """Return a storage, and the exceptions that it raises if it does not answer."""
    scheme, _, rest = url.partition("://")
    if scheme == JOURNAL_SCHEME:
        return _journal_file(url, Path(rest), is_known), (OSError,)
    if scheme in OBJECT_SCHEMES:
        return _journal_of_objects(url), (StorageUnavailable, OSError)
    return _database(url, scheme, keeps_connection=not is_known)


def unreachable(url: str, error: Exception) -> StorageUnavailable:
    """Return the error for a storage that does not answer when it is opened."""
    return StorageUnavailable(
        f"{KEY} is {url}, which cannot be reached: {reason_of(error)}; the same command continues once it answers; "
        f"start it, correct the URL, or choose {ALTERNATIVES}"
    )


def _journal_file(url: str, path: Path, is_known: bool) -> BaseStorage:
    from optuna.storages import JournalStorage

    from nlu.search.storage.journals import JournalFile

    try:
        if is_known:
            # The journal of a job must exist: a new one would be empty, and its study unknown.
            path.stat()
        path.parent.mkdir(parents=True, exist_ok=True)
        return JournalStorage(JournalFile(str(path)))
    except OSError as error:
        raise (unreachable(url, error) if is_known else UserError(_unwritable(path, error))) from error


def _journal_of_objects(url: str) -> BaseStorage:
    from optuna.storages import JournalStorage

    from nlu.search.storage.journals import ObjectJournalBackend

    return JournalStorage(ObjectJournalBackend(url))


def _database(url: str, scheme: str, *, keeps_connection: bool) -> tuple[BaseStorage, tuple[type[Exception], ...]]:
    from optuna.exceptions import StorageInternalError
    from optuna.storages import RDBStorage
    from sqlalchemy.exc import DBAPIError
    from sqlalchemy.pool import NullPool

    from nlu.search.sampling import cached

    if problem := _driver_problem(url):
        raise UserError(problem)
    # A search is idle for long between its calls, and the server may have closed the connection meanwhile, so it is
    # tested before use.
    arguments: dict[str, object] = {"pool_pre_ping": True} if keeps_connection else {"poolclass": NullPool}
    if scheme.startswith("postgresql"):
        # Without it, an address that drops packets would block for minutes.
        arguments["connect_args"] = {"connect_timeout": CONNECT_TIMEOUT_S}
    try:
        opened = RDBStorage(_with_driver(url), engine_kwargs=arguments)
        return cached(opened), (StorageInternalError, DBAPIError)
    except DBAPIError as error:
        raise unreachable(url, error) from error
