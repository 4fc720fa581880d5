"""Look at, copy and remove files on this machine, s3:// and oss://; read http(s)://, hf:// and pypi:// too.

python -m nlu.io ls s3://bucket/runs
python -m nlu.io cp big.tsv s3://bucket/data/             the same command continues an interrupted copy
python -m nlu.io cp --recursive s3://bucket/runs/a outputs/a
python -m nlu.io sync --delete outputs oss://bucket/runs  --dry shows what would be done
python -m nlu.io exists s3://bucket/data/big.tsv && echo there
"""

import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

import nlu
from nlu.config.entry.command import Parser, run_command
from nlu.config.errors import UserError
from nlu.config.nearest import hint

if TYPE_CHECKING:
    from nlu.storage.backend import FileInfo
    from nlu.storage.places import Place
    from nlu.storage.transfer import TransferPlan

EXIT_NO = 1
Verb = Callable[[Sequence[str]], int]
TARGETS = (
    " TARGET is the new name of a file, unless it is an existing folder or ends with a slash: then the file keeps its "
    "name and is put there. The files of a folder are put into TARGET or, if that ends with a slash, into TARGET/NAME. "
    "A file appears as a whole or not at all; the same command continues an interrupted copy."
)
RECURSIVE = "include the content of folders"
UPLOADS = (
    "instead of files, remove the parts of large uploads to PATH, or below it, that were interrupted and have made no "
    "progress for 12 hours"
)
DRY = "show what would be done, and do nothing"
FORCE = "replace files at TARGET that have another content; without it they are refused, and nothing is written"


