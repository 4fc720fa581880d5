"""What examples are to give: classes, tags, numbers, sets of labels, nothing."""

from nlu.data.targets.base import Target
from nlu.data.targets.classes import Classes, LabelSet, NoTarget, Relevance
from nlu.data.targets.number import Number
from nlu.data.targets.tags import Tags

__all__ = ["Classes", "LabelSet", "NoTarget", "Number", "Relevance", "Tags", "Target"]
