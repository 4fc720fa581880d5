"""What a secret looks like: in an address, on a command line, in a configuration, as the name of a file or variable.

This is the only file that decides it. A configuration with credentials is refused when it is checked, since it is
written to run folders, logs and studies; credentials come from the environment. Everything that is written or shown
still passes through `hide`, `hide_setting` or `without_secrets`, since a library may repeat what it was given.

The variables of the environment with endpoints and credentials are listed here too, for drivers and messages.
`_fetch.py` of the launcher for PAI cannot read this list, since it runs before nlu is installed.

(A file named after secrets would count as a file of secrets itself.)
"""

import fnmatch
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

KEY, SECRET, TOKEN, ENDPOINT, PLACE = "key", "secret", "token", "endpoint", "place"
"""the purpose of a variable; the first three are secrets, the others are addresses or names"""
_NAMES: Mapping[str, Mapping[str, str]] = {
    "s3": {
        KEY: "AWS_ACCESS_KEY_ID",
        SECRET: "AWS_SECRET_ACCESS_KEY",
        TOKEN: "AWS_SESSION_TOKEN",
        ENDPOINT: "AWS_ENDPOINT_URL",
    },
    "oss": {
        KEY: "FSSPEC_OSS_KEY",
        SECRET: "FSSPEC_OSS_SECRET",
        TOKEN: "FSSPEC_OSS_TOKEN",
        ENDPOINT: "OSS_ENDPOINT",
        PLACE: "OSS_ENDPOINTS",
    },
    "alibaba cloud": {
        KEY: "ALIBABA_CLOUD_ACCESS_KEY_ID",
        SECRET: "ALIBABA_CLOUD_ACCESS_KEY_SECRET",
        TOKEN: "ALIBABA_CLOUD_SECURITY_TOKEN",
        PLACE: "ALIBABA_CLOUD_CREDENTIALS_URI",
    },
    "maxcompute": {ENDPOINT: "ODPS_ENDPOINT", PLACE: "ODPS_TUNNEL_ENDPOINT"},
    "hugging face": {ENDPOINT: "HF_ENDPOINT"},
    "postgresql": {SECRET: "PGPASSWORD"},
    "nlu.serve": {TOKEN: "NLU_SERVE_TOKEN"},
}
PREFIXES = ("AWS_", "OSS_", "FSSPEC_", "ALIBABA_CLOUD_")
"""of all variables that the drivers of object stores read"""

HIDDEN = "***"
LAUNCHER = "hydra.launcher"
LAUNCHER_LINES = ("setup", "modules", "additional_parameters", "srun_args")
"""keys of a launcher that contain shell lines or options of a queue, and therefore possibly secrets"""
FILE_NAMES = (
    ".env*", "*.env", "*secret*", "*credential*", "*password*", "*passwd*", "*api_key*", "*apikey*", "*.pem", "*.key",
    "*.p12", "*.pfx", "*.kdbx", "*.keytab", "*.jks", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", ".netrc",
    "_netrc", ".pypirc", ".npmrc", ".pgpass", "token", "token.txt", "*_token", "*_token.txt", "*_token.json",
    "odps_config*.ini", "odps.conf", ".ossutilconfig*", ".aws", ".aliyun", ".alibabacloud", ".kaggle", "kaggle.json",
)  # fmt: skip
_SECRET_NAME = re.compile(
    r".*(secret|password|passwd|passphrase|bearer|connection_?string"
    r"|(api|access|private|account|signing|encryption|ssh|client|auth|app)_?key).*"
    r"|(.+_)?(token|jwt|pwd)|fsspec_.+_(key|pass)|pass|auth|authorization|cookie|credentials?"
)
_SPECIAL_TOKEN = re.compile(r"(.+_)?(pad|mask|unk|cls|sep|bos|eos|special|image|per|max|min|n|num)_token")
"""names of a tokenizer's special tokens, and of numbers of tokens"""
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
# Keys of these services have a form by which they are recognized in any text.
_FORM = re.compile(
    r"\b(hf_[A-Za-z0-9]{30,}|gh[pousr]_[A-Za-z0-9]{36,}|github_pat_\w{40,}|glpat-[\w-]{20,}|sk-[\w-]{32,}"
    r"|xox[abprs]-[\w-]{10,}|(AKIA|ASIA)[0-9A-Z]{16}|LTAI[0-9A-Za-z]{12,26})\b"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----(.*?-----END [A-Z ]*PRIVATE KEY-----|.*)",
    re.DOTALL,
)
_ASSIGNED = re.compile(
    r"(?<![\w.-])(?P<name>[A-Za-z_][\w.-]{0,127})=(?P<value>\"[^\"\n]*\"|'[^'\n]*'|[^\s'\",;&#)}\]]+)"
)
_KEY = re.compile(r"(?<![\w.-])([\w.-]+)['\"]?\s*:")
SHORTEST_VALUE = 8
"""Shorter values of variables may be ordinary words."""
_WORD = re.compile("[a-z]{1,15}")
"""These are ordinary words too, as in PGPASSWORD=postgres; they are hidden only after the name of a secret."""
_FROM_ELSEWHERE = re.compile(r"\$\{[\w.:]+(,\s*(null|''|\"\")?\s*)?\}")
"""an interpolation without a value, such as ${oc.env:HF_TOKEN}"""
# The bound keeps the search for a scheme in a long word from taking quadratic time.
ADDRESS = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]{0,31})://(?P<rest>[^\s'\"<>]*)")
QUERY_VALUE = re.compile(r"(?P<before>[?&;#](?P<key>[^=&;#?]+)=)(?P<value>[^&;#]+)")
QUERY_KEY = re.compile(r"\w*(passw|token|signature|credential)\w*|key|sig|pw|pwd|sas")
"""names of secrets in the query of an address, besides the usual ones"""
SECRET_USER_SCHEMES = {"http", "https", "s3", "s3a", "oss", "gs", "gcs"}
"""schemes without login names: the part before @ is a token or key"""
PASSWORD_OF_ANY_CHARACTERS = re.compile(r"(?!\[)[^/@:?#]*:(?!\d*(?:[/?#]|$))[^@]*@")


