"""Processes that the tests start, and may kill: `python writers.py URL NAME COUNT` appends to a journal.

After each entry whose append returned, its number is printed: what was printed must stay in the journal.
"""

import subprocess
import sys
from collections.abc import Mapping

from nlu.search.storage.journals import ObjectJournalBackend


def start_writer(url: str, name: str, count: int, environment: Mapping[str, str] | None = None) -> subprocess.Popen:
    """A process that appends entries {"writer": name, "number": 0, 1, ...}, one at a time."""
    command = [sys.executable, __file__, url, name, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def main(url: str, name: str, count: str) -> None:
    """Append the entries."""
    journal = ObjectJournalBackend(url)
    for number in range(int(count)):
        journal.append_logs([{"writer": name, "number": number}])
        print(number, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
