"""odpscmd as far as its sources tell (aliyun/aliyun-odps-console), in the place of the Java program.

It takes the command apart as CommandSplitter and PAICommand do, submits it by PyODPS with the keys of its file, tells
the instance on stderr as PAICommand does, and follows it for a minute. What it was called with is kept beside it, in
`calls`; a file `mode` there says `silent`, where it says no number, or `broken`, where it breaks before it submits.
"""

import configparser
import json
import re
import stat
import sys
import time
from pathlib import Path
from typing import Any


def split(text: str) -> list[list[str]]:
    """Return the tokens of each command of a text: quoted ones with their quotes."""
    commands: list[list[str]] = [[]]
    token, quote, place = "", "", 0

    def flush() -> None:
        nonlocal token
        if token.strip():
            commands[-1].append(token.strip())
        token = ""

    while place < len(text):
        letter = text[place]
        if quote:
            token += letter
            if letter == "\\":
                place += 1
                token += text[place]
            elif letter == quote:
                quote = ""
                flush()
        elif letter in "\"'":
            flush()
            token = quote = letter
        elif letter == "-" and text[place : place + 2] == "--":
            flush()
            place = (text + "\n").index("\n", place) - 1
        elif letter == ";" or letter.isspace():
            flush()
            if letter == ";":
                commands.append([])
        else:
            token += letter
        place += 1
    assert not quote, "string not closed"
    flush()
    return [command for command in commands if command]


def unescaped(value: str) -> str:
    """Undo Java's escapes, behind the quotes around a value."""
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
        value = value[1:-1]
    plain = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
    found = re.sub(
        r"\\(?:u([0-9a-fA-F]{4})|(.))",
        lambda match: chr(int(match[1], 16)) if match[1] else plain.get(match[2], match[2]), value,
    )  # fmt: skip
    return found.encode("utf-16", "surrogatepass").decode("utf-16")


def pai(tokens: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the options and the properties of a PAI command."""
    words, options, properties = iter(tokens[1:]), {}, {}
    for word in words:
        name, equals, value = word.partition("=")
        if equals and not value:
            value = next(words)
        if name.startswith("-D"):
            # Of commons-cli 1.2, which drops a quote at the end.
            properties[name[2:]] = unescaped(value).removesuffix('"')
        else:
            options[name[1:]] = next(words)
    return options, properties


def main(arguments: list[str], folder: Path) -> None:
    """Do what `odpscmd --config=FILE -e COMMAND` does."""
    from odps import ODPS

    config, flag, text = arguments
    path = Path(config.removeprefix("--config="))
    read = configparser.ConfigParser(interpolation=None)
    read.read_string("[x]\n" + path.read_text())
    given: Any = read["x"]
    call = {"arguments": arguments, "mode": stat.S_IMODE(path.stat().st_mode), "config": str(path)}
    with open(folder / "calls", "a") as file:
        file.write(json.dumps(call) + "\n")
    mode = (folder / "mode").read_text() if (folder / "mode").exists() else ""
    if mode == "broken":
        sys.exit("FAILED: java.net.SocketException: Connection reset")
    assert flag == "-e"
    *before, command = split(text)
    settings = dict(one[1].split("=", 1) for one in before if one[0] == "set")
    priority = settings.pop("odps.instance.priority", None)
    options, properties = pai(command)
    odps = ODPS(given["access_id"], given["access_key"], given["project_name"], endpoint=given["end_point"])
    try:
        instance = odps.run_xflow(
            options["name"], options["project"], parameters=properties, hints=settings, priority=priority
        )
    except Exception as error:
        sys.exit(f"FAILED: {error}")
    if mode == "silent":
        sys.exit("FAILED: the terminal went away")
    print("ID =", instance.id, file=sys.stderr, flush=True)
    time.sleep(60)
