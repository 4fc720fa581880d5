"""The remote addresses in configurations, asked for before jobs are submitted: s3://, oss://, hf:// and http(s)://.

Each is asked for once, several at a time and within a time limit. Nothing is written or fetched.
"""

import re
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from nlu.config.addresses import is_object, parse_reference
from nlu.config.checks.validate import SHORT_FORMS
from nlu.config.errors import UserError
from nlu.config.resolving import first_line
from nlu.storage.filesystems import filesystem_of
from nlu.storage.locations import BEGUN, parse_place
from nlu.storage.refusals import Unreachable
from nlu.storage.resources import addresses_like

LIMIT_S = 20.0
"""for all addresses together"""
AT_ONCE = 16
OUTPUTS = ("mirror", "stores", "out", "output")
"""keys with a place to write, whose bucket must exist"""
NEW_OUTPUTS = ("out", "output")
"""keys with a place where nothing may exist"""
NOT_READ = ("tracker", "trial", "choices", "trusted_packages", "note", "hydra")
"""groups and keys whose addresses are not those of files"""
ON_THE_WEB = ("data", "tokenizer", "model", "run", "checkpoint", "resume", "input")
"""groups and keys in which an http(s) address is that of a file; a key of a user's class may name a service"""
_REMOTE = re.compile(r"(s3a?|oss|hf|https?)://\S+", re.IGNORECASE)
_CHECKPOINT = re.compile(r"(.+)/(best|last|best-\d+)")

Answer = bool | Exception
"""whether something is at an address, or why that is unknown"""


def require_addresses(configs: Mapping[int, Mapping[str, Any]], *, are_elsewhere: bool = False) -> None:
    """Raise UserError with every address in the configurations of these jobs that does not exist or may not be read.

    A service that does not answer causes a warning. `are_elsewhere` says that the jobs have rights of their own: then a
    bucket that this machine may not read causes a warning too.
    """
    known = {number: list(addresses_of(config)) for number, config in configs.items()}
    answers = ask(asked for found in known.values() for key, address in found for asked in _questions(key, address))
    problems: dict[str, list[int]] = {}
    warnings: dict[str, None] = {}
    for number, found in known.items():
        for key, address in found:
            is_problem, text = _verdict(key, address, answers, are_elsewhere)
            if is_problem:
                problems.setdefault(text, []).append(number)
            elif text:
                warnings[text] = None
    for text in warnings:
        print(f"nlu: warning: {text}", file=sys.stderr)
    if problems:
        raise UserError(*(of_jobs(numbers, len(configs)) + text for text, numbers in problems.items()))


def of_jobs(numbers: Sequence[int], count: int) -> str:
    """Return the start of a message about some of `count` jobs, empty if it is about all of them."""
    if len(numbers) == count:
        return ""
    return f"job {numbers[0]}: " if len(numbers) == 1 else f"jobs {', '.join(map(str, numbers))}: "


def addresses_of(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the keys of a configuration that name remote addresses, with these; see `require_addresses`."""
    for key, text in texts_of(config):
        group = key.partition(".")[0]
        if group in NOT_READ or not _REMOTE.fullmatch(text):
            continue
        if is_object(text) if key in OUTPUTS else group in ON_THE_WEB or not text.lower().startswith("http"):
            yield key, text


def texts_of(node: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield every text in a configuration with its dotted key, without data.urls, whose use depends on other keys."""
    if isinstance(node, str):
        yield prefix, node
    elif isinstance(node, Mapping):
        for key, value in node.items():
            if not (key == "urls" and prefix.partition(".")[0] == "data"):
                yield from texts_of(value, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(node, list | tuple):
        for value in node:
            yield from texts_of(value, prefix)


def _questions(key: str, address: str) -> list[str]:
    """Return what to ask for: of an output its bucket, and whether it is there and complete if it must be new."""
    if key not in OUTPUTS:
        return [address]
    bucket = "/".join(address.split("/")[:3])
    return [bucket, address, f"{address.rstrip('/')}/{BEGUN}"] if key in NEW_OUTPUTS else [bucket]


def _verdict(key: str, address: str, answers: Mapping[str, Answer], are_elsewhere: bool) -> tuple[bool, str]:
    """Return whether the answers are a problem, and the message; no message if all is well."""
    answer, *others = [answers[one] for one in _questions(key, address)]
    shown_key = SHORT_FORMS.get(key, key)
    start = f"{shown_key} is {parse_reference(address, key).shown}"
    if isinstance(answer, UserError) and not isinstance(answer, Unreachable):
        # What is behind "X cannot be read: " in an error.
        reason = re.sub(r"^.*? cannot be \w+: ", "", answer.problems[0])
        if are_elsewhere and is_object(address):
            return False, f"{start}, which this machine may not read: {reason}; the role of the jobs must allow it"
        return True, f"{start}, which cannot be used: {reason}"
    if isinstance(answer, Exception):
        return False, f"{start}, which this machine cannot reach ({first_line(answer)}); jobs may reach it"
    if not answer and key in OUTPUTS:
        return True, f"{start}, but this bucket does not exist; create it, or correct {shown_key}"
    if not answer:
        token = ", or set HF_TOKEN" if address.lower().startswith("hf:") else ""
        return True, f"{start}, which does not exist; correct {shown_key}{token}"
    # An output that was interrupted is written again.
    is_taken = others == [True, False]
    return is_taken, f"{start}, which exists; choose another, or remove it" if is_taken else ""


def ask(addresses: Iterable[str]) -> dict[str, Answer]:
    """Return the answer for each address; after LIMIT_S it is a TimeoutError."""
    asked, slots = list(dict.fromkeys(addresses)), threading.BoundedSemaphore(AT_ONCE)
    answers: dict[str, Answer] = dict.fromkeys(asked, TimeoutError(f"no answer within {LIMIT_S:g} s"))

    def work(address: str) -> None:
        with slots:
            answers[address] = _answer(address)

    for address in asked:
        # The driver of a store is made here, once: threads would each look for credentials.
        if is_object(address):
            with suppress(UserError):
                filesystem_of(parse_place(address))
    until_s = time.monotonic() + LIMIT_S
    # A driver may wait for minutes, which must not delay the end of this process.
    threads = [threading.Thread(target=work, args=(address,), daemon=True) for address in asked]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until_s - time.monotonic()))
    return dict(answers)


def _answer(address: str) -> Answer:
    try:
        if addresses_like(parse_reference(address, "file"), delays_s=()):
            return True
        # A checkpoint has another name in the mirror of its run.
        run = _CHECKPOINT.fullmatch(address)
        return run is not None and bool(addresses_like(parse_reference(run[1], "file"), delays_s=()))
    except Exception as error:  # drivers raise their own exceptions; the job reports what they mean
        return error
