"""The keys of the commands that use a trained run, and the configuration that scores such a run.

This module imports nothing heavy, as `nlu.config.schema` does not.
"""

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any, Literal, Self

from nlu.config.errors import UserError
from nlu.config.schema import Node, Run
from nlu.config.types import (
    Fraction,
    InputFile,
    NewFolder,
    NonNegativeFloat,
    NonNegativeInt,
    OutputFile,
    Port,
    PositiveFloat,
    PositiveInt,
    TrainedRun,
)

STANDARD = "-"
"""The path that stands for standard input or output."""
ALLOWED = (
    "seed",
    "dry_run",
    "trusted_packages",
    "precision",
    "trainer.device",
    "trainer.devices",
    "trainer.eval_batch_size",
)
"""Keys of a run that may have other values when it is scored."""
PRECISIONS = ("fp32", "bf16", "int8", "int8_compiled")
"""The precisions in which a run may predict, other than its own."""
SETS = ("train", "dev", "test")
_DIALECT = {"separator": None, "quote": None, "skip_lines": 0, "sheet": None, "records": None}
"""Keys of the files of a run that say nothing about files of another format."""


@dataclass(kw_only=True)
class _Command:
    """A validated configuration whose keys are the fields."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """Build from a validated configuration with all of its keys."""
        return cls(**{item.name: config[item.name] for item in fields(cls)})


@dataclass(kw_only=True)
class Input:
    """The rows to predict. Written short: `input=PATH`."""

    path: list[InputFile] | InputFile
    """A file or URL, a pattern such as rows/*.csv, or a list of them; - is standard input."""
    fields: dict[str, str | int] | None = None
    """Column of each text, by name or number from 0; null = as in training, or columns named like the fields."""
    format: Literal["auto", "csv", "tsv", "jsonl", "json", "parquet", "xlsx", "conll", "lines"] = "auto"
    """Format of the file; auto = by its suffix, or that of the run's own file with the same suffix."""
    header: bool | None = None
    """Whether the first row of a table names its columns; null = if a field is given by name."""
    separator: str | None = None
    """Character between the cells of a csv or tsv file; null = that of the run's own files in this format, else a comma
    in csv and a tab in tsv."""
    quote: str | None = None
    """Character around cells of a csv or tsv file; "" = none; null = as in the run's own files of this format."""
    skip_lines: NonNegativeInt | None = None
    """Lines at the start of the file that are not read; null = as in the run's own files of this format."""
    sheet: str | int | None = None
    """Sheet of an xlsx file, by name or number from 0; null = as in the run's own files of this format."""
    records: str | None = None
    """Where a JSON object has its rows, such as data.items; null = as in the run's own files of this format."""


@dataclass(kw_only=True)
class Predict(_Command):
    """The validated configuration of `nlu.predict`."""

    run: TrainedRun
    """A run, RUN/best-2, RUN/last, a checkpoint's folder, or a search, which stands for its best trial."""
    checkpoint: str = "best"
    """best | last | best-2 | PATH of a checkpoint."""
    head_name: str | None = None
    """Of a run over several sets, the set whose head is meant; null = the only one."""
    input: Input
    output: OutputFile
    """csv, tsv, jsonl or parquet by its suffix; odps://PROJECT/tables/NAME; - is standard output. Each of several
    inputs has a file: * stands for the name of the input without its suffix."""
    scores: bool = False
    """Add a column with the probability of each label."""
    logits: bool = False
    """Add the logits, for distillation."""
    spans: Literal["first_last", "start_end", "lists"] = "first_last"
    """How predicted spans are written: by type, first and last, included; by start, end and label, the end excluded, as
    in Prodigy and Label Studio; or as lists [start, end, label], as in doccano and spaCy."""
    prefix: str = ""
    """Prefix of the names of the added columns."""
    columns: bool = True
    """Write the columns of the input before those of the predictions."""
    on_bad_row: Literal["error", "skip"] = "error"
    """Action for a row that cannot be used; skip = leave its prediction empty, and count it."""
    max_rows: PositiveInt | None = None
    """Predict only this many first rows; null = all."""
    precision: Node | None = None
    """Number format of matrix products; null = that of training."""
    long: Literal["cut", "windows", "error"] | None = None
    """What becomes of texts of more than data.max_len tokens; null = data.long of training."""
    batch_size: PositiveInt = 64
    """Rows of a batch; predictions do not depend on it."""
    devices: PositiveInt | Literal["auto"] = 1
    """Processes on this machine, one per device; auto = one for each visible GPU, 1 on a CPU; under torchrun its own
    count stands."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto = cuda if available."""
    dry_run: bool = False
    """Print the resolved configuration and the verdict on it, and stop."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """Build from a validated configuration with all of its keys."""
        return super().of({**config, "input": Input(**config["input"])})


@dataclass(kw_only=True)
class Evaluate(Run):
    """The validated configuration of `nlu.evaluate`: that of a run, and what to score."""

    run: TrainedRun | None = None
    """A run, RUN/best-2, RUN/last, a checkpoint's folder, or a search, which stands for its best trial; null = the
    initial weights of the configuration."""
    checkpoint: str = "best"
    """best | last | best-2 | PATH of a checkpoint."""
    head_name: str | None = None
    """Of a run over several sets, the set whose head is meant; null = the only one."""
    out: str | None = None
    """Folder for result.json, predictions/ and plots/; null = only print the scores."""
    table: str | None = None
    """A tab-separated file to which a row for each scored set is appended; null = none."""
    compare: bool = False
    """Score the run's own sets again, and report whether the scores are equal to the bit."""
    max_rows: PositiveInt | None = None
    """Score a sample of this many rows of each set, which the seed draws evenly over labels; null = all."""
    group_by: str | int | None = None
    """Column whose equal values are one query: intervals draw whole queries, and classifiers get scores of queries."""
    resamples: NonNegativeInt = 1000
    """Bootstrap resamples for the 95 % intervals; 0 = none."""


@dataclass(kw_only=True)
class Export(_Command):
    """The validated configuration of `nlu.export`."""

    run: TrainedRun
    """A run, RUN/best-2, RUN/last, a checkpoint's folder, or a search, which stands for its best trial."""
    checkpoint: str = "best"
    """best | last | best-2 | PATH of a checkpoint."""
    head_name: str | None = None
    """Of a run over several sets, the set whose head is meant; null = the only one."""
    format: (
        Literal[
            "huggingface", "sentence_transformers", "model2vec", "peft", "onnx", "onnx-int8", "torchscript",
            "tf_checkpoint", "savedmodel",
        ]
        | list[
            Literal[
                "huggingface", "sentence_transformers", "model2vec", "peft", "onnx", "onnx-int8", "torchscript",
                "tf_checkpoint", "savedmodel",
            ]
        ]
    )  # fmt: skip
    """One format, or several, each in a folder named after it."""
    out: NewFolder
    """A new folder."""
    max_rows: PositiveInt = 256
    """Rows of the run's evaluation set on which the export is compared with the run."""
    dry_run: bool = False
    """Print the resolved configuration and the verdict on it, and stop."""


@dataclass(kw_only=True)
class Prune(_Command):
    """The validated configuration of `nlu.prune`."""

    run: TrainedRun
    """A run, RUN/best-2, RUN/last, a checkpoint's folder, or a search, which stands for its best trial."""
    checkpoint: str = "best"
    """best | last | best-2 | PATH of a checkpoint."""
    out: NewFolder | None = None
    """A new run folder; null = only print a table."""
    fraction: Fraction | None = None
    """Share of the heads to remove."""
    heads: dict[int, PositiveInt] | None = None
    """Number of heads to remove, by layer from 0; -1 is the last layer."""
    max_rows: PositiveInt | None = 1000
    """Rows of the training set from which importances are computed; null = all."""
    batch_size: PositiveInt = 32
    """Rows of a batch; results do not depend on it."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto = cuda if available."""
    dry_run: bool = False
    """Print the resolved configuration and the verdict on it, and stop."""


@dataclass(kw_only=True)
class Profile(Run):
    """The validated configuration of `nlu.profile`: that of a run, and what to measure."""

    run: TrainedRun | None = None
    """A trained run whose prediction of `rows` is profiled; null = training."""
    checkpoint: str = "best"
    """best | last | best-2 | PATH of a checkpoint."""
    head_name: str | None = None
    """Of a run over several sets, the set whose head is meant; null = the only one."""
    rows: InputFile | None = None
    """A file with rows to predict; null = training."""
    steps: PositiveInt = 20
    """Optimizer steps to measure; with `run`, batches."""
    warmup: NonNegativeInt = 5
    """Steps before the measured ones."""
    out: NewFolder | None = None
    """A new folder for profile.json, trace.json and memory.png; null = only print."""


@dataclass(kw_only=True)
class Serve(_Command):
    """The validated configuration of `nlu.serve`."""

    run: TrainedRun
    """A run, RUN/best-2, RUN/last, a checkpoint's folder, or a search, which stands for its best trial."""
    checkpoint: str = "best"
    """best | last | best-2 | PATH of a checkpoint."""
    head_name: str | None = None
    """Of a run over several sets, the set whose head is meant; null = the only one."""
    host: str = "127.0.0.1"
    """Address to listen on; one that other machines reach needs a token in the environment variable NLU_SERVE_TOKEN."""
    port: Port = 8000
    """0 = any free port."""
    precision: Node | None = None
    """Number format of matrix products; null = that of training."""
    long: Literal["cut", "windows", "error"] | None = None
    """What becomes of texts of more than data.max_len tokens; null = data.long of training."""
    batch_size: PositiveInt = 64
    """Rows of a batch; predictions do not depend on it."""
    max_body_kb: PositiveInt = 1024
    """Largest request."""
    max_rows: PositiveInt = 256
    """Most rows of a request."""
    max_characters: PositiveInt = 20_000
    """Most characters of a row's texts."""
    max_waiting_rows: PositiveInt = 4096
    """Most rows in the queue; further requests are refused with 429."""
    requests_per_s: PositiveFloat | None = None
    """Most requests per second of a client, and the size of a burst; null = no limit."""
    proxies: list[str] = field(default_factory=list)
    """Addresses or networks whose X-Forwarded-For is trusted; [] = none."""
    timeout_s: PositiveFloat = 30.0
    """Longest time for a request, also for those in progress when the server stops."""
    reload_s: NonNegativeFloat = 5.0
    """Interval between looks for a new best checkpoint; 0 = never look."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto = cuda if available."""
    interactive: bool = False
    """Open a prompt in this terminal instead of a server."""


def on_run(
    saved: Mapping[str, Any],
    composed: Mapping[str, Any],
    overrides: Iterable[str],
    named: Sequence[str],
    checkpoint: str,
) -> dict[str, Any]:
    """Return the configuration that scores a run: `saved`, with the values in `composed` of the keys in `overrides`.

    `named` are the sets for which rows are given. They replace the run's own rows, and `checkpoint` its initial weights
    and vocabulary. Given files are read like those of training if they have the same suffix; otherwise the format is
    that of the suffix, and columns that were numbered in training are found by the names of the fields.
    Raises UserError for keys that would change the run.
    """
    of_run = {item.name for item in fields(Run)}
    own = [item.name for item in fields(Evaluate) if item.name not in of_run]
    given = _keys(overrides)
    wrong = [key for key in given if not (key in own or key.partition(".")[0] == "data" or key in ALLOWED)]
    if wrong:
        raise UserError(*(f"{key}: a run is scored as it was trained; leave out {key}, or run=" for key in wrong))
    # A deep copy, because values below are replaced in place.
    config = {**deepcopy(dict(saved)), **{key: composed[key] for key in own}}
    # The choices are those of training, and scoring needs no tracker's package.
    for key in ("choices", "tracker"):
        config.pop(key, None)
    # First the values that the command line gives; below, what follows from them for the files to score.
    has_own_fields = "data.fields" in given
    for key in given:
        if key in own:
            continue
        if key.startswith("data.fields.") and not has_own_fields:
            # One column differs from training, so the others are not taken from there.
            config["data"]["fields"], has_own_fields = {}, True
        # From the composed configuration, not from the text of the override: Hydra has parsed and resolved it.
        _put(config, key, deepcopy(reduce(getitem, key.split("."), composed)))
    # A named data set has its own format; the length of sequences belongs to the model.
    if "data" not in given and {"data.dev", "data.test"} & set(given) and "data.format" not in given:
        config["data"] |= _reading(saved["data"], config["data"], given)
    for key in ("max_len", "long", "stride"):
        if f"data.{key}" not in given and key in saved["data"]:
            config["data"][key] = saved["data"][key]
    if named:
        sources = [config["data"][name] for name in named if config["data"].get(name) is not None]
        if not sources:
            raise UserError(
                f"{' and '.join(f'data.{name}' for name in named)} is null, so nothing would be scored; give "
                "data.test=FILE"
            )
        # A configuration must name training rows. Scoring does not read them, so they need not be on this machine.
        config["data"]["train"] = sources[0]
        config["data"] |= {name: None for name in ("dev", "test") if name not in named}
        if "data.max_rows" not in given:
            # Score all rows, even if the run was trained on the first ones only.
            config["data"]["max_rows"] = None
        for group, key, value in (
            ("tokenizer", "vocab", None), ("model", "pretrained", checkpoint), ("model", "keep_layers", None),
            ("model", "embeddings", None),
        ):  # fmt: skip
            if key in config[group]:
                config[group][key] = value
    # Scoring needs no teacher, which need not be on this machine.
    for key, value in (("teacher", checkpoint), ("logits", None)):
        if key in config["method"]:
            config["method"][key] = value
    return config


def scored_sets(overrides: Iterable[str]) -> list[str]:
    """Return the sets for which the command line gives rows; [] if the run's own are to be scored."""
    given = _keys(overrides)
    if "data" in given:
        return ["dev", "test"]
    return [name for name in ("dev", "test") if any(key.partition("data.")[2].split(".")[0] == name for key in given)]


def _reading(saved: Mapping[str, Any], data: Mapping[str, Any], given: list[str]) -> dict[str, object]:
    known = {Path(path).suffix for path in _paths([saved.get(name) for name in SETS])}
    new = {
        Path(path).suffix for path in _paths([data.get(name) for name in ("dev", "test") if f"data.{name}" in given])
    }
    # Files with a suffix of the training files are read like these.
    if new <= known:
        return {}
    changed: dict[str, object] = {"format": "auto", "header": None, **_DIALECT}
    # A named column has its name in any format; a numbered one may have another number.
    if any(isinstance(column, int) for column in (saved.get("fields") or {}).values()):
        changed["fields"] = None
    return {
        key: value
        for key, value in changed.items()
        if (key in saved or key not in _DIALECT) and not any(f"{one}.".startswith(f"data.{key}.") for one in given)
    }


def _paths(source: Any) -> list[str]:
    if isinstance(source, str):
        return [source]
    inner = source.values() if isinstance(source, Mapping) else source or ()
    return [path for each in inner for path in _paths(each)]


def _keys(overrides: Iterable[str]) -> list[str]:
    """Return the keys that overrides set, without Hydra's own."""
    keys = (text.partition("=")[0].strip("+").partition("@")[0] for text in overrides if not text.startswith("~"))
    return [key for key in keys if not key.startswith("hydra")]


def _put(config: dict[str, Any], key: str, value: object) -> None:
    *parents, last = key.split(".")
    node = config
    for part in parents:
        if not isinstance(node.get(part), dict):
            node[part] = {}
        node = node[part]
    node[last] = value
