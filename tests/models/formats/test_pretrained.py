"""Weights of every format are found, fitted with a full account of it, and refused with what to give instead."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from nlu.config.errors import CheckpointError, DataError
from nlu.data.tokenizing import wordpiece
from nlu.models.encoders.bert import Bert
from nlu.models.formats.pretrained import KINDS, load_into, open_pretrained
from nlu.models.task_model import TaskModel
from nlu.runs.checkpoint import Checkpoints
from nlu.runs.state import Best, State
from tests.models.parts import task_model

VOCAB_SIZE = 50
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(VOCAB_SIZE - 5))]
CONFIG = {
    "model_type": "bert", "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
    "max_position_embeddings": 64, "type_vocab_size": 2, "hidden_act": "gelu",
}  # fmt: skip
Tensors = dict[str, torch.Tensor]


def hub_tensors(seed: int = 0, prefix: str = "bert.", layers: int = 2, vocab_size: int = VOCAB_SIZE) -> Tensors:
    """A BERT encoder's tensors under the names of Hugging Face checkpoints."""
    generator = torch.Generator().manual_seed(seed)
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (vocab_size, 24),
        "embeddings.position_embeddings.weight": (64, 24),
        "embeddings.token_type_embeddings.weight": (2, 24),
        "embeddings.LayerNorm.weight": (24,),
        "embeddings.LayerNorm.bias": (24,),
    }
    for layer in (f"encoder.layer.{number}." for number in range(layers)):
        dense = {"attention.self.query": (24, 24), "attention.self.key": (24, 24), "attention.self.value": (24, 24)}
        dense |= {"attention.output.dense": (24, 24), "intermediate.dense": (40, 24), "output.dense": (24, 40)}
        for name, shape in dense.items():
            shapes |= {f"{layer}{name}.weight": shape, f"{layer}{name}.bias": shape[:1]}
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes |= {f"{layer}{name}.weight": (24,), f"{layer}{name}.bias": (24,)}
    return {prefix + name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def write(folder: Path, tensors: Tensors | None, config: Any = CONFIG) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    if tensors is not None:
        save_file(tensors, folder / "model.safetensors")
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def model_of(reference: str, layout: str = "single", labels: int = 2, vocab_size: int = VOCAB_SIZE) -> TaskModel:
    source = open_pretrained(reference)
    return task_model(Bert(vocab_size, source, pretrained=reference), layout, labels)


def loaded(reference: str, **keywords: Any) -> Tensors:
    model = model_of(reference, **keywords)
    load_into(model, open_pretrained(reference))
    return model.state_dict()


def qkv(tensors: Tensors, layer: int = 0, prefix: str = "bert.") -> torch.Tensor:
    name = f"{prefix}encoder.layer.{layer}.attention.self."
    return torch.cat([tensors[f"{name}{part}.weight"] for part in ("query", "key", "value")])


QKV = "backbone.encoder.layer.0.attention.self.qkv.weight"


@pytest.mark.parametrize("prefix", ["bert.", "electra.", ""])
def test_names_with_and_without_the_encoders_prefix_are_known(tmp_path, prefix):
    tensors = hub_tensors(prefix=prefix)
    found = loaded(write(tmp_path, tensors))
    assert torch.equal(found[QKV], qkv(tensors, prefix=prefix))
    name = "encoder.layer.1.output.LayerNorm.bias"
    assert torch.equal(found[f"backbone.{name}"], tensors[prefix + name])


def test_the_old_names_of_norms_are_known(tmp_path):
    tensors = hub_tensors()
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in tensors.items()
    }
    found = loaded(write(tmp_path, old))
    assert torch.equal(found["backbone.embeddings.LayerNorm.weight"], tensors["bert.embeddings.LayerNorm.weight"])


@pytest.mark.parametrize("form", ["safetensors", "bin"])
def test_weights_in_several_files_are_joined_by_their_index(tmp_path, form):
    tensors = hub_tensors()
    write(tmp_path, None)
    names, stem = sorted(tensors), {"safetensors": "model", "bin": "pytorch_model"}[form]
    files = {f"{stem}-{part}-of-2.{form}": names[part - 1 :: 2] for part in (1, 2)}
    for file, part in files.items():
        (save_file if form == "safetensors" else torch.save)({name: tensors[name] for name in part}, tmp_path / file)
    index = {"weight_map": {name: file for file, part in files.items() for name in part}}
    (tmp_path / f"{stem}.{form}.index.json").write_text(json.dumps(index))
    assert torch.equal(loaded(str(tmp_path))[QKV], qkv(tensors))
    (tmp_path / f"{stem}-2-of-2.{form}").unlink()
    with pytest.raises(CheckpointError, match=rf"{stem}-2-of-2\.{form}|No such file"):
        loaded(str(tmp_path))


