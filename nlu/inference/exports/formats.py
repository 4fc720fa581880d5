"""The formats: functions that write and read each, and the packages that it needs. Axes: N texts, C outputs."""

import importlib.util
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from nlu.config.errors import UserError
from nlu.inference.exports import huggingface_export, peft_folder, savedmodel, sentence_vectors, tf_checkpoint
from nlu.inference.exports.export_decisions import Compute, Decide, by_pipeline, by_rule
from nlu.inference.exports.padded import NAMES, Inputs
from nlu.inference.exports.padded_models import example_of, graph_of
from nlu.inference.exports.sentence_vectors import STATIC, write_static
from nlu.inference.trained import Trained

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

EXTRAS = {
    "transformers": "hf",
    "sentence_transformers": "sentence-transformers",
    "model2vec": "model2vec",
    "peft": "peft",
    "onnx": "onnx",
    "onnxscript": "onnx",
    "onnxruntime": "onnx",
    "tensorflow": "tf",
}
MODEL = {"onnx": "model.onnx", "onnx-int8": "model.int8.onnx", "torchscript": "model.pt"}
AXES = {0: "texts", 1: "tokens"}
"""the axes of inputs whose size an exporter would otherwise fix; onnxruntime's tools fix them by these names"""

INT8_TOLERANCE = 0.5
"""the tolerance for weights in 8 bits: usually they change a tenth of the largest logit, with random logits a third"""


def _auto_tokenizer(folder: Path) -> "PreTrainedTokenizerBase":
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


@dataclass(frozen=True)
class Format:
    """A format of exports."""

    name: str
    needs: tuple[str, ...]
    """the packages that must be installed"""
    write: Callable[..., object]
    """takes a run and a folder"""
    read: Callable[[Path, Trained], Compute] | None = None
    """None: it has no logits; `write` also takes rows and returns the largest difference of its vectors from the run"""
    tokenizer: "Callable[[Path], PreTrainedTokenizerBase]" = _auto_tokenizer
    """returns the tokenizer of an export"""
    decide: Callable[[Trained, Path], Decide] = by_rule
    decided_by: str = "decided by the rule for its logits"
    """`decide` in words"""
    tolerance: float = 1e-3
    """the largest difference of its logits from those of the run in fp32, relative to the largest of a row, or to 1"""
    beyond: str = "please report it, with the versions that nlu.doctor prints, and export it in another format"
    """the remedy for a larger difference"""


def require_packages(chosen: Format) -> None:
    """Raise UserError for missing packages of a format, with the command that installs them."""
    absent = [name for name in chosen.needs if importlib.util.find_spec(name) is None]
    if absent:
        extras = ",".join(dict.fromkeys(EXTRAS[name] for name in absent))
        raise UserError(
            f"format is {chosen.name}, which needs {', '.join(absent)}; install it with pip install 'nlu[{extras}]'"
        )


@torch.inference_mode()
def _computed(model: Callable[..., torch.Tensor], inputs: Inputs) -> np.ndarray:
    return model(*(torch.from_numpy(inputs[name]) for name in NAMES)).numpy()


def _read_huggingface(folder: Path, trained: Trained) -> Compute:
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoModelForTokenClassification

    architecture = AutoConfig.from_pretrained(folder).architectures[0]
    kind = AutoModelForTokenClassification if "Token" in architecture else AutoModelForSequenceClassification
    model = kind.from_pretrained(folder).eval()
    taken = inspect.signature(model.forward).parameters

    def logits(*tensors: torch.Tensor) -> torch.Tensor:
        found = model(**{name: value for name, value in zip(NAMES, tensors, strict=True) if name in taken}).logits
        # A cross-encoder of sentence-transformers computes it outside of the model.
        return found.sigmoid() if getattr(trained.model.head, "is_sigmoid", False) else found

    return partial(_computed, logits)


