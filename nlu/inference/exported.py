"""An export in the place of its run when rows are scored: its tokenizer, its logits, and the task of the run.

Axes: B examples, S sequences, T tokens of all sequences or of the longest one, U units, C outputs, D width.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nlu.config.errors import UserError
from nlu.config.schema import Run
from nlu.config.targets import TARGET, build, import_target
from nlu.data.collate import Batch
from nlu.data.layouts import LAYOUTS, Layout
from nlu.data.targets import Target
from nlu.data.tokenizing import Tokenizer, load_tokenizer
from nlu.inference.exports.deciding import Compute
from nlu.inference.exports.formats import FORMATS, at_length, require_packages
from nlu.inference.exports.padded import NAMES
from nlu.inference.exports.sentences import FORMAT as SENTENCES
from nlu.inference.exports.tf_checkpoint import FORMAT as TF_CHECKPOINT
from nlu.inference.locate import ExportFolder
from nlu.inference.trained import AVERAGE
from nlu.models.encoder import Encoded
from nlu.storage.cache import file_digest
from nlu.tasks.task import Task, to_host

WEIGHTS = ("model.safetensors", AVERAGE)
"""the files of a checkpoint"""
_NO_RUN: Any = None
"""for formats that are read without the run; only tf_checkpoint needs it"""


class ExportedModel(nn.Module):
    """Computes what a `TaskModel` does, by an export, on the host and in fp32."""

    head = None

    def __init__(self, compute: Compute, target: Target, tokenizer: Tokenizer):
        """`compute` returns logits of padded inputs, or vectors of sequences."""
        super().__init__()
        self._compute, self._target, self._tokenizer = compute, target, tokenizer

    def forward(self, batch: Batch, x_TD: Tensor | None = None) -> Tensor:
        """Return the logits (N, C) of examples or units, on the scale of training."""
        found = self._of_sequences(batch)
        if batch.units_U is None:
            return torch.from_numpy(self._scaled(found[to_host(batch.sequences_KB[0])]))
        sequence_T = np.repeat(np.arange(batch.num_sequences), batch.lengths)
        unit_U = to_host(batch.units_U)
        return torch.from_numpy(found[sequence_T[unit_U], to_host(batch.positions_T)[unit_U]])

    def encode(self, batch: Batch, x_TD: Tensor | None = None) -> Encoded:
        """Return the vectors of sequences, (S, D)."""
        return Encoded(pooled_SD=torch.from_numpy(self._of_sequences(batch)))

    def _scaled(self, found: np.ndarray) -> np.ndarray:
        if self._target.kind != "number":
            return found
        target: Any = self._target
        return ((found.astype(np.float64) - target.mean) / target.sd).astype(np.float32)

    def _of_sequences(self, batch: Batch) -> np.ndarray:
        lengths_S = np.asarray(batch.lengths)
        shape = batch.num_sequences, int(lengths_S.max())
        place = np.repeat(np.arange(shape[0]), lengths_S), to_host(batch.positions_T)
        inputs = {name: np.zeros(shape, np.int64) for name in NAMES}
        inputs["input_ids"].fill(self._tokenizer.pad_id)
        inputs["input_ids"][place] = to_host(batch.tokens_T)
        if self._tokenizer.has_segments:
            inputs["token_type_ids"][place] = to_host(batch.segments_T)
        inputs["attention_mask"][place] = 1
        # An export computes in fp32, also where the run does not.
        with torch.autocast("cpu", enabled=False):
            return np.array(self._compute(inputs), np.float32)


class Exported:
    """An export with all that scores rows."""

    def __init__(self, folder: ExportFolder, config: Run):
        """Load it. Raises UserError for a format that cannot be scored, and for missing packages."""
        chosen = FORMATS[folder.format]
        if chosen.name == TF_CHECKPOINT:
            raise UserError(
                f"export is {folder.folder}, a checkpoint for other programs, which nlu cannot score; score the run"
            )
        require_packages(chosen)
        trusted, known = config.trusted_packages, folder.scoring
        target_class: Any = import_target(known["target"][TARGET], trusted)
        self.target: Target = target_class.from_meta(known["target"]["meta"])
        self.task: Task = build(config.task, build(config.loss, trusted=trusted), self.target, trusted=trusted)
        self.layout: Layout = LAYOUTS[known["layout"]]
        self.decided: dict[str, float] = folder.about["decided"]
        if chosen.name == SENTENCES and not getattr(self.task, "over_cosines", False):
            raise UserError(
                f"export is {folder.folder}, an encoder, but the run decides by a head over both vectors, which no "
                "export contains; score the run"
            )
        self.tokenizer = _tokenizer_of(folder)
        compute = at_length(chosen.read(folder.folder, _NO_RUN), known.get("fixed_length"), self.tokenizer.pad_id)
        self.model = ExportedModel(compute, self.target, self.tokenizer)


def digests_of(checkpoint: Path) -> dict[str, str]:
    """Return the digest of each file of weights with which a checkpoint predicts."""
    paths = [checkpoint / name for name in WEIGHTS]
    return {path.name: file_digest(path) for path in paths if path.is_file()}


def _tokenizer_of(folder: ExportFolder) -> Tokenizer:
    """Return the tokenizer of an export, which reads special tokens in a text as its configuration says."""
    tokenizer = load_tokenizer(folder.folder, None)
    if tokenizer is None:
        raise UserError(f"export is {folder.folder}, which lacks its tokenizer.json; export the run again")
    settings = json.loads((folder.folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    if settings.get("split_special_tokens"):
        tokenizer.backend.encode_special_tokens = True
        # The text of a tokenizer does not show this setting, on which stored tokens depend.
        tokenizer.digest = hashlib.sha256(f"{tokenizer.digest} without special tokens".encode()).hexdigest()
    return tokenizer
