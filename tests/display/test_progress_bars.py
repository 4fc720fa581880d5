"""The display is watched from outside: by a pseudo-terminal whose screen is reconstructed, and through a pipe."""

import fcntl
import json
import os
import pty
import random
import re
import struct
import subprocess
import sys
import termios
import threading

import pytest

from nlu.display.progress_bars import LOSS_SHARE, Progress

PREAMBLE = """
import json, logging, sys, time, warnings
from nlu.runs import logs
from nlu.display.progress_bars import Progress
logs.set_up(None, 0)
log = logging.getLogger("nlu")
"""
CONTROL = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|(\r)|(\n)|([^\x1b\r\n]+)")


def run_on_terminal(code: str, columns: int = 120) -> tuple[str, str]:
    """Run a program whose standard error is a terminal; returns what it sent there and its (piped) standard output."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    sent: list[bytes] = []

    def listen() -> None:
        while True:
            try:
                sent.append(os.read(master, 65536))
            except OSError:
                return

    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES", "NO_COLOR")}
    command = [sys.executable, "-c", PREAMBLE + code]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=slave, env=environment | {"TERM": "xterm-256color"}
    )
    os.close(slave)
    listener = threading.Thread(target=listen)
    listener.start()
    output = process.stdout.read().decode()
    assert process.wait() == 0, b"".join(sent).decode()
    listener.join()
    os.close(master)
    return b"".join(sent).decode(), output


def screen_of(sent: str) -> list[str]:
    """The lines that a person sees after a terminal has obeyed what was sent to it."""
    lines, row, column = [""], 0, 0
    for number, command, is_return, is_feed, text in CONTROL.findall(sent):
        if command == "A":
            row = max(row - int(number or 1), 0)
        elif command == "K":
            lines[row] = ""
        elif is_return:
            column = 0
        elif is_feed:
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif text:
            lines[row] = lines[row].ljust(column)[:column] + text + lines[row][column + len(text) :]
            column += len(text)
    return [line.rstrip() for line in lines if line.strip()]


def run_piped(code: str) -> tuple[str, str]:
    done = subprocess.run([sys.executable, "-c", PREAMBLE + code], capture_output=True, text=True, check=True)
    return done.stderr, done.stdout


def test_log_lines_are_printed_above_one_live_bar_without_tearing():
    sent, _ = run_on_terminal("""
with Progress() as progress:
    progress.start(1200, 1000)
    progress.metric("accuracy", 0.87654)
    for step in range(1001, 1201):
        progress.advance(step, 0.5, 1234.6)
        if step % 40 == 0:
            log.info("saved [bold]step[/bold] %d :smile:", step)
        if step == 1100:
            print("to standard output")
            warnings.warn("take care")
        time.sleep(0.006)
""")
    screen = screen_of(sent)
    saved = [f"saved [bold]step[/bold] {step} :smile:" for step in (1040, 1080, 1120, 1160, 1200)]
    assert [line for line in screen if line.startswith("saved")] == saved
    assert [line for line in screen if line.startswith("warning: ")][0].endswith("UserWarning: take care")
    assert not any("to standard output" in line for line in screen)
    bars = [line for line in screen if line.startswith("train")]
    assert bars == screen[-1:]
    assert re.fullmatch(
        r"train 1,200/1,200  ━+  loss 0\.5  accuracy=0\.8765  1,235 examples/s  0:\d\d elapsed, 0:00 left", bars[0]
    )


def test_the_bar_is_drawn_at_most_four_times_a_second_and_a_step_pays_microseconds():
    sent, output = run_on_terminal("""
with Progress() as progress:
    progress.start(10**9)
    start = time.perf_counter()
    steps = 0
    while (passed := time.perf_counter() - start) < 1.5:
        for _ in range(1000):
            steps += 1
            progress.advance(steps, 0.5, 100.0)
print(json.dumps({"cost_s": passed / steps}))
""")
    assert json.loads(output)["cost_s"] < 50e-6
    # Besides the four a second, there is a first and a last one.
    assert 4 <= sent.count("train ") <= 4 * 1.5 + 3


def test_an_error_leaves_the_terminal_with_its_cursor_and_the_last_bar():
    sent, _ = run_on_terminal("""
try:
    with Progress() as progress:
        progress.start(10)
        progress.advance(4, 0.25)
        raise KeyError
except KeyError:
    log.error("stopped")
""")
    assert sent.rfind("\x1b[?25h") > sent.rfind("\x1b[?25l") >= 0
    bar, error = screen_of(sent)
    assert bar.startswith("train 4/10") and error == "error: stopped"


def test_through_a_pipe_there_are_plain_lines_at_the_given_interval():
    errors, output = run_piped("""
start = time.perf_counter()
with Progress(log_interval_s=0.2) as progress:
    progress.start(1000)
    progress.metric("f1", 0.5)
    for step in range(1, 101):
        progress.advance(step, 0.25, 50.0)
        time.sleep(0.007)
    with progress.task("evaluate dev", 60) as bar:
        for _ in range(60):
            bar.advance()
            time.sleep(0.007)
print(time.perf_counter() - start)
""")
    lines = errors.splitlines()
    assert 3 <= len(lines) <= float(output) / 0.2 + 1 and "\x1b" not in errors
    words = r"train \d+/1,000  loss 0\.25  f1=0\.5  50 examples/s  0:\d\d elapsed, 0:\d\d left"
    assert re.fullmatch(words, lines[0])
    assert re.fullmatch(r"evaluate dev \d+/60  0:\d\d elapsed, 0:\d\d left", lines[-1])


def test_through_a_pipe_a_short_run_prints_no_progress_and_costs_microseconds():
    errors, output = run_piped("""
with Progress() as progress:
    progress.start(100000)
    start = time.process_time()
    for step in range(1, 100001):
        progress.advance(step, 0.5, 100.0)
print((time.process_time() - start) / 100000)
""")
    assert errors == "" and float(output) < 50e-6


def test_time_left_counts_only_the_steps_of_this_process():
    errors, _ = run_piped("""
with Progress(log_interval_s=1.0) as progress:
    progress.start(1100, 1000)
    time.sleep(1.05)
    progress.advance(1050)
""")
    assert re.fullmatch(r"train 1,050/1,100  (0:\d\d) elapsed, \1 left\n", errors)


def test_the_loss_that_is_shown_is_a_running_mean_in_which_old_steps_fade() -> None:
    rng = random.Random(1)
    losses = [5.0] * 100 + [1.0 + rng.random() for _ in range(400)]
    with Progress(on_console=False) as progress:
        progress.start(len(losses))
        for step, loss in enumerate(losses, start=1):
            progress.advance(step, loss)
            if step == 3:
                shown = progress._training.words()[0]  # type: ignore[union-attr]
                assert shown == "loss 5"
        shown = float(progress._training.words()[0].removeprefix("loss "))  # type: ignore[union-attr]
    weights = [(1 - LOSS_SHARE) ** age for age in range(len(losses))][::-1]
    expected = sum(weight * loss for weight, loss in zip(weights, losses, strict=True)) / sum(weights)
    assert shown == pytest.approx(expected, rel=1e-3) and abs(shown - 1.5) < 0.1
