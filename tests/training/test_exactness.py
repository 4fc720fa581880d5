"""What a run promises whatever happens to it: the same bytes, the same scores.

The kills themselves are `benchmarks/kill.py`, of which the suite runs a few; see there for many.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from nlu.runs.predictions import predictions_of
from tests.training.runs import QUICK, REPOSITORY, TINY, files, result, run, weights


def test_the_same_command_gives_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    data = files(tmp_path)
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        run(*TINY, *QUICK, *data, f"seed={seed}", f"hydra.run.dir={tmp_path}/{name}")
    assert weights(tmp_path / "a") == weights(tmp_path / "b")
    assert (tmp_path / "a" / "valid.tsv").read_bytes() == (tmp_path / "b" / "valid.tsv").read_bytes()
    assert weights(tmp_path / "a") != weights(tmp_path / "c")


@pytest.mark.parametrize(
    ("accumulation", "devices", "precision"), [(1, 1, "fp32"), (4, 1, "bf16"), (1, 2, "bf16"), (4, 2, "fp32")]
)
def test_a_killed_run_continues_to_the_same_bytes(accumulation: int, devices: int, precision: str) -> None:
    command = [
        sys.executable, "benchmarks/kill.py", "--kills", "2", "--accumulation", str(accumulation),
        "--devices", str(devices), "--precision", precision, "--seed", str(accumulation + devices),
    ]  # fmt: skip
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all bytes equal to the unbroken run" in done.stdout


def test_scores_are_the_same_for_every_batch_size_and_number_of_processes(tmp_path: Path) -> None:
    data = files(tmp_path, dev_rows=31)
    run(*TINY, *QUICK, *data, f"hydra.run.dir={tmp_path}/trained")
    scores = []
    for number, (size, devices) in enumerate([(1, 1), (7, 1), (64, 1), (7, 2)]):
        run_dir = tmp_path / str(number)
        # One step at a rate that changes no bit: the run only scores what the first one trained.
        run(
            *TINY, *data, f"model.pretrained={tmp_path}/trained/last", "trainer.max_duration=1st", "optimizer.lr=1e-30",
            "trainer.batch_size=2" if size > 1 else "trainer.batch_size=1", f"trainer.eval_batch_size={size}",
            f"trainer.devices={devices}", "optimizer.weight_decay=0", f"hydra.run.dir={run_dir}",
            "trainer.device=cpu",
        )  # fmt: skip
        scores.append((result(run_dir)["metrics"], predictions_of(run_dir, "dev").path.read_bytes()))
    assert all(score == scores[0] for score in scores[1:])


def test_torchrun_and_trainer_devices_give_the_same_bytes(tmp_path: Path) -> None:
    data = files(tmp_path)
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone")
    run(*TINY, *QUICK, *data, "trainer.devices=2", f"hydra.run.dir={tmp_path}/spawned")
    run(*TINY, *QUICK, *data, f"hydra.run.dir={tmp_path}/torchrun", prefix=torchrun)
    assert weights(tmp_path / "spawned") == weights(tmp_path / "torchrun")
    assert (tmp_path / "spawned" / "log.rank1.txt").is_file()
