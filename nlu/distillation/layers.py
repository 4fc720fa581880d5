"""What methods that compare the layers of a student with those of a teacher share: the teacher's pass, and its checks.

Axes: T tokens of all sequences, B sequences of the same length L, H heads, D width, E width of a head.
"""

from collections.abc import Iterator
from itertools import groupby

import numpy as np
import torch
from torch import Tensor, nn

from nlu.config.errors import UserError
from nlu.config.keys import takes
from nlu.data.collate import Batch, to_device
from nlu.distillation import keys as schemas
from nlu.distillation.distil import Distil, Known, require_one_task
from nlu.distillation.teacher import KEY, Teacher, load_teachers
from nlu.methods.method import Autocast, Context
from nlu.methods.plain import forward_terms
from nlu.models.encoder import Encoded, Encoder, Inside
from nlu.models.formats.smaller_weights import PRUNED_HEADS
from nlu.models.task_model import TaskModel
from nlu.tasks.task import Task


@takes(schemas.OfLayers)
class OfLayers(Distil):
    """The base of methods with terms of layers. The teacher reads the tokens of each batch in the same step.

    A derived class builds its parts in `prepare_layers` and computes its terms in `of_layers`; each is a sum over
    sequences.
    """

    def __init__(self, keys: schemas.OfLayers):
        super().__init__(keys)
        self.prediction = keys.prediction
        self.layer_weights: dict[str, float] = {}
        """the weight of each term of layers, in order"""
        self.own, self.theirs = Inside(), Inside()
        """what is read of the encoders of student and teacher"""
        self._teacher: Encoder | None = None

    def prepare(self, model: TaskModel, context: Context) -> nn.Module:
        """Load the teacher. Raises UserError if it has other tokens than the student, or no layers to compare."""
        teacher, own = self._load(model, context)
        if self.prediction and self.alpha:
            self.learn_predictions([teacher], context)
        return own

    def _load(self, model: TaskModel, context: Context) -> tuple[Teacher, nn.Module]:
        require_one_task(context)
        teachers = load_teachers(self.teacher, context.device)
        if len(teachers) > 1:
            raise UserError(f"{KEY} names {len(teachers)} runs, but layers are those of one teacher; name one run")
        (teacher,) = teachers
        require_same_tokens(teacher, model, context)
        for encoder in (model.backbone, teacher.trained.model.backbone):
            number_of(encoder, "num_attention_heads")
        own = self.prepare_layers(model.backbone, teacher.trained.model.backbone)
        own.add_module("known", Known(teachers))
        self._teacher = teacher.trained.model.eval().backbone
        return teacher, own

    def prepare_layers(self, own: Encoder, theirs: Encoder) -> nn.Module:
        """Return a module with the parameters of the method, and set `layer_weights`, `own` and `theirs`.

        Raises UserError for encoders that cannot be compared.
        """
        raise NotImplementedError

    def of_layers(self, own: Encoded, theirs: Encoded, batch: Batch) -> dict[str, Tensor]:
        """Return the sum over sequences of each term in `layer_weights`; float32 scalars."""
        raise NotImplementedError

    def weights(self, task: Task) -> dict[str, float]:
        predicted = dict(task.term_weights) if self._soft is None else super().weights(task)
        return {name: self.prediction * weight for name, weight in predicted.items()} | self.layer_weights

    def counts(self, task: Task, batch: Batch) -> dict[str, int]:
        predicted = task.counts(batch) if self._soft is None else super().counts(task, batch)
        return {**predicted, **dict.fromkeys(self.layer_weights, batch.num_sequences)}

    def terms(
        self, task: Task, model: TaskModel, batch: Batch, autocast: Autocast, x_TD: Tensor | None = None
    ) -> dict[str, Tensor]:
        assert self._teacher is not None, "prepare was called"
        predicted = forward_terms if self._soft is None else super().terms
        with model.watching(self.own) as seen:
            terms = predicted(task, model, batch, autocast, x_TD)
        with torch.no_grad(), autocast():
            theirs = self._teacher.encode(self._teacher.embed(batch), batch, inside=self.theirs)
        with torch.autocast(batch.tokens_T.device.type, enabled=False):
            return {**terms, **self.of_layers(seen[0], theirs, batch)}


def require_same_tokens(teacher: Teacher, model: TaskModel, context: Context) -> None:
    """Raise UserError unless a teacher reads the tokens of a batch as the student does."""
    trained, store = teacher.trained, context.store
    if trained.tokenizer.digest != store.tokenizer.digest:
        raise UserError(
            f"{KEY} is {teacher.name}, whose tokenizer is not that of this run, but layers are compared token by "
            f"token; set tokenizer.vocab={trained.located.checkpoint}/tokenizer.json and train from random weights, "
            "start from weights with the same vocabulary, or set method=distil"
        )
    if (limit := trained.model.backbone.max_positions) and limit < store.meta["max_len"]:
        raise UserError(
            f"{KEY} is {teacher.name}, which has {limit} positions, but data.max_len is {store.meta['max_len']}; set "
            "it lower"
        )
    # For both to read segments in the same way.
    trained.model.backbone.width_of(model.layout)


def number_of(encoder: Encoder, name: str) -> int:
    """Return `num_hidden_layers`, `num_attention_heads` or `hidden_size` of an encoder.

    Raises UserError for an encoder without attention layers.
    """
    found = encoder.settings().get(name)
    if not isinstance(found, int):
        raise UserError(
            f"model is {type(encoder).__name__}, which has no attention layers; choose a model that has them, such as "
            "bert or hf, for this run and its teacher, or set method=distil"
        )
    return found


def require_all_heads(encoder: Encoder, whose: str, remedy: str) -> None:
    """Raise UserError for an encoder that lacks attention heads, whose layers differ in width."""
    if encoder.settings().get(PRUNED_HEADS):
        raise UserError(f"attention heads of {whose} were pruned, so its heads cannot be compared; {remedy}")


def of_sequences(per_token_T: Tensor, batch: Batch) -> Tensor:
    """Return the sum over sequences of the means of their tokens; a scalar."""
    lengths = np.array(batch.lengths)
    share_T = torch.from_numpy(np.repeat(1 / lengths, lengths).astype(np.float32))
    return (per_token_T * to_device(share_T, per_token_T.device)).sum()


def by_length(rows_TD: Tensor, batch: Batch, heads: int) -> Iterator[Tensor]:
    """Yield the vectors of the sequences of each length, by head; (B, H, L, E), float32."""
    start = 0
    # Sequences of a batch are in ascending order of their lengths.
    for length, same in groupby(batch.lengths):
        stop = start + len(list(same)) * length
        yield rows_TD[start:stop].float().view(-1, length, heads, rows_TD.shape[1] // heads).transpose(1, 2)
        start = stop


def scaled_products(left_BHLE: Tensor, right_BHLE: Tensor) -> Tensor:
    """Return the products of all vectors of a sequence, divided by the root of their width; (B, H, L, L)."""
    return left_BHLE @ right_BHLE.mT * left_BHLE.shape[-1] ** -0.5
