"""The live table shows what runs, also where a terminal is too low for all jobs."""

from rich.console import Console

from nlu.display.jobs import JobRow, shown_rows, table_of_jobs


def test_a_row_has_state_node_speed_best_and_the_last_line_which_gives_way_first():
    rows = [
        JobRow("job 0 (seed=1)", "running", "n1", 1234.5, "dev accuracy 0.9123", "train 40/100 " + "x" * 200),
        JobRow("job 1 (seed=2)", "waiting", last_line="Resources"),
    ]
    console = Console(width=90, color_system=None)
    with console.capture() as capture:
        console.print(table_of_jobs(rows))
    head, first, second = (line.rstrip().split("  ") for line in capture.get().splitlines())
    assert [cell.strip() for cell in head if cell.strip()] == [
        "job",
        "state",
        "node",
        "examples/s",
        "best",
        "last line",
    ]
    assert [cell.strip() for cell in first if cell.strip()][:5] == [
        "job 0 (seed=1)", "running", "n1", "1,234", "dev accuracy 0.9123",
    ]  # fmt: skip
    assert first[-1].endswith("…") and second[-1].strip() == "Resources"


def test_running_jobs_are_shown_first_if_space_is_short():
    rows = [
        JobRow(str(number), state) for number, state in enumerate(["done", "running", "waiting", "lost", "running"])
    ]
    assert [row.name for row in shown_rows(rows, 3)] == ["1", "2", "4"]
    assert len(shown_rows(rows, 0)) == 1 and shown_rows(rows, 9) == rows