def name_of(service: str, role: str) -> str:
    """Return the variable that a service reads for this role."""
    return _NAMES[service][role]


def credentials_of(service: str) -> list[str]:
    """Return the variables with the credentials of a service; [] for an unknown one."""
    return [name for role, name in _NAMES.get(service, {}).items() if role in (KEY, SECRET)]


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Return whether a key or variable with this name is secret, in any notation: HF_TOKEN, hf-token, hub.hfToken."""
    last = name.rpartition(".")[2]
    if last == "PWD":
        # The working folder of a shell.
        return False
    plain = _HUMP.sub("_", last).lower().replace("-", "_")
    return _SECRET_NAME.fullmatch(plain) is not None and _SPECIAL_TOKEN.fullmatch(plain) is None


def environment_values() -> list[str]:
    """Return the values of environment variables that hold secrets, longest first, without ordinary words."""
    values = {value for name, value in os.environ.items() if is_secret_name(name)}
    found = (value for value in values if len(value) >= SHORTEST_VALUE and not _WORD.fullmatch(value))
    # The longest first: otherwise a value that is a part of another one would leave the rest of that visible.
    return sorted(found, key=len, reverse=True)


def found_in(text: str, *, is_line: bool = False) -> str:
    """Describe the first secret in a text by its kind and place, never by its value; empty if there is none.

    In a shell line or queue option, a value that is assigned to the name of a secret counts too.
    """
    for address in ADDRESS.finditer(text):
        if _user_length(address["scheme"].lower(), address["rest"]):
            return "a password or token before @"
        for pair in filter(_is_secret, QUERY_VALUE.finditer(address["rest"])):
            return f"a secret in its query ({pair['key']}=)"
    if is_line and (one := next(_assigned(text), None)) is not None:
        return f"a secret ({one['name']}=)"
    if _FORM.search(text):
        return "what looks like a key or token"
    is_known = any(value in text for value in environment_values())
    return "the value of a variable that holds a secret" if is_known else ""


def hide(text: str) -> str:
    """Return a text with *** for each secret, recognized by its address, its form, the name before it or its value."""
    # Addresses first: a password in one may contain the characters that end a value below.
    text = ADDRESS.sub(_hidden_address, text)
    for one in reversed(list(_assigned(text))):
        text = text[: one.start("value")] + HIDDEN + text[one.end() :]
    return hide_keys(text)


def hide_keys(text: str) -> str:
    """Return a text with *** for keys recognized by their form, and for values of variables that hold secrets.

    It is for source code, in which names of secrets precede ordinary expressions.
    """
    text = _FORM.sub(HIDDEN, text)
    for value in environment_values():
        text = text.replace(value, HIDDEN)
    return text


def hide_setting(argument: str) -> str:
    """Return an argument of a command with its secrets hidden.

    The whole value of `key=value` is hidden if the key names a secret, if the value is a mapping with such a key, or if
    it may contain shell lines of a launcher; else as in `hide`.
    """
    key, equals, value = argument.partition("=")
    # These are Hydra's prefixes of an override.
    name = key.lstrip("+~-")
    if not equals:
        return hide(argument)
    parts = re.split(r"[./\[\]@:]", name)
    is_line = name == LAUNCHER or name.startswith(f"{LAUNCHER}.") and not set(parts).isdisjoint(LAUNCHER_LINES)
    inner = _KEY.findall(value) if value.lstrip("'\"").startswith(("{", "[")) else []
    if is_line or any(map(is_secret_name, [*parts, *inner])):
        return f"{key}={HIDDEN}"
    return hide(argument)


def without_secrets(config: object, key: str = "") -> Any:
    """Return a configuration as plain containers with *** for each secret; overrides as in `hide_setting`.

    Outside Hydra's own keys, values that `credential_problems` accepts stay, since a run reads its config.yaml back.
    """
    if isinstance(config, Mapping):
        return {
            name: HIDDEN
            if (is_secret_name(str(name)) or key == LAUNCHER and name in LAUNCHER_LINES) and _holds_anything(value)
            else without_secrets(value, f"{key}.{name}" if key else str(name))
            for name, value in config.items()
        }
    if isinstance(config, list | tuple):
        return [without_secrets(value, f"{key}[{number}]") for number, value in enumerate(config)]
    if isinstance(config, str):
        if not key.startswith("hydra."):
            return hide_keys(ADDRESS.sub(_hidden_address, config))
        return hide_setting(config) if key.startswith("hydra.overrides.") else hide(config)
    return config


def command_text(arguments: Sequence[str]) -> str:
    """Return a command as one shell line with its secrets hidden; a file of nlu becomes `python -m nlu.MODULE`."""
    start, *rest = map(hide_setting, arguments)
    path, package = Path(arguments[0]).resolve(), Path(__file__).parents[1]
    if path.is_relative_to(package):
        module = ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__main__")
        return shlex.join(["python", "-m", module, *rest])
    return shlex.join([start, *rest])


def is_secret_file(name: str) -> bool:
    """Return whether a file or folder of this name may contain a password, key or token."""
    return any(fnmatch.fnmatchcase(name.lower(), pattern) for pattern in FILE_NAMES)


def remedy(address: str) -> str:
    """Return what to do instead of writing a secret into an address."""
    scheme = re.split("[+:]", address.lower().replace("s3a:", "s3:"))[0]
    if scheme in ("http", "https"):
        return "fetch the file by hand and give its path, or give an address that needs none"
    names = credentials_of(scheme)
    which = f" ({', '.join(names)})" if names else ""
    return f"set it in the environment of the command{which}, from where jobs and your code read it"


def credential_problems(config: object, key: str = "") -> Iterator[str]:
    """Yield a message, with key, rule and remedy, for each value that contains a secret or has the name of one.

    Values that an interpolation takes from elsewhere are not part of the configuration.
    """
    if isinstance(config, Mapping):
        for name, value in config.items():
            full_key = f"{key}.{name}" if key else str(name)
            if is_secret_name(str(name)) and _holds_anything(value):
                yield (
                    f"{full_key} is named like a secret, which would end up in config.yaml and in studies; leave it "
                    "out, and set it in the environment, from where your code reads it"
                )
            else:
                yield from credential_problems(value, full_key)
    elif isinstance(config, list | tuple):
        for number, value in enumerate(config):
            yield from credential_problems(value, f"{key}[{number}]")
    elif isinstance(config, str) and (found := found_in(config, is_line=key.startswith("hydra."))):
        yield (
            f"{hide(key)} holds {found}, which would end up in config.yaml, logs and process lists; leave it out, "
            f"and {remedy(config)}"
        )


def _holds_anything(value: object) -> bool:
    """Return whether a value under the name of a secret is one, and not empty or taken from elsewhere."""
    if isinstance(value, Mapping):
        return any(map(_holds_anything, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_holds_anything, value))
    is_elsewhere = isinstance(value, str) and _FROM_ELSEWHERE.fullmatch(value) is not None
    return not (is_elsewhere or isinstance(value, bool) or value in (None, "", HIDDEN))


def _assigned(text: str) -> Iterator[re.Match[str]]:
    """Yield each place where a text assigns a value to the name of a secret."""
    for one in _ASSIGNED.finditer(text):
        plain = one["value"].strip("'\"")
        is_value = plain not in ("", HIDDEN, "null", "None", "VALUE") and not plain.startswith("$")
        if is_value and is_secret_name(one["name"]):
            yield one


def _hidden_address(address: re.Match[str]) -> str:
    scheme, rest = address["scheme"], address["rest"]
    if length := _user_length(scheme.lower(), rest):
        rest = f"{HIDDEN}@{rest[length:]}"
    rest = QUERY_VALUE.sub(lambda pair: pair["before"] + HIDDEN if _is_secret(pair) else pair[0], rest)
    return f"{scheme}://{rest}"


def _user_length(scheme: str, rest: str) -> int:
    """Return the length of user, password and @ if they contain a secret, else 0."""
    authority = re.split("[/?#]", rest)[0]
    user, at, _ = authority.rpartition("@")
    if at:
        is_secret = ":" in user or (scheme in SECRET_USER_SCHEMES and user)
        return len(user) + 1 if is_secret and user != HIDDEN else 0
    # A revision follows their @.
    if scheme in ("hf", "pypi"):
        return 0
    # An unquoted password may contain characters that end the authority.
    match = PASSWORD_OF_ANY_CHARACTERS.match(rest)
    return match.end() if match else 0


def _is_secret(pair: re.Match[str]) -> bool:
    key = pair["key"].lower().replace("-", "_").replace("%2d", "_")
    return pair["value"] != HIDDEN and (QUERY_KEY.fullmatch(key) is not None or is_secret_name(pair["key"]))
