"""A trained run for programs, which `nlu.load` returns. Axes: N rows, D width."""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from nlu.config.command_keys import PRECISIONS
from nlu.config.errors import DataError, UserError
from nlu.config.sentences import counted, one_of
from nlu.data import keys as schemas
from nlu.data.dataset import Files
from nlu.data.examples import Examples
from nlu.data.layouts import LAYOUTS, Values
from nlu.data.seeds import text_hashes
from nlu.data.store import Misfit, Origin, StoredSet, record_batch
from nlu.data.targets import Target
from nlu.data.windows import CHOICES
from nlu.inference.cells import columns_of
from nlu.inference.input_rows import Row, require_none, values_of
from nlu.inference.locate import locate
from nlu.inference.predictor import Predictor
from nlu.inference.trained import Trained, load_trained
from nlu.metrics.kinds import Cell
from nlu.training.evaluation import Evaluator, score
from nlu.training.ranks import Ranks, choose_device


class Loaded:
    """A trained run that predicts, scores and encodes rows on one device.

    The result for a row depends only on that row, not on its neighbors, their number or their order. Use it from one
    thread at a time.
    """

    def __init__(self, predictor: Predictor):
        self.predictor = predictor

    @classmethod
    def of(
        cls, run: str | Path, *, checkpoint: str = "best", head_name: str | None = None, device: str = "auto",
        batch_size: int = 64, precision: str | None = None, long: str | None = None,
        compile: bool = False,
    ) -> "Loaded":  # fmt: skip
        """Load a run; see `nlu.load`."""
        if batch_size < 1:
            raise UserError(f"batch_size is {batch_size} but must be at least 1")
        if precision not in (None, *PRECISIONS):
            raise UserError(f"precision is {precision!r} but must be {one_of(PRECISIONS)}, or None for the run's own")
        if long not in (None, *CHOICES):
            raise UserError(f"long is {long!r} but must be {one_of(CHOICES)}, or None for the run's own")
        if not isinstance(compile, bool):
            raise UserError(f"compile is {compile!r} but must be True or False")
        trained = load_trained(locate(str(run), checkpoint).of_head(head_name), precision=precision, long=long)
        where = choose_device(device, 0, keys="")
        return cls(Predictor(trained, where, batch_size=batch_size, owns=True, compile=compile))

    def __repr__(self) -> str:
        trained = self.trained
        return (
            f"<nlu.load {str(trained.located.checkpoint)!r}: {type(trained.task).__name__} by "
            f"{type(trained.model.backbone).__name__}, {counted(len(self.labels), 'label')}, {self.predictor.device}>"
        )

    @property
    def trained(self) -> Trained:
        return self.predictor.trained

    @property
    def labels(self) -> list[str]:
        """The labels or tags in the order of their numbers; none if the run predicts a number."""
        return self.trained.labels

    def predict(self, rows: Iterable[Row], *, scores: bool = False, logits: bool = False) -> list[dict[str, Cell]]:
        """Return, for each row, the columns that `python -m nlu.predict` adds.

        These are `prediction` and, depending on the task, `probability` or `similarity`. `scores` adds
        `probability_LABEL` for each label, and `logits` the logits. Raises DataError with the number of a row that
        cannot be used, and UserError if `scores` is set but the run predicts no probabilities.
        """
        columns = columns_of(self.trained, prefix="", scores=scores, logits=logits)
        values = self._values(rows)
        if not values:
            return []
        found = self.predictor.predict(self.predictor.encode(values), with_logits=logits)
        return [columns.cells(row, one) for row, one in zip(values, found, strict=True)]

    def evaluate(self, rows: Iterable[Row]) -> dict[str, float]:
        """Return the metrics of the run's task over labelled rows, by name.

        A row is a mapping with `label`, `tags` or `spans` beside its texts, or the names of the run's own columns.
        Thresholds are those of the run. Raises DataError with the number of a row that cannot be used.
        """
        trained = self.trained
        # A copy, since `read_as` changes how a target reads rows, and the target of the run also names its predictions.
        target: Target = type(trained.target).from_meta(trained.target.meta())
        separator = trained.config.data.get("label_separator", "|")
        target.read_as(Files(schemas.Files(train="rows", label_separator=separator)))
        values = self._values(rows, type(target).roles or ("label",))
        if not values:
            raise DataError("rows is empty; give rows to score")
        part = self._examples(values, target)
        ranks = Ranks(0, 1, self.predictor.device)
        with tempfile.TemporaryDirectory(prefix="nlu-evaluate-") as folder:
            own = self.predictor
            own.plan(part)
            evaluator = Evaluator(
                trained.model, trained.task, ranks, own.precision, own.batch_size, Path(folder), own.compiled
            )
            scored = score(evaluator, part, trained.decided, lambda count: None)
            scored.spool.close()
        return scored.scores.metrics

    def encode(self, texts: Iterable[str]) -> np.ndarray:
        """Return a vector for each text, (N, D), float32, for search and clustering.

        It is the input of the run's head for a sequence: the pooling of the encoder or, for a tagger, the mean of the
        tokens. A text that is longer than the run's `data.max_len` is cut, or the mean of its windows with
        `data.long=windows`. Raises DataError for a text that cannot be used.
        """
        single, values = LAYOUTS["single"], []
        _require_several(texts, "texts")
        for number, text in enumerate(texts, 1):
            values.append({"text": text})
            require_none(single.problem(values[-1]), values[-1], f"text {number}")
        return self.predictor.vectors(self.trained.lengths.encode(single, self.trained.tokenizer, values), single)

    def _values(self, rows: Iterable[Row], others: Sequence[str] = ()) -> list[Values]:
        _require_several(rows, "rows")
        return [values_of(self.trained, row, f"row {number}", others) for number, row in enumerate(rows, 1)]

    def _examples(self, values: Sequence[Values], target: Target) -> Examples:
        stored = [_target_of(target, row, number) for number, row in enumerate(values, 1)]
        count, layout = len(values), self.trained.layout
        identities = text_hashes(layout.identity(row) for row in values)
        # Rows of a program do not come from a file; messages name them by their number.
        zeros = np.zeros(count, np.int64)
        origin = Origin(identities, zeros, zeros, np.arange(1, count + 1))
        encoded = self.predictor.encode(values)
        try:
            batch = record_batch(encoded, stored, target.column(), origin)
        except Misfit as error:
            raise error.described(f"row {error.row + 1}", target) from None
        return Examples("rows", StoredSet([batch]), np.arange(count), target, layout)


def _require_several(given: object, name: str) -> None:
    """Raise DataError if a single row or a table was given instead of rows."""
    if isinstance(given, str | bytes | Mapping) or hasattr(given, "columns") or not isinstance(given, Iterable):
        kind = "one text" if isinstance(given, str | bytes) else f"a {type(given).__name__}"
        raise DataError(f"{name} is {kind}; give a list, such as [text], or the records of a table")


def _target_of(target: Target, values: Values, number: int) -> object:
    stored, problem = target.read(values)
    if problem is not None:
        problem = problem[0], f"{problem[1]}; correct the row, or leave it out"
    require_none(problem, values, f"row {number}")
    return stored
