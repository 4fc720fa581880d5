"""A trained run, or pretrained weights, for programs, which `nlu.load` returns. Axes: N rows, Q queries, D width."""

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from nlu.config.command_keys import PRECISIONS
from nlu.config.errors import DataError, UserError
from nlu.config.sentences import counted, one_of
from nlu.data import keys as schemas
from nlu.data.building import hashes_of
from nlu.data.dataset import Files
from nlu.data.examples import Examples
from nlu.data.layouts import Values
from nlu.data.store import Misfit, Origin, StoredSet, record_batch
from nlu.data.targets import Target
from nlu.data.windows import CHOICES
from nlu.inference.cells import columns_of
from nlu.inference.input_rows import Row, require_none, values_of
from nlu.inference.locate import locate
from nlu.inference.nearest import Nearest
from nlu.inference.predictor import Predictor
from nlu.inference.ranking import reads_candidates
from nlu.inference.text_vectors import TextVectors, require_several
from nlu.inference.trained import Trained, load_trained
from nlu.inference.weights import model_for, vectors_by
from nlu.metrics.kinds import SCORE, Cell
from nlu.models.formats.pretrained import is_weights
from nlu.training.evaluation import Evaluator, score
from nlu.training.ranks import Ranks, choose_device


class Loaded:
    """A trained run that predicts, scores and encodes rows on one device.

    The result for a row depends only on that row, not on its neighbors, their number or their order. Pretrained weights
    only encode and search. Use it from one thread at a time.
    """

    def __init__(self, predictor: Predictor | None, vectors: TextVectors, reference: str):
        self._predictor, self.vectors, self._reference = predictor, vectors, reference

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
        where, reference = choose_device(device, 0, keys=""), str(run)
        if is_weights(reference):
            vectors = vectors_by(model_for(reference), where, batch_size=batch_size, precision=precision, long=long)
            return cls(None, vectors, reference)
        trained = load_trained(locate(reference, checkpoint).of_head(head_name), precision=precision, long=long)
        predictor = Predictor(trained, where, batch_size=batch_size, owns=True, compile=compile)
        return cls(predictor, predictor.text_vectors, reference)

    def __repr__(self) -> str:
        if self._predictor is None:
            return f"<nlu.load {self._reference!r}: vectors by {type(self.vectors.model.backbone).__name__}>"
        trained = self.trained
        return (
            f"<nlu.load {str(trained.located.checkpoint)!r}: {type(trained.task).__name__} by "
            f"{type(trained.model.backbone).__name__}, {counted(len(self.labels), 'label')}, {self.predictor.device}>"
        )

    @property
    def predictor(self) -> Predictor:
        """What predicts. Raises UserError for pretrained weights."""
        if self._predictor is None:
            raise UserError(
                f"{self._reference} are pretrained weights, which encode and search but predict nothing; train a run "
                f"with model.pretrained={self._reference}, and load that run"
            )
        return self._predictor

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

    def rank(self, query: str, candidates: Sequence[str]) -> list[tuple[str, float]]:
        """Return the candidates of a query, best first, each with its score, from a run of task=rerank.

        Raises UserError for another run, and DataError for a text that cannot be used.
        """
        if not reads_candidates(self.trained):
            raise UserError("this run ranks no candidates; give a run of task=rerank")
        found = self.predict([(query, candidate) for candidate in candidates])
        scores: list[float] = [one[SCORE] for one in found]  # type: ignore[misc]
        return sorted(zip(candidates, scores, strict=True), key=lambda pair: -pair[1])

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

    def encode(
        self, texts: Iterable[str], prompt: str | None = None, dims: int | None = None, normalize: bool | None = None
    ) -> np.ndarray:
        """Return a vector for each text, (N, D), float32, for search and clustering; see `TextVectors.encode`.

        It is the input of the run's head for a sequence: the pooling of the encoder or, for a tagger, the mean of the
        tokens; of length 1 if the run compares cosines. A text that is longer than the run's `data.max_len` is cut, or
        the mean of its windows with `data.long=windows`. Raises DataError for a text that cannot be used.
        """
        return self.vectors.encode(texts, prompt, dims, normalize)

    def search(
        self, queries: Iterable[str] | np.ndarray, corpus: Iterable[str] | np.ndarray, k: int = 10,
        dims: int | None = None,
    ) -> Nearest:  # fmt: skip
        """Return the places in the corpus, and the cosines, of the `k` nearest texts of each query, (Q, k) each.

        Queries and corpus are texts, or vectors of length 1; see `TextVectors.search`.
        """
        return self.vectors.search(queries, corpus, k, dims)

    def _values(self, rows: Iterable[Row], others: Sequence[str] = ()) -> list[Values]:
        require_several(rows, "rows")
        return [values_of(self.trained, row, f"row {number}", others) for number, row in enumerate(rows, 1)]

    def _examples(self, values: Sequence[Values], target: Target) -> Examples:
        stored = [_target_of(target, row, number) for number, row in enumerate(values, 1)]
        count, layout = len(values), self.trained.layout
        text_hash_N, first_N, second_N = hashes_of(layout, values)
        # Rows of a program do not come from a file; messages name them by their number.
        zeros = np.zeros(count, np.int64)
        origin = Origin(text_hash_N, zeros, zeros, np.arange(1, count + 1), first_N, second_N)
        encoded = self.predictor.encode(values)
        try:
            batch = record_batch(encoded, stored, target.column(), origin)
        except Misfit as error:
            raise error.described(f"row {error.row + 1}", target) from None
        return Examples("rows", StoredSet([batch]), np.arange(count), target, layout)


def _target_of(target: Target, values: Values, number: int) -> object:
    stored, problem = target.read(values)
    if problem is not None:
        problem = problem[0], f"{problem[1]}; correct the row, or leave it out"
    require_none(problem, values, f"row {number}")
    return stored
