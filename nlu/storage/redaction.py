"""What a secret looks like: in an address, on a command line, as the name of a file. One place decides for all.

References with credentials are refused when a configuration is checked, since configurations are written to run
folders, logs and studies; credentials come from the environment. What is shown goes through `hide` all the same.
(This file is not called after what it is about, or it would count as a file of secrets itself.)
"""

import fnmatch
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

HIDDEN = "***"
LAUNCHER = "hydra.launcher"
LAUNCHER_LINES = ("setup", "modules", "additional_parameters", "srun_args")
"""keys of a launcher that hold lines of a shell or options of a queue, and so may hold anything"""
FILE_NAMES = (
    ".env*", "*.env", "*secret*", "*credential*", "*password*", "*passwd*", "*api_key*", "*apikey*", "*.pem", "*.key",
    "*.p12", "*.pfx", "*.kdbx", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", ".netrc", "_netrc", ".pypirc",
    ".npmrc", ".pgpass", ".htpasswd", "token", "token.txt", "*_token.txt", "*_token.json",
)  # fmt: skip
NAME = re.compile(r"\w*(secret|password|passwd|api_?key|access_?key)\w*|((access|auth|hf)_)?token", re.IGNORECASE)
SETTING = re.compile(rf"(?P<key>^[+~-]*([\w./-]*[./-])?({NAME.pattern})=).+", re.IGNORECASE | re.DOTALL)
# Without a bound, looking for a scheme in a long word would take the square of its length.
ADDRESS = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]{0,31})://(?P<rest>[^\s'\"<>]*)")
QUERY_VALUE = re.compile(r"(?P<before>[?&;#](?P<key>[^=&;#?]+)=)(?P<value>[^&;#]+)")
QUERY_KEY = re.compile(
    r"\w*(secret|passw|token|signature|credential|api_?key|access_?key|private_?key|account_?key)\w*"
    r"|key|sig|pwd|pw|pass|auth|authorization|sas"
)
USER_ALONE_IS_SECRET = {"http", "https", "s3", "s3a", "oss", "gs", "gcs"}
"""Where nobody logs in by name: what stands before @ is a token or a key."""
WITHOUT_USER = {"hf", "pypi"}
"""What stands behind @ is a revision."""
PASSWORD_OF_ANY_CHARACTERS = re.compile(r"(?!\[)[^/@:?#]*:(?!\d*(?:[/?#]|$))[^@]*@")


def found_in(text: str) -> list[str]:
    """Name every secret of the addresses in a text: where it stands, never what it is."""
    found = []
    for address in ADDRESS.finditer(text):
        scheme, rest = address["scheme"].lower(), address["rest"]
        if _user_length(scheme, rest):
            found.append("a password or token before @")
        found += [f"a secret in its query ({pair['key']}=)" for pair in QUERY_VALUE.finditer(rest) if _is_secret(pair)]
    return found


def hide(text: str) -> str:
    """The text with *** for every secret of the addresses in it."""
    return ADDRESS.sub(_hidden_address, text)


def hide_setting(argument: str) -> str:
    """An argument of a command: `key=value` without the value where the key names a secret, or lines of a launcher that
    may hold anything; addresses as in `hide`."""
    key, equals, _ = argument.partition("=")
    name = key.lstrip("+~")
    if equals and (name == LAUNCHER or name.startswith(f"{LAUNCHER}.")):
        if name == LAUNCHER or not set(re.split(r"[.\[]", name)).isdisjoint(LAUNCHER_LINES):
            return f"{key}={HIDDEN}"
    return hide(SETTING.sub(rf"\g<key>{HIDDEN}", argument))


def command_text(arguments: Sequence[str]) -> str:
    """A command on one line, as a shell takes it, with its secrets hidden; what Python calls by the file of a module of
    ours is called as it was typed, python -m nlu.MODULE."""
    program, *rest = arguments
    return shlex.join([*_as_typed(program), *map(hide_setting, rest)])


def _as_typed(program: str) -> list[str]:
    package = Path(__file__).parents[1]
    try:
        module = Path(program).resolve().relative_to(package).with_suffix("")
    except ValueError:
        return [hide_setting(program)]
    parts = [package.name, *(part for part in module.parts if part != "__main__")]
    return ["python", "-m", ".".join(parts)]


def is_secret_file(name: str) -> bool:
    """Whether a file or folder of this name may hold a password, key or token."""
    return any(fnmatch.fnmatchcase(name.lower(), pattern) for pattern in FILE_NAMES)


def remedy(address: str) -> str:
    """What to do instead of writing a secret into an address."""
    if address.lower().startswith(("http://", "https://")):
        return "fetch the file by hand and give its path, or give an address that needs none"
    if address.lower().startswith(("postgresql", "mysql", "mariadb")):
        return "set it in the environment: PGPASSWORD, or a PGPASSFILE or PGSERVICEFILE"
    return "set it in the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, FSSPEC_...)"


def credential_problems(config: Any, key: str = "") -> Iterator[str]:
    """Every value anywhere in a configuration that is an address with a secret, or whose key says that it is one, by
    key, rule and remedy."""
    if isinstance(config, dict):
        for name, value in config.items():
            full_key = f"{key}.{name}" if key else str(name)
            if isinstance(value, str) and value and NAME.fullmatch(str(name)):
                yield (
                    f"{full_key} is called like a secret, which would end up in config.yaml and in studies; leave it "
                    "out, and have your code read it from the environment"
                )
            else:
                yield from credential_problems(value, full_key)
    elif isinstance(config, list | tuple):
        for number, value in enumerate(config):
            yield from credential_problems(value, f"{key}[{number}]")
    elif isinstance(config, str) and (found := found_in(config)):
        yield (
            f"{hide(key)} holds {found[0]}, which would end up in config.yaml, logs and process lists; leave it out, "
            f"and {remedy(config)}"
        )


def _hidden_address(address: re.Match[str]) -> str:
    scheme, rest = address["scheme"], address["rest"]
    if length := _user_length(scheme.lower(), rest):
        rest = f"{HIDDEN}@{rest[length:]}"
    return f"{scheme}://{QUERY_VALUE.sub(_hidden_value, rest)}"


def _hidden_value(pair: re.Match[str]) -> str:
    return pair["before"] + (HIDDEN if _is_secret(pair) else pair["value"])


def _user_length(scheme: str, rest: str) -> int:
    """The number of characters up to and with the @ behind a secret; 0 where there is none."""
    authority = re.split("[/?#]", rest)[0]
    user, at, _ = authority.rpartition("@")
    if at:
        is_secret = ":" in user or (scheme in USER_ALONE_IS_SECRET and user)
        return len(user) + 1 if is_secret and user != HIDDEN else 0
    if scheme in WITHOUT_USER:
        return 0
    # Written as it is, a password may hold what ends an authority.
    match = PASSWORD_OF_ANY_CHARACTERS.match(rest)
    return match.end() if match else 0


def _is_secret(pair: re.Match[str]) -> bool:
    key = pair["key"].lower().replace("-", "_").replace("%2d", "_")
    return pair["value"] != HIDDEN and QUERY_KEY.fullmatch(key) is not None
