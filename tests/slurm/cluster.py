"""A Slurm cluster for tests: two virtual nodes on loopback, with accounting by slurmdbd and MariaDB or without.

Every daemon runs in the foreground as our child, reads its configuration from a temporary folder (SLURM_CONF) and has
a separate munged, so that nothing of a cluster that this machine may belong to is read or changed. Nodes are named
as Slurm's virtual nodes are, without a line in /etc/hosts: programs get their addresses from Slurm.
"""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "services"))
from server import POLL_S, READY_TIMEOUT_S, Server, free_ports, install

PACKAGES = ["slurm-wlm", "slurmdbd", "munge", "mariadb-server"]
PROGRAMS = ["slurmctld", "slurmd", "slurmdbd", "sacctmgr", "munged", "mariadbd", "mariadb-install-db"]
NODES = ("n1", "n2")
CPUS_OF_A_NODE, GPUS_OF_A_NODE, MEMORY_OF_A_NODE_MB = 8, 2, 8000
SHARDS_OF_A_NODE = 4
"""a GPU takes two jobs with --gres=shard:1 each"""
KILL_WAIT_S = 10
"""how long a job that is asked to go may still run"""
WITH_JOBS_OR_WITHOUT = ("idle", "mixed", "allocated", "completing")
"""the states of a node that answers"""
LOST_NODE_S = 10
"""after so long without an answer a node counts as down"""

