"""A search of 1,000 trials over PAI-DLC's double, of whose answers 5 % fail: is a trial lost, or made twice?

    python tests/services/run.py --then python benchmarks/pai_search.py [--trials 1000] [--slots 16] [--faults 0.05]

The search is the real command with hydra/launcher=pai; the store is SeaweedFS, the study lies in PostgreSQL. A request
to the double may be answered by 429 or 500, be reset, be done without an answer, have half an answer, or be done a
second after the client gave up. Of the jobs 1 % die without a word, and 1 % are started again by the service. A job is
quick: it claims its submission and its trial, reports twice and leaves the outcome as its command does
(pai_launcher._claim, nlu.sweeps.channel), in a thread of the double instead of a process.
"""

import argparse
import collections
import functools
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import optuna
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/services"))
sys.path.append(str(Path(__file__).resolve().parents[1] / "launchers"))

from hydra_plugins.pai_launcher._claim import MODULE, holder_after
from pai_server import ID, SECRET, PaiServer, Started

from nlu.config.errors import UserError
from nlu.storage.objects import ObjectStore
from nlu.sweeps import channel
from nlu.sweeps.channel import CLAIM_VARIABLE, COMPLETE, PRUNED, TrialChannel
from nlu.sweeps.storage import open_storage

ROOT = Path(__file__).resolve().parents[1]
# One connection for all jobs, which are threads here.
channel.open_storage = functools.lru_cache(lambda url, **options: open_storage(url, **options))
KINDS = ("429", "500", "reset", "lost", "cut", "late")


class Jobs:
    """Does what a job's command says, quickly."""

    def __init__(self, dead: float, again: float):
        self.dead, self.again, self.random, self.lock = dead, again, random.Random(1), threading.Lock()
        self.did: collections.Counter[tuple[int, int]] = collections.Counter()
        """(trial, launch): how many jobs left an outcome"""
        self.began: collections.defaultdict[str, set[str]] = collections.defaultdict(set)
        """by token: the jobs that began to compute"""
        self.superseded = self.died = self.left = self.restarted = 0
        self.store = functools.lru_cache(lambda folder: ObjectStore(folder, "oss_folder"))
        # Fewer than the slots of the search, since all jobs share the processor of this machine.
        self.slots = threading.Semaphore(8)

    def start(self, started: Started) -> None:
        started.status = "Running"
        threading.Thread(target=self._run, args=(started,), daemon=True).start()

    def _run(self, started: Started) -> None:
        (text,) = re.findall(r"^exec (.*)$", started.request["UserCommand"], re.DOTALL | re.MULTILINE)
        (trial,) = [part.partition("=")[2] for part in shlex.split(text) if part.startswith("trial=")]
        mapping = yaml.safe_load(re.sub(r"([{,]\w+):", r"\1: ", trial))
        with self.lock:
            is_dead, is_restarted = self.random.random() < self.dead, self.random.random() < self.again
        if is_dead:
            self.died += 1
            started.status = "Failed"
            return
        with self.slots:
            for _ in range(1 + is_restarted):
                state = self._claimed(started) or self._train(mapping, started)
            self.restarted += is_restarted
        if started.status == "Running":
            started.status = state

    def _claimed(self, started: Started) -> str | None:
        """Claim the submission; returns how the job ends where another has it."""
        (line,) = re.findall(rf"-m {MODULE} (\S+) (\S+) (\S+) ", started.request["UserCommand"])
        folder, token, attempt = line
        if holder_after(self.store(folder), token, attempt) != attempt:
            self.left += 1
            return "Succeeded"
        with self.lock:
            self.began[token].add(started.id)
        return None

    def _train(self, mapping: dict, started: Started) -> str:
        with self.lock:
            # By it the processes of one job know each other; here all are threads of one.
            os.environ.pop(CLAIM_VARIABLE, None)
            own = TrialChannel(*(mapping[name] for name in ("storage", "study", "number", "attempt", "launch")))
        if own.is_over:
            return "Succeeded"
        try:
            own.claim()
            if own.is_over:
                return "Succeeded"
            pruned = False
            for step in (16, 48):
                if pruned := own.report(step, 1.0 / (1 + own.number) + step / 1000):
                    break
            if started.status == "Stopped":
                return "Stopped"
            own.finish(PRUNED if pruned else COMPLETE, started.folder, value=1.0, examples=step)
        except UserError:
            self.superseded += 1
            return "Failed"
        with self.lock:
            self.did[(own.number, own.launch)] += 1
        return "Succeeded"


def faulty(share: float):
    """Returns which request fails how, the same each time."""
    # Seeded, so that a search that failed can be repeated with the same faults.
    chance = random.Random(2)
    return lambda method, path: chance.choice(KINDS) if chance.random() < share else None


