"""Whether the remote addresses of a configuration exist and may be read, asked before jobs are submitted.

Each address is asked for once, several at a time and within a time limit, mostly by one HEAD request. Nothing is
written or fetched.
"""

import logging
import os
import re
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from glob import has_magic
from queue import Empty, SimpleQueue

from nlu.config.addresses import OBJECTS, parse_reference
from nlu.config.errors import DataError, UserError
from nlu.config.variables import ENDPOINT, name_of
from nlu.storage.access import files, stat
from nlu.storage.filesystems import filesystem_of
from nlu.storage.outputs import BEGUN
from nlu.storage.places import DATASETS, Place, parse_place
from nlu.storage.refusals import Unreachable
from nlu.storage.resources import HUB_TIMEOUT_S, MODEL, addresses_like, first_line, is_like, split_pattern

log = logging.getLogger(__name__)

LIMIT_S = 20.0
"""for all addresses together"""
SHOWN_AFTER_S = 3.0
"""after which a line says what is being waited for"""
AT_ONCE = 16
TIMEOUT_S = 10
NO_HEAD = {400, 403, 405, 501}
"""statuses of servers that may answer a GET, such as those of addresses that are signed for one"""
HUB = name_of("hugging face", ENDPOINT)
_CHECKPOINT = re.compile(r"best|last|best-\d+")


class State(StrEnum):
    """What is known of an address."""

    THERE = "there"
    ABSENT = "absent"
    """nothing exists there; of an address to write: not even its bucket"""
    FREE = "free"
    """of an address to write: the bucket exists, and nothing at this place"""
    DENIED = "denied"
    """it may exist, but this machine lacks permission, keys or a driver"""
    UNKNOWN = "unknown"
    """the service did not answer in time"""


Question = tuple[str, bool]
"""an address, and whether it is one to write"""


@dataclass(frozen=True)
class Answer:
    """What a service says of an address; `said` is its reason, with what the user can correct."""

    state: State
    said: str = ""


def ask(questions: Iterable[Question], limit_s: float | None = None) -> dict[Question, Answer]:
    """Return the answer to each question; those that have none after `limit_s`, by default LIMIT_S, are unknown.

    That a place can be written is not tried, since that needs a write.
    """
    asked = list(dict.fromkeys(questions))
    for scheme in sorted({address.partition("://")[0].lower() for address, _ in asked} & {*OBJECTS, "s3a"}):
        try:
            # Drivers are opened here: the first connection is made once, and not by several threads.
            filesystem_of(Place(scheme.removesuffix("a"), "any", ""))
        except UserError as error:
            log.debug("%s cannot be opened: %s", scheme, error)
    waiting: SimpleQueue[Question] = SimpleQueue()
    answered: SimpleQueue[tuple[Question, Answer]] = SimpleQueue()
    for each in asked:
        waiting.put(each)

    def work() -> None:
        while True:
            try:
                one = waiting.get_nowait()
            except Empty:
                return
            answered.put((one, _answered(one)))

    for _ in range(min(AT_ONCE, len(asked))):
        # A driver may wait for minutes, which must not delay the end of this process.
        threading.Thread(target=work, daemon=True).start()
    return dict(_collected(asked, answered, LIMIT_S if limit_s is None else limit_s))


def _collected(
    asked: list[Question], answered: "SimpleQueue[tuple[Question, Answer]]", limit_s: float
) -> Iterator[tuple[Question, Answer]]:
    left, began_s, is_shown = set(asked), time.monotonic(), False
    while left:
        passed_s = time.monotonic() - began_s
        if passed_s >= limit_s:
            break
        if passed_s >= SHOWN_AFTER_S and not is_shown:
            is_shown = True
            print(f"nlu: {len(asked) - len(left)} of {len(asked)} addresses have answered so far", file=sys.stderr)
        try:
            one, answer = answered.get(timeout=min(0.2, limit_s - passed_s))
        except Empty:
            continue
        left.discard(one)
        yield one, answer
    for one in left:
        yield one, Answer(State.UNKNOWN, f"no answer within {limit_s:g} s")


def _answered(one: Question) -> Answer:
    address, is_output = one
    try:
        place = parse_place(address, writes=is_output)
        if is_output:
            return _written(place)
        if place.scheme in OBJECTS:
            return _in_bucket(place)
        if place.scheme == "hf":
            return _on_hub(address)
        return Answer(State.ABSENT if stat(place, delays_s=()) is None else State.THERE)
    except Unreachable as error:
        return Answer(State.UNKNOWN, _reason(error))
    except UserError as error:
        return Answer(State.DENIED, _reason(error))
    except Exception as error:  # drivers raise their own exceptions; the job reports what they mean
        return Answer(State.UNKNOWN, first_line(error))


def _in_bucket(place: Place) -> Answer:
    """Ask for an object, else for objects below it, else for the run of which it names a checkpoint."""
    if stat(place, delays_s=()) is not None:
        return Answer(State.THERE)
    folder, _, name = place.path.rpartition("/")
    if has_magic(place.path):
        above, patterns = split_pattern(place.path)
        found = files(Place(place.scheme, place.bucket, above), delays_s=())
        is_there = any(is_like(name.split("/"), patterns) for name in found)
    else:
        run = Place(place.scheme, place.bucket, folder)
        is_there = bool(_CHECKPOINT.fullmatch(name)) and stat(run, delays_s=()) is not None
    return Answer(State.THERE if is_there else State.ABSENT)


def _written(place: Place) -> Answer:
    if stat(Place(place.scheme, place.bucket, "", names_folder=True), delays_s=()) is None:
        return Answer(State.ABSENT)
    info = stat(place, delays_s=())
    is_begun = info is not None and info.is_folder and stat(place.within(BEGUN), delays_s=()) is not None
    return Answer(State.FREE if info is None or is_begun else State.THERE)


def _reason(error: UserError) -> str:
    """Return what is behind "X cannot be read: " in an error."""
    return re.sub(r"^\S+ cannot be \w+: ", "", error.problems[0])


def _on_hub(address: str) -> Answer:
    """Ask the Hugging Face hub for a model, which is one request, or for files of a data set."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    is_model = not address.lower().startswith(DATASETS)
    match = MODEL.fullmatch(address)
    if is_model and match is None:
        return Answer(State.DENIED, "it must read hf://org/name or hf://org/name@revision; correct it")
    try:
        if match and is_model:
            HfApi(endpoint=os.environ.get(HUB)).model_info(match[1], revision=match[2], timeout=HUB_TIMEOUT_S)
        else:
            addresses_like(parse_reference(address, "file"))
    except Unreachable as error:
        return Answer(State.UNKNOWN, first_line(error))
    except DataError as error:
        return Answer(State.ABSENT, first_line(error))
    except GatedRepoError:
        return Answer(State.DENIED, "the hub gives this model only to accounts that it was granted to; set HF_TOKEN")
    except RepositoryNotFoundError:
        return Answer(State.ABSENT, "the hub shows no such model to this account; if it is private, set HF_TOKEN")
    except RevisionNotFoundError:
        return Answer(State.ABSENT, f"the model has no revision {match[2] if match else ''}")
    except Exception as error:  # the exceptions of the HTTP library, of which the hub's client has used several
        return Answer(State.UNKNOWN, first_line(error))
    return Answer(State.THERE)
