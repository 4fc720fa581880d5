"""Find hard negatives: texts of a corpus that are near to a query and do not answer it.

The vectors of the corpus are in a file beside the output, so memory holds the texts only. Each chunk of the corpus is a
piece of that file and each chunk of queries one of the output; pieces are kept if the command is killed, and jobs share
them. Axes: Q queries of a chunk, D width, U texts of the corpus, A answers of a query.
"""

import json
import logging
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cached_property
from heapq import nlargest
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from nlu.config.command_keys import Mine
from nlu.config.errors import UserError, keys_called
from nlu.config.sentences import counted
from nlu.config.types import ConfigLike
from nlu.data.dataset import find_file
from nlu.display.console_tables import metric_text, numbers, print_table, table_of, texts
from nlu.display.progress_bars import Bar, Progress
from nlu.inference.claimed import Claimed, Team, require_shareable, write_in_pieces
from nlu.inference.encode_files import by_run, by_weights
from nlu.inference.faiss_index import approximate
from nlu.inference.input_rows import found
from nlu.inference.locate import Located
from nlu.inference.mined_pairs import MinedPairs
from nlu.inference.nearest import Nearest, nearest
from nlu.inference.predict_files import KEYS
from nlu.inference.predictor import Predictor
from nlu.inference.text_vectors import PASSAGE, QUERY, Prompts, TextVectors
from nlu.inference.trained import load_trained
from nlu.runs import logs
from nlu.storage.access import delete, stat
from nlu.storage.cache import file_digest, text_digest
from nlu.storage.files import json_text
from nlu.storage.locations import parse_place
from nlu.training.ranks import process_group

log = logging.getLogger(__name__)

CHUNK_TEXTS, CHUNK_QUERIES = 16_384, 4096
SUSPECTS_OF_QUERY, SHOWN_SUSPECTS = 10, 10
DIGITS = 6
"""decimals of a written similarity"""
Record = dict[str, Any]


def run_mining(config: Mine, located: Located | None) -> int:
    """Mine for all queries of the input; returns the exit status. Raises UserError for the user's mistakes."""
    with process_group(config.device, keys="") as ranks, ExitStack() as held, keys_called(KEYS):
        logs.set_up(None, ranks.rank)
        require_shareable(Team.of(config), ranks.world_size, config.output)
        path = held.enter_context(found(str(config.input.path), config.input.format))
        corpus = None if config.corpus is None else held.enter_context(found(config.corpus, "auto", "corpus"))
        fields: ConfigLike | None = None
        if located is None:
            own = by_weights(config, ranks, "")
        else:
            trained = load_trained(located, precision=config.precision, long=config.long)
            own = by_run(Predictor(trained, ranks.device, batch_size=config.batch_size, owns=True), "")
            fields = trained.data.get("fields")
        if config.prompts is not None:
            own.vectors.prompts = Prompts(config.prompts)
        pairs = MinedPairs.of(config.input, fields or {}, path, corpus)
        if config.range[0] >= len(pairs.corpus):
            raise UserError(
                f"range is {config.range}, but there are only {counted(len(pairs.corpus), 'distinct text')} to take "
                "negatives from; set a lower range, or give a larger corpus"
            )
        plan = {
            **own.settings(),
            "prompts": dict(own.vectors.prompts.texts),
            "input": file_digest(path),
            "reading": [pairs.reading.file_format, pairs.reading.fields, pairs.reading.dialect.settings()],
            "corpus": None if corpus is None else file_digest(corpus),
            "chunks": [CHUNK_TEXTS, CHUNK_QUERIES],
        }
        sizes = f"{len(pairs.answers):,} queries with answers, {counted(len(pairs.corpus), 'text')}"
        log.info("%s; %s", own.shown, sizes)
        with Progress() as progress, progress.task("mining", len(pairs.answers)) as bar:
            work = Mining(config, pairs, own.vectors, plan, bar)
            work.run()
        work.report()
    return 0


