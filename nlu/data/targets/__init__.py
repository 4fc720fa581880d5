"""What a model learns to predict for an example: a class, tags, a number, several labels, nothing."""

from nlu.data.targets.base import SCORING, Gathered, Target
from nlu.data.targets.classes import Classes, LabelSet, NoTarget, Relevance
from nlu.data.targets.number import Number
from nlu.data.targets.tags import Tags

__all__ = ["SCORING", "Classes", "Gathered", "LabelSet", "NoTarget", "Number", "Relevance", "Tags", "Target"]
