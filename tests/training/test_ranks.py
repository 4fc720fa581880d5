"""How the processes of a run meet and leave, and the message on a node that does not see the run's folder."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed import DistError

from nlu.config.errors import UserError
from nlu.training import experiment, single
from nlu.training.ranks import Ranks

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("node", "nodes", "is_seen", "is_refused"),
    [(1, 2, False, True), (0, 2, False, False), (1, 2, True, False), (0, 1, False, False)],
)
def test_a_folder_that_another_node_does_not_see_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node: int, nodes: int, is_seen: bool, is_refused: bool
) -> None:
    monkeypatch.setattr(single, "is_seen", lambda run_dir: is_seen)
    ranks: Any = Ranks(node, 1, CPU, None, 0, node, nodes)
    if is_refused:
        with pytest.raises(UserError, match="is not the same on all of its 2 nodes; choose a hydra.run.dir"):
            single.require_shared(tmp_path, ranks)
    else:
        single.require_shared(tmp_path, ranks)


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