def test_missing_unexpected_and_mismatched_tensors_are_logged(tmp_path, messages):
    tensors = hub_tensors()
    del tensors["bert.encoder.layer.1.output.dense.bias"]
    tensors["bert.embeddings.position_embeddings.weight"] = torch.zeros(32, 24)
    tensors |= {"cls.predictions.bias": torch.zeros(5), "bert.pooler.dense.bias": torch.zeros(24)}
    tensors["cls.seq_relationship.bias"] = torch.zeros(2)
    loaded(write(tmp_path, tensors))
    assert messages() == [
        f"INFO pretrained {tmp_path}: 27 of 31 tensors of the model loaded",
        "WARNING   missing: encoder.layer.1.output.dense.bias, head.linear.weight, head.linear.bias",
        "INFO   not used: a head of masked words (1), a head of next sentences (1), "
        "the pooler over the first token (1)",
        "WARNING   mismatched: backbone.embeddings.position_embeddings.weight is (32, 24), the model wants (64, 24)",
    ]


def test_weights_that_hardly_fit_the_model_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match="of the encoder's 29 tensors none can be taken .* or model=hf"):
        loaded(write(tmp_path / "none", {"transformer.h.0.weight": torch.zeros(3)}))
    few = {name: value for name, value in hub_tensors().items() if "embeddings" in name}
    with pytest.raises(CheckpointError, match="of the encoder's 29 tensors 5 can be taken"):
        loaded(write(tmp_path / "few", few))


def test_another_vocabulary_is_refused_with_both_sizes(tmp_path):
    with pytest.raises(CheckpointError, match="the tokenizer has 50 tokens, but .* have 60 rows of width 24"):
        loaded(write(tmp_path, hub_tensors(vocab_size=60)))


