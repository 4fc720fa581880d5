"""Where a search keeps its trials: opening it by its URL, and refusing what cannot work before a trial starts.

A path, or null for the sweep folder, is a journal file; `postgresql://` any database that SQLAlchemy knows; `s3://` and
`oss://` a journal of objects; `sqlite://` one process only.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from nlu.config.errors import UserError

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

KEY = "hydra.sweeper.storage"
JOURNAL = "journal.log"
JOURNAL_SCHEME = "journal"
OBJECT_SCHEMES = ("s3", "s3a", "oss")
ALTERNATIVES = (
    "a journal file (null or a path), postgresql://HOST/DATABASE, or a journal on s3://BUCKET/FOLDER or "
    "oss://BUCKET/FOLDER"
)
CONNECT_TIMEOUT_S = 10
_SECRET_KEYS = ("password", "passwd", "secret", "token")


def storage_url(written: str | None, sweep_dir: Path) -> str:
    """Return the URL that jobs anywhere are handed: of a path, and of null, the journal's absolute file."""
    if written is None:
        return f"{JOURNAL_SCHEME}://{(sweep_dir / JOURNAL).absolute()}"
    if "://" in written:
        return written
    return f"{JOURNAL_SCHEME}://{Path(written).expanduser().absolute()}"


def url_problems(url: str, n_jobs: int) -> list[str]:
    """Return what is wrong with a storage URL, without opening it."""
    scheme, netloc = url.partition("://")[0].partition("+")[0], urlsplit(url).netloc
    secrets = [name for name, _ in parse_qsl(urlsplit(url).query) if name.lower() in _SECRET_KEYS]
    if (":" in netloc.rpartition("@")[0] and "@" in netloc) or secrets:
        return [
            f"{KEY} holds a password, which would end up in logs and process lists; leave it out, and set it in the "
            "environment: PGPASSWORD or a PGPASSFILE for postgresql, the provider's own variables for s3 and oss"
        ]
    if scheme == "sqlite" and n_jobs > 1:
        return [
            f"{KEY} is {url} and hydra.sweeper.n_jobs is {n_jobs}, but sqlite locks up under several writers; set "
            f"{KEY} to {ALTERNATIVES}, or hydra.sweeper.n_jobs=1"
        ]
    return []


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
        raise unreachable(url, error) from error


def _journal_of_objects(url: str) -> BaseStorage:
    from optuna.storages import JournalStorage

    from nlu.sweeps.object_journal import ObjectJournalBackend

    return JournalStorage(ObjectJournalBackend(url))


def _database(url: str, scheme: str) -> BaseStorage:
    from optuna.storages import RDBStorage
    from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError

    # Of the drivers of PostgreSQL this is the one that is looked for, whatever SQLAlchemy's default may be.
    driven = url.replace("postgresql://", "postgresql+psycopg2://", 1) if scheme == "postgresql" else url
    arguments = {"connect_args": {"connect_timeout": CONNECT_TIMEOUT_S}} if scheme.startswith("postgresql") else {}
    try:
        return RDBStorage(driven, engine_kwargs={"pool_pre_ping": True, **arguments})
    except (ArgumentError, NoSuchModuleError) as error:
        raise UserError(f"{KEY} is {url}, which is no storage that is known; set it to {ALTERNATIVES}") from error
    except ImportError as error:
        raise UserError(
            f"{KEY} is {url}, whose driver is not installed ({error}); for postgresql: pip install psycopg2-binary"
        ) from error
    except DBAPIError as error:
        raise unreachable(url, error) from error
