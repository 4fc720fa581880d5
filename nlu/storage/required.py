"""The remote addresses in configurations, asked for before jobs are submitted: s3://, oss://, hf:// and http(s)://."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from glob import has_magic
from typing import TYPE_CHECKING, Any

from nlu.config.addresses import is_object, parse_reference
from nlu.config.checks.values import SHORT_FORMS
from nlu.config.errors import UserError
from nlu.storage.places import named_file

if TYPE_CHECKING:
    from nlu.storage.presence import Answer

OUTPUTS = ("mirror", "stores")
"""keys with a folder that may exist"""
NEW_OUTPUTS = ("out", "output")
"""keys with a place where nothing may exist"""
NOT_READ = ("tracker", "trial", "choices", "trusted_packages", "note", "hydra")
"""groups and keys whose addresses are not those of files"""
ON_THE_WEB = ("data", "tokenizer", "model", "run", "checkpoint", "resume", "input")
"""groups and keys in which an http(s) address is that of a file; a key of a user's class may name a service"""
_REMOTE = re.compile(r"(s3a?|oss|hf|https?)://\S+", re.IGNORECASE)
_SETS = ("train", "dev", "test")


def require_addresses(configs: Mapping[int, Mapping[str, Any]], *, are_elsewhere: bool = False) -> None:
    """Raise UserError with every address in the configurations of these jobs that does not exist or may not be read.

    Each address is asked for once; see `nlu.storage.presence.ask`. A service that does not answer causes a warning.
    `are_elsewhere` says that the jobs lack the files and the rights of this machine: then `data.urls` counts also
    for files that exist here, and a bucket that this machine may not read causes a warning.
    """
    known = {number: list(addresses_of(config, are_elsewhere)) for number, config in configs.items()}
    if not any(known.values()):
        return
    # It loads the drivers of stores.
    from nlu.storage.presence import ask

    answers = ask((address, is_output(key)) for found in known.values() for key, address in found)
    problems: dict[str, list[int]] = {}
    warnings: dict[str, None] = {}
    for number, found in known.items():
        for key, address in found:
            answer = answers[address, is_output(key)]
            is_problem, text = _verdict(SHORT_FORMS.get(key, key), address, answer, are_elsewhere)
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


def _verdict(key: str, address: str, answer: "Answer", are_elsewhere: bool) -> tuple[bool, str]:
    """Return whether an answer is a problem, and the message; no message if all is well."""
    start = f"{key} is {parse_reference(address, key).shown}"
    why = f" ({answer.said})" if answer.said else ""
    match answer.state:
        case "unknown":
            return False, f"{start}, which this machine cannot reach{why}; it was not checked, and jobs may reach it"
        case "denied" if are_elsewhere and is_object(address):
            rights = "jobs have the rights of their role, which must include this"
            return False, f"{start}, for which this machine has no permission: {answer.said}; {rights}"
        case "denied":
            return True, f"{start}, for which there is no permission: {answer.said}"
        case "absent" if is_output(key):
            return True, f"{start}, but this bucket does not exist; create it, or correct {key}"
        case "absent" if is_object(address) and has_magic(address):
            return True, f"{start}, which no object matches; correct {key}"
        case "absent":
            return True, f"{start}, which does not exist{why}; correct {key}"
        case "there" if key in NEW_OUTPUTS:
            return True, f"{start}, which exists; choose another, or remove it"
    return False, ""


def is_output(key: str) -> bool:
    """Return whether a key names a place to write."""
    return key in (*OUTPUTS, *NEW_OUTPUTS)


def addresses_of(config: Mapping[str, Any], are_elsewhere: bool = False) -> Iterator[tuple[str, str]]:
    """Yield the keys of a configuration that name remote addresses, with these; see `require_addresses`."""
    for key, text in texts_of(config):
        group = key.partition(".")[0]
        if group in NOT_READ or not _REMOTE.fullmatch(text):
            continue
        if is_object(text) if is_output(key) else group in ON_THE_WEB or not text.lower().startswith("http"):
            yield key, text
    data = config.get("data")
    if isinstance(data, Mapping):
        yield from _urls("data", data, are_elsewhere)
        sets = data.get("sets")
        for name, node in sets.items() if isinstance(sets, Mapping) else ():
            if isinstance(node, Mapping):
                yield from _urls(f"data.sets.{name}", node, are_elsewhere)


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


def _urls(prefix: str, data: Mapping[str, Any], are_elsewhere: bool) -> Iterator[tuple[str, str]]:
    """Yield the entries of data.urls that a job would fetch: those of the files that it reads and does not see."""
    urls = data.get("urls")
    named = {text for name in _SETS for _, text in texts_of(data.get(name), name)}
    for name, address in urls.items() if isinstance(urls, Mapping) else ():
        if name in named and _REMOTE.fullmatch(str(address)) and (are_elsewhere or named_file(str(name)) is None):
            yield f"{prefix}.urls.{name}", str(address)
