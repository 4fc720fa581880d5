"""What doctor found, as a person reads it."""

import pytest

from nlu.diagnosis.check import Check, Section, print_sections


def test_each_check_has_a_line_a_remedy_where_it_needs_one_and_the_end_counts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    disk = Check("disk", "3 GB are free", "warning", "free some space")
    print_sections([
        Section("machine", [Check("python", "3.11.7"), disk]),
        Section("stores", [Check("s3", "no answer", "broken", "set AWS_ENDPOINT_URL")]),
    ])  # fmt: skip
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert lines == [
        ["machine"], ["ok", "python", "3.11.7"], ["warning", "disk", "3", "GB", "are", "free"],
        ["->", "free", "some", "space"], ["stores"], ["broken", "s3", "no", "answer"],
        ["->", "set", "AWS_ENDPOINT_URL"], ["1", "broken,", "1", "warning,", "1", "ok"],
    ]  # fmt: skip


def test_the_last_line_says_that_nothing_is_broken(capsys: pytest.CaptureFixture[str]) -> None:
    print_sections([Section("machine", [Check("python", "3.11.7")])])
    assert "nothing broken, 0 warnings, 1 ok" in capsys.readouterr().out
