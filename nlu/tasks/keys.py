"""The keys of the tasks, and what rules between groups know of each; see `nlu.config.keys`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

from nlu.config.types import (
    Fraction,
    HeadNode,
    LossNode,
    Name,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    Probability,
    TaskNode,
)

OF_ROWS = (
    "nlu.models.heads.linear.LinearHead",
    "nlu.models.heads.mlp.MlpHead",
    "nlu.models.heads.transformers.TransformersHead",
)
"""the heads for rows of logits"""
OF_CLASSES = ("accuracy", "f1_macro", "f1_weighted", "precision_macro", "recall_macro", "mcc")
"""the metrics of a class for each example"""


OF_SIMILARITIES = ("spearman", "pearson")
"""the metrics of cosines whose labels are numbers"""


class Facts(Protocol):
    """What training and rules between groups know of a task."""

    layouts: tuple[str, ...]
    """names of layouts, the preferred one first; the first whose fields the data has is used"""
    target: str
    """dotted name of its nlu.data.targets.Target"""
    other_targets: Mapping[str, str] = {}
    """dotted names of targets by kind, for losses over vectors of texts that accept only that kind"""
    heads: tuple[str, ...]
    """dotted names of the heads that fit"""
    reads: tuple[str, ...] = ("logits",)
    """inputs of losses that fit: logits, cosine, similarities, groups; a loss must also accept the target's kind"""
    own_loss: str = "nlu.losses.cross_entropy.CrossEntropy"
    """dotted name of the loss that it has as one of several tasks, where none is chosen"""
    scores: str
    """dotted name of its nlu.metrics.scores.Scorer"""
    kind: str
    """dotted name of the nlu.metrics.kinds.Kind of its records; the constructor may set one that depends on the loss"""
    metrics: tuple[str, ...]
    binary_metrics: tuple[str, ...] = ()
    """further metrics with two classes"""
    metrics_by_key: Mapping[str, tuple[str, ...]] = {}
    """further metrics, each with the key that it needs"""
    default_metric: str
    lower_is_better: tuple[str, ...] = ("loss",)


@dataclass(kw_only=True)
class Chosen(Facts):
    """Thresholds of classes or labels, and how they are chosen on a set."""

    threshold: Fraction | dict[Name, Fraction] | Literal["auto"] | None = None
    threshold_beta: PositiveFloat = 1.0
    """With threshold=auto: the weight of recall in the F score that a threshold maximizes; 2 = twice that of
    precision."""
    threshold_precision: Fraction | None = None
    """With threshold=auto, instead of the F score: the precision that each class or label has to reach, such as 0.9,
    with the highest recall; null = the F score."""


class OfClasses(Facts):
    """Facts of tasks with a class for each example."""

    target = "nlu.data.targets.Classes"
    heads: tuple[str, ...] = OF_ROWS
    scores = "nlu.metrics.classes.ClassScorer"
    kind = "nlu.metrics.kinds.ClassKind"
    metrics: tuple[str, ...] = (*OF_CLASSES, "loss")
    binary_metrics: tuple[str, ...] = ("f1", "precision", "recall", "auc", "average_precision")
    metrics_by_key: Mapping[str, tuple[str, ...]] = {
        "chosen_classes": ("precision_chosen", "recall_chosen", "f1_chosen"),
    }
    default_metric = "accuracy"
    rules_of_config = "nlu.tasks.task_rules.class_problems"


@dataclass(kw_only=True)
class Classify(OfClasses, Chosen):
    """Predict one of several classes for a text."""

    layouts = ("single",)
    threshold: Probability | dict[Name, Probability] | Literal["auto"] | None = None
    """An example whose most probable class has less than this probability gets the class `fallback`; {class:
    probability}, others 0; auto = by class, chosen at each evaluation on the first set, and reported as metrics; null =
    off."""
    fallback: str | None = None
    """With a threshold: the class of examples below it; null = the first class."""
    chosen_classes: list[str] | None = None
    """The classes that precision_chosen, recall_chosen and f1_chosen are about, micro averages; null = none."""


@dataclass(kw_only=True)
class Match(Classify):
    """Predict the relation of two texts."""

    layouts = ("pair",)


