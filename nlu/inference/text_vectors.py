"""Texts to vectors, by a trained run or by pretrained weights; the vector of a text depends on no other text.

Axes: N texts, S sequences, B rows of a batch, D width.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from nlu.config.errors import DataError, UserError
from nlu.config.nearest import hint
from nlu.data.collate import Batch
from nlu.data.examples import in_memory
from nlu.data.layouts import LAYOUTS, Layout, Problem, Values
from nlu.data.store import EncodedRows
from nlu.data.tokenizing import Tokenizer
from nlu.data.windows import Lengths
from nlu.inference.in_batches import InBatches
from nlu.inference.input_rows import require_none
from nlu.inference.nearest import Nearest, nearest
from nlu.models.layers.pooling import mean_of_sequences, of_windows
from nlu.models.task_model import TaskModel
from nlu.tasks.task import to_host
from nlu.training.precision import NumberFormat

QUERY, PASSAGE = "query", "passage"
NAMES = {QUERY: QUERY, PASSAGE: PASSAGE, "document": PASSAGE}
"""the prompt that each name stands for; sentence-transformers calls passages documents"""
VECTOR = "vector"
"""the name of a vector in the record of its row"""
INT8_SCALE = 127
"""of numbers from -1 to 1"""


@dataclass(frozen=True)
class Prompts:
    """What is put before texts: of each name its text, and what stands before a text without a name."""

    texts: Mapping[str, str]
    default: str | None = ""
    """None: it must be chosen"""

    def of(self, prompt: str | None) -> str:
        """Return the text that a value of `prompt` stands for. Raises UserError if there is none."""
        if prompt is None:
            if self.default is None:
                raise UserError(
                    f"prompt is null, but queries and passages have different ones here ({self}); set prompt=query or "
                    "prompt=passage, or prompt='' for none"
                )
            return self.default
        name = NAMES.get(prompt, prompt)
        if name in NAMES and name not in self.texts:
            known = f"has only {self}" if self.texts else "has no prompts"
            raise UserError(
                f"prompt is {prompt}, but this model {known}; write the text itself, such as 'prompt=\"{prompt}: \"'"
            )
        if name not in self.texts and self.texts and prompt.isalpha():
            raise UserError(
                f"prompt is {prompt}, which is no name of a prompt; {hint(prompt, list(NAMES))}; a text that is to "
                "stand before others ends with a space or a colon"
            )
        return self.texts.get(name, prompt)

    def __str__(self) -> str:
        return ", ".join(f"{name} {text!r}" for name, text in self.texts.items())


def prompts_of_run(prompts: Mapping[str, str]) -> Prompts:
    """Return the prompts of texts by themselves, of a run with these `data.prompts`."""
    first, second = prompts.get("text_a", ""), prompts.get("text_b", "")
    if first or second:
        return Prompts({QUERY: first, PASSAGE: second}, first if first == second else None)
    text = prompts.get("text", "")
    return Prompts({QUERY: text, PASSAGE: text}, text) if text else Prompts({})


class TextVectors:
    """Computes vectors of texts on one device; use it from one thread at a time."""

    layout: Layout = LAYOUTS["single"]

    def __init__(
        self, model: TaskModel, tokenizer: Tokenizer, lengths: Lengths, precision: NumberFormat, batches: InBatches,
        prompts: Prompts, *, normalizes: bool, files: Sequence[Path] = (),
    ):  # fmt: skip
        """`model` is on the device and not training; `normalizes`: whether its vectors are compared by cosines;
        `files`: of pretrained weights, what determines vectors."""
        self.model, self.tokenizer, self.lengths, self.precision = model, tokenizer, lengths, precision
        self._batches, self.prompts, self.normalizes, self.files = batches, prompts, normalizes, files

    @property
    def device(self) -> torch.device:
        return self._batches.device

    def encode(
        self, texts: Iterable[str], prompt: str | None = None, dims: int | None = None, normalize: bool | None = None
    ) -> np.ndarray:
        """Return a vector for each text, (N, D), float32.

        `prompt`: query or passage for the prompts of the model, another text for itself, None for what it was trained
        to read. `dims`: only the first so many numbers, as for a model that was trained with Matryoshka dimensions.
        `normalize`: vectors of length 1; None = where the model compares cosines. Raises DataError for a text that
        cannot be used, and UserError for a prompt or `dims` that the model does not have.
        """
        before = self.prompts.of(prompt)
        encoded = self.tokens(self._checked(texts, before), before)
        return self.of(encoded, dims=dims, normalize=self.normalizes if normalize is None else normalize)

    def search(
        self, queries: Iterable[str] | np.ndarray, corpus: Iterable[str] | np.ndarray, k: int = 10,
        dims: int | None = None,
    ) -> Nearest:  # fmt: skip
        """Return the `k` texts of a corpus with the highest cosine to each query: `places` and `scores`, (Q, k) each.

        Texts, with the prompts of queries and passages, or their vectors (an array or a memory-mapped file; memory does
        not grow with it). `dims` cuts vectors of texts. All are compared; of equal ones the first comes first. Raises
        as `encode` does.
        """
        by_name = [
            self._unit(given, self.prompts.texts.get(name, ""), dims)
            for name, given in ((QUERY, queries), (PASSAGE, corpus))
        ]
        return nearest(by_name[0], by_name[1], k)

    def _unit(self, given: Iterable[str] | np.ndarray, prompt: str, dims: int | None) -> np.ndarray:
        if isinstance(given, np.ndarray) and given.dtype.kind == "f":
            return given
        return self.of(self.tokens(self._checked(given, prompt), prompt), dims=dims, normalize=True)

    def _checked(self, texts: Iterable[str], prompt: str) -> list[Values]:
        require_several(texts, "texts")
        values: list[Values] = []
        for number, text in enumerate(texts, 1):
            values.append({"text": text})
            require_none(self.problem(values[-1], prompt), values[-1], f"text {number}")
        return values

    def problem(self, values: Values, prompt: str = "") -> Problem | None:
        """Return the field of a row that cannot be encoded behind the prompt, and the rule that its value breaks, or
        None."""
        return self.layout.problem(values) or self._behind(prompt).problem(self.layout, self.tokenizer, values)

    def tokens(self, rows: Sequence[Values], prompt: str) -> EncodedRows:
        """Return the tokens of valid rows of one text, each behind the prompt."""
        return self._behind(prompt).encode(self.layout, self.tokenizer, rows)

    def _behind(self, prompt: str) -> Lengths:
        return replace(self.lengths, prompts={"text": prompt} if prompt else {})

    def shaped(self, vectors_ND: np.ndarray, dims: int | None, normalize: bool) -> np.ndarray:
        """Return vectors that `of` gave whole, as it gives them with `dims` and `normalize`."""
        return self._shaped(torch.from_numpy(vectors_ND), dims, normalize).numpy()

    def _shaped(self, vectors_ND: Tensor, dims: int | None, normalize: bool) -> Tensor:
        if dims is not None and not 1 <= dims <= (width := vectors_ND.shape[1]):
            raise UserError(f"dims is {dims}, but vectors of this model have {width} numbers; set dims to at most that")
        return F.normalize(vectors_ND[:, :dims], dim=1) if normalize else vectors_ND[:, :dims]

    @torch.inference_mode()
    def of(
        self, encoded: EncodedRows, layout: Layout | None = None, *, dims: int | None = None, normalize: bool = False,
        advance: Callable[[int], None] = lambda rows: None,
    ) -> np.ndarray:  # fmt: skip
        """Return the vector of each encoded row, (N, D), float32.

        For a pair in two sequences (of `layout`, by default that of one text) both vectors are concatenated; for tagged
        units it is the mean.
        """
        part = in_memory(encoded, layout or self.layout)

        def vectors_of(batch: Batch) -> np.ndarray:
            with self.precision.autocast(self.device):
                vectors_BD = self._vectors(batch.to(self.device)).float()
            return to_host(self._shaped(vectors_BD, dims, normalize))

        found_ND: np.ndarray | None = None
        for batch, vectors_BD in self._batches.of(part, vectors_of):
            if found_ND is None:
                found_ND = np.empty((len(part), vectors_BD.shape[1]), np.float32)
            found_ND[batch.examples_B] = vectors_BD
            advance(len(batch))
        return np.zeros((0, 0), np.float32) if found_ND is None else found_ND

    def _vectors(self, batch: Batch) -> Tensor:
        model = self.model
        if "units" not in model.wants:
            encoded = model.encode(batch)
            assert encoded.pooled_SD is not None
            each = [encoded.pooled_SD.index_select(0, sequences_B) for sequences_B in batch.sequences_KB]
            return of_windows(torch.cat(each, 1), batch.windows_B)
        # With a head over units, the run has hardly trained any vector of a sequence.
        hidden_TD = model.backbone.encode(model.backbone.embed(batch), batch, tokens=True).tokens_TD
        assert hidden_TD is not None
        means_SD = mean_of_sequences(hidden_TD, batch.lengths)
        return of_windows(means_SD.index_select(0, batch.sequences_KB[0]), batch.windows_B)


@dataclass(frozen=True)
class VectorForm:
    """How vectors are written."""

    dims: int | None
    normalize: bool
    dtype: str

    def __post_init__(self) -> None:
        if self.dtype == "int8" and not self.normalize:
            raise UserError(
                "dtype is int8, which holds numbers from -1 to 1, but vectors have any length; set normalize=true, "
                "choose dtype=float16, or encode by a model that compares cosines"
            )

    def of(
        self, vectors: TextVectors, encoded: EncodedRows, layout: Layout | None = None,
        advance: Callable[[int], None] = lambda rows: None,
    ) -> list[dict[str, np.ndarray]]:  # fmt: skip
        """Return the vector of each encoded row, as a record of it."""
        found_ND = vectors.of(encoded, layout, dims=self.dims, normalize=self.normalize, advance=advance)
        return [{VECTOR: vector} for vector in in_type(found_ND, self.dtype)]


def in_type(vectors_ND: np.ndarray, dtype: str) -> np.ndarray:
    """Return vectors as numbers of a type.

    int8: each number, from -1 to 1, times 127, rounded. binary: a bit for each number, 1 if it is positive, the first
    one as the highest bit of the first byte; (N, D / 8), uint8. sentence-transformers calls that ubinary.
    """
    if dtype == "binary":
        return np.packbits(vectors_ND > 0, axis=1)
    if dtype == "int8":
        return np.rint(vectors_ND * np.float32(INT8_SCALE)).clip(-INT8_SCALE, INT8_SCALE).astype(np.int8)
    return vectors_ND.astype(dtype)


def require_several(given: object, name: str) -> None:
    """Raise DataError if a single row or a table was given instead of rows."""
    if isinstance(given, str | bytes | Mapping) or hasattr(given, "columns") or not isinstance(given, Iterable):
        kind = "one text" if isinstance(given, str | bytes) else f"a {type(given).__name__}"
        raise DataError(f"{name} is {kind}; give a list, such as [text], or the records of a table")
