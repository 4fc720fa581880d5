"""Any mistake in a search is one clear error before any trial: exit 2, no folder left behind."""

import subprocess

import pytest

from tests import warm
from tests.few import first
from tests.launchers.searches import REPOSITORY
from tests.training.runs import SAME_THREADS, TINY, files

LR = "optimizer.lr=tag(log,interval(1e-4,1e-1))"


def started(folder, *overrides: str) -> subprocess.CompletedProcess:
    command = [
        "-m", "nlu.train", "--multirun", "hydra/sweeper=hyperband", f"hydra.sweep.dir={folder}",
        *overrides,
    ]  # fmt: skip
    return warm.run(command, cwd=REPOSITORY, env=SAME_THREADS)


def refused(folder, *overrides: str) -> str:
    done = started(folder, *overrides)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr and "started" not in done.stderr
    assert not folder.exists()
    return done.stderr


def test_a_folder_below_a_file_is_refused_with_its_key(tmp_path):
    (tmp_path / "file").touch()
    assert "; choose another hydra.sweep.dir" in refused(tmp_path / "file" / "s", LR)


WRONG = [
    ([LR, "trainer.stop_after=1ep"], "trainer.stop_after is 1ep, but a trial that stops there has no result"),
    (["optimizer.lr=interval(0.2,0.1)"], "`low <= high` must hold, but got (low=0.2, high=0.1); write choice"),
    ([LR, "hydra.sweeper.n_trails=3"], "hydra/sweeper=hyperband has no such key; nearest: hydra.sweeper.n_trials"),
    ([LR, "hydra.sweeper.min_resource=3"], "write 3st (steps), 3ep (epochs) or 3ex (examples)"),
    (
        [LR, "hydra/launcher=local", "hydra.launcher.wait=false"],
        "a search draws its next trials from the results",
    ),
    ([LR, 'hydra.sweeper.storage="sqlite:///x.db"', "hydra.sweeper.n_jobs=2"], "sqlite locks up"),
    ([LR, 'hydra.sweeper.storage="postgresql://a:b@c/d"'], "PGPASSWORD"),
    ([LR, "hydra.sweeper.n_trials=0", "hydra.sweeper.on_failure=stopp", "optimizer.weight_decay=-1"], "3 problems"),
    ([LR, "hydra.run.dir=mine"], "a --multirun writes into hydra.sweep.dir; set hydra.sweep.dir=mine"),
    (["optimizer.lr=choice(0.1,-1)"], "optimizer.lr is -1 but must be a number > 0"),
    (
        [LR, "hydra/sweeper/sampler=cmaes"],
        "is cmaes, but a search has tpe, random, grid, gp; choose one of these",
    ),
    ([LR, "hydra.sweeper.enqueue=[{optimizer.lr:0.1}]"], "leave it out: the first trial has the values of prior="),
    ([LR, "hydra.sweeper.max_hours=8"], "has no such key; leave it out: timeout 8h python -m nlu.train"),
    ([LR, "hydra.sweeper.gpus_per_trial=2"], "has no such key; write trainer.devices=2"),
    (["optimizer.lr=tag(interval(0,1),prior=2)"], "its prior is 2, which is not in interval(0.0, 1.0)"),
    (
        [LR, "hydra.sweeper.objectives=[size_mb]", "hydra.sweeper.pruner=asha"],
        "continues the trials with the best value",
    ),
    (
        [LR, "hydra.sweeper.objectives=[latency]"],
        "which is neither measured nor a metric of the dev set that all trials",
    ),
    ([LR, "hydra/sweeper/sampler=grid"], "a grid needs a list of values"),
    ([LR, "hydra.sweeper.direction=[maximize]"], "must be a text or null; write hydra.sweeper.direction=maximize"),
    ([LR, "hydra.sweeper.n_trials=3,4"], "all jobs share the keys of Hydra; give hydra.sweeper.n_trials one value"),
    ([LR, "hydra.sweeper.pruner=[asha]"], "hydra.sweeper.pruner is ['asha'], which names no pruner; nearest: asha"),
    ([LR, "hydra.sweeper.direction=minimize"], "accuracy is better when it is higher"),
    (["optimizer.lrr=interval(0.1,0.2)"], "optimizer.lrr: unknown key; nearest: optimizer.lr"),
    ([LR, "hydra.sweeper.sampler=null"], "hydra.sweeper.sampler is null"),
    ([LR, "hydra.sweep.subdir=trial_${hydra:job.num}"], "but the folder of a trial is its number; leave it out"),
    (["seed=3"], "nothing is drawn"),
    (["seed=tag(choice(1,2),prior=1)", "hydra/sweeper/sampler=grid"], "seed has a prior, but a grid tries every"),
    (
        ["seed=choice(1,2)", "hydra/sweeper/sampler=grid", "hydra.sweeper.pruner=freeze_thaw"],
        "sampler is grid, but freeze_thaw draws the trials itself",
    ),
    (["model=choice(bert_tiny,bert_tniy)"], "model=bert_tniy: unknown choice; nearest: bert_tiny"),
]


