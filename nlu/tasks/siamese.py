"""Compare two texts that are encoded apart, so that one of them can be encoded long before the other is known.

Reimers and Gurevych 2019 (https://arxiv.org/abs/1908.10084). Axes: B examples, S sequences, K = 2 of them an example,
C classes, D width.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from nlu.data.collate import Batch
from nlu.data.ragged import starts_of
from nlu.data.store import Examples
from nlu.metrics.classes import ClassScorer
from nlu.metrics.ranking import RankingScorer
from nlu.models.task_model import TaskModel
from nlu.tasks.classify import Classify, class_records
from nlu.tasks.task import Outputs, to_host


class Siamese(Classify):
    """Say how two texts relate, each encoded by itself."""

    layouts = ("sides",)
    heads = ("nlu.models.heads.sides.ConcatHead", "nlu.models.heads.sides.CosineHead")
    losses = (
        "nlu.losses.cross_entropy.CrossEntropy", "nlu.losses.focal.Focal", "nlu.losses.contrastive.Contrastive",
        "nlu.losses.info_nce.InfoNce",
    )  # fmt: skip