def make_project(top: Path) -> None:
    (top / "rows").mkdir(parents=True)
    rows = "".join(f"text {number % 7},{number % 2}\n" for number in range(64))
    for name in ("train", "dev"):
        (top / f"rows/{name}.csv").write_text(f"text,label\n{rows}")
    for command in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", "-C", str(top), *command], check=True)


def search(
    top: Path, server: PaiServer, mirror: str, storage: str, name: str, trials: int, slots: int
) -> tuple[int, str]:
    """Run the search; returns its status and what it said."""
    command = [
        sys.executable, "-m", "nlu.train", "--multirun", "hydra/sweeper=hyperband", "hydra/sweeper/sampler=random",
        "hydra/launcher=pai", f"hydra.launcher.endpoint=http://{server.host}", "hydra.launcher.workspace=1",
        "hydra.launcher.image=i", "hydra.launcher.resource_quota=q", f"hydra.launcher.oss_folder={mirror}-code",
        f"mirror={mirror}", f"hydra.sweeper.storage={storage}", f"hydra.sweeper.study_name={name}",
        f"hydra.sweeper.n_trials={trials}", f"hydra.sweeper.n_jobs={slots}",
        "hydra.sweep.dir=outputs/search", "optimizer.lr=tag(log,interval(1e-4,1e-2))", "data=files",
        "data.train=rows/train.csv", "data.dev=rows/dev.csv", "data.fields={text: text, label: label}",
        "model=bert_tiny", "model.hidden_size=8", "model.heads=2", "model.layers=1", "model.intermediate_size=16",
        "trainer.max_duration=6st", "trainer.batch_size=8", "trainer.eval_interval=2st", "trainer.device=cpu",
    ]  # fmt: skip
    environment = {
        **os.environ, "ALIBABA_CLOUD_ACCESS_KEY_ID": ID, "ALIBABA_CLOUD_ACCESS_KEY_SECRET": SECRET,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }  # fmt: skip
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run(command, cwd=top, env=environment, **streams)
    return done.returncode, done.stdout


def main() -> int:
    """Print what became of the trials; the status is 1 where one was lost or made twice."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--faults", type=float, default=0.05)
    parser.add_argument("--dead", type=float, default=0.01)
    parser.add_argument("--again", type=float, default=0.01)
    wanted = parser.parse_args()
    if not {"NLU_TEST_S3", "NLU_TEST_POSTGRESQL"} <= os.environ.keys():
        sys.exit("no servers; start this by python tests/services/run.py --then python benchmarks/pai_search.py")
    storage, study_name = os.environ["NLU_TEST_POSTGRESQL"], f"pai-{os.getpid()}"
    mirror = f"{os.environ['NLU_TEST_S3']}/{study_name}"
    jobs = Jobs(wanted.dead, wanted.again)
    with tempfile.TemporaryDirectory(prefix="pai-search-") as name:
        top = Path(name) / "project"
        make_project(top)
        (Path(name) / "pai").mkdir()
        with PaiServer(Path(name) / "pai", fault=faulty(wanted.faults), program=jobs.start) as server:
            began_s = time.monotonic()
            status, said = search(top, server, mirror, storage, study_name, wanted.trials, wanted.slots)
            took_s = time.monotonic() - began_s
            study = optuna.load_study(study_name=study_name, storage=open_storage(storage))
            states = collections.Counter(trial.state.name for trial in study.get_trials(deepcopy=False))
    if status:
        print(said[-3000:])
    # A trial may be started twice after a lost answer. It counts as made twice only if two jobs began to compute it, or
    # left an outcome for the same launch.
    made_twice = sum(count > 1 for count in jobs.did.values()) + sum(len(ids) > 1 for ids in jobs.began.values())
    tokens = collections.Counter(job.request["Settings"]["Tags"]["nlu-token"] for job in server.jobs.values())
    faults = sum(server.faults.values())
    told = ", ".join(f"{kind} {count}" for kind, count in sorted(server.faults.items()))
    print(f"{wanted.trials} trials in {took_s:.0f} s, {wanted.slots} at a time; exit status {status}")
    print(f"requests: {len(server.requests)}, of which {faults} failed ({faults / len(server.requests):.1%}): {told}")
    second, lost = sum(tokens.values()) - len(tokens), wanted.trials - states["COMPLETE"] - states["PRUNED"]
    print(
        f"jobs: {len(server.jobs)} made, {second} of them a second one of their submission, {jobs.left} left by claim"
    )
    print(f"jobs: {jobs.died} died without a word, {jobs.restarted} were started again by the service")
    print(f"trials: {dict(states)}; lost {lost}, computed twice {made_twice}; superseded {jobs.superseded}")
    is_good = not status and not made_twice and states["COMPLETE"] + states["PRUNED"] == wanted.trials
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
