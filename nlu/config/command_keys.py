"""The keys of the commands that use a trained run, and of `nlu.scan`.

This module imports nothing heavy, as `nlu.config.schema` does not.
"""

from dataclasses import dataclass, field, fields
from typing import Annotated, Literal, Self

from nlu.config.schema import Node, Run
from nlu.config.types import (
    ConfigLike,
    Fraction,
    InputFile,
    Name,
    Naming,
    NewFolder,
    NonNegativeFloat,
    NonNegativeInt,
    OutputFile,
    Port,
    PositiveFloat,
    PositiveInt,
    Probability,
    RankRange,
    TrainedRun,
)

STANDARD = "-"
"""The path that stands for standard input or output."""
PRECISIONS = ("fp32", "bf16", "int8", "int8_compiled")
"""The precisions in which a run may predict, other than its own."""
Format = Literal[
    "huggingface", "sentence_transformers", "model2vec", "peft", "onnx", "onnx-int8", "torchscript", "tf_checkpoint",
    "savedmodel",
]  # fmt: skip
"""What a run may be exported to."""


@dataclass(kw_only=True)
class _Weights:
    checkpoint: str = "best"
    """Weights of the run: best, last, best-2, or PATH of a checkpoint."""


@dataclass(kw_only=True)
class _Head(_Weights):
    head_name: str | None = None
    """Name of the head to use, of a run over several sets: docs/mixtures.md; null = the run has only one."""


@dataclass(kw_only=True)
class _Batches:
    batch_size: PositiveInt = 64
    """Rows that are computed at once; results do not depend on it, with compile=true but for last digits."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Kind of device; auto = cuda if available, else cpu."""


@dataclass(kw_only=True)
class _Command:
    """A validated configuration whose keys are the fields."""

    run: TrainedRun
    """A run, RUN/best-2, RUN/last, a checkpoint's folder, or a search, which stands for its best trial."""

    @classmethod
    def of(cls, config: ConfigLike) -> Self:
        """Build from a validated configuration with all of its keys."""
        values = {item.name: config[item.name] for item in fields(cls)}
        # Only some commands read rows.
        return cls(**values | ({"input": Input(**values["input"])} if "input" in values else {}))


@dataclass(kw_only=True)
class _Job(_Command):
    dry_run: bool = False
    """Print the configuration and every problem with it, and stop."""


@dataclass(kw_only=True)
class Shared:
    """The keys of a command whose work several jobs share."""

    jobs: PositiveInt = 1
    """Jobs that share the work, for hydra/launcher to start: docs/predicting.md."""
    job: NonNegativeInt | None = None
    """Number of this job, from 0, where another program starts the jobs; null = the command starts all of them."""


@dataclass(kw_only=True)
class _Compiling:
    compile: bool = False
    """Compute by torch.compile over batches of few shapes, on CUDA; the last digits then depend on the shape:
    docs/guarantees.md."""


@dataclass(kw_only=True)
class _Prediction(_Batches, _Compiling, _Head, _Command):
    precision: Node | None = None
    """Number format of matrix products: fp32, bf16, int8 or int8_compiled; null = that of training."""
    long: Literal["cut", "windows", "error"] | None = None
    """What becomes of texts of more than data.max_len tokens; windows = windows of the whole text; null = data.long of
    training."""


@dataclass(kw_only=True)
class Input:
    """The rows to predict."""

    path: list[InputFile] | InputFile
    """Rows to predict, written short input=PATH: a file or URL, a pattern such as rows/*.csv, or a list of them; - =
    standard input."""
    fields: dict[str, str | int] | None = None
    """Column of each text, by name or number from 0; null = as in training, or columns named like the fields."""
    format: Literal["auto", "csv", "tsv", "jsonl", "json", "parquet", "xlsx", "conll", "lines"] = "auto"
    """Format of the files; lines = one text per line; auto = by the suffix, or that of the run's own file with it."""
    header: bool | None = None
    """Whether the first row of a table names its columns; null = if a field is given by name."""
    separator: str | None = None
    """Character between the cells of a csv or tsv file, such as ";"; null = as in the run's own files of this format,
    else a comma in csv and a tab in tsv."""
    quote: str | None = None
    """Character around cells of a csv or tsv file that may hold separators; "" = none; null = as in the run's own files
    of this format, else " in csv and none in tsv."""
    skip_lines: NonNegativeInt | None = None
    """Lines at the start of the file that are not read; null = as in the run's own files of this format, else 0."""
    sheet: str | int | None = None
    """Sheet of an xlsx file, by name or number from 0; null = as in the run's own files of this format, else the
    first."""
    records: str | None = None
    """Where a JSON object has its rows, such as data.items; null = as in the run's own files of this format."""


