"""The keys of data sets and tokenizers, and what rules know of them and of targets; see `nlu.config.keys`."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from nlu.config.types import DataNode, Fraction, LayoutNode, Name, NonNegativeInt, PositiveInt, ReaderNode, RowLength

Source = str | list[str] | dict[Name, str]
Format = Literal["auto", "csv", "tsv", "jsonl", "json", "parquet", "xlsx", "conll", "lines"]
BreakMode = Literal["none", "none_doc", "complete", "complete_doc", "eos"]
Words = Literal["plain", "spaces", "jieba"]


@dataclass(kw_only=True)
class Files:
    """Your own rows; the named data sets are presets of it."""

    rules_of_config: ClassVar[str] = "nlu.data.data_rules.file_problems"
    train: Source
    """Training rows: a file, a pattern (split*), a URL or a list of them; with format=lines {label: file}."""
    dev: Source | None = None
    """Rows to score, given as train, or {name: file} for several sets; null = dev_fraction of the training texts."""
    test: Source | None = None
    """Rows to score once at the end, by the best weights, given as train; null = none."""
    fields: dict[str, str | int | list[str | int]] | None = None
    """Column of each field, by name or number from 0: {text: review, label: stars}; null = columns named like the
    fields; of several labels with a column of 0 and 1 each, the list of the columns: {text: comment, label: [toxic,
    rude]}. The fields of task=classify, regress and multilabel are text, label; of match, siamese, retrieve and rerank
    text_a, text_b, label, or for each text_a a row with text_b and negatives, a list of texts or of columns, or with
    candidates, a list of texts, and label, a list of numbers; of tag tokens, tags or text, spans; of soft logits or
    probabilities beside the texts."""
    format: Format = "auto"
    """Format of the files; lines = one text per line, one file per label; auto = by the suffix."""
    reader: ReaderNode | None = None
    """Your class for another format, as {_target_: mypkg.xml.Items, tag: item}; null = format."""
    header: bool | None = None
    """Whether the first row of a table names its columns; null = if a field is given by name."""
    separator: str | None = None
    """Character between the cells of a csv or tsv file, such as ";"; null = a comma in csv, a tab in tsv."""
    quote: str | None = None
    """Character around cells of a csv or tsv file that may hold separators; "" = none; null = " in csv, none in
    tsv."""
    skip_lines: NonNegativeInt = 0
    """Lines at the start of each file that are not read, such as a title above the header; 0 = none."""
    sheet: str | int | None = None
    """Sheet of an xlsx file, by name or number from 0; null = the first one."""
    records: str | None = None
    """Where a JSON object has its rows, such as data.items; null = its only list of objects."""
    labels: str | list[str] | None = None
    """All labels (of spans: types) in their order: texts, ["1", "5"], or the path or URL of a file with one label a
    line; null = those of the training rows."""
    label_separator: str = "|"
    """Separator of the labels in a cell, for task=multilabel."""
    layout: LayoutNode | None = None
    """Your own class that makes sequences of the texts of a row, as {_target_: mypkg.ends.Ends, head: 64}; null = that
    of the task."""
    prompts: dict[str, str] | None = None
    """Text before that of a field, such as {text_a: "query: ", text_b: "passage: "}; it stays with the run and its
    exports, and nlu.encode puts it there too; null = none."""
    max_len: RowLength = 128
    """Longest sequence in tokens, including special tokens, at least 8; longer ones are cut and counted."""
    long: Literal["cut", "windows", "error"] = "cut"
    """What becomes of a row with more tokens; cut = the first max_len; windows = all of it, in windows of max_len
    tokens, whose logits are averaged (multilabel: the highest), and whose units are tagged where they are farthest
    from an edge; error = a bad row."""
    stride: NonNegativeInt | None = None
    """Tokens that two neighboring windows share, with long=windows, at most half of max_len; null = an eighth of
    it."""
    on_bad_row: Literal["error", "skip"] = "error"
    """Action for a row that cannot be used; error = stop; skip = leave it out, count it, list each cause."""
    drop_duplicates: bool = False
    """Keep only the first of training rows with equal text and label; false = off."""
    dev_fraction: Fraction = 0.1
    """Share of the training texts that is held out as dev, if dev is null and folds are not used."""
    exclude_dev_from_train: bool = False
    """Remove the files of dev from those of train; false = off."""
    max_rows: PositiveInt | None = None
    """Read only this many first rows of each file, including bad ones; null = all."""
    rows_per_class: PositiveInt | None = None
    """Train on only this many rows of each class, drawn by `seed` after dev is held out; null = all."""
    urls: dict[str, str] | None = None
    """{path: URL} for paths that are neither in the working folder nor in NLU_DATA; null = none."""


@dataclass(kw_only=True)
class Corpus:
    """Files of sentences, from which blocks of tokens are made."""

    rules_of_config: ClassVar[str] = "nlu.data.data_rules.corpus_problems"
    train: str | list[str]
    """Files to train on: a file, a pattern (split*), a URL or a list of them."""
    dev: Source | None = None
    """Files to score, or {name: file} for several sets; null = dev_fraction of the blocks of train."""
    test: str | list[str] | None = None
    """Files to score once at the end, by the best weights; null = none."""
    fields: dict[str, str | int] | None = None
    """{text: COLUMN} of files with rows, which have a document in each (jsonl, csv, parquet, ...); null = text."""
    break_mode: BreakMode = "complete"
    """What a block of at most max_len tokens holds; none = tokens of one file up to the last that fits; complete =
    whole sentences; none_doc = as none, of one document; complete_doc = as complete, of one document; eos = one
    sentence."""
    words: Words = "plain"
    """Whole words, for task.whole_words; plain = by the pieces of the tokenizer, so that an ideograph is a word;
    spaces = the lines have spaces between words; jieba = Chinese words by the package jieba."""
    max_len: RowLength = 128
    """Longest block in tokens, including special tokens, at least 8; a sentence that is longer is cut and counted."""
    min_len: PositiveInt = 1
    """Least number of tokens of a block, without special ones; shorter blocks are left out; 1 = none."""
    on_bad_row: Literal["error", "skip"] = "error"
    """Action for a line that cannot be used; error = stop; skip = leave it out, count it, list each cause."""
    drop_duplicates: bool = False
    """Keep only the first of equal blocks of train; false = off."""
    dev_fraction: Fraction = 0.01
    """Share of the blocks of train that is held out as dev, if dev is null and folds are not used."""
    exclude_dev_from_train: bool = False
    """Remove the files of dev from those of train; false = off."""
    max_rows: PositiveInt | None = None
    """Read only this many first lines of each file; null = all."""
    stream: bool = False
    """Train on the rows that nlu.preprocess data.stream=true has written so far, and wait for more; false = off."""
    urls: dict[str, str] | None = None
    """{path: URL} for paths that are neither in the working folder nor in NLU_DATA; null = none."""


@dataclass(kw_only=True)
class Mixture:
    """Several training sets. Each step is taken from one of them."""

    has_sets: ClassVar[bool] = True
    sets: dict[str, DataNode]
    """{NAME: rows} with the keys of data=files; +data@data.sets.NAME=CHOICE adds one."""
    alpha: Fraction = 1.0
    """Sets are taken in proportion to size ** alpha, from 0 to 1; 1 = each example once an epoch; 0 = sets alike."""


@dataclass(kw_only=True)
class Tokenizing:
    """Keys of all tokenizers."""

    vocab: str | None = None
    """A vocab.txt or tokenizer.json, path or URL; null = that of the weights, else made from the training rows."""
    added_tokens: list[str] | None = None
    """Markers that are never split, such as ["[E1]","<url>"]; new ones get a trained vector of their own, which begins
    near the mean of all others; null = none."""


@dataclass(kw_only=True)
class WordPiece(Tokenizing):
    """BERT's WordPiece tokenizer, or the tokenizer of the weights."""

    lowercase: bool | None = None
    """Lowercase the text; null = as in the tokenizer of the weights, else true."""
    min_count: PositiveInt = 2
    """Least number of occurrences in the training rows of a word of a built vocabulary; rarer words train [UNK]; 1 =
    every word, so that [UNK] keeps its random vector."""
    max_size: PositiveInt = 30_000
    """Largest size of a built vocabulary, including special tokens."""


