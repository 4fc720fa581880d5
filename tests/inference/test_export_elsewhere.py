"""python -m nlu.export: formats of TensorFlow, encoders of transformers; imported weights, there and back."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from nlu.models.formats.tensorflow import read_checkpoint
from nlu.models.formats.tensorflow_writing import tensorflow_names, write_checkpoint
from tests.inference.runs import export, kept, trained
from tests.training.in_process import STANDING_STILL
from tests.training.kinds import PRETRAINING, TASKS, Kind, few_first, number

transformers = pytest.importorskip("transformers")

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCAB = [*SPECIALS, *"abcdefgh", "##a", "##b"]
SIZES = {
    "vocab_size": len(VOCAB), "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 24, "max_position_embeddings": 40, "type_vocab_size": 2,
}  # fmt: skip
SHORT = ("data.max_len=32",)
MODERN = {"cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
ON_TEXTS = {"classify": TASKS["classify"], "match": TASKS["match"], "tag": TASKS["tag"]}


def saved(folder: Path, kind: str = "Bert", head: str | None = None, **changes: Any) -> Path:
    """Write a random model of transformers, with weights large enough that a wrong one shows, and its vocabulary."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**{**SIZES, "pad_token_id": 0, **changes})
    made = getattr(transformers, f"AutoModel{f'For{head}' if head else ''}").from_config(config)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    made.save_pretrained(folder)
    named = dict(zip(SPECIALS, ["<pad>", "[UNK]", "<s>", "</s>", "<mask>"], strict=True)) if kind == "MPNet" else {}
    (folder / "vocab.txt").write_text("\n".join(named.get(token, token) for token in VOCAB) + "\n")
    return folder


def of_transformers(kind: Kind, folder: Path) -> Kind:
    return Kind(kind.options, kind.row, ("model=hf", f"model.pretrained={folder}", *SHORT))


def native(kind: Kind, folder: Path, model: str = "bert") -> Kind:
    return Kind(kind.options, kind.row, (f"model={model}", f"model.pretrained={folder}", *SHORT))


def held(run: Path, written: str, folder: Path, *, difference: float = 2e-5, decides: bool = True) -> None:
    """Export, and assert that what was read back computes the run's logits and, where it decides, decides alike."""
    export(f"run={run}", f"format={written}", f"out={folder / written}")
    own, found = json.loads((folder / written / "export.json").read_text())["checked"]
    assert found["format"] == written and found["rows"] == len(kept(run))
    assert found["largest_difference"] < difference and found["same"] == (1.0 if decides else None), found
    assert found["accuracy"] == (own["accuracy"] if decides else None)


@pytest.mark.thorough
def test_tensorflow_reads_a_checkpoint_that_was_written_without_it(tmp_path: Path) -> None:
    tensorflow = pytest.importorskip("tensorflow")
    rng = np.random.default_rng(0)
    tensors = {f"bert/encoder/layer_{n}/output/dense/kernel": rng.normal(size=(n + 1, 700)) for n in range(60)}
    tensors |= {
        "wide": rng.normal(size=(3, 5)).astype(np.float32), "empty": np.zeros((0, 2), np.float32),
        "global_step": np.array(7), "half": rng.normal(size=9).astype(np.float16),
    }  # fmt: skip
    write_checkpoint(tmp_path / "model.ckpt", tensors)
    reader = tensorflow.train.load_checkpoint(str(tmp_path / "model.ckpt"))
    assert reader.get_variable_to_dtype_map().keys() == tensors.keys()
    for name, values in tensors.items():
        assert reader.get_tensor(name).tobytes() == values.tobytes() and reader.get_tensor(name).shape == values.shape
    assert tensorflow.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "model.ckpt")


@pytest.mark.thorough
@pytest.mark.parametrize("pooling", ["first", "mean", "pooler"])
@pytest.mark.parametrize("name", ["match", "tag", "regress"])
def test_a_savedmodel_computes_the_logits_of_the_run(name: str, pooling: str, tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    run = trained(native(TASKS[name], saved(tmp_path / "hub")), tmp_path, f"model.pooling={pooling}")
    held(run, "savedmodel", tmp_path, difference=2e-4)


@pytest.mark.parametrize(
    ("written", "package", "extra"),
    [
        ("savedmodel", "tensorflow", "tf"),
        ("sentence_transformers", "sentence_transformers", "sentence-transformers"),
        ("model2vec", "transformers", "hf"),
    ],
)
def test_a_missing_package_is_named_with_what_installs_it(
    written: str, package: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, run_of: Any
) -> None:
    run, there = run_of("classify"), importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *more: None if name == package else there(name, *more))
    export(f"run={run}", f"format={written}", f"out={tmp_path}/out", status=2)
    assert f"needs {package}; install it with pip install 'nlu[{extra}]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


CONVERTED = (("classify", "DistilBert"), ("tag", "Roberta"), ("match", "Bert"), ("classify", "Electra"))


