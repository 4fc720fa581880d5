"""PostgreSQL with one database, `optuna`, for a user who must give a password (PGPASSWORD)."""

import os
import secrets
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

from server import Server, free_ports, install

PACKAGE = "postgresql-15"
USER = "postgres"


class PostgreSQL(Server):
    """Runs as `postgres` when we are root, which PostgreSQL refuses to run as; else as ourselves."""

    name = "PostgreSQL"
    stop_signal = signal.SIGINT  # a fast shutdown

    def start(self) -> None:
        programs = find_programs() or install_server()
        (port,) = free_ports(1)
        password = secrets.token_hex(16)
        data = self.folder / "data"
        password_file = self.folder / "password"
        password_file.touch(0o600)
        password_file.write_text(password)
        options: dict[str, Any] = {"cwd": self.folder}
        if os.geteuid() == 0:
            for path in (self.folder, password_file):
                shutil.chown(path, USER)
            options |= {"user": USER, "group": USER, "extra_groups": []}
        subprocess.run(
            [programs / "initdb", "--pgdata", data, "--username", USER, "--pwfile", password_file, "--no-sync",
             "--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C"],
            check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, **options,
        )  # fmt: skip
        password_file.unlink()
        settings = {
            "port": port, "listen_addresses": "127.0.0.1", "unix_socket_directories": "", "fsync": "off",
            "shared_buffers": "32MB", "max_connections": 100,
        }  # fmt: skip
        flags = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self.launch([str(programs / "postgres"), "-D", str(data), *flags], **options)
        self.port = port
        self.environment = {
            "PGPASSWORD": password,
            "NLU_TEST_POSTGRESQL": f"postgresql://{USER}@127.0.0.1:{port}/optuna",
        }

    def is_ready(self) -> bool:
        import psycopg2

        password = self.environment["PGPASSWORD"]
        try:
            connection = psycopg2.connect(
                host="127.0.0.1", port=self.port, user=USER, password=password, dbname="postgres", connect_timeout=10
            )
        except psycopg2.OperationalError:
            return False
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE optuna")
        connection.close()
        return True


def find_programs() -> Path | None:
    """The folder with initdb and postgres: the newest of Debian's, else that of the PATH."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    found = debian[-1] if debian else shutil.which("initdb")
    return Path(found).resolve().parent if found else None


def install_server() -> Path:
    """Install the server from Debian, without the cluster that its package would create and start."""
    settings = Path("/etc/postgresql-common/createcluster.conf")
    if os.geteuid() == 0 and not settings.exists():
        settings.parent.mkdir(parents=True, exist_ok=True)
        settings.write_text("create_main_cluster = false\n")
    remedy = f"run 'apt-get install {PACKAGE}' as root, or put initdb and postgres on the PATH"
    install("PostgreSQL", [PACKAGE], remedy, "-o", "Dpkg::Options::=--force-confold")
    programs = find_programs()
    assert programs is not None
    return programs
