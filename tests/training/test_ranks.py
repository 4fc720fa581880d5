"""How the processes of a run leave."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed import DistError

from nlu.training import experiment


@pytest.mark.parametrize(
    ("error", "was_asked", "status"),
    [
        (DistError("connection closed"), True, 75), (DistError("connection closed"), False, None),
        (RuntimeError("a matrix of another shape"), True, None),
        (RuntimeError("a matrix of another shape"), False, None),
    ],
)  # fmt: skip
def test_a_process_that_lost_another_while_both_were_stopping_has_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: RuntimeError, was_asked: bool, status: int | None
) -> None:
    def fail(*of: Any) -> int:
        raise error

    monkeypatch.setattr(experiment, "_run", fail)
    for name, answer in (("received", was_asked), ("exit_code", 75), ("sentence", "asked to stop")):
        monkeypatch.setattr(experiment.stopping, name, lambda *of, answer=answer: answer)
    config: Any = SimpleNamespace(is_standalone=True, trainer=SimpleNamespace(save=True))
    if status is None:
        with pytest.raises(RuntimeError, match=str(error)):
            experiment.run_experiment(config, tmp_path, [])
    else:
        assert experiment.run_experiment(config, tmp_path, []) == status
