"""What a model learns to predict for an example: a class, a distribution over classes, tags, a number, several labels,
masked words, also with the order of sentences or a label, nothing."""

from nlu.data.targets.base import ONE_CLASS, SCORING, Gathered, Target
from nlu.data.targets.classes import Classes, Grade, LabelSet, NoTarget, Relevance
from nlu.data.targets.labelled_words import LabelledWords
from nlu.data.targets.masked import MaskedWords
from nlu.data.targets.number import Number
from nlu.data.targets.sentence_order import SentenceOrder
from nlu.data.targets.soft import SoftClasses
from nlu.data.targets.tags import Tags

__all__ = [
    "ONE_CLASS", "SCORING", "Classes", "Gathered", "Grade", "LabelSet", "LabelledWords", "MaskedWords", "NoTarget",
    "Number", "Relevance", "SentenceOrder", "SoftClasses", "Tags", "Target",
]  # fmt: skip