@pytest.mark.parametrize("written", few_first(["torchscript", "huggingface", "onnx"], "huggingface"))
@pytest.mark.parametrize("name", few_first(list(ON_TEXTS), "classify"))
@pytest.mark.parametrize("architecture", few_first(["Bert", "DistilBert", "Electra", "Roberta"], "DistilBert"))
def test_an_encoder_of_transformers_is_exported(name: str, architecture: str, written: str, tmp_path: Path) -> None:
    if written == "onnx" and (name, architecture) not in CONVERTED:
        pytest.skip("a quarter of a minute each; torchscript shows that the graph is right")
    if written == "onnx":
        pytest.importorskip("onnxruntime")
    changes: dict[str, Any] = {"embedding_size": 8} if architecture == "Electra" else {}
    if architecture == "DistilBert":
        changes = {"dim": 16, "hidden_dim": 24, "n_layers": 2, "n_heads": 2}
    kind = of_transformers(TASKS[name], saved(tmp_path / "hub", architecture, **changes))
    held(trained(kind, tmp_path), written, tmp_path, difference=2e-4)


FROZEN = "optimizer.freeze=['backbone.*']"


ARCHITECTURES = ("DebertaV2", "ModernBert", "native", "MPNet", "Roberta", "Albert", "Bert")
HEADS = {"tag": "TokenClassification", "mlm": "MaskedLM"}
NAMES = {"classify": ["good", "bad"], "match": ["1", "0"], "tag": ["I-X", "B-Y", "O", "B-X", "I-Y"]}
"""labels in another order than those of the data"""


def share(rng: Any) -> dict[str, Any]:
    row = number(rng)
    return row | {"label": row["text"].count("a") / len(row["text"])}


@pytest.mark.parametrize("name", few_first(["classify", "match", "tag", "share", "mlm"], "classify"))
@pytest.mark.parametrize("architecture", few_first(ARCHITECTURES, "DebertaV2", "ModernBert", "native", "MPNet"))
def test_a_model_of_transformers_comes_back_with_its_head(architecture: str, name: str, tmp_path: Path) -> None:
    head, names = HEADS.get(name, "SequenceClassification"), NAMES.get(name, [])
    changes: dict[str, Any] = {"id2label": dict(enumerate(names))} if names else {"num_labels": 1}
    if name == "share":
        changes["sentence_transformers"] = {"activation_fn": "torch.nn.modules.activation.Sigmoid"}
    is_native = architecture == "native"
    if is_native:
        # Its score must not be a sigmoid.
        architecture, changes = "ModernBert", {**changes, "local_attention": 10, "sentence_transformers": None}
    hub = saved(tmp_path / "hub", architecture, head, **MODERN, **changes)
    kind = Kind(("task=regress",), share) if name == "share" else (TASKS | PRETRAINING)[name]
    kind = native(kind, hub, "modernbert") if is_native else of_transformers(kind, hub)
    run = trained(kind, tmp_path, *STANDING_STILL, "trainer.ema_decay=0")
    if name == "mlm":
        export(f"run={run}", "format=huggingface", f"out={tmp_path}/huggingface")
    else:
        held(run, "huggingface", tmp_path, difference=2e-4)
    auto = getattr(transformers, f"AutoModelFor{head}")
    before, after = (auto.from_pretrained(tmp_path / place).eval() for place in ("hub", "huggingface"))
    ids = torch.randint(len(SPECIALS), len(VOCAB), (3, 9))
    with torch.inference_mode():
        expected, found = before(input_ids=ids).logits, after(input_ids=ids).logits
    if names:
        expected = expected[..., [names.index(after.config.id2label[row]) for row in range(len(names))]]
    assert (found - expected).abs().max() <= 1e-5 * max(1.0, float(expected.abs().max()))


def test_a_tf1_checkpoint_is_read_back_with_the_same_bytes(tmp_path: Path) -> None:
    source, rng = tmp_path / "source", np.random.default_rng(0)
    named = load_file(saved(tmp_path / "hub") / "model.safetensors")
    tensors = tensorflow_names(named, "bert")
    assert "bert/encoder/layer_0/attention/output/LayerNorm/gamma" in tensors
    source.mkdir()
    write_checkpoint(source / "bert_model.ckpt", {**tensors, "cls/predictions/output_bias": rng.normal(size=15)})
    (source / "bert_config.json").write_text(json.dumps({**SIZES, "hidden_act": "gelu"}))
    (source / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    run = trained(native(TASKS["classify"], source), tmp_path, FROZEN, "model.pooling=pooler")
    held(run, "tf_checkpoint", tmp_path, difference=2e-4)
    again = read_checkpoint(tmp_path / "tf_checkpoint/bert_model.ckpt")
    assert again.keys() == {*tensors, "output_weights", "output_bias"}
    for name, value in tensors.items():
        assert again[name].tobytes() == np.ascontiguousarray(value).tobytes(), name
    # The head comes back too, also for labels in another order.
    moved = ("data.labels=[good,bad]", "model.pooling=pooler", "trainer.ema_decay=0", *STANDING_STILL)
    other = trained(native(TASKS["classify"], tmp_path / "tf_checkpoint"), tmp_path / "moved", *moved)
    head = load_file(other / "checkpoints/best-1/model.safetensors")["head.linear.weight"]
    assert np.array_equal(head, again["output_weights"][::-1])
    # And on: what was exported is a start for another run.
    export_again = trained(native(TASKS["classify"], tmp_path / "tf_checkpoint"), tmp_path / "second", FROZEN)
    held(export_again, "tf_checkpoint", tmp_path / "second", difference=2e-4)
    third = read_checkpoint(tmp_path / "second/tf_checkpoint/bert_model.ckpt")
    assert all(third[name].tobytes() == again[name].tobytes() for name in tensors if "pooler" not in name)
