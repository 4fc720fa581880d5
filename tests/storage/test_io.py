"""python -m nlu.io: what its commands print and do, and what they refuse before anything is changed."""

import os
from pathlib import Path

import pytest

from nlu.commands.io import VERBS, main
from nlu.config.errors import UserError
from tests.folders import contents, write

FILES = {"a.txt": b"a", "deep/b.bin": b"b" * 1000, "COMPLETE": b"yes"}


def test_a_folder_is_copied_listed_synchronized_and_removed(
    top: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here, there = write(tmp_path / "here", FILES), f"{top}/there"
    assert main(["cp", "-r", "--dry", str(here), there]) == 0 and "would copy 3 files" in capsys.readouterr().err
    for said in ("copied 3 files, 0.0 MB\n", "copied 0 files, 0.0 MB; 3 files lay there already\n"):
        assert main(["cp", "--recursive", str(here), there]) == 0 and said in capsys.readouterr().err
    assert main(["ls", there]) == 0 and capsys.readouterr().out == "COMPLETE\na.txt\ndeep/\n"
    assert main(["ls", "-l", "-r", there]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [(size, name) for size, _, name in lines] == [("3", "COMPLETE"), ("1", "a.txt"), ("1000", "deep/b.bin")]
    assert main(["ls", f"{there}/a.txt"]) == 0 and capsys.readouterr().out == "a.txt\n"
    assert main(["du", there, f"{there}/a.txt"]) == 0
    assert capsys.readouterr().out == f"1004\t{there}\n1\t{there}/a.txt\n"
    (here / "a.txt").write_bytes(b"c")
    (here / "COMPLETE").unlink()
    assert main(["sync", "--dry", "--delete", str(here), there]) == 0
    said = capsys.readouterr()
    lines_of_dry = [f"remove {there}/COMPLETE", f"replace {there}/a.txt", f"copy {here}/a.txt {there}/a.txt"]
    assert said.out.splitlines() == lines_of_dry and "would copy 1 file, 0.0 MB; 1 file lay there" in said.err
    assert main(["sync", "--delete", str(here), there]) == 0
    assert main(["cp", "-r", there, str(tmp_path / "back")]) == 0
    assert contents(tmp_path / "back") == contents(here) == {"a.txt": b"c", "deep/b.bin": b"b" * 1000}
    capsys.readouterr()
    assert main(["rm", "-r", "--dry", there]) == 0 and len(capsys.readouterr().out.splitlines()) == 2
    assert main(["rm", "-r", there]) == 0 and capsys.readouterr().err == "nlu: removed 2 files\n"
    with pytest.raises(UserError, match="does not exist"):
        main(["ls", there])


def test_a_file_is_written_to_standard_output(top: str, tmp_path: Path, capfdbinary: pytest.CaptureFixture) -> None:
    write(tmp_path, {"file": bytes(range(256))})
    assert main(["cp", f"{tmp_path}/file", f"{top}/"]) == 0 and main(["cat", f"{top}/file"]) == 0
    assert capfdbinary.readouterr().out == bytes(range(256))


@pytest.mark.parametrize("flags", [(), ("-r",)])
def test_a_file_with_another_content_is_replaced_only_by_force(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...]
) -> None:
    here, there = write(tmp_path / "here", FILES), write(tmp_path / "there", {"a.txt": b"mine", "own": b"o"})
    source, target = (str(here), str(there)) if flags else (f"{here}/a.txt", str(there))
    said = f"^{there}/a.txt exists with another content; nothing was copied; add --force to replace what --dry lists"
    with pytest.raises(UserError, match=said):
        main(["cp", *flags, source, target])
    assert contents(there) == {"a.txt": b"mine", "own": b"o"}
    assert main(["cp", *flags, "--dry", source, target]) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines()[0] == f"replace {there}/a.txt"
    assert "; --force is needed to replace\n" in shown.err and (there / "a.txt").read_bytes() == b"mine"
    assert main(["cp", *flags, "-f", source, target]) == 0
    assert "; 1 of them replaced\n" in capsys.readouterr().err
    assert contents(there) == {**(FILES if flags else {"a.txt": b"a"}), "own": b"o"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["rm", "-r", "s3://bucket"], "is a whole bucket, which is never removed"),
        (["rm", "-r", "/"], "is the whole disk, which is never removed"),
        (["sync", "x", "/"], "never synchronized onto"),
        (["rm", "s3:///b"], "does not name a bucket"),
        (["cp", "x", "https://host/x"], "is read-only"),
        (["rm", "hf://org/name"], "is read-only"),
        (["cp", "x", "gs://bucket/x"], "has an unknown scheme"),
        (["cp", "x", "s3://key:secret@bucket/x"], "a password or token before @"),
        (["cp", "x", f"s3://bucket/x#sha256={'0' * 64}"], "a pin is for reading"),
        (["cp", "nothing-here", "x"], "does not exist"),
        (["cp", ".", "x"], "is a folder; give --recursive"),
        (["rm", "-rf", "nlu"], "ignored explicit argument"),
        (["rm", "--uploads", "s3://b/x"], "rm has no --uploads; let the bucket's rule AbortIncompleteMultipartUpload"),
        (["cp", "-r", ".", "./x"], ", or in it"),
        (["cat", "."], "is a folder; name a file"),
        (["sync", "setup.cfg", "x"], "is a file, but sync takes folders"),
        (["cpy", "x", "y"], "unknown command cpy of nlu.io; nearest: cp"),
        (["mv", "x", "y"], "unknown command mv of nlu.io; write cp and then rm"),
        (["exists", "x"], "unknown command exists of nlu.io; write ls"),
        (["md5", "x"], "write cat PATH | md5sum"),
        (["cp", "x"], "TARGET"),
        (["cp", "x", "y", "--dri"], "unknown flag"),
        (["ls", ""], "is empty"),
    ],
)
def test_a_refusal_is_one_sentence(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"nlu/a": b"", "setup.cfg": b""})
    monkeypatch.chdir(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(UserError) as caught:
        main(arguments)
    assert says in str(caught.value) and len(caught.value.problems) == 1
    assert contents(tmp_path) == before


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0 and all(f"\n  {name} " in capsys.readouterr().out for name in list(VERBS)[:1])
    assert main([]) == 2


def test_local_files_of_one_size_and_time_are_compared_and_the_working_folder_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = write(tmp_path, {"one": b"AA", "other": b"BB"}) / "one", tmp_path / "other"
    for path in (one, other):
        os.utime(path, (1, 1))
    with pytest.raises(UserError, match="exists with another content"):
        main(["cp", str(one), str(other)])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="is the working folder or holds it"):
        main(["rm", "-r", "."])
    assert one.exists()
