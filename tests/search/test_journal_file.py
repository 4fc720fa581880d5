"""A journal file stays readable and unlocked after any writer is killed."""

import os
import pickle
import re
import signal
import subprocess
import sys
import time

import optuna
import pytest
from optuna.storages import JournalStorage

from nlu.config.errors import UserError
from nlu.search.storage.journals import JournalFile, remove_cut_line

WRITER = """
import sys, optuna
from optuna.storages import JournalStorage
from nlu.search.storage.journals import JournalFile
study = optuna.create_study(study_name="s", storage=JournalStorage(JournalFile(sys.argv[1])), load_if_exists=True)
for number in range(int(sys.argv[2])):
    trial = study.ask()
    trial.set_user_attr("writer", "x" * 200)
    if number == 0:
        print("begun", flush=True)
"""


def writer(path, count: int) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(count)], stdout=subprocess.PIPE, text=True)


def load(path) -> optuna.Study:
    return optuna.load_study(study_name="s", storage=JournalStorage(JournalFile(str(path))))


def test_the_next_writer_removes_a_cut_line(tmp_path):
    path = tmp_path / "journal.log"
    study = optuna.create_study(study_name="s", storage=JournalStorage(JournalFile(str(path))))
    study.ask()
    with open(path, "ab") as file:
        file.write(b'{"op_code": 4, "wor')
    study.ask()
    assert [trial.number for trial in load(path).trials] == [0, 1]


@pytest.mark.parametrize("damage", [b'{"op_code": 4, "wor\n', b"\x00\x00\x80\n", b"7\n", b"\n"])
def test_a_damaged_line_within_is_a_sentence_with_its_number_and_a_remedy(tmp_path, damage):
    path = tmp_path / "journal.log"
    study = optuna.create_study(study_name="s", storage=JournalStorage(JournalFile(str(path))))
    study.set_user_attr("lost", 1)
    study.set_user_attr("kept", 2)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], damage, *lines[2:]]))
    with pytest.raises(UserError, match="journal.log is damaged in line 2; restore") as raised:
        load(path)
    (command,) = re.findall(r"sed -i [^;]*", str(raised.value))
    subprocess.run(command, shell=True, check=True)
    assert load(path).user_attrs == {"kept": 2}


def test_only_the_part_after_the_last_line_break_is_cut(tmp_path):
    path = tmp_path / "f"
    for content, kept in [
        (b"", b""), (b"a\n", b"a\n"), (b"a\nb", b"a\n"), (b"b" * 9999, b""), (b"a\n" + b"b" * 9999, b"a\n"),
    ]:  # fmt: skip
        path.write_bytes(content)
        remove_cut_line(str(path))
        assert path.read_bytes() == kept


def test_a_killed_writer_leaves_no_lock_behind(tmp_path):
    path = tmp_path / "journal.log"
    for _ in range(3):
        process = writer(path, 10_000)
        process.stdout.readline()
        time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        before = len(load(path).trials)
        began_s = time.monotonic()
        load(path).ask()
        assert time.monotonic() - began_s < 20, "the stock lock would block for 30 s"
        assert len(load(path).trials) == before + 1


def test_several_writers_lose_nothing(tmp_path):
    path = tmp_path / "journal.log"
    processes = [writer(path, 20) for _ in range(3)]
    for process in processes:
        process.communicate()
        assert process.returncode == 0
    assert [trial.number for trial in load(path).trials] == list(range(60))


def test_a_journal_passes_to_another_process_also_while_its_lock_is_held(tmp_path):
    path = tmp_path / "journal.log"
    storage = JournalStorage(JournalFile(str(path)))
    optuna.create_study(study_name="s", storage=storage).ask()
    lock = storage._backend._lock
    lock.acquire()
    sent = pickle.dumps(storage)
    lock.release()
    optuna.load_study(study_name="s", storage=pickle.loads(sent)).ask()
    assert [trial.number for trial in load(path).trials] == [0, 1]
