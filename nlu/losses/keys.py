"""The keys of the losses, and what rules between groups know of each; see `nlu.config.keys`."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from nlu.config.types import Fraction, Name, NonNegativeFloat, PositiveFloat, PositiveInt, Probability

ClassWeights = dict[Name, NonNegativeFloat] | Literal["inverse_frequency"] | None


@dataclass(kw_only=True)
class Loss:
    """Facts of all losses."""

    kinds: ClassVar[tuple[str, ...]] = ()
    """the kinds of target that the loss accepts"""
    reads: ClassVar[str] = "logits"
    """the output of the head that it reads: logits, cosine, vectors, similarities, or the scores of groups (queries)"""
    has_own_decision: ClassVar[bool] = False
    """whether it decides by its own rule, and not by the most probable class"""
    needs_logits: ClassVar[bool] = False
    """whether it compares logits, so that targets cannot be probabilities"""


@dataclass(kw_only=True)
class CrossEntropy(Loss):
    """Cross-entropy in nats. Its sum is divided by the number of rows, so weights scale the gradient."""

    kinds = ("classes", "tags", "words")
    label_smoothing: Probability = 0.0
    """Share of the target that is spread over all classes equally; 0 = off."""
    class_weights: ClassWeights = None
    """Factor of the loss of a row by its class: {class: weight}, others 1, or inverse_frequency = rows / (classes *
    rows of the class); null = off."""


@dataclass(kw_only=True)
class Focal(Loss):
    """Cross-entropy that reduces the weight of rows that are already classified well."""

    kinds = ("classes", "tags")
    gamma: NonNegativeFloat = 2.0
    """Exponent of 1 - p; the higher, the less rows count that are predicted well; 0 = cross-entropy."""
    class_weights: ClassWeights = None
    """Factor of the loss of a row by its class: {class: weight}, others 1, or inverse_frequency; null = off."""


@dataclass(kw_only=True)
class Bce(Loss):
    """One-vs-rest: a row that no other class accepts belongs to the first class."""

    kinds = ("classes",)
    has_own_decision = True
    threshold: Probability | dict[Name, Probability] = 0.5
    """Probability that a class must reach; otherwise the first class is predicted; 0 = never; {class: probability},
    others 0.5."""


@dataclass(kw_only=True)
class BceMultilabel(Loss):
    """Binary cross-entropy of each label, in nats."""

    kinds = ("label_set",)
    positive_weights: ClassWeights = None
    """Factor of the loss of a label that a row has: {label: weight}, others 1, or inverse_frequency = rows without the
    label / rows with it; null = off."""


@dataclass(kw_only=True)
class Circle(Loss):
    """Circle loss of two classes, the second of which is positive."""

    kinds = ("classes",)
    scale: PositiveFloat = 32.0
    """Scale of the scores; the higher, the more the hardest rows of a micro-batch count."""
    margin: Fraction = 0.25
    """Positive scores should reach 1 - margin, negative ones stay below margin; scores are from 0 to 1."""
    ce_weight: NonNegativeFloat = 0.0
    """Weight of an additional cross-entropy; 0 = off, which is required if the score is a cosine."""


@dataclass(kw_only=True)
class Contrastive(Loss):
    """Half the squared distance of a matching pair, or half the square by which another pair misses the margin."""

    kinds = ("classes",)
    reads = "cosine"
    distance: Literal["cosine", "euclidean"] = "cosine"
    """cosine = 1 - cos(u, v); euclidean = distance of the vectors scaled to length 1; both from 0 to 2."""
    margin: PositiveFloat = 0.5
    """Distance up to which a pair that does not belong together is pushed apart."""


@dataclass(kw_only=True)
class GhmC(Loss):
    """Gradient-harmonized one-vs-rest cross-entropy, in nats."""

    kinds = ("classes", "tags")
    bins: PositiveInt = 10
    """Number of bins of equal width, over a gradient from 0 to 1; 1 = off, all values have equal weight."""


@dataclass(kw_only=True)
class InfoNce(Loss):
    """InfoNCE over all texts of a step, in nats; the larger the step, the harder the task."""

    kinds = ("classes", "none")
    reads = "similarities"
    temperature: PositiveFloat = 0.05
    """Divisor of the cosines; the lower, the more the nearest wrong texts count."""
    symmetric: bool = False
    """Also let each second text find its first text, and take the mean of both losses; false = off."""


@dataclass(kw_only=True)
class Kl(Loss):
    """Divergence in nats, 0 where the predicted distribution equals the target."""

    kinds = ("soft_classes",)
    temperature: PositiveFloat = 1.0
    """Divisor of the logits of target and model before the softmax; 1 = off."""


@dataclass(kw_only=True)
class OfQueries(Loss):
    """Facts of losses that compare the rows of a query."""

    kinds = ("classes", "grade")
    reads = "groups"
    scale: PositiveFloat = 1.0
    """Factor of the scores; 1 = off; for cosines, which are at most 1, such as 20."""


@dataclass(kw_only=True)
class Listwise(OfQueries):
    """Cross-entropy of the softmax over the candidates of a query, with its labels above 0 as weights, in nats."""


@dataclass(kw_only=True)
class Pairwise(OfQueries):
    """RankNet: of two candidates of a query, that with the higher label should have the higher score; in nats."""


@dataclass(kw_only=True)
class MarginMse(OfQueries):
    """Squared difference between margins of scores and margins of labels, such as the scores of a reranker."""


@dataclass(kw_only=True)
class Mse(Loss):
    """Squared error of the standardized target."""

    kinds = ("number",)
    huber_delta: PositiveFloat | None = None
    """Error beyond which the loss grows linearly, in standard deviations of the target; null = never."""


@dataclass(kw_only=True)
class MseLogits(Loss):
    """Squared difference of logits, in their unit."""

    kinds = ("soft_classes",)
    needs_logits = True


@dataclass(kw_only=True)
class Taylor(Loss):
    """Taylor cross-entropy in nats."""

    kinds = ("classes", "tags")
    taylor_n: PositiveInt = 2
    """Number of terms; few tolerate wrong labels better, many learn faster."""


@dataclass(kw_only=True)
class Cosent(Loss):
    """CoSENT: pairs with a larger number have to be more similar, in nats."""

    kinds = ("number",)
    reads = "cosine"
    scale: PositiveFloat = 20.0
    """Factor of the cosines; the higher, the more the pairs in the worst order count."""


@dataclass(kw_only=True)
class Angle(Cosent):
    """AnglE: CoSENT over angles in the complex plane, in nats."""

    reads = "vectors"


@dataclass(kw_only=True)
class CosineMse(Loss):
    """Squared error of a cosine."""

    kinds = ("number",)
    reads = "cosine"
    lowest: float = 0.0
    """The number of pairs that have nothing in common, whose cosine should be 0."""
    highest: float = 1.0
    """The number of pairs that mean the same, whose cosine should be 1; 5 in STS-B."""
