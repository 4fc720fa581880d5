"""The routes of vectors: /encode, and /similar, which ranks candidates by their cosine to a query.

Texts of concurrent requests share batches, as rows do. Axes: N texts, D width, C candidates.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Annotated, Any, Protocol, Self, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from annotated_types import Len
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, PositiveInt, model_validator

from nlu.config.command_keys import Serve
from nlu.data.store import EncodedRows
from nlu.inference.cells import listed
from nlu.inference.input_rows import require_none
from nlu.inference.nearest import nearest
from nlu.inference.predictor import Predictor
from nlu.inference.text_vectors import PASSAGE, QUERY, VECTOR, TextVectors, VectorForm
from nlu.serving.batching import Batcher
from nlu.serving.bodies import require_few_characters, require_few_rows
from nlu.serving.runs import Runs

T = TypeVar("T")


class Serving(Protocol):
    """What the routes need of a server."""

    config: Serve
    runs: Runs
    batcher: Batcher

    async def result(self, submit: Callable[[], "Future[T]"], request: Request) -> T:
        """Return the result of the thread of the model."""

    def count_rows(self, rows: int) -> None:
        """Count rows that were answered."""


class EncodeBody(BaseModel):
    """The body of a request to /encode."""

    model_config = ConfigDict(strict=True, extra="forbid")
    texts: list[str]
    prompt: str | None = None
    """query or passage, or another text itself; by default what nlu.encode puts before each text"""
    dims: PositiveInt | None = None
    normalize: bool | None = None
    run: str | None = None
    """the name of the run, of a server of several"""


class SimilarBody(BaseModel):
    """The body of a request to /similar: a query with candidates, or pairs."""

    model_config = ConfigDict(strict=True, extra="forbid")
    query: str | None = None
    candidates: list[str] = []
    k: PositiveInt | None = None
    """the most candidates in the answer; by default all"""
    pairs: list[Annotated[list[str], Len(2, 2)]] = []
    run: str | None = None
    """the name of the run, of a server of several"""

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if bool(self.pairs) == (self.query is not None and bool(self.candidates)):
            raise ValueError("give a query and candidates, or pairs")
        return self


class _Texts:
    """Computes vectors of texts with the methods of `Predictor` that `Batcher` calls."""

    def __init__(self, vectors: TextVectors):
        self._vectors, self._form = vectors, VectorForm(None, False, "float32")

    def encode(self, rows: Sequence[Any]) -> EncodedRows:
        return self._vectors.tokens(rows, "")

    def predict(self, encoded: EncodedRows, *, with_logits: bool = False) -> list[dict[str, np.ndarray]]:
        return self._form.of(self._vectors, encoded)

    def try_out(self) -> None:
        self.predict(self.encode([{"text": "a"}]))


class VectorRoutes:
    """Answers by the vectors of a server's runs."""

    def __init__(self, application: Serving):
        self._application = application
        self._texts: WeakKeyDictionary[Predictor, _Texts] = WeakKeyDictionary()
        """one for each checkpoint, so that the rows of requests are computed together"""

    def add(self, app: FastAPI) -> None:
        """Add the routes."""
        app.post("/encode", summary="Vectors of texts")(self.encode)
        app.post("/similar", summary="Candidates by their cosine to a query, or cosines of pairs")(self.similar)

    async def encode(self, asked: EncodeBody, request: Request) -> Response:
        vectors = self._of(asked.run).text_vectors
        require_few_rows(len(asked.texts), "texts", self._application.config)
        prompt = vectors.prompts.of(asked.prompt)
        # It is copied before each text.
        require_few_characters({"prompt": prompt}, "prompt", self._application.config)
        found_ND = await self._vectors(asked.run, [(prompt, text) for text in asked.texts], request)
        normalize = vectors.normalizes if asked.normalize is None else asked.normalize
        shaped_ND = vectors.shaped(found_ND, asked.dims, normalize)
        return JSONResponse({"vectors": [listed(vector) for vector in shaped_ND]})

    async def similar(self, asked: SimilarBody, request: Request) -> Response:
        vectors = self._of(asked.run).text_vectors
        require_few_rows(max(len(asked.pairs), len(asked.candidates)), "the request", self._application.config)
        query, passage = (vectors.prompts.texts.get(name, "") for name in (QUERY, PASSAGE))
        if asked.query is None:
            texts = [*((query, first) for first, _ in asked.pairs), *((passage, second) for _, second in asked.pairs)]
            unit_ND = vectors.shaped(await self._vectors(asked.run, texts, request), None, True).astype(np.float64)
            scores = (unit_ND[: len(asked.pairs)] * unit_ND[len(asked.pairs) :]).sum(1).astype(np.float32)
            return JSONResponse({"scores": listed(scores)})
        texts = [(query, asked.query), *((passage, text) for text in asked.candidates)]
        unit_ND = vectors.shaped(await self._vectors(asked.run, texts, request), None, True)
        places, scores = (found[0] for found in nearest(unit_ND[:1], unit_ND[1:], asked.k or len(asked.candidates)))
        ranked = zip(places.tolist(), listed(scores), strict=True)  # type: ignore[arg-type]
        return JSONResponse(
            {"found": [{"place": place, "text": asked.candidates[place], "score": score} for place, score in ranked]}
        )

    def _of(self, run: str | None) -> Predictor:
        return self._application.runs.of(run).predictor

    async def _vectors(self, run: str | None, texts: Sequence[tuple[str, str]], request: Request) -> np.ndarray:
        """Return the vector of each text behind its prompt, (N, D). Raises Refused beyond the limits of the server, and
        UserError for a text that cannot be used."""
        predictor, application = self._of(run), self._application
        for number, (prompt, text) in enumerate(texts, 1):
            values = {"text": text}
            require_few_characters(values, f"text {number}", application.config)
            require_none(predictor.text_vectors.problem(values, prompt), values, f"text {number}")
        rows = self._texts.setdefault(predictor, _Texts(predictor.text_vectors))
        values_N = [{"text": f"{prompt}{text}"} for prompt, text in texts]
        found = await application.result(lambda: application.batcher.submit(rows, values_N), request)
        application.count_rows(len(found))
        return np.stack([one[VECTOR] for one in found]) if found else np.zeros((0, 0), np.float32)
