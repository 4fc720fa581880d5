"""Numbers in sentences."""


def counted(count: int, noun: str) -> str:
    """Return `1 trial`, `3 trials`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"