def test_damaged_files_are_refused_by_name(tmp_path):
    good = write(tmp_path / "good", hub_tensors())
    whole = (tmp_path / "good/model.safetensors").read_bytes()
    model, source = model_of(good), open_pretrained(good)
    for content in (whole[:-1], whole[: len(whole) // 2], b"", b"PK\3\4" + bytes(50)):
        source.weights.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be read .* give undamaged weights"):
            load_into(model, source)
    binary = tmp_path / "good/pytorch_model.bin"
    torch.save(hub_tensors(), binary)
    whole, source = binary.read_bytes(), open_pretrained(str(binary))
    torch.save({"others": hub_tensors()}, binary)
    for content in (whole[: len(whole) // 2], b"", b"PK\3\4" + bytes(50), b"garbage", binary.read_bytes()):
        binary.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"pytorch_model\.bin cannot be read .* give undamaged weights"):
            load_into(model, source)


class Trap:
    """Does harm when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("harm"),)


def test_a_file_of_weights_cannot_run_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"weight": Trap()}, tmp_path / "pytorch_model.bin")
    write(tmp_path, None)
    with pytest.raises(CheckpointError):
        open_pretrained(str(tmp_path)).tensors()
    assert not (tmp_path / "harm").exists()


def test_a_folder_without_weights_is_refused_with_what_can_be_given(tmp_path):
    with pytest.raises(CheckpointError) as caught:
        open_pretrained(write(tmp_path, None))
    assert KINDS in str(caught.value) and "or null for random initialization" in str(caught.value)
    with pytest.raises(DataError, match="model.pretrained .*nowhere does not exist"):
        open_pretrained(str(tmp_path / "nowhere"))


def small_bert() -> Bert:
    sizes: dict[str, Any] = {"hidden_size": 24, "layers": 2, "heads": 4, "intermediate_size": 40, "max_positions": 64}
    return Bert(VOCAB_SIZE, None, pretrained=None, **sizes)


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., tuple[TaskModel, TaskModel]]:
    """Return a function that writes a run with a best and a last checkpoint, and gives the model of each."""

    def write_run(labels: list[str], backbone: Any = None, **meta: float) -> tuple[TaskModel, TaskModel]:
        models = []
        for seed in (1, 2):
            torch.manual_seed(seed)
            models.append(task_model((backbone or small_bert)(), "single", len(labels) or 1))
        best, last = models
        written = Checkpoints(
            tmp_path / "run", config=best.backbone.settings(), tokenizer=wordpiece(WORDS, True, "the test"),
            labels={"layout": "single", "labels": labels, "target": {"meta": meta}},
        )  # fmt: skip
        written.save_best(best.state_dict(), [Best(1, 1, 1.0, 0.5, {})])
        written.arrange([Best(1, 1, 1.0, 0.5, {})])
        written.save_last({"model": last.state_dict()}, State(), {})
        return best, last

    return write_run


def same(model: nn.Module, tensors: Tensors, but: str = "-") -> bool:
    return all(torch.equal(tensors[name], value) for name, value in model.state_dict().items() if but not in name)


def test_a_former_run_gives_its_best_weights_and_its_last_ones_when_asked(tmp_path, run, monkeypatch):
    best, last = run(["no", "yes"])
    folder = tmp_path / "run"
    for reference in (folder, f"{folder}/", folder / "best", folder / "checkpoints/best-1"):
        assert same(best, loaded(str(reference)))
    for reference in (folder / "last", f"{folder}/last/", folder / "checkpoints/last"):
        assert same(last, loaded(str(reference)))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert same(best, loaded("~/run/best")) and same(last, loaded("~/run/last"))
    assert (open_pretrained("~/run/last").folder / "tokenizer.json").is_file()


def test_a_former_runs_classifier_is_taken_only_for_its_own_labels(tmp_path, run, messages):
    best, _ = run(["no", "yes"])
    source = open_pretrained(str(tmp_path / "run"))
    cases: list[tuple[str, list[str] | None, bool]] = [
        ("single", ["no", "yes"], True),
        ("single", None, True),
        ("pair", ["no", "yes"], False),
        ("single", ["a", "b", "c"], False),
    ]
    for layout, labels, is_taken in cases:
        torch.manual_seed(9)
        model = model_of(str(tmp_path / "run"), layout, len(labels or "12"))
        load_into(model, source, labels)
        assert same(best, model.state_dict(), but="head")
        assert torch.equal(model.head.linear.weight[:2], best.head.linear.weight) == is_taken
    assert sum("its head is not loaded" in message for message in messages()) == 2


def test_a_former_run_whose_labels_stand_in_another_order_has_its_rows_moved(tmp_path, run):
    best, _ = run(["no", "yes"])
    model = model_of(str(tmp_path / "run"), "single", 2)
    load_into(model, open_pretrained(str(tmp_path / "run")), ["yes", "no"])
    assert torch.equal(model.head.linear.weight, best.head.linear.weight[[1, 0]])
    assert torch.equal(model.head.linear.bias, best.head.linear.bias[[1, 0]])


def test_a_former_run_predicts_the_same_numbers_on_another_scale(tmp_path, run):
    best, _ = run([], mean=3.0, sd=2.0)
    model = model_of(str(tmp_path / "run"), "single", 1)
    load_into(model, open_pretrained(str(tmp_path / "run")), [], scale=(-1.0, 0.5))
    # 2 z + 3 = 0.5 z' - 1
    torch.testing.assert_close(model.head.linear.weight, 4 * best.head.linear.weight)
    torch.testing.assert_close(model.head.linear.bias, 4 * best.head.linear.bias + 8)


def test_the_tensorflow_checkpoint_that_is_named_is_the_one_that_is_read(tmp_path, monkeypatch):
    read: list[Path] = []
    arrays = {"bert/embeddings/word_embeddings": np.ones((2, 2), np.float32)}
    monkeypatch.setattr("nlu.models.formats.pretrained.read_checkpoint", lambda prefix: read.append(prefix) or arrays)
    for step in (9, 100):
        (tmp_path / f"model.ckpt-{step}.index").touch()
        (tmp_path / f"model.ckpt-{step}.data-00000-of-00001").touch()
    write(tmp_path, None)
    for name in ("", "model.ckpt-9", "model.ckpt-9.index", "model.ckpt-9.data-00000-of-00001", "model.ckpt-100"):
        source = open_pretrained(str(tmp_path / name))
        assert source.config == CONFIG and source.folder == tmp_path
        assert source.tensors().keys() == {"embeddings.word_embeddings.weight"}
    assert [prefix.name for prefix in read] == ["model.ckpt-100", *["model.ckpt-9"] * 3, "model.ckpt-100"]
    write(tmp_path, hub_tensors())
    assert open_pretrained(str(tmp_path / "model.ckpt-9")).weights.name == "model.ckpt-9"
    assert open_pretrained(str(tmp_path)).weights.name == "model.safetensors"
