"""What a search shows about its parameters and its decisions, as plain records for figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nlu.display.decisions import DecisionRow


@dataclass(frozen=True)
class Insight:
    """What a search found out besides its trials."""

    importances: Mapping[str, float] = field(default_factory=dict)
    """the share of each parameter, largest first"""
    importances_note: str = ""
    decisions: Sequence[DecisionRow] = ()
