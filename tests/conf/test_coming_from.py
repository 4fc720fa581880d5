"""docs/coming-from.md: its messages are today's, and its migrated example trains as XDPX computed."""

import csv
import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.numpy import load_file

from tests import warm

PAGE = (Path(__file__).parents[2] / "docs" / "coming-from.md").read_text(encoding="utf-8")
ROWS = 20 * 128
"""a multiple of the examples of a step: XDPX leaves out the rest of an epoch"""
SMALL = (
    "model.pretrained=null", "model.hidden_size=16", "model.layers=1", "model.heads=2", "model.intermediate_size=16",
    "trainer.device=cpu", "trainer.log_interval=1st", "trainer.keep_best=2",
)  # fmt: skip
DEFAULTS = {"clip_norm": 5.0, "ema_decay": 1.0, "div_factor": 600}
"""of XDPX, for what the configuration of the page leaves out"""


def blocks() -> tuple[dict[str, Any], str, list[str]]:
    """Return the page's configuration of XDPX, and the file and the command that take its place."""
    of_xdpx = PAGE.partition("A configuration for x-train,")[2].partition("becomes")[0]
    pairs = re.findall(r'(\w+): ("[^"]*"|\{[^}]*\}|\S+)', of_xdpx)
    (command,) = re.findall(r"^    python -m nlu.train (.*experiment=tnews_bert.*)$", PAGE, re.MULTILINE)
    (file,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return DEFAULTS | {key: yaml.safe_load(value) for key, value in pairs}, file, shlex.split(command)


def steps_of_evaluations(config: dict[str, Any]) -> list[int]:
    """XDPX: `@{batch_size:A}/B` is A / batch_size * B steps; the last step is evaluated too."""
    reference, steps = map(int, re.findall(r"\d+", config["eval_interval"]))
    interval = int(reference / config["batch_size"] * steps)
    total = config["max_epoch"] * (ROWS // (config["batch_size"] * config["update_freq"]))
    return [*range(interval, total, interval), total]


def rate(config: dict[str, Any], step: int, total: int) -> float:
    """XDPX's one_cycle, linear, with a warm-up that is a ratio of the run."""
    peak, warm_up = float(config["__def__"]["lr"]), round(config["warmup_steps"] * total)
    low = peak / config["div_factor"]
    if step < warm_up:
        return low + (peak - low) * step / warm_up
    return peak + (low - peak) * (step - warm_up) / max(1, total - warm_up)


def table(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines, delimiter="\t"))


@pytest.fixture
def train(tmp_path: Path):
    """Return a function that runs the page's command on few rows, with more arguments, and returns its folder."""
    _, file, command = blocks()
    labels = ("news_car", "news_world", "news_tech")
    for name, rows in (("train", ROWS), ("dev", 40)):
        path = tmp_path / "TNEWS" / f"{name}.tsv"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(f"w{n % 7} w{n % 11}\t{labels[n % 3]}\n" for n in range(rows)))
    experiment = tmp_path / "my" / "experiment" / "tnews_bert.yaml"
    experiment.parent.mkdir(parents=True)
    experiment.write_text(file)

    def run(*more: str) -> Path:
        arguments = ["-m", "nlu.train", *command, *SMALL, *more]
        done = warm.run(arguments, cwd=tmp_path, env={**os.environ, "NLU_DATA": str(tmp_path)})
        assert done.returncode == 0, done.stderr
        return tmp_path / command[-1].partition("=")[2]

    return run


def test_the_example_evaluates_schedules_and_scores_weights_as_xdpx_did(train) -> None:
    config, _, _ = blocks()
    expected = steps_of_evaluations(config)
    run = train()
    logged = table(run / "train.tsv")
    assert sorted({int(row["step"]) for row in table(run / "valid.tsv")}) == expected
    rates = [rate(config, step, expected[-1]) for step in range(1, expected[-1] + 1)]
    assert [float(row["lr"]) for row in logged] == pytest.approx(rates, rel=1e-12)
    assert [float(row["clipped"]) for row in logged] == [float(row["gnorm"]) > config["clip_norm"] for row in logged]
    # XDPX's ema_decay=1.0 is no average: what is scored at the last step are its weights.
    assert config["ema_decay"] == 1.0
    weights = [load_file(run / "checkpoints" / name / "model.safetensors") for name in ("last", "best-1", "best-2")]
    assert any(all((weights[0][name] == value).all() for name, value in best.items()) for best in weights[1:])


def test_the_messages_of_the_page_are_those_of_the_command(tmp_path: Path) -> None:
    shown = re.findall(r"^    \$ python (-m nlu.train .*)\n((?:    (?!\$).*\n)+)", PAGE, re.MULTILINE)
    assert len(shown) == 2
    for command, lines in shown:
        said = warm.run(shlex.split(command), cwd=tmp_path, env=dict(os.environ)).stderr
        real_lines = said[said.index("nlu: error") :].splitlines()
        for line, real in zip(lines.splitlines(), real_lines, strict=True):
            assert re.fullmatch(re.escape(line[4:]).replace(r"\.\.\.", ".*"), real), real
