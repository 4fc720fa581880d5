"""What a run promises under every interruption: the same bytes, the same scores.

Kills are in test_kills.py.
"""

from pathlib import Path

from nlu.runs.predictions import predictions_of
from tests.training.in_process import train
from tests.training.runs import QUICK, TINY, files, result, run, weights


def test_the_same_command_gives_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    data = files(tmp_path)
    for command, name, seed in ((run, "a", 1), (run, "b", 1), (train, "c", 2)):
        command(*TINY, *QUICK, *data, f"seed={seed}", f"hydra.run.dir={tmp_path}/{name}")
    assert weights(tmp_path / "a") == weights(tmp_path / "b")
    assert (tmp_path / "a" / "valid.tsv").read_bytes() == (tmp_path / "b" / "valid.tsv").read_bytes()
    assert weights(tmp_path / "a") != weights(tmp_path / "c")


def test_scores_are_the_same_for_every_batch_size_and_number_of_processes(tmp_path: Path) -> None:
    data = files(tmp_path, dev_rows=31)
    train(*TINY, *QUICK, *data, f"hydra.run.dir={tmp_path}/trained")
    scores = []
    for number, (size, devices) in enumerate([(1, 1), (7, 1), (64, 1), (7, 2)]):
        run_dir = tmp_path / str(number)
        # One step at a rate that changes no bit: the run only scores what the first one trained.
        # Several processes take the command.
        (run if devices > 1 else train)(
            *TINY, *data, f"model.pretrained={tmp_path}/trained/last", "trainer.max_duration=1st", "optimizer.lr=1e-30",
            "trainer.batch_size=2" if size > 1 else "trainer.batch_size=1", f"trainer.eval_batch_size={size}",
            f"trainer.devices={devices}", "optimizer.weight_decay=0", f"hydra.run.dir={run_dir}",
            "trainer.device=cpu",
        )  # fmt: skip
        scores.append((result(run_dir)["metrics"], predictions_of(run_dir, "dev").path.read_bytes()))
    assert all(score == scores[0] for score in scores[1:])