CONF = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/%n.pid
SlurmdLogFile={folder}/%n.log
SlurmdSpoolDir={folder}/%n
StateSaveLocation={folder}/state
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={socket},cred_expire=5
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0
KillWait={kill_wait_s}
SlurmdTimeout={lost_node_s}
MinJobAge=600
ReturnToService=2
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu,shard
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
{accounting}
"""
DBD_CONF = """\
AuthType=auth/munge
AuthInfo=socket={socket}
DbdHost=localhost
DbdPort={port}
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database_port}
StorageUser=slurm
StoragePass={password}
StorageLoc=slurm
LogFile={folder}/slurmdbd.log
PidFile={folder}/slurmdbd.pid
"""


class Daemon(Server):
    """A program that stays in the foreground, and what it answers when it is ready."""

    stop_signal = signal.SIGTERM

    def __init__(self, folder: Path, name: str, command: list[str], ask: list[str], says: str = "", **options: object):
        super().__init__(folder)
        self.name, self._command, self._ask, self._says, self._options = name, command, ask, says, options

    def start(self) -> None:
        self.launch(self._command, **self._options)

    def is_ready(self) -> bool:
        try:
            asked = subprocess.run(self._ask, capture_output=True, text=True, timeout=READY_TIMEOUT_S)
        except FileNotFoundError:
            return False
        return asked.returncode == 0 and self._says in asked.stdout


class Cluster:
    """As a context: a running cluster, whose commands find it by the variables of `environment`.

    `accounting=False` leaves out slurmdbd: sacct then knows nothing, as on many small clusters.
    """

    def __init__(self, folder: Path, accounting: bool = True):
        self.folder, self.accounting = folder, accounting
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        self._running = ExitStack()

    def __enter__(self) -> Self:
        install_slurm()
        for name in ("state", *NODES):
            (self.folder / name).mkdir(parents=True)
        began_s = time.monotonic()
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        with_or_without = "with" if self.accounting else "without"
        print(f"Slurm {with_or_without} accounting ready after {time.monotonic() - began_s:.1f} s", flush=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End what runs on the nodes, then every daemon."""
        for name in NODES:
            lose_node(name, self.folder)
        self._running.close()

    def _start(self) -> None:
        os.environ.update(self.environment)
        munge = self._munge()
        ports = free_ports(3 + len(NODES))
        nodes = "\n".join(
            f"NodeName={name} NodeHostname={socket.gethostname().partition('.')[0]} NodeAddr=127.0.0.1 Port={port} "
            f"CPUs={CPUS_OF_A_NODE} RealMemory={MEMORY_OF_A_NODE_MB} Gres=gpu:{GPUS_OF_A_NODE},shard:{SHARDS_OF_A_NODE}"
            for name, port in zip(NODES, ports[3:], strict=True)
        )
        for number in range(GPUS_OF_A_NODE):
            (self.folder / f"gpu{number}").touch()
        (self.folder / "gres.conf").write_text(
            f"NodeName={','.join(NODES)} Name=gpu File={self.folder}/gpu[0-{GPUS_OF_A_NODE - 1}]\n"
            f"NodeName={','.join(NODES)} Name=shard Count={SHARDS_OF_A_NODE}\n"
        )
        accounting = "AccountingStorageType=accounting_storage/none"
        if self.accounting:
            accounting = (
                "AccountingStorageType=accounting_storage/slurmdbd\n"
                f"AccountingStorageHost=127.0.0.1\nAccountingStoragePort={ports[1]}\n"
                f"AccountingStoragePass={munge}\n"
                "AccountingStorageEnforce=limits,qos"
            )
        (self.folder / "slurm.conf").write_text(CONF.format(
            host=socket.gethostname().partition(".")[0], folder=self.folder, controller_port=ports[0], socket=munge,
            kill_wait_s=KILL_WAIT_S, lost_node_s=LOST_NODE_S, nodes=nodes, accounting=accounting,
        ))  # fmt: skip
        if self.accounting:
            self._account(munge, port=ports[1], database_port=ports[2])
        self._begin("slurmctld", ["slurmctld", "-D"], ["scontrol", "ping"], "UP")
        for name in NODES:
            begin_node(name)
        if self.accounting:
            # It lists nothing in its first seconds.
            subprocess.run(["srun", "--quiet", "true"], check=True, timeout=READY_TIMEOUT_S)
            _wait_for(["sacct", "--noheader", "--allocations", "--format=State"], "COMPLETED")

    def _begin(self, name: str, command: list[str], ask: list[str], says: str = "", **options: object) -> Daemon:
        return self._running.enter_context(Daemon(self.folder / f"{name}-daemon", name, command, ask, says, **options))

    def _munge(self) -> Path:
        folder = self.folder / "munge"
        folder.mkdir()
        # What others may enter or change munged does not trust.
        self.folder.chmod(0o755)
        key = folder / "key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(128))
        path = folder / "socket"
        self._begin(
            "munged",
            ["munged", "--foreground", "--force", f"--socket={path}", f"--key-file={key}", "--num-threads=2",
             f"--pid-file={folder}/pid", f"--log-file={folder}/log", f"--seed-file={folder}/seed"],
            ["munge", "--no-input", f"--socket={path}"],
        )  # fmt: skip
        return path

    def _account(self, munge: Path, port: int, database_port: int) -> None:
        data, address = self.folder / "database", self.folder / "database-socket"
        address.mkdir()
        # A separate user owns its tables: MariaDB does not run as root.
        shutil.chown(address, "mysql")
        subprocess.run(
            ["mariadb-install-db", "--no-defaults", "--user=mysql", f"--datadir={data}", "--skip-test-db",
             "--auth-root-authentication-method=socket"],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        path = f"--socket={address}/socket"
        self._begin(
            "MariaDB",
            ["mariadbd", "--no-defaults", "--user=mysql", f"--datadir={data}", path, "--bind-address=127.0.0.1",
             f"--port={database_port}", f"--pid-file={address}/pid", "--innodb-buffer-pool-size=64M",
             "--innodb-lock-wait-timeout=900", "--innodb-flush-log-at-trx-commit=0"],
            ["mariadb-admin", "--no-defaults", path, "ping"],
        )  # fmt: skip
        password = secrets.token_hex(16)
        statements = "CREATE DATABASE slurm;" + "".join(
            f"CREATE USER slurm@'{host}' IDENTIFIED BY '{password}'; GRANT ALL ON slurm.* TO slurm@'{host}';"
            for host in ("127.0.0.1", "localhost")
        )
        subprocess.run(["mariadb", "--no-defaults", path], input=statements, text=True, check=True)
        conf = self.folder / "slurmdbd.conf"
        conf.touch(0o600)
        conf.write_text(DBD_CONF.format(
            socket=munge, port=port, database_port=database_port, password=password, folder=self.folder
        ))  # fmt: skip
        self._begin("slurmdbd", ["slurmdbd", "-D"], ["sacctmgr", "--noheader", "list", "cluster"])
        subprocess.run(["sacctmgr", "--immediate", "add", "cluster", "tests"], check=True, stdout=subprocess.DEVNULL)


def begin_node(name: str) -> None:
    """Start the daemon of a node, also again after `lose_node`, and wait until jobs can go there.

    Like `lose_node` it is for the tests, which run in another process than the cluster.
    """
    conf = Path(os.environ["SLURM_CONF"])
    with open(conf.with_name(f"{name}-daemon.log"), "ab") as log:
        command = ["slurmd", "-D", "-N", name]
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    # A job that waits for it is there before anybody has seen it idle.
    _wait_for(["sinfo", "--noheader", "--nodes", name, "--partition=main", "--format=%T"], *WITH_JOBS_OR_WITHOUT)


def lose_node(name: str, folder: Path | None = None) -> None:
    """Let a node vanish with all that runs on it, as by a power cut; Slurm finds out in a while."""
    conf = Path(os.environ["SLURM_CONF"]) if folder is None else folder / "slurm.conf"
    pid_file = conf.with_name(f"{name}.pid")
    _kill([int(pid_file.read_text())] if pid_file.exists() else [])
    here = {b"SLURM_CONF=" + os.fsencode(conf), b"SLURMD_NODENAME=" + name.encode()}
    stopped: set[int] = set()
    # All are stopped before the first is killed: the daemon of a step would tell its end, a task would see another's.
    while found := _of_node(here) - stopped:
        _signal(found, signal.SIGSTOP)
        stopped |= found
    _kill(stopped)


def _of_node(here: set[bytes]) -> set[int]:
    """The processes with these words in their environments, and the daemons of steps whose children they are."""
    tasks = {pid for pid in all_processes() if here <= set(environment_of(pid))}
    return tasks | {pid for pid in map(_parent, tasks) if "slurmstepd" in _name(pid)}


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _kill(pids: Iterable[int]) -> None:
    _signal(pids, signal.SIGKILL)
    for pid in pids:
        # A node that this process began is its child.
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)


def _wait_for(ask: list[str], *says: str) -> None:
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while not set(says) & set(subprocess.run(ask, capture_output=True, text=True).stdout.split()):
        if time.monotonic() > deadline_s:
            sys.exit(f"{' '.join(ask)} does not say {' or '.join(says)} after {READY_TIMEOUT_S} s")
        time.sleep(POLL_S)


def all_processes() -> Iterator[int]:
    return (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())


def environment_of(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return ""


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def install_slurm() -> None:
    """Install Slurm from Debian if one of its programs is missing. Ends the program if that is not possible."""
    if os.geteuid() != 0:
        sys.exit("a test Slurm has nodes, users and a database, which only root may start; run this as root")
    if not all(shutil.which(program) for program in PROGRAMS):
        install("Slurm", PACKAGES, f"run 'apt-get install {' '.join(PACKAGES)}' as root")