def main(arguments: Sequence[str]) -> int:
    """Run the sub-command that the first argument names; returns the exit status."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: python -m nlu.io COMMAND PATH ...; each command has its own --help")
        for name, verb in VERBS.items():
            print(f"  {name:<9}{(verb.__doc__ or '').partition('.')[0]}.")
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(f"nlu {nlu.__version__}")
        return 0
    if arguments[0] not in VERBS:
        meant = ELSEWHERE.get(arguments[0])
        remedy = hint(arguments[0], VERBS) if meant is None else f"write {meant}"
        raise UserError(f"unknown command {arguments[0]} of nlu.io; {remedy}")
    return VERBS[arguments[0]](arguments[1:])


def exists(arguments: Sequence[str]) -> int:
    """Print for each path whether it exists. Exit status 1: one does not."""
    return _print_answers(exists, arguments, lambda found: found is not None, ("exists", "does not exist"))


def isdir(arguments: Sequence[str]) -> int:
    """Print for each path whether it is a folder. Exit status 1: one is not, or does not exist."""
    answers = ("is a folder", "is not a folder")
    return _print_answers(isdir, arguments, lambda found: found is not None and found.is_folder, answers)


def isfile(arguments: Sequence[str]) -> int:
    """Print for each path whether it is a file. Exit status 1: one is not, or does not exist."""
    answers = ("is a file", "is not a file")
    return _print_answers(isfile, arguments, lambda found: found is not None and not found.is_folder, answers)


def ls(arguments: Sequence[str]) -> int:
    """List a folder, or a file by itself. Folders end with a slash."""
    parser = _parser("ls", ls)
    parser.add_argument("-l", "--long", action="store_true", help="size in bytes and time of change in front")
    parser.add_argument("-r", "--recursive", action="store_true", help="all files, with the folders below it")
    given = parser.parse(arguments)

    from nlu.storage.objects import backend_of
    from nlu.storage.resources import readable
    from nlu.storage.transfer import existing

    for path in given.paths:
        place = readable(path)
        found = existing(place)
        store = backend_of(place)
        # A file is listed by itself, as ls does.
        entries = {place.name: found}
        if found.is_folder:
            entries = store.files(place) if given.recursive else store.children(place)
        if len(given.paths) > 1:
            print(f"{place.shown}:")
        for name, entry in entries.items():
            front = f"{'' if entry.size is None else entry.size:>14}  {_time(entry.modified_s):20}  "
            print(f"{front if given.long else ''}{name}{'/' if entry.is_folder else ''}")
    return 0


def cat(arguments: Sequence[str]) -> int:
    """Write the content of files to standard output."""
    given = _parser("cat", cat).parse(arguments)

    from nlu.storage.resources import readable
    from nlu.storage.transfer import chunks_of

    for path in given.paths:
        for chunk in chunks_of(readable(path)):
            # Bytes, since a file need not be text.
            sys.stdout.buffer.write(chunk)
    return 0


def cp(arguments: Sequence[str]) -> int:
    """Copy a file, or what is in a folder. What lies at the target already is not copied again."""
    parser = _parser("cp", cp, "source", "target", more=TARGETS)
    _add_flags(parser)
    parser.add_argument("-f", "--force", action="store_true", help=FORCE)
    given = parser.parse(arguments)

    from nlu.storage.places import parse_place
    from nlu.storage.resources import readable
    from nlu.storage.transfer import plan_copy, run_copies

    target = parse_place(given.target, "TARGET", writes=True)
    plan = plan_copy(readable(given.source, "SOURCE"), target, recursive=given.recursive)
    return _carry_out(given, plan, "copy", "copied", lambda: run_copies(plan.copied, target.shown))


def mv(arguments: Sequence[str]) -> int:
    """Move a file, or what is in a folder; the source goes when all of it is there."""
    parser = _parser("mv", mv, "source", "target", more=TARGETS)
    _add_flags(parser)
    parser.add_argument("-f", "--force", action="store_true", help=FORCE)
    given = parser.parse(arguments)

    from nlu.storage.places import parse_place
    from nlu.storage.transfer import plan_move, run_move

    source = parse_place(given.source, "SOURCE")
    target = parse_place(given.target, "TARGET", writes=True)
    plan = plan_move(source, target, recursive=given.recursive)
    return _carry_out(given, plan, "move", "moved", lambda: run_move(source, plan, target.shown))


def sync(arguments: Sequence[str]) -> int:
    """Make a folder hold what another holds, and replace files that differ. With --delete nothing else."""
    parser = _parser("sync", sync, "source", "target")
    parser.add_argument("--delete", action="store_true", help="remove what TARGET has and SOURCE has not")
    parser.add_argument("--dry", action="store_true", help=DRY)
    given = parser.parse(arguments)

    from nlu.storage.places import parse_place, refuse_root
    from nlu.storage.resources import readable
    from nlu.storage.transfer import existing, plan_copy, remove_all, run_copies

    target = parse_place(given.target, "TARGET", writes=True)
    # With --delete, a mistyped target would remove everything in a bucket or on a disk.
    refuse_root(target, "synchronized onto")
    source = readable(given.source, "SOURCE")
    if not existing(source).is_folder:
        raise UserError(f"{source.shown} is a file, but sync takes folders; use cp")
    plan = plan_copy(source, target, recursive=True, extra=given.delete)
    for place in plan.extra:
        print(f"remove {place.shown}")

    def act() -> None:
        # Copied first: killed between the two, the target has too many files instead of too few.
        run_copies(plan.copied, target.shown)
        if plan.extra:
            remove_all(target, plan.extra)

    return _carry_out(given, plan, "copy", "copied", act)


def rm(arguments: Sequence[str]) -> int:
    """Remove files, or folders with all that is in them. Never a whole bucket or disk."""
    # argparse would take -rf for -r with an unknown flag and say nothing of the reason.
    if any(text.startswith("-") and not text.startswith("--") and "f" in text for text in arguments):
        raise UserError("rm has no -f, since it never asks before it removes; write -r for a folder")
    parser = _parser("rm", rm)
    _add_flags(parser)
    parser.add_argument("--uploads", action="store_true", help=UPLOADS)
    given = parser.parse(arguments)

    from nlu.storage.places import parse_place
    from nlu.storage.transfer import plan_remove, run_remove

    if given.uploads:
        return _rm_uploads(given)
    # All paths are checked before anything is removed, so one that is wrong removes nothing.
    plans: dict[Place, list[Place]] = {
        (place := parse_place(path, writes=True)): plan_remove(place, recursive=given.recursive) for path in given.paths
    }
    for place, files in plans.items():
        if given.dry:
            for file in files:
                print(f"remove {file.shown}")
        else:
            run_remove(place, files)
    count = sum(map(len, plans.values()))
    print(f"nlu: {'would remove' if given.dry else 'removed'} {_counted(count)}", file=sys.stderr)
    return 0


def _rm_uploads(given: Namespace) -> int:
    from nlu.storage.places import parse_place
    from nlu.storage.transfer import idle_uploads_of

    found = [idle_uploads_of(parse_place(path, writes=True)) for path in given.paths]
    for bucket, uploads in found:
        for upload in uploads:
            if given.dry:
                print(f"remove upload {upload.name} of {bucket.scheme}://{bucket.name}/{upload.key}")
            else:
                bucket.abort(upload)
    count = sum(len(uploads) for _, uploads in found)
    told = "upload" if count == 1 else "uploads"
    print(f"nlu: {'would remove' if given.dry else 'removed'} {count:,} unfinished {told}", file=sys.stderr)
    return 0


def mkdir(arguments: Sequence[str]) -> int:
    """Make folders, with those above them, or a bucket."""
    parser = _parser("mkdir", mkdir)
    parser.add_argument("--dry", action="store_true", help=DRY)
    given = parser.parse(arguments)

    from nlu.storage.objects import writable_backend_of
    from nlu.storage.places import parse_place
    from nlu.storage.transfer import disk_errors

    for path in given.paths:
        place = parse_place(path, writes=True)
        with disk_errors(place):
            if given.dry:
                print(f"make {place.shown}")
            elif not writable_backend_of(place).make_folder(place):
                print(f"nlu: {place.shown}: folders of an object store exist once they contain a file", file=sys.stderr)
    return 0


def size(arguments: Sequence[str]) -> int:
    """Print the size in bytes of files, or of the content of folders."""
    from nlu.storage.transfer import size_of

    return _print_each(size, arguments, lambda place: f"{size_of(place)}\t")


def md5(arguments: Sequence[str]) -> int:
    """Print the MD5 of files, read now, in the form of md5sum."""
    from nlu.storage.transfer import md5_of

    return _print_each(md5, arguments, lambda place: f"{md5_of(place)}  ")


def mtime(arguments: Sequence[str]) -> int:
    """Print when files were last changed, UTC."""
    from nlu.storage.transfer import existing

    return _print_each(mtime, arguments, lambda place: f"{_time(existing(place).modified_s) or 'unknown'}\t")


def writable(arguments: Sequence[str]) -> int:
    """Try to write in folders, and print for each whether it works. Exit status 1: in one it does not."""
    given = _parser("writable", writable).parse(arguments)

    from nlu.storage.objects import writable_backend_of
    from nlu.storage.places import parse_place

    status = 0
    for path in given.paths:
        place = parse_place(path, writes=True)
        try:
            writable_backend_of(place).try_writing(place)
        except UserError as error:
            print(f"{place.shown} is not writable: {error}")
            # A path that is not writable is an answer here, not an error: the others are still tried.
            status = EXIT_NO
        else:
            print(f"{place.shown} is writable")
    return status


VERBS: dict[str, Verb] = {
    verb.__name__: verb
    for verb in (exists, isdir, isfile, ls, cat, cp, mv, rm, sync, mkdir, size, md5, mtime, writable)
}
ELSEWHERE = {
    "open": "cat", "listdir": "ls", "list": "ls", "dir": "ls", "copy": "cp", "upload": "cp", "download": "cp",
    "copytree": "cp -r", "move": "mv", "rename": "mv", "remove": "rm, with -r for a folder", "unlink": "rm",
    "delete": "rm, with -r for a folder", "rmtree": "rm -r", "makedirs": "mkdir", "getsize": "size", "du": "size",
    "last_modified": "mtime", "getmtime": "mtime", "stat": "ls -l", "is_writable": "writable",
}  # fmt: skip
"""Functions of Python and commands of other programs, and what to write here."""


def _parser(name: str, verb: Verb, *paths: str, more: str = "") -> Parser:
    parser = Parser(prog=f"python -m nlu.io {name}", description=(verb.__doc__ or "") + more)
    for path in paths:
        parser.add_argument(path, metavar=path.upper())
    if not paths:
        parser.add_argument("paths", nargs="+", metavar="PATH")
    return parser


def _print_answers(
    verb: Verb, arguments: Sequence[str], test: Callable[["FileInfo | None"], bool], answers: tuple[str, str]
) -> int:
    """Print for each path which of two answers is true; returns 0 if it is the first one for all of them."""
    from nlu.storage.objects import backend_of
    from nlu.storage.resources import readable

    places = [readable(path) for path in _parser(verb.__name__, verb).parse(arguments).paths]
    found = [test(backend_of(place).stat(place)) for place in places]
    for place, is_true in zip(places, found, strict=True):
        print(f"{place.shown} {answers[0] if is_true else answers[1]}")
    return 0 if all(found) else EXIT_NO


def _print_each(verb: Verb, arguments: Sequence[str], front: Callable[["Place"], str]) -> int:
    """Print one line for each path, after a text in front."""
    paths = _parser(verb.__name__, verb).parse(arguments).paths

    from nlu.storage.resources import readable

    for place in map(readable, paths):
        print(f"{front(place)}{place.shown}")
    return 0


def _add_flags(parser: Parser) -> None:
    parser.add_argument("-r", "--recursive", action="store_true", help=RECURSIVE)
    parser.add_argument("--dry", action="store_true", help=DRY)


def _carry_out(given: Namespace, plan: "TransferPlan", verb: str, done: str, act: Callable[[], None]) -> int:
    replaced = [item.target.shown for item in plan.copied if item.there is not None]
    # sync replaces what differs.
    is_refused = bool(replaced) and not vars(given).get("force", True)
    if given.dry:
        for target in replaced:
            print(f"replace {target}")
        for item in plan.copied:
            print(f"{verb} {item.source.shown} {item.target.shown}")
    elif is_refused:
        many = f", as do {len(replaced) - 1:,} other files" if len(replaced) > 1 else ""
        raise UserError(
            f"{replaced[0]} exists with another content{many}; nothing was {done}; add --force to replace what --dry "
            "lists, or name another target"
        )
    else:
        act()
    told = f"would {verb}" if given.dry else done
    same = f"; {_counted(len(plan.same))} lay there already" if plan.same else ""
    amount = "" if plan.size is None else f", {plan.size / 1e6:,.1f} MB"
    # To standard error, so that the lines of --dry can be read by another program.
    over = f"; {len(replaced):,} of them replaced" if replaced and not given.dry else ""
    print(f"nlu: {told} {_counted(len(plan.copied))}{amount}{same}{over}", file=sys.stderr)
    if given.dry and is_refused:
        print(f"nlu: --force is needed to replace {_counted(len(replaced))}", file=sys.stderr)
    return 0


def _counted(count: int) -> str:
    return f"{count:,} file" if count == 1 else f"{count:,} files"


def _time(seconds: float | None) -> str:
    from datetime import UTC, datetime

    return "" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def command() -> NoReturn:
    """The program nlu-io."""
    run_command(main)


if __name__ == "__main__":
    command()
