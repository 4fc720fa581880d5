"""Jobs that are suspended and continue while others follow them."""

import time
from pathlib import Path

from nlu.launching.submitit_jobs import LastBeats
from tests.suspending import SILENCE_S, suspended


def test_a_suspended_job_falls_silent_and_is_heard_of_again_when_it_continues(tmp_path: Path) -> None:
    file, beats = tmp_path / "7_beat", LastBeats()
    with suspended("attended", file) as holder:
        while (last := beats.last(file)) is None or last[1] <= SILENCE_S:
            time.sleep(0.01)
        seen = file.read_text()
        assert holder.continued() == (0, "")
        assert file.read_text() != seen
        last = beats.last(file)
        assert last is not None and last[1] == 0
