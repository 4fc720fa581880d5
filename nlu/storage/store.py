"""What every store of places promises; which there are stands in `nlu.storage.stores`."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nlu.storage.places import Place

Advance = Callable[[int], None]
"""Is told how many bytes more are done."""


@dataclass(frozen=True)
class Found:
    """What lies at a place.

    `size` in bytes, None where ranges of it cannot be read. `etag`: what the store says of the content, in its
    own case. `modified_s`: seconds since 1970, UTC.
    """

    is_folder: bool
    size: int | None = None
    etag: str | None = None
    modified_s: float | None = None


class Store(ABC):
    """One disk, bucket or server, as it is read; places are all of it."""

    @abstractmethod
    def look(self, place: Place) -> Found | None:
        """What lies there; None where nothing does."""

    @abstractmethod
    def files(self, place: Place) -> dict[str, Found]:
        """All files below a folder, by the path relative to it, in order."""

    @abstractmethod
    def children(self, place: Place) -> dict[str, Found]:
        """What lies directly in a folder, by name."""

    @abstractmethod
    def read(self, place: Place, start: int, stop: int, found: Found) -> bytes:
        """A range of the file that was found."""

    @abstractmethod
    def read_whole(self, place: Place, path: Path) -> None:
        """Write a file, also one of which ranges cannot be read, to a local path."""


class WritableStore(Store):
    """One that is written to as well."""

    @abstractmethod
    def put(self, path: Path, place: Place, advance: Advance) -> None:
        """Write a local file there."""

    @abstractmethod
    def remove(self, place: Place) -> None:
        """Remove a file."""

    @abstractmethod
    def make_folder(self, place: Place) -> bool:
        """Make a folder; False where the store has none."""

    @abstractmethod
    def try_writing(self, place: Place) -> None:
        """Write a file in a folder and remove it; raises UserError where that cannot be done."""