@dataclass(kw_only=True)
class _Rows(Shared):
    """The keys of a command that adds something to the rows of files."""

    input: Annotated[Input, Naming("keys, such as input.path=new.csv")]
    output: OutputFile
    """A file, csv, tsv, jsonl, parquet or, of vectors alone, npy by its suffix; odps://PROJECT/tables/NAME; - =
    standard output. Each of several inputs has a file: * stands for the name of the input without its suffix."""
    dims: PositiveInt | None = None
    """Only so many first numbers of each vector, as for Matryoshka dimensions; null = all."""
    dtype: Literal["float32", "float16", "int8", "binary"] = "float32"
    """Numbers of vectors; int8 = those of vectors of length 1, times 127, rounded; binary = a bit each, 1 for numbers
    above 0, the first as the highest of a byte (uint8)."""
    prefix: str = ""
    """Prefix of the name of each added column."""
    columns: bool = True
    """Write the columns of the input too, before what is added; false = only what is added."""
    on_bad_row: Literal["error", "skip"] = "error"
    """Action for a row that cannot be used; error = stop before the first row is computed; skip = leave what is added
    empty (in npy NaN, or 0 of whole numbers), and count it."""
    max_rows: PositiveInt | None = None
    """Compute only this many first rows; null = all."""
    devices: PositiveInt | Literal["auto"] = 1
    """Processes on this machine, one for each device; auto = all visible GPUs, 1 on a CPU; under torchrun, torchrun's
    number counts."""


@dataclass(kw_only=True)
class Predict(_Prediction, _Rows, _Job):
    """The validated configuration of `nlu.predict`."""

    scores: bool = False
    """Add a column with the probability of each label."""
    logits: bool = False
    """Add the logits, for example for distillation."""
    vectors: bool = False
    """Add the vector that the head reads; with an output of suffix npy, write only the vectors."""
    spans: Literal["first_last", "start_end", "lists"] = "first_last"
    """Spans of task=tag as JSON; first_last = {type, first, last, text}, the last included; start_end = {start, end,
    label, text}, the end excluded, as in Prodigy and Label Studio; lists = [start, end, label], as in doccano and
    spaCy."""


@dataclass(kw_only=True)
class Encoding(_Batches, _Head, _Job):
    """The keys of a command that encodes texts by a run or by pretrained weights."""

    run: TrainedRun | None = None  # type: ignore[assignment]
    """A run, RUN/best-2, RUN/last, a checkpoint's folder, or a search, which stands for its best trial; null = the
    pretrained weights of `model`."""
    model: Node | None = None
    """Pretrained weights that encode, a choice of the group such as e5_small, or model=hf model.pretrained=PATH; null =
    the run."""
    precision: Node | None = None
    """Number format of matrix products: fp32, bf16, int8 or int8_compiled; null = that of training, or fp32."""
    long: Literal["cut", "windows", "error"] | None = None
    """What becomes of texts of more tokens than the model reads; windows = the mean of windows of the whole text; null
    = data.long of training, or cut."""


@dataclass(kw_only=True)
class Encode(_Rows, Encoding):
    """The validated configuration of `nlu.encode`."""

    prompt: str | None = None
    """Text before each text; query and passage = those of the run (data.prompts) or of the weights; null = the one that
    stands before every text, if any."""
    normalize: bool | None = None
    """Give vectors length 1; null = where the run compares cosines, or as the weights say, which is true if they do
    not."""


@dataclass(kw_only=True)
class Mine(Shared, Encoding):
    """The validated configuration of `nlu.mine`."""

    input: Annotated[Input, Naming("keys, such as input.path=pairs.csv")]
    corpus: InputFile | None = None
    """Texts that may become negatives beside the text_b of all pairs: a file with one on each line, or rows with a
    column text; null = none besides."""
    prompts: dict[str, str] | None = None
    """Texts before queries and before passages, such as {query: "query: ", passage: "passage: "}; null = those of the
    run (data.prompts) or of the weights."""
    output: OutputFile
    """jsonl or parquet by its suffix: a row for each pair, with its negatives and with texts that may be answers."""
    number: PositiveInt = 5
    """Negatives of a query, the nearest within range."""
    range: RankRange = field(default_factory=lambda: [0, 100])
    """Ranks from which negatives are taken, [first, behind the last], from 0, by cosine and without known answers."""
    max_share: Fraction | None = 0.95
    """Largest cosine of a negative, as a share of that of the query's least similar answer; what is above is a
    suspected answer; null = any."""
    index: Literal["exact", "faiss"] = "exact"
    """How near texts are found; exact = all are compared, in blocks; faiss = an approximate index, in memory."""


