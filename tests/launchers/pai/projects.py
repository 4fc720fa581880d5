"""A project whose jobs go to PAI: its commands of git, its configurations and its jobs."""

import json
import subprocess
from pathlib import Path
from typing import Any

from nlu.jobs.queue import Job
from nlu.runs.mirror import Mirror


def git(top: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(top), *arguments], check=True, capture_output=True)


def config(**data: Any) -> dict[str, Any]:
    """What a job's configuration holds, as far as paths go."""
    return {"mirror": None, "data": {"train": "rows/train.csv", "dev": None, "test": None, "urls": None, **data},
            "tokenizer": {"vocab": None}, "model": {"pretrained": "pypi://a/b"}}  # fmt: skip


def job(number: int, *overrides: str) -> Job:
    folder = Path.cwd() / "outputs/grid" / str(number)
    return Job(number, str(folder), overrides or (f"seed={number}",), f"token{number}")


def kept_run(url: str, folder: Path) -> None:
    """Leave a run in a mirror, as its job does."""
    folder.mkdir(parents=True)
    mirror = Mirror(url, folder)
    mirror.open(may_hold_a_run=False)
    (folder / "config.yaml").write_text("seed: 1\n")
    (folder / "log.txt").write_text("one\ntwo\n")
    (folder / "result.json").write_text(json.dumps({"steps": 6}))
    mirror.close()