class Mining:
    """Mines chunk by chunk."""

    def __init__(self, config: Mine, pairs: MinedPairs, vectors: TextVectors, plan: Record, bar: Bar):
        """`plan`: everything that determines the vectors, as JSON."""
        self._config, self._pairs, self._vectors, self._bar = config, pairs, vectors, bar
        self._team, self._plan = Team.of(config), plan
        self._texts, self._queries = list(pairs.corpus), list(pairs.answers)
        folder, slash, name = config.output.rpartition("/")
        # Its name says what its vectors are, so that a command that continues finds the right ones.
        self._vectors_at = f"{folder}{slash}.{name}.{text_digest(json.dumps(plan))[:12]}.vectors"
        self._counts, self._suspects = np.zeros(4, np.int64), list[Record]()

    def run(self) -> None:
        """Write the output, and remove the vectors of the corpus."""
        config, count = self._config, len(range(0, len(self._queries), CHUNK_QUERIES))
        own = {"number": config.number, "range": config.range, "max_share": config.max_share, "index": config.index}
        write_in_pieces(config.output, {**self._plan, **own}, count, self.piece, _Rows(config.output), self._team)
        delete(parse_place(self._vectors_at))
        if self._team.jobs > 1:
            # Not every job has helped with the vectors, so the last one of these did not see that it was the last.
            Claimed(self._vectors_at, self._plan).remove()

    @cached_property
    def _corpus_UD(self) -> np.ndarray:
        """The vectors of the corpus, float32, in a file."""
        # Only for a piece that is to be computed: a job that comes late must not encode the corpus again.
        if stat(parse_place(self._vectors_at)) is None:
            count = len(range(0, len(self._texts), CHUNK_TEXTS))
            write_in_pieces(self._vectors_at, self._plan, count, self._vectors_of, _Rows(""), self._team)
        path = find_file("output", self._vectors_at)
        return np.memmap(path, np.float32, "r").reshape(len(self._texts), -1)

    @cached_property
    def _search(self) -> Callable[[np.ndarray, np.ndarray, int], Nearest]:
        return approximate(self._corpus_UD) if self._config.index == "faiss" else nearest

    def _vectors_of(self, number: int) -> bytes:
        start = number * CHUNK_TEXTS
        return self._encoded(self._texts[start : start + CHUNK_TEXTS], PASSAGE).tobytes()

    def _encoded(self, texts: Sequence[str], name: str) -> np.ndarray:
        return self._vectors.encode(texts, self._vectors.prompts.texts.get(name, ""), normalize=True)

    def piece(self, number: int) -> bytes:
        """Return the rows of a chunk of queries."""
        start = number * CHUNK_QUERIES
        queries = self._queries[start : start + CHUNK_QUERIES]
        # The query itself may be a text of the corpus. Of what faiss does not find the place is -1.
        known = [{-1, *map(self._pairs.corpus.get, (query, *self._pairs.answers[query]))} for query in queries]
        vectors_QD, corpus_UD = self._encoded(queries, QUERY), self._corpus_UD
        near = self._search(vectors_QD, corpus_UD, self._config.range[1] + max(map(len, known)))
        rows = []
        for at, query in enumerate(queries):
            places, scores = near.places[at].tolist(), near.scores[at].tolist()
            others = (one for one in zip(places, scores, strict=True) if one[0] not in known[at])
            rows += self._rows(query, vectors_QD[at], list(islice(others, self._config.range[1])))
        self._bar.advance(len(queries))
        return "".join(f"{json_text(row)}\n" for row in rows).encode()

    def _rows(self, query: str, vector_D: np.ndarray, ranked: Sequence[tuple[int, float]]) -> list[Record]:
        """Return the pairs of a query; `ranked`: the nearest texts that are no known answers, with their cosines."""
        config, answers = self._config, list(self._pairs.answers[query])
        answers_AD = self._corpus_UD[[self._pairs.corpus[text] for text in answers]]
        scores_A = (answers_AD.astype(np.float64) @ vector_D.astype(np.float64)).astype(np.float32)
        # As in sentence-transformers: of several answers the least similar one counts, and a margin below a negative
        # cosine is a margin too.
        least = float(scores_A.min())
        limit = np.inf if config.max_share is None else least - abs(least) * (1 - config.max_share)
        negatives = [one for one in ranked[config.range[0] :] if one[1] <= limit][: config.number]
        suspects = [one for one in ranked if one[1] > limit][:SUSPECTS_OF_QUERY]
        found = {
            "negatives": [self._texts[one] for one, _ in negatives],
            "negative_similarities": [round(score, DIGITS) for _, score in negatives],
            "suspects": [self._texts[one] for one, _ in suspects],
            "suspect_similarities": [round(score, DIGITS) for _, score in suspects],
        }
        self._counts += [len(answers), len(answers) * len(negatives), len(negatives) < config.number, bool(suspects)]
        own = {"query": query, "answer": answers[int(scores_A.argmin())], "cosine of answer": least}
        self._suspects += [own | {"suspect": self._texts[one], "cosine": score} for one, score in suspects]
        self._suspects = nlargest(SHOWN_SUSPECTS, self._suspects, key=lambda one: float(one["cosine"]))
        return [
            {"text_a": query, "text_b": text, "similarity": round(score, DIGITS), **found}
            for text, score in zip(answers, scores_A.tolist(), strict=True)
        ]

    def report(self) -> None:
        """Log what this process has found, and print the suspects that are nearest to their queries."""
        pairs, negatives, fewer, suspected = self._counts.tolist()
        log.info(
            "%s: %s with %s, mined by this process; fewer than %d for %d of %d queries; suspected answers for %d",
            self._config.output, counted(pairs, "pair"), counted(negatives, "negative"), self._config.number, fewer,
            len(self._queries), suspected,
        )  # fmt: skip
        if self._suspects:
            columns = [*numbers("cosine", "cosine of answer"), *texts("query", "answer", "suspect")]
            lines = [
                [metric_text(one[name]) if is_number else one[name] for name, is_number in columns]
                for one in self._suspects
            ]
            print_table(table_of(columns, lines))


class _Rows:
    """Joins pieces: rows of jsonl, as parquet if the output is called so, or any bytes."""

    def __init__(self, output: str):
        self._is_parquet = output.endswith(".parquet")

    def join(self, pieces: Sequence[Path], file: BinaryIO) -> None:
        if not self._is_parquet:
            for path in pieces:
                with open(path, "rb") as piece:
                    shutil.copyfileobj(piece, file, 1 << 20)
            return
        import pyarrow as pa
        import pyarrow.json
        import pyarrow.parquet as pq

        lists = {f"{name}s": pa.list_(pa.string()) for name in ("negative", "suspect")}
        lists |= {f"{name}_similarities": pa.list_(pa.float64()) for name in ("negative", "suspect")}
        schema = pa.schema({"text_a": pa.string(), "text_b": pa.string(), "similarity": pa.float64(), **lists})
        with pq.ParquetWriter(file, schema) as writer:
            for path in pieces:
                # In one block, so that no row is longer than a block.
                whole = pyarrow.json.ReadOptions(block_size=path.stat().st_size)
                parse = pyarrow.json.ParseOptions(explicit_schema=schema)
                writer.write_table(pyarrow.json.read_json(path, read_options=whole, parse_options=parse))
