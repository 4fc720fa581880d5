"""What a benchmark found, as rows of one table."""

from dataclasses import dataclass

HEADINGS = ("claim", "peer", "unit", "peer's", "ours", "ratio", "target", "met", "of the machine's limit")


@dataclass(frozen=True)
class Row:
    """One comparison. `ratio` is how many times better ours is, also if lower is better."""

    claim: str
    peer: str
    unit: str
    theirs: float | None
    ours: float
    target: float | None = None
    """the least ratio, or where `limit` is set the largest value of ours"""
    lower_is_better: bool = False
    limit: float | None = None
    """an absolute bound on ours, in `unit`; the ratio is then shown and not judged"""
    share: float | None = None
    """of the rate that the machine was measured to have in the same run"""
    least_share: float | None = None
    compared: bool = True
    """false where the two figures are differences near zero, whose ratio says nothing"""

    @property
    def ratio(self) -> float | None:
        if self.theirs is None or not self.compared:
            return None
        return self.theirs / self.ours if self.lower_is_better else self.ours / self.theirs

    @property
    def met(self) -> bool | None:
        """Whether every bound holds; None without a bound."""
        verdicts = []
        if self.limit is not None:
            verdicts.append(self.ours <= self.limit)
        if self.target is not None and self.ratio is not None:
            verdicts.append(self.ratio >= self.target)
        if self.least_share is not None and self.share is not None:
            verdicts.append(self.share >= self.least_share)
        return all(verdicts) if verdicts else None

    def cells(self) -> tuple[str, ...]:
        """Return the row as the columns of HEADINGS."""
        bounds = []
        if self.target is not None:
            bounds.append(f">= {self.target:g}x")
        if self.limit is not None:
            bounds.append(f"<= {self.limit:g} {self.unit}")
        if self.least_share is not None:
            bounds.append(f">= {self.least_share:.0%} of the limit")
        return (
            self.claim, self.peer, self.unit, "" if self.theirs is None else number(self.theirs), number(self.ours),
            "" if self.ratio is None else f"{self.ratio:.2f}", ", ".join(bounds),
            {True: "yes", False: "no", None: ""}[self.met], "" if self.share is None else f"{self.share:.0%}",
        )  # fmt: skip


def number(value: float) -> str:
    """Write a figure with as many digits as a noisy measurement deserves."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def show(rows: list[Row]) -> None:
    """Print the rows as they are found, one line each."""
    for row in rows:
        claim, peer, unit, theirs, ours, ratio, bounds, met, share = row.cells()
        words = [f"{claim}:", f"ours {ours} {unit},"]
        words += [f"{peer} {theirs}{f', ratio {ratio}' if ratio else ''}"] if theirs else [f"({peer})"]
        words += [f"[{bounds}: {met or 'not judged'}]"] if bounds else []
        words += [f"{share} of the machine's limit"] if share else []
        print(" ".join(words), flush=True)


def markdown(rows: list[Row]) -> str:
    """Return the rows as a Markdown table."""
    lines = [HEADINGS, ("---",) * len(HEADINGS), *(row.cells() for row in rows)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
