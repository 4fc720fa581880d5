"""Look at, copy and remove files on this machine, s3:// and oss://; read http(s)://, hf:// and pypi:// too.

python -m nlu.io ls s3://bucket/runs
python -m nlu.io cp big.tsv s3://bucket/data/             the same command continues an interrupted copy
python -m nlu.io cp --recursive s3://bucket/runs/a outputs/a
python -m nlu.io sync --delete outputs oss://bucket/runs  --dry shows what would be done
"""

import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import nlu
from nlu.config.console import Parser, run_command
from nlu.config.errors import UserError
from nlu.config.nearest import hint

if TYPE_CHECKING:
    from nlu.storage.locations import Place
    from nlu.storage.transfer import TransferPlan

FLAGS = {
    "--long": "size in bytes and time of change in front",
    "--recursive": "include the content of folders",
    "--dry": "show what would be done, and do nothing",
    "--force": "replace files at TARGET that have another content; without it they are refused, and nothing is written",
    "--delete": "remove what TARGET has and SOURCE has not",
}
SHORT = ("--long", "--recursive", "--force")
"""flags that are written with one letter too"""
ELSEWHERE = {
    "mv": "cp and then rm", "mkdir": "cp, which makes the folders of its target", "exists": "ls", "isdir": "ls",
    "isfile": "ls", "mtime": "ls -l", "size": "du", "md5": "cat PATH | md5sum", "writable": "cp", "copytree": "cp -r",
    "listdir": "ls", "remove": "rm", "rmtree": "rm -r",
}  # fmt: skip
"""Former commands and functions of Python, and what to write here."""