@dataclass(kw_only=True)
class Evaluate(Run, Shared, _Compiling, _Head):
    """The validated configuration of `nlu.evaluate`: that of a run, and what to score."""

    run: TrainedRun | None = None
    """A run, RUN/best-2, RUN/last, a checkpoint's folder, or a search, which stands for its best trial; null = the
    initial weights of the configuration."""
    out: str | None = None
    """Folder for result.json, predictions/ and plots/; null = only print the scores."""
    table: str | None = None
    """A tsv file to which each scored set adds a row, created if absent; null = none."""
    compare: bool = False
    """Score the run's own sets again, and report whether the scores are equal to the bit."""
    max_rows: PositiveInt | None = None
    """Rows of each set to score, drawn by the seed with the same share of each label; null = all."""
    group_by: str | int | None = None
    """Column, by name or number from 0, whose equal values form a group, such as a query: intervals draw whole groups;
    null = none."""
    resamples: NonNegativeInt = 1000
    """Bootstrap resamples for the 95 % intervals; 0 = none."""


@dataclass(kw_only=True)
class Export(_Head, _Job):
    """The validated configuration of `nlu.export`."""

    format: Format
    """The format of a library or program that is to compute the run."""
    out: NewFolder
    """New folder for the export."""
    max_rows: PositiveInt = 256
    """Rows of the run's evaluation set on which the export is compared with the run."""


@dataclass(kw_only=True)
class Prune(_Batches, _Weights, _Job):
    """The validated configuration of `nlu.prune`; the run must have a native encoder."""

    batch_size: PositiveInt = 32
    out: NewFolder
    """New run folder for the smaller model."""
    fraction: Fraction | None = None
    """Share of the attention heads to remove, the least important ones first; null = see heads."""
    heads: dict[int | str, PositiveInt] | None = None
    """Number of heads to remove from each layer, {layer: n}, the least important ones; layers count from 0, -1 is the
    last; null = see fraction."""
    max_rows: PositiveInt | None = 1000
    """Rows of the training set from which importances are computed, drawn by the seed of the run; null = all."""


@dataclass(kw_only=True)
class Profile(Run, _Head):
    """The validated configuration of `nlu.profile`: that of a run, and what to measure."""

    run: TrainedRun | None = None
    """A trained run whose prediction of `rows` is profiled, or a search, which stands for its best trial; null =
    training."""
    rows: InputFile | None = None
    """A file with rows to predict, best (warmup + steps) * 64 of them; null = training."""
    steps: PositiveInt = 20
    """Optimizer steps to measure; with `run`, batches."""
    warmup: NonNegativeInt = 5
    """Steps before the measured ones, which make the state of the optimizer and choose kernels; 0 = none."""
    out: NewFolder | None = None
    """New folder for profile.json and trace.json (chrome://tracing); null = only print."""


@dataclass(kw_only=True)
class Serve(_Prediction):
    """The validated configuration of `nlu.serve`."""

    # Several only here.
    run: TrainedRun | list[TrainedRun] | dict[Name, TrainedRun]  # type: ignore[assignment]
    """One run, or several of one encoder (adapter=lora), which share it: [A, B], by the names of their folders, or
    {a: A, b: B}."""
    host: str = "127.0.0.1"
    """Address to listen on; one that other machines reach needs a token in the environment variable NLU_SERVE_TOKEN."""
    port: Port = 8000
    """Port of that address; 0 = any free port."""
    max_body_kb: PositiveInt = 1024
    """Largest request, in KB of 1,024 bytes; above: 413."""
    max_rows: PositiveInt = 256
    """Most rows of a request; above: 422."""
    max_characters: PositiveInt = 20_000
    """Most characters of a row's texts; above: 422."""
    max_waiting_rows: PositiveInt = 4096
    """Most rows that may wait to be computed; above: 429."""
    timeout_s: PositiveFloat = 30.0
    """Seconds after which a request ends with 504; also the time that running requests get at shutdown."""
    reload_s: NonNegativeFloat = 5.0
    """Seconds between checks for a newer best checkpoint, which is loaded without dropping requests; 0 = never."""
    interactive: bool = False
    """Open a prompt in this terminal instead of a server; written short --interactive."""


@dataclass(kw_only=True)
class Scan(Run):
    """The validated configuration of `nlu.scan`: that of a run, and what to vary."""

    # Without `field()`, the function `Run.of` would be its default.
    of: Literal["lr"] = field()  # type: ignore[assignment]
    """What is varied: the learning rate (range test)."""
    steps: PositiveInt = 100
    """Steps, each at a higher rate, from 10."""
    min_lr: PositiveFloat = 1e-7
    """optimizer.lr of the first step."""
    max_lr: PositiveFloat = 1e-2
    """optimizer.lr of the last step, unless the loss diverges before."""
    smoothing: Probability = 0.9
    """Decay per step of the moving average of the loss; 0 = off."""
    out: NewFolder | None = None
    """New folder for the table (tsv), scan.json and a figure (png); null = only print."""

    @classmethod
    def read(cls, config: ConfigLike) -> Self:
        """Build from a validated configuration with all of its keys, as `Run.of` does."""
        return super().of(config)