def _write_torchscript(trained: Trained, folder: Path) -> None:
    graph = graph_of(trained, "torchscript")
    if not isinstance(graph, torch.jit.ScriptModule):
        graph = torch.jit.trace(graph, example_of(trained), check_trace=False)
    graph.save(str(folder / MODEL["torchscript"]))
    huggingface_export.tokenizer_of(trained).save_pretrained(folder)


def _read_torchscript(folder: Path, trained: Trained) -> Compute:
    return partial(_computed, torch.jit.load(str(folder / MODEL["torchscript"])))


def _write_onnx(trained: Trained, folder: Path) -> None:
    graph, path = graph_of(trained, "onnx"), str(folder / MODEL["onnx"])
    given = example_of(trained)
    named: dict[str, Any] = {"input_names": list(NAMES), "output_names": ["logits"]}
    if isinstance(graph, torch.jit.ScriptModule):
        axes = dict.fromkeys(NAMES, AXES) | {"logits": AXES if trained.target.kind == "tags" else {0: "texts"}}
        # torch.export has no loop over a number of rows that only the call knows.
        torch.onnx.export(graph, given, path, dynamic_axes=axes, dynamo=False, **named)
    else:
        shapes = tuple(AXES for _ in NAMES)
        program = torch.onnx.export(graph, given, dynamic_shapes=shapes, dynamo=True, verbose=False, **named)
        assert program is not None, "the exporter by torch.export returns a program"
        program.save(path)
    huggingface_export.tokenizer_of(trained).save_pretrained(folder)


def _write_int8(trained: Trained, folder: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    _write_onnx(trained, folder)
    whole = folder / MODEL["onnx"]
    # Dynamic: only weights are stored in 8 bits. Activations are scaled at each call, so no rows for calibration are
    # needed.
    quantize_dynamic(
        whole, folder / MODEL["onnx-int8"], weight_type=QuantType.QInt8, extra_options={"EnableSubgraph": True}
    )
    # The exporter may have put large weights into a second file beside the model.
    for path in folder.glob(f"{MODEL['onnx']}*"):
        path.unlink()


def _read_onnx(name: str) -> Callable[[Path, Trained], Compute]:
    def read(folder: Path, trained: Trained) -> Compute:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        # The same number of threads as torch, so that the times in the table can be compared.
        options.intra_op_num_threads = torch.get_num_threads()
        session = onnxruntime.InferenceSession(folder / MODEL[name], options, providers=["CPUExecutionProvider"])
        return lambda inputs: session.run(["logits"], {key: inputs[key] for key in NAMES})[0]

    return read


FORMATS = {
    one.name: one
    for one in (
        Format(
            "huggingface",
            ("transformers",),
            huggingface_export.write,
            _read_huggingface,
            decide=by_pipeline,
            decided_by="decided by pipeline(...) of transformers",
        ),
        Format(sentence_vectors.FORMAT, ("transformers", "sentence_transformers"), sentence_vectors.write),
        Format("onnx", ("transformers", "onnx", "onnxscript", "onnxruntime"), _write_onnx, _read_onnx("onnx")),
        Format(
            "onnx-int8",
            ("transformers", "onnx", "onnxscript", "onnxruntime"),
            _write_int8,
            _read_onnx("onnx-int8"),
            tolerance=INT8_TOLERANCE,
            beyond="8 bits are too few for these weights: export it as onnx",
        ),
        Format(STATIC, ("transformers", "model2vec"), write_static),
        Format(peft_folder.FORMAT, ("transformers", "peft"), peft_folder.write),
        Format("torchscript", ("transformers",), _write_torchscript, _read_torchscript),
        Format(
            tf_checkpoint.FORMAT,
            ("transformers",),
            tf_checkpoint.write,
            lambda folder, trained: partial(_computed, tf_checkpoint.read(folder, trained)),
            tf_checkpoint.tokenizer_in,
        ),
        Format(
            savedmodel.FORMAT,
            ("transformers", "tensorflow"),
            savedmodel.write,
            lambda folder, trained: savedmodel.read(folder),
        ),
    )
}