@dataclass(kw_only=True)
class Soft(OfClasses):
    """Predict one of several classes, learned from a distribution over them, such as that of a larger model."""

    layouts = ("single", "pair")
    target = "nlu.data.targets.SoftClasses"
    scores = "nlu.metrics.soft.SoftScorer"
    own_loss = "nlu.losses.kl.Kl"
    metrics = ("loss", "agreement", *OF_CLASSES)
    default_metric = "loss"
    rules_of_config = "nlu.data.data_rules.soft_problems"


@dataclass(kw_only=True)
class OfSides(OfClasses):
    """The keys and facts of tasks over two texts that are encoded separately."""

    layouts = ("sides",)
    heads = ("nlu.models.heads.pairs.SidesHead",)
    dims: list[PositiveInt] | None = None
    """Numbers of first dimensions, such as [256, 64], that are also trained to compare texts by themselves: the loss is
    the mean over the whole vector and each of these; null = the whole vector."""


@dataclass(kw_only=True)
class Siamese(OfSides):
    """Say how two texts relate, each encoded by itself."""

    other_targets = {"number": "nlu.data.targets.Number"}
    reads = ("logits", "cosine", "vectors", "similarities")
    metrics = (*OF_CLASSES, "threshold", *OF_SIMILARITIES, "loss")
    threshold: Probability | None = None
    """Only for losses over cosines: pairs with at least this cosine match; null = the threshold with the highest
    accuracy on the first evaluation set, chosen at each evaluation, reported as a metric, and used for the others."""


@dataclass(kw_only=True)
class Retrieve(OfSides):
    """Find the text that answers a query among all candidates of the set."""

    target = "nlu.data.targets.Relevance"
    own_loss = "nlu.losses.info_nce.InfoNce"
    reads = ("similarities", "cosine", "groups")
    scores = "nlu.metrics.ranking.RankingScorer"
    metrics = ("mrr", "ndcg_10", "recall_1", "recall_5", "recall_10")
    binary_metrics = ()
    default_metric = "mrr"
    lower_is_better = ()


@dataclass(kw_only=True)
class Rerank(Facts):
    """Score the candidates of a query, each in one sequence with it."""

    layouts = ("pair",)
    target = "nlu.data.targets.Grade"
    heads = OF_ROWS
    own_loss = "nlu.losses.of_queries.Listwise"
    reads = ("groups",)
    scores = "nlu.metrics.reranking.RerankingScorer"
    kind = "nlu.metrics.kinds.ScoreKind"
    metrics = ("ndcg_10", "mrr", "mrr_10", "map")
    default_metric = "ndcg_10"
    lower_is_better = ()


@dataclass(kw_only=True)
class Multilabel(Chosen):
    """Predict all labels that apply to a text, each independently."""

    layouts = ("single", "pair")
    target = "nlu.data.targets.LabelSet"
    heads = OF_ROWS
    own_loss = "nlu.losses.bce_multilabel.BceMultilabel"
    scores = "nlu.metrics.label_sets.LabelSetScorer"
    kind = "nlu.metrics.kinds.LabelSetKind"
    metrics = (
        "f1_micro", "f1_macro", "f1_samples", "precision_micro", "recall_micro", "average_precision", "exact_match",
        "threshold", "loss",
    )  # fmt: skip
    default_metric = "f1_micro"
    rules_of_config = "nlu.tasks.task_rules.threshold_problems"
    threshold: Fraction | dict[Name, Fraction] | Literal["auto"] | None = None
    """Lowest probability at which a label is predicted; {label: probability}, others 0.5; null = the one with the
    highest micro F1 on the first evaluation set; auto = one by label. These are chosen at each evaluation, reported as
    metrics, and used for the other sets, such as the test set."""


@dataclass(kw_only=True)
class Regress(Facts):
    """Predict a number."""

    layouts = ("single", "pair")
    target = "nlu.data.targets.Number"
    heads = OF_ROWS
    own_loss = "nlu.losses.mse.Mse"
    scores = "nlu.metrics.numbers.NumberScorer"
    kind = "nlu.metrics.kinds.NumberKind"
    metrics = ("pearson", "spearman", "r2", "mae", "rmse", "loss")
    default_metric = "spearman"
    lower_is_better = ("mae", "rmse", "loss")


