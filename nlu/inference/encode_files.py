"""Encode the texts of files: the vector of each, written as predictions are (`nlu.inference.predict_files`)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from nlu.config.command_keys import Encode, Encoding
from nlu.config.keys import defaults_of
from nlu.config.targets import TARGET
from nlu.config.types import ConfigLike
from nlu.data.layouts import Layout, Values
from nlu.data.store import EncodedRows
from nlu.data.windows import Lengths
from nlu.inference.cells import VectorColumns
from nlu.inference.input_rows import originals_for
from nlu.inference.locate import Located, digests_of
from nlu.inference.output_formats import output_of
from nlu.inference.predict_files import Work, over_files
from nlu.inference.predictor import Predictor
from nlu.inference.text_vectors import TextVectors, VectorForm
from nlu.inference.trained import load_trained
from nlu.inference.weights import vectors_by
from nlu.storage.cache import file_digest
from nlu.training.ranks import Ranks

FILES = "nlu.data.dataset.Files"


@dataclass
class RowVectors:
    """Gives the vector of the text of each row, with the methods of `Predictor`."""

    vectors: TextVectors
    prompt: str
    """the text itself"""
    data: ConfigLike
    """the keys with which the rows of the run were read"""
    shown: str
    digests: list[str]
    """of the files that determine vectors"""
    precision: object

    can_window = True

    @property
    def layout(self) -> Layout:
        return self.vectors.layout

    @property
    def lengths(self) -> Lengths:
        return self.vectors.lengths

    def settings(self) -> dict[str, object]:
        """Return everything that determines vectors, as JSON."""
        vectors = self.vectors
        return {
            "weights": self.digests,
            "device": vectors.device.type,
            "precision": self.precision,
            "pooling": repr(getattr(vectors.model.backbone, "after", None)),
            "max_len": vectors.lengths.max_len,
            "long": vectors.lengths.settings(),
            "prompt": self.prompt,
        }

    def problem(self, values: Values) -> tuple[str, str] | None:
        return self.vectors.problem(values, self.prompt)

    def encode(self, rows: Sequence[Values]) -> EncodedRows:
        return self.vectors.tokens(rows, self.prompt)

    def predict(
        self, encoded: EncodedRows, *, with_logits: bool = False, form: VectorForm | None = None,
        advance: Callable[[int], None] = lambda rows: None,
    ) -> list[dict[str, Any]]:  # fmt: skip
        assert form is not None, "vectors are all that there is"
        return form.of(self.vectors, encoded, advance=advance)


def run_encoding(config: Encode, located: Located | None) -> int:
    """Encode all texts of the input, by a run or by pretrained weights; returns the exit status.

    Raises UserError for the user's mistakes.
    """

    def begin(ranks: Ranks) -> Callable[[Encode, Path], Work]:
        if located is None:
            own = by_weights(config, ranks, config.prompt)
        else:
            trained = load_trained(located, precision=config.precision, long=config.long)
            predictor = Predictor(trained, ranks.device, batch_size=config.batch_size, owns=True)
            own = by_run(predictor, config.prompt)
        return partial(_work_of, rows=own)

    return over_files(config, begin)


def by_run(predictor: Predictor, prompt: str | None) -> RowVectors:
    """Return what encodes texts by a run."""
    trained, vectors = predictor.trained, predictor.text_vectors
    # Columns of training that are no single text mean nothing here.
    fields = {"text": trained.data["fields"]["text"]} if "text" in (trained.data.get("fields") or {}) else None
    data = {**defaults_of(FILES), **trained.data, "fields": fields}
    digests = digests_of(trained.located.checkpoint)
    return RowVectors(vectors, vectors.prompts.of(prompt), data, predictor.shown, digests, trained.config.precision)


def by_weights(config: Encoding, ranks: Ranks, prompt: str | None) -> RowVectors:
    """Return what encodes texts by pretrained weights."""
    assert config.model is not None, "run or model is set"
    vectors = vectors_by(
        config.model, ranks.device, batch_size=config.batch_size, precision=config.precision, long=config.long
    )
    data = {TARGET: FILES, **defaults_of(FILES), "train": None}
    shown = f"weights {config.model['pretrained']}"
    digests = list(map(file_digest, vectors.files))
    return RowVectors(vectors, vectors.prompts.of(prompt), data, shown, digests, config.precision)


def _work_of(config: Encode, path: Path, rows: RowVectors) -> Work:
    normalizes = rows.vectors.normalizes if config.normalize is None else config.normalize
    columns = VectorColumns(config.prefix, VectorForm(config.dims, normalizes, config.dtype))
    asked = config.input
    if asked.format == "auto" and path.suffix == ".txt":
        asked = replace(asked, format="lines")
    source = originals_for(rows, asked, path)
    output = output_of(config.output, source, columns, "|", keeps=config.columns)
    return Work(rows, source, columns, output, config)