def main(arguments: Sequence[str]) -> int:
    """Run the sub-command that the first argument names; returns the exit status."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: python -m nlu.io COMMAND PATH ...; each command has its own --help")
        for name, (verb, _, _) in VERBS.items():
            print(f"  {name:<9}{(verb.__doc__ or '').partition('.')[0]}.")
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(f"nlu {nlu.__version__}")
        return 0
    if arguments[0] not in VERBS:
        meant = ELSEWHERE.get(arguments[0])
        remedy = hint(arguments[0], VERBS) if meant is None else f"write {meant}"
        raise UserError(f"unknown command {arguments[0]} of nlu.io; {remedy}")
    verb, paths, flags = VERBS[arguments[0]]
    if "--uploads" in arguments:
        raise UserError("rm has no --uploads; let the bucket's rule AbortIncompleteMultipartUpload remove them")
    parser = Parser(prog=f"python -m nlu.io {arguments[0]}", description=verb.__doc__ or "")
    for path in paths:
        parser.add_argument(path, metavar=path.upper())
    if not paths:
        parser.add_argument("paths", nargs="+", metavar="PATH")
    for flag in flags:
        parser.add_argument(*([flag[1:3]] if flag in SHORT else []), flag, action="store_true", help=FLAGS[flag])
    verb(parser.parse(arguments[1:]))
    return 0


def ls(given: Namespace) -> None:
    """List a folder, or a file by itself. Folders end with a slash."""
    from nlu.storage.access import children, files
    from nlu.storage.resources import readable
    from nlu.storage.transfer import existing

    for path in given.paths:
        place = readable(path)
        found = existing(place)
        # A file is listed by itself, as ls does.
        entries = {place.name: found}
        if found.is_folder:
            entries = files(place) if given.recursive else children(place)
        if len(given.paths) > 1:
            print(f"{place.shown}:")
        for name, entry in entries.items():
            front = f"{'' if entry.size is None else entry.size:>14}  {_time(entry.modified_s):20}  "
            print(f"{front if given.long else ''}{name}{'/' if entry.is_folder else ''}")


def cat(given: Namespace) -> None:
    """Write the content of files to standard output."""
    from nlu.storage.resources import readable
    from nlu.storage.transfer import chunks_of

    for path in given.paths:
        for chunk in chunks_of(readable(path)):
            # Bytes, since a file need not be text.
            sys.stdout.buffer.write(chunk)


def du(given: Namespace) -> None:
    """Print the size in bytes of files, or of the content of folders."""
    from nlu.storage.access import files
    from nlu.storage.resources import readable
    from nlu.storage.transfer import existing

    for place in map(readable, given.paths):
        info = existing(place)
        sizes = [file.size for file in (files(place).values() if info.is_folder else [info])]
        print(f"{'unknown' if None in sizes else sum(size or 0 for size in sizes)}\t{place.shown}")


def cp(given: Namespace) -> None:
    """Copy a file, or what is in a folder. What lies at the target already is not copied again.

    TARGET is the new name of a file, unless it is an existing folder or ends with a slash: then the file keeps its name
    and is put there. The files of a folder are put into TARGET or, if that ends with a slash, into TARGET/NAME. A file
    appears as a whole or not at all; the same command continues an interrupted copy.
    """
    from nlu.storage.locations import parse_place
    from nlu.storage.resources import readable
    from nlu.storage.transfer import plan_copy

    target = parse_place(given.target, "TARGET", writes=True)
    plan = plan_copy(readable(given.source, "SOURCE"), target, recursive=given.recursive)
    _carry_out(plan, target, is_dry=given.dry, may_replace=given.force)


def sync(given: Namespace) -> None:
    """Make a folder hold what another holds, and replace files that differ. With --delete nothing else."""
    from nlu.storage.locations import parse_place, refuse_root
    from nlu.storage.resources import readable
    from nlu.storage.transfer import existing, plan_copy

    target = parse_place(given.target, "TARGET", writes=True)
    # With --delete, a mistyped target would remove everything in a bucket or on a disk.
    refuse_root(target, "synchronized onto")
    source = readable(given.source, "SOURCE")
    if not existing(source).is_folder:
        raise UserError(f"{source.shown} is a file, but sync takes folders; use cp")
    plan = plan_copy(source, target, recursive=True, extra=given.delete)
    _carry_out(plan, target, is_dry=given.dry, may_replace=True)


def rm(given: Namespace) -> None:
    """Remove files, or folders with all that is in them. Never a whole bucket or disk."""
    from nlu.storage.locations import parse_place
    from nlu.storage.transfer import plan_remove, run_remove

    # All paths are checked before anything is removed, so one that is wrong removes nothing.
    places = [parse_place(path, writes=True) for path in given.paths]
    plans = {place: plan_remove(place, recursive=given.recursive) for place in places}
    for place, gone in plans.items():
        if given.dry:
            print("".join(f"remove {file.shown}\n" for file in gone), end="")
        else:
            run_remove(place, gone)
    count = sum(map(len, plans.values()))
    print(f"nlu: {'would remove' if given.dry else 'removed'} {_counted(count)}", file=sys.stderr)


VERBS: dict[str, tuple[Callable[[Namespace], None], tuple[str, ...], tuple[str, ...]]] = {
    "ls": (ls, (), ("--long", "--recursive")),
    "cat": (cat, (), ()),
    "cp": (cp, ("source", "target"), ("--recursive", "--dry", "--force")),
    "rm": (rm, (), ("--recursive", "--dry")),
    "sync": (sync, ("source", "target"), ("--delete", "--dry")),
    "du": (du, (), ()),
}
"""each with its paths, if it does not take any number of them, and its flags"""


def _carry_out(plan: "TransferPlan", target: "Place", *, is_dry: bool, may_replace: bool) -> None:
    from nlu.storage.transfer import remove_all, run_copies

    replaced = [item.target.shown for item in plan.copied if item.there is not None]
    if replaced and not (may_replace or is_dry):
        many = f", as do {len(replaced) - 1:,} other files" if len(replaced) > 1 else ""
        raise UserError(
            f"{replaced[0]} exists with another content{many}; nothing was copied; add --force to replace what --dry "
            "lists, or name another target"
        )
    print("".join(f"remove {place.shown}\n" for place in plan.extra), end="")
    if is_dry:
        print("".join(f"replace {shown}\n" for shown in replaced), end="")
        print("".join(f"copy {item.source.shown} {item.target.shown}\n" for item in plan.copied), end="")
    else:
        # Copied first: killed between the two, the target has too many files instead of too few.
        run_copies(plan.copied, target.shown)
        if plan.extra:
            remove_all(target, plan.extra)
    same = f"; {_counted(len(plan.same))} lay there already" if plan.same else ""
    amount = "" if plan.size is None else f", {plan.size / 1e6:,.1f} MB"
    over = f"; {len(replaced):,} of them replaced" if replaced and not is_dry else ""
    needed = "; --force is needed to replace" if replaced and not may_replace else ""
    # To standard error, so that the lines of --dry can be read by another program.
    done = "would copy" if is_dry else "copied"
    print(f"nlu: {done} {_counted(len(plan.copied))}{amount}{same}{over}{needed}", file=sys.stderr)


def _counted(count: int) -> str:
    return f"{count:,} file" if count == 1 else f"{count:,} files"


def _time(seconds: float | None) -> str:
    return "" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


if __name__ == "__main__":
    run_command(main)