@dataclass(kw_only=True)
class Tag(Facts):
    """Find typed spans in a text, or classify its units."""

    layouts = ("units",)
    target = "nlu.data.targets.Tags"
    heads = (*OF_ROWS, "nlu.models.heads.crf.CrfHead")
    scores = "nlu.metrics.spans.SpanScorer"
    kind = "nlu.metrics.kinds.SpanKind"
    metrics = ("span_f1", "span_precision", "span_recall", "tag_accuracy", "accuracy", "f1_macro", "loss")
    default_metric = "span_f1"
    decode: Literal["legal", "greedy"] = "legal"
    """How tags are chosen; legal = the best sequence that BIO allows; greedy = the best tag of each unit; head=crf
    ignores it."""


@dataclass(kw_only=True)
class PredictsWords(Facts):
    """The keys and facts of tasks that predict words which are hidden in a text."""

    kind = "nlu.metrics.kinds.WordsKind"
    default_metric = "loss"
    lower_is_better = ("loss", "perplexity")
    rules_of_config = "nlu.tasks.task_rules.mlm_problems"
    mask_fraction: Fraction = 0.15
    """Share of the tokens of an example that are predicted."""
    whole_words: bool = True
    """Mask all pieces of a word or none; false = each token by itself."""
    max_ngram: PositiveInt = 1
    """Most neighboring words that are masked together; n of them with a probability proportional to 1 / n; 1 = off."""
    keep: Probability = 0.1
    """Probability that a predicted token stays as it is."""
    replace: Probability = 0.1
    """Probability that a predicted token becomes a random word; with neither it becomes the mask."""
    frequency_power: NonNegativeFloat = 0.0
    """A random word has a probability proportional to its number of training occurrences to this power; 0 = off, all
    words are equal."""


@dataclass(kw_only=True)
class Mlm(PredictsWords):
    """Predict masked words from the words around them."""

    layouts = ("single", "pair")
    target = "nlu.data.targets.MaskedWords"
    heads = ("nlu.models.heads.words.WordsHead",)
    scores = "nlu.metrics.words.WordScorer"
    metrics = ("loss", "perplexity", "accuracy")


@dataclass(kw_only=True)
class WordsAndClass(PredictsWords):
    """The keys and facts of tasks that predict masked words and the class of each example."""

    heads = ("nlu.models.heads.words.WordsAndClassHead",)
    scores = "nlu.metrics.words.WordsAndClassScorer"
    words_weight: NonNegativeFloat = 1.0
    """Factor of the mean loss of predicted words."""


@dataclass(kw_only=True)
class Structbert(WordsAndClass):
    """Predict masked and shuffled words, and the order of the two halves of a block."""

    layouts = ("single",)
    target = "nlu.data.targets.SentenceOrder"
    metrics = ("loss", "perplexity", "accuracy", "order_accuracy")
    rules_of_config = "nlu.tasks.task_rules.structbert_problems"
    order_weight: NonNegativeFloat = 1.0
    """Factor of the mean loss of the order: next, previous, or of another document."""
    shuffle_fraction: Probability = 0.05
    """Share of the groups of three neighboring tokens, none of them masked, that is shuffled, and whose tokens are
    predicted; 0 = off."""


@dataclass(kw_only=True)
class MlmPairs(WordsAndClass):
    """Predict masked words of a pair of texts, and its label."""

    layouts = ("pair",)
    target = "nlu.data.targets.LabelledWords"
    metrics = ("loss", "perplexity", "accuracy", "label_accuracy")
    label_weight: NonNegativeFloat = 1.0
    """Factor of the mean loss of labels."""


@dataclass(kw_only=True)
class Composite:
    """Several tasks in one run over one encoder, each with its own head and training rows."""

    has_tasks: ClassVar[bool] = True
    default_metric: ClassVar[str] = "mean"
    lower_is_better: ClassVar[tuple[str, ...]] = ("loss", "mae", "rmse")
    tasks: dict[str, TaskNode]
    """The task of each set of data.sets, {name: task}; +task@task.tasks.NAME=CHOICE adds one."""
    losses: dict[str, LossNode] | None = None
    """{name: loss}; +loss@task.losses.NAME=CHOICE adds one; null = each task's own, also for names left out."""
    heads: dict[str, HeadNode] | None = None
    """{name: head}; +head@task.heads.NAME=CHOICE adds one; null = head for all, also for names left out."""
    weights: dict[str, PositiveFloat] | None = None
    """{name: factor of the loss in the steps of a set}; null = 1 for all, also for names left out."""
