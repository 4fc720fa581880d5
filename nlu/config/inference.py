"""The keys of the commands that use a trained run.

This module imports nothing heavy, as `nlu.config.schema` does not.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self

from nlu.config.schema import Run
from nlu.config.types import (
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
"""stands for standard input or output in the place of a path"""


@dataclass(kw_only=True)
class Input:
    """The rows to predict. Written short: `input=PATH`."""

    path: InputFile
    """A file or URL; - is standard input."""
    fields: dict[str, str | int] | None = None
    """Column of each text, by name or number from 0; null = as in training, or columns called like the fields."""
    format: Literal["auto", "csv", "tsv", "jsonl", "json", "parquet", "xlsx", "conll", "lines"] = "auto"
    """How the file is read; auto = by its suffix, or as the run's own file of the same suffix was."""
    header: bool | None = None
    """Whether the first row of a table names its columns; null = where a field is given by name."""
    separator: str | None = None
    """Character between the cells of a csv or tsv file; null = that of the run's own files of the same format, else a
    comma in csv and a tab in tsv."""


@dataclass(kw_only=True)
class Predict:
    """The validated configuration of `nlu.predict`."""

    run: TrainedRun
    """A run, RUN/best-2, RUN/last, a checkpoint's folder, or a search, of which its best trial is taken."""
    checkpoint: str = "best"
    """best | last | best-2 | PATH of a checkpoint."""
    head_name: str | None = None
    """Of a run over several sets, the set whose head is meant; null = the only one."""
    input: Input
    output: OutputFile
    """csv, tsv, jsonl or parquet by its suffix; odps://PROJECT/tables/NAME; - is standard output."""
    scores: bool = False
    """Add the probability of each label in a column of its own."""
    logits: bool = False
    """Add the logits, which distillation reads."""
    prefix: str = ""
    """Stands before the name of each column that is added."""
    on_bad_row: Literal["error", "skip"] = "error"
    """What a row that cannot be used leads to; skip = its prediction stays empty, and it is counted."""
    max_rows: PositiveInt | None = None
    """Number of first rows that are predicted; null = all."""
    batch_size: PositiveInt = 64
    """Rows of a batch; no prediction depends on it."""
    devices: PositiveInt = 1
    """Processes on this machine, one per device; under torchrun its own count stands."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto = cuda where there is one."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """Build from a validated configuration with all of its keys."""
        known = {item.name: config[item.name] for item in fields(cls)}
        return cls(**known | {"input": Input(**config["input"])})


@dataclass(kw_only=True)
class Evaluate(Run):
    """The validated configuration of `nlu.evaluate`: that of a run, and what is to be known of it."""

    run: TrainedRun | None = None
    """A run, RUN/best-2, RUN/last, a checkpoint's folder, or a search, of which its best trial is taken; null = the
    weights that the configuration starts from."""
    checkpoint: str = "best"
    """best | last | best-2 | PATH of a checkpoint."""
    head_name: str | None = None
    """Of a run over several sets, the set whose head is meant; null = the only one."""
    out: str | None = None
    """Folder for result.json, predictions/ and plots/; null = only print the scores."""
    compare: bool = False
    """Score the run's own sets again, and say whether the scores are equal to the bit and, if not, why."""
    max_rows: PositiveInt | None = None
    """Rows of each set that are scored, a sample that the seed draws evenly over labels; null = all."""
    group_by: str | int | None = None
    """Column whose equal values are one query: intervals draw whole groups, and classifiers get scores of queries."""
    classes: list[str] | None = None
    """Classes over which precision_chosen, recall_chosen and f1_chosen go; null = none."""
    resamples: NonNegativeInt = 1000
    """Bootstrap resamples for the 95 % intervals; 0 = none."""


@dataclass(kw_only=True)
class Export:
    """The validated configuration of `nlu.export`."""

    run: TrainedRun
    """A run, RUN/best-2, RUN/last, a checkpoint's folder, or a search, of which its best trial is taken."""
    checkpoint: str = "best"
    """best | last | best-2 | PATH of a checkpoint."""
    head_name: str | None = None
    """Of a run over several sets, the set whose head is meant; null = the only one."""
    format: (
        Literal[
            "huggingface", "sentence_transformers", "onnx", "onnx-int8", "torch_export", "torchscript",
            "tf_checkpoint", "savedmodel",
        ]
        | list[
            Literal[
                "huggingface", "sentence_transformers", "onnx", "onnx-int8", "torch_export", "torchscript",
                "tf_checkpoint", "savedmodel",
            ]
        ]
    )  # fmt: skip
    """One format or several, each then in a folder of its name."""
    out: NewFolder
    """A new folder."""
    max_rows: PositiveInt = 256
    """Rows of the run's evaluation set that the export is held against."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """Build from a validated configuration with all of its keys."""
        return cls(**{item.name: config[item.name] for item in fields(cls)})


@dataclass(kw_only=True)
class Serve:
    """The validated configuration of `nlu.serve`."""

    run: TrainedRun
    """A run, RUN/best-2, RUN/last, a checkpoint's folder, or a search, of which its best trial is taken."""
    checkpoint: str = "best"
    """best | last | best-2 | PATH of a checkpoint."""
    head_name: str | None = None
    """Of a run over several sets, the set whose head is meant; null = the only one."""
    host: str = "127.0.0.1"
    """Address to listen at; another than this machine's own needs a token in the environment, as NLU_SERVE_TOKEN."""
    port: Port = 8000
    """0 = one that is free."""
    batch_size: PositiveInt = 64
    """Rows that are computed at once; no prediction depends on it."""
    max_body_kb: PositiveInt = 1024
    """Size of a request."""
    max_rows: PositiveInt = 256
    """Rows of a request."""
    max_characters: PositiveInt = 20_000
    """Characters of a row's texts; what exceeds data.max_len tokens is cut, as in training."""
    max_waiting_rows: PositiveInt = 4096
    """Rows that may wait to be computed; further requests are refused with 429."""
    requests_per_s: PositiveFloat | None = None
    """Requests a second of one client, with as many at once; null = any."""
    proxies: list[str] = field(default_factory=list)
    """Addresses or networks whose X-Forwarded-For is believed; [] = none."""
    timeout_s: PositiveFloat = 30.0
    """After which a request is given up, and how long requests under way may take once the server is to stop."""
    reload_s: NonNegativeFloat = 5.0
    """How often a new best checkpoint is looked for; 0 = never."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto = cuda where there is one."""
    interactive: bool = False
    """A prompt in this terminal in place of a server."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """Build from a validated configuration with all of its keys."""
        return cls(**{item.name: config[item.name] for item in fields(cls)})