@dataclass(kw_only=True)
class Subwords(Tokenizing):
    """A vocabulary of parts of words that is learned from the training rows, to pretrain from random weights."""

    vocab_size: PositiveInt = 16_000
    """Largest size of a learned vocabulary, including special tokens."""
    min_count: PositiveInt = 2
    """Least number of occurrences in the training rows of a piece of a learned vocabulary; 1 = every character."""
    lowercase: bool | None = None
    """Lowercase the text; null = as in the tokenizer of the weights, else true."""


@dataclass(kw_only=True)
class Whitespace(Tokenizing):
    """For texts that were tokenized before, with a space between tokens: nothing else is split."""

    lowercase: bool = False
    """Lowercase the tokens; false = off."""
    min_count: PositiveInt = 2
    """Least number of occurrences in the training rows of a token of a built vocabulary; rarer tokens train [UNK]; 1 =
    every token, so that [UNK] keeps its random vector."""
    max_size: PositiveInt = 30_000
    """Largest size of a built vocabulary, including special tokens."""


@dataclass(kw_only=True)
class Target:
    """Facts of all targets, whose constructors get the data set from the program."""

    kind: ClassVar[str]
    """one word for the kind of target"""
    roles: ClassVar[tuple[str, ...]] = ()
    """fields, one of which holds the target"""
    takes_columns: ClassVar[bool] = False
    """whether the label may have several columns, each of 0 and 1"""
    streams: ClassVar[bool] = False
    """whether `fit` needs no training rows, and `close` names none"""


@dataclass(kw_only=True)
class Classes(Target):
    """One of several classes."""

    kind = "classes"
    roles: ClassVar[tuple[str, ...]] = ("label",)
    takes_columns = True


@dataclass(kw_only=True)
class Relevance(Classes):
    """How well the second text of a row answers the first: a number, relevant above 0; 1 without a label."""

    roles = ()


@dataclass(kw_only=True)
class Grade(Relevance):
    """A relevance that a model predicts as one number."""

    kind = "grade"
    takes_columns = False


@dataclass(kw_only=True)
class LabelSet(Classes):
    """Any number of labels."""

    kind = "label_set"


@dataclass(kw_only=True)
class NoTarget(Target):
    """Rows have only texts."""

    kind = "none"


@dataclass(kw_only=True)
class Number(Target):
    """A number."""

    kind = "number"
    roles = ("label",)


@dataclass(kw_only=True)
class SoftClasses(Target):
    """A number for each class."""

    kind = "soft_classes"
    roles = ("logits", "probabilities", "label")


@dataclass(kw_only=True)
class Tags(Target):
    """A tag of each unit, or spans."""

    kind = "tags"
    roles = ("tags", "spans")


@dataclass(kw_only=True)
class MaskedWords(Target):
    """Words that are masked."""

    kind = "words"
    streams = True


@dataclass(kw_only=True)
class LabelledWords(Target):
    """Words that are masked, and the class of the row."""

    kind = "words"
    roles = ("label",)


@dataclass(kw_only=True)
class SentenceOrder(Target):
    """Words that are masked, and the order of two halves; rows of all documents are drawn."""

    kind = "words"
