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
from nlu.inference.exports import huggingface, peft_folder, savedmodel, sentences, static_vectors, tf_checkpoint
from nlu.inference.exports.deciding import Compute, Decide, by_pipeline, by_rule
from nlu.inference.exports.padded import NAMES, Inputs
from nlu.inference.exports.traced import example_of, graph_of
from nlu.inference.trained import Trained

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

EXTRAS = {
    "transformers": "hf",
    "model2vec": "model2vec",
    "peft": "peft",
    "onnx": "onnx",
    "onnxscript": "onnx",
    "onnxruntime": "onnx",
    "tensorflow": "tf",
}
MODEL = {"onnx": "model.onnx", "onnx-int8": "model.int8.onnx", "torchscript": "model.pt"}

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
    """takes a run, a folder and, if it `can_fix` it, `fixed_length`: the number of tokens of every input, or None"""
    read: Callable[[Path, Trained], Compute] | None = None
    """None: it has no logits; `write` also takes rows and returns the largest difference of its vectors from the run"""
    tokenizer: "Callable[[Path], PreTrainedTokenizerBase]" = _auto_tokenizer
    """returns the tokenizer of an export"""
    decide: Callable[[Trained, Path], Decide] = by_rule
    decided_by: str = "decided by the rule for its logits"
    """`decide` in words"""
    tolerance: float = 1e-3
    """the largest difference of its logits from those of the run in fp32, relative to the largest of a row, or to 1"""
    can_fix: bool = False
    """whether inputs may have a fixed number of tokens"""
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
        return found.sigmoid() if getattr(trained.model.head, "scale", None) is not None else found

    return partial(_computed, logits)


def _write_torchscript(trained: Trained, folder: Path) -> None:
    graph = graph_of(trained, "torchscript")
    if not isinstance(graph, torch.jit.ScriptModule):
        graph = torch.jit.trace(graph, example_of(trained), check_trace=False)
    graph.save(str(folder / MODEL["torchscript"]))
    huggingface.tokenizer_of(trained).save_pretrained(folder)


def _read_torchscript(folder: Path, trained: Trained) -> Compute:
    return partial(_computed, torch.jit.load(str(folder / MODEL["torchscript"])))


def _write_onnx(trained: Trained, folder: Path, fixed_length: int | None = None) -> None:
    graph, path = graph_of(trained, "onnx"), str(folder / MODEL["onnx"])
    given = example_of(trained, fixed_length)
    named: dict[str, Any] = {"input_names": list(NAMES), "output_names": ["logits"]}
    if isinstance(graph, torch.jit.ScriptModule):
        axes = {name: {0: "texts"} | ({} if fixed_length else {1: "tokens"}) for name in (*NAMES, "logits")}
        if trained.target.kind != "tags":
            axes["logits"] = {0: "texts"}
        # torch.export has no loop over a number of rows that only the call knows.
        torch.onnx.export(graph, given, path, dynamic_axes=axes, dynamo=False, **named)
    else:
        shapes = _shapes(fixed_length)
        program = torch.onnx.export(graph, given, dynamic_shapes=shapes, dynamo=True, verbose=False, **named)
        assert program is not None, "the exporter by torch.export returns a program"
        program.save(path)
    huggingface.tokenizer_of(trained).save_pretrained(folder)


def _write_int8(trained: Trained, folder: Path, fixed_length: int | None = None) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    _write_onnx(trained, folder, fixed_length)
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
            huggingface.write,
            _read_huggingface,
            decide=by_pipeline,
            decided_by="decided by pipeline(...) of transformers",
        ),
        Format(sentences.FORMAT, ("transformers",), sentences.write, lambda folder, trained: sentences.read(folder)),
        Format(
            "onnx", ("transformers", "onnx", "onnxscript", "onnxruntime"), _write_onnx, _read_onnx("onnx"), can_fix=True
        ),
        Format(
            "onnx-int8",
            ("transformers", "onnx", "onnxscript", "onnxruntime"),
            _write_int8,
            _read_onnx("onnx-int8"),
            tolerance=INT8_TOLERANCE,
            can_fix=True,
            beyond="8 bits are too few for these weights: export it as onnx",
        ),
        Format(static_vectors.FORMAT, ("model2vec",), static_vectors.write),
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


def _shapes(fixed_length: int | None) -> tuple[dict[int, object], ...]:
    # Exporters would fix a size that is the same in every call, so number and length of texts are declared as free.
    axes = (0,) if fixed_length is not None else (0, 1)
    return tuple(dict.fromkeys(axes, torch.export.Dim.DYNAMIC) for _ in NAMES)


def require_fixable(chosen: Format, trained: Trained, length: int | None) -> None:
    """Raise UserError if inputs of this format or this run cannot have a fixed number of tokens."""
    if length is None:
        return
    if not chosen.can_fix:
        able = ", ".join(one.name for one in FORMATS.values() if one.can_fix)
        raise UserError(
            f"fixed_length is {length}, but {chosen.name} takes any number of tokens; leave it out, or use {able}"
        )
    least, most = trained.config.data["max_len"], trained.model.backbone.max_positions
    if length < least or (most is not None and length > most):
        within = f"from {least}, data.max_len of the run" + (f", to {most}, the positions of its model" if most else "")
        raise UserError(f"fixed_length is {length} but must be {within}; set it to such a number")


def at_length(compute: Compute, length: int | None, pad: int) -> Compute:
    """Return a function that pads its inputs to a fixed number of tokens, and cuts the outputs of a tagger again."""
    if length is None:
        return compute

    def padded(inputs: Inputs) -> np.ndarray:
        count = inputs["input_ids"].shape[1]
        more = ((0, 0), (0, length - count))
        filling = {name: pad if name == "input_ids" else 0 for name in NAMES}
        found = compute({name: np.pad(inputs[name], more, constant_values=filling[name]) for name in NAMES})
        return found[:, :count] if found.ndim == 3 else found

    return padded
