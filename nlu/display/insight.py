"""What a search shows about its parameters, its trials' order and its decisions, as plain records for figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nlu.display.decisions import DecisionRow


@dataclass(frozen=True)
class Surface:
    """The predicted value of a whole trial over two parameters. Axes: Y places of one parameter, X of the other."""

    x: str
    y: str
    x_places: Sequence[float]
    """from 0 to 1 between the ends of the parameter, on its scale; the centers of its choices"""
    y_places: Sequence[float]
    value_YX: Sequence[Sequence[float]]


@dataclass(frozen=True)
class Ranking:
    """The order of the trials after equal numbers of examples. Axes: S numbers of examples."""

    examples_S: Sequence[int]
    rank_S_by_trial: Mapping[int, Sequence[float]]
    """1 for the best value so far among the trials that saw so many examples; shorter for trials that saw fewer"""
    correlation_S: Sequence[float]
    """Spearman's rank correlation with the order at the end, among the trials that saw all of these examples, as far as
    it has numbers; NaN if all values are equal"""
    count: int
    """trials that saw the last of these examples"""

    @property
    def end(self) -> int | None:
        """The examples with whose order the others are compared; None without correlations."""
        return self.examples_S[len(self.correlation_S) - 1] if self.correlation_S else None


@dataclass(frozen=True)
class Forecast:
    """The predicted curve of a trial, with an interval that holds the true one with the probability of 80 %.

    Axes: E numbers of examples, up to the end of a trial.
    """

    trial: int
    examples_E: Sequence[float]
    mean_E: Sequence[float]
    low_E: Sequence[float]
    high_E: Sequence[float]


@dataclass(frozen=True)
class Insight:
    """What a search found out besides its trials."""

    importances: Mapping[str, float] = field(default_factory=dict)
    """the share of each parameter, largest first"""
    importances_note: str = ""
    surfaces: Sequence[Surface] = ()
    surfaces_note: str = ""
    """what predicted the surfaces, or why there are none"""
    ranking: Ranking | None = None
    forecasts: Sequence[Forecast] = ()
    """best prediction first"""
    decisions: Sequence[DecisionRow] = ()