@pytest.mark.parametrize(("overrides", "said"), first(8, WRONG))
def test_a_wrong_search_is_refused(tmp_path, overrides, said):
    is_chosen = any(override.startswith("model=") for override in overrides)
    told = refused(tmp_path / "s", *files(tmp_path), *([] if is_chosen else TINY[:1]), *overrides)
    assert told.startswith("nlu: error: ") and said in told


TOGETHER = [
    # Hydra refuses the first two; the sweeper would refuse the others after composing.
    (
        [LR, "trainer.batchsize=3", "hydra.sweeper.n_trials=abc", "optimizer.weight_decay=-1",
         "hydra.sweeper.n_jobs=0", "model.head_dropout=interval(0.3,0.1)", "optimizer.epsilon=interval(-1,1e-8)"],
        ["trainer.batchsize: unknown key", 'hydra.sweeper.n_trials is "abc", but value',
         "optimizer.weight_decay is -1 but must be a number >= 0", "hydra.sweeper.n_jobs is 0 but must be >= 1",
         "`low <= high` must hold, but got (low=0.3, high=0.1)", "optimizer.epsilon: unknown key"],
    ),
    (
        [LR, "hydra/sweeper/sampler=motpe", "hydra.sweeper.pruner=median", "optimizer.weight_decay=-1"],
        ["sampler is motpe, but", "pruner is median, which there is no more", "optimizer.weight_decay is -1"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("overrides", "said"), TOGETHER)
def test_all_mistakes_of_a_search_are_reported_together(tmp_path, overrides, said):
    told = refused(tmp_path / "s", *files(tmp_path), *TINY[:1], *overrides)
    assert told.startswith(f"nlu: error: {len(said)} problems\n") or told.count("\n") == len(said) == 1, told
    assert all(text in told for text in said), told


@pytest.mark.parametrize("place", ["", "1"])
def test_a_search_stays_out_of_a_folder_of_runs(tmp_path, place):
    folder = tmp_path / "s"
    (folder / place).mkdir(parents=True)
    (folder / place / "config.yaml").write_text("seed: 1\n")
    before = sorted(folder.rglob("*"))
    done = started(folder, *files(tmp_path), *TINY[:1], LR, "dry_run=true")
    assert done.returncode == 2 and f"hydra.sweep.dir is {folder}, which holds a run" in done.stderr
    assert sorted(folder.rglob("*")) == before


def test_a_dry_run_of_a_search_reads_nothing_and_says_what_is_worth_a_thought(tmp_path):
    drawn = ("trainer.batch_size=choice(8,32)", "dry_run=true", "hydra.sweeper.n_jobs=2")
    done = started(tmp_path / "s", *files(tmp_path), *TINY[:1], *drawn)
    assert done.returncode == 0 and not (tmp_path / "s").exists(), done.stderr
    assert "# Drawn for each trial: trainer.batch_size" in done.stdout and "Nothing was run" in done.stdout
    assert "# warning: hydra.sweeper.n_jobs is 2, but BasicLauncher runs jobs in this process" in done.stdout
    assert "data store" not in done.stderr
