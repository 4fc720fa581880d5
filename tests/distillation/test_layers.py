"""Terms of layers against hidden states, queries, keys and values that transformers computes from the same weights."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from scipy.special import rel_entr, softmax

from nlu.inference.loaded import Loaded
from nlu.runs.records import read_rows
from tests.training.in_process import NO_DROPOUT, PLAIN, STANDING_STILL, composed, tensors, train
from tests.training.kinds import Row, classes, read, write
from tests.training.test_kinds_killed import killed_in_each_step

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

ROWS, LETTERS = 7, "abcdefgh"
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS]
HEADS = 2
TEACHER = {"hidden_size": 16, "num_hidden_layers": 4}
STUDENT = {"hidden_size": 8, "num_hidden_layers": 2}
PAIRS = ((0, 1), (1, 3))
"""the student's layers, and every second one of the teacher"""
ONE_STEP = (f"trainer.batch_size={ROWS}", "trainer.max_duration=1st", "trainer.eval_interval=0", *STANDING_STILL)
RUN = ("model=bert", "data.max_len=32", *PLAIN, "trainer.max_duration=1st", "trainer.eval_interval=0")


class Both:
    """The weights of a student, the run of a teacher, and rows for both."""

    def __init__(self, folder: Path):
        self.folder = folder
        torch.manual_seed(0)
        self.theirs, self.own = self._bert("theirs", TEACHER), self._bert("own", STUDENT)
        rng = random.Random(0)
        write(folder / "rows.jsonl", [classes(rng) for _ in range(ROWS)])
        self.rows: list[Row] = read(folder / "rows.jsonl")
        self.data = (
            "data=files", f"data.train={folder}/rows.jsonl", f"data.dev={folder}/rows.jsonl",
            "data.fields={text: text, label: label}", "data.labels=[bad, good]",
        )  # fmt: skip
        train(
            *RUN, *self.data, *STANDING_STILL, f"model.pretrained={folder}/theirs", f"hydra.run.dir={folder}/teacher",
        )  # fmt: skip

    def _bert(self, name: str, sizes: dict[str, int]) -> Any:
        config = transformers.BertConfig(
            vocab_size=len(TOKENS), max_position_embeddings=32, num_attention_heads=HEADS, intermediate_size=16,
            initializer_range=0.5, **sizes,
        )  # fmt: skip
        model = transformers.BertModel(config).eval()
        model.save_pretrained(self.folder / name)
        (self.folder / name / "vocab.txt").write_text("".join(f"{token}\n" for token in TOKENS))
        return model

    def options(self, *more: str) -> tuple[str, ...]:
        return (*RUN, *self.data, f"model.pretrained={self.folder}/own", f"method.teacher={self.folder}/teacher", *more)

    def read_by(self, model: Any) -> list[tuple[list[np.ndarray], list[tuple[np.ndarray, ...]]]]:
        """Return, for each row, the hidden states (L, D) and, of each layer, queries, keys and values (L, D)."""
        found = []
        for row in self.rows:
            ids = [TOKENS.index(token) for token in ("[CLS]", *row["text"].split(), "[SEP]")]
            with torch.no_grad():
                output = model(torch.tensor([ids]), output_hidden_states=True)
                parts = [
                    tuple(
                        getattr(layer.attention.self, name)(hidden)[0].double().numpy()
                        for name in ("query", "key", "value")
                    )
                    for layer, hidden in zip(model.encoder.layer, output.hidden_states[:-1], strict=True)
                ]
            found.append(([hidden[0].double().numpy() for hidden in output.hidden_states], parts))
        return found


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    return Both(tmp_path_factory.mktemp("both"))


def products(left: np.ndarray, right: np.ndarray, heads: int) -> np.ndarray:
    """Return the products of all pairs of tokens, by head, divided by the root of a head's width; (H, L, L)."""
    by_head = [rows.reshape(len(rows), heads, -1).transpose(1, 0, 2) for rows in (left, right)]
    return by_head[0] @ by_head[1].transpose(0, 2, 1) / np.sqrt(by_head[0].shape[-1])


def test_the_terms_of_tinybert_are_those_of_the_paper(both: Both, tmp_path: Path) -> None:
    given = (
        "method=tinybert",
        "method.hidden=2",
        "method.attention=0.5",
        "method.prediction=3",
        *ONE_STEP,
        *NO_DROPOUT,
    )
    train(*both.options(*given), f"hydra.run.dir={tmp_path}/run")
    matrices = {name: value.T for name, value in tensors(tmp_path / "run", "last/method").items() if "weight" in name}
    terms = {"embeddings": 0.0, "hidden": 0.0, "attention": 0.0}
    for (own, own_parts), (theirs, their_parts) in zip(both.read_by(both.own), both.read_by(both.theirs), strict=True):
        terms["embeddings"] += ((own[0] @ matrices["embeddings.weight"] - theirs[0]) ** 2).mean()
        for m, g in PAIRS:
            terms["hidden"] += ((own[m + 1] @ matrices["hidden.weight"] - theirs[g + 1]) ** 2).mean()
            scores, wanted = (products(*parts[:2], HEADS) for parts in (own_parts[m], their_parts[g]))
            terms["attention"] += ((scores - wanted) ** 2).mean()
    (row,) = read_rows(tmp_path / "run/train.tsv")
    for name, value in terms.items():
        assert row[f"loss_{name}"] == pytest.approx(value / ROWS, rel=1e-4), name
    whole = {key: float(value) for key, value in row.items() if key.startswith("loss")}  # type: ignore[arg-type]
    predicted = 0.5 * whole["loss_labels"] + 0.5 * 4 * whole["loss_distil"]
    layers = whole["loss_embeddings"] + 2 * whole["loss_hidden"] + 0.5 * whole["loss_attention"]
    assert whole["loss"] == pytest.approx(3 * predicted + layers, rel=1e-5)


@pytest.mark.parametrize(("heads", "layer"), [(None, -1), (4, 1)])
def test_the_terms_of_minilm_are_those_of_the_paper(both: Both, heads: int | None, layer: int, tmp_path: Path) -> None:
    given = () if heads is None else (f"method.relation_heads={heads}", f"method.layer={layer}")
    options = both.options("method=minilm", "method.prediction=0", *given, *ONE_STEP, *NO_DROPOUT)
    train(*options, f"hydra.run.dir={tmp_path}/run")
    (row,) = read_rows(tmp_path / "run/train.tsv")
    assert "loss_distil" not in row
    for place, name in enumerate(("queries", "keys", "values")):
        found = 0.0
        for (_, own), (_, theirs) in zip(both.read_by(both.own), both.read_by(both.theirs), strict=True):
            q, p = (
                softmax(products(part[place], part[place], heads or HEADS), -1) for part in (own[-1], theirs[layer])
            )
            found += rel_entr(p, q).sum(-1).mean()
        assert row[f"loss_{name}"] == pytest.approx(found / ROWS, rel=1e-4), name
    assert row["loss"] == pytest.approx(sum(float(row[f"loss_{name}"]) for name in ("queries", "keys", "values")))  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["tinybert", "minilm"])
def test_only_the_student_and_the_projections_are_trained_and_kept(both: Both, method: str, tmp_path: Path) -> None:
    options = both.options(f"method={method}", "trainer.max_duration=2st", "trainer.batch_size=4")
    train(*options, f"hydra.run.dir={tmp_path}/run")
    own = {"embeddings.weight", "hidden.weight"} if method == "tinybert" else set()
    assert tensors(tmp_path / "run", "last/method").keys() == {*own, "known.digest"}
    trained = {key.partition(":")[2] for key in load_file(tmp_path / "run/checkpoints/last/optimizer.safetensors")}
    weights = tensors(tmp_path / "run", "last/model")
    assert trained == {*weights, *(name for name in trained if name.endswith(tuple(own)) and own)}
    assert sum(value.size for value in weights.values()) < 2 * sum(one.numel() for one in both.own.parameters())
    assert {value.shape for value in weights.values()}.isdisjoint({(48, 16), (16, 16)})
    assert tensors(tmp_path / "run", "best-1/model").keys() == weights.keys()
    assert len(Loaded.of(tmp_path / "run", device="cpu").predict(["a b"])) == 1


@pytest.mark.parametrize("method", ["tinybert", pytest.param("minilm", marks=pytest.mark.thorough)])
def test_a_killed_student_of_layers_continues_to_the_same_bytes(both: Both, method: str, tmp_path: Path) -> None:
    options = (
        f"method={method}", "trainer.batch_size=2", "trainer.accumulation=2", "trainer.max_duration=3st",
        "trainer.save_interval=1st", "resume=auto",
    )  # fmt: skip
    config = composed(*both.options(*options))
    found = killed_in_each_step(config, tmp_path, 3, 1)
    assert any(name.endswith("last/method.safetensors") for name in found)


REFUSED = {
    "another tokenizer": (("model.pretrained=null", "model.hidden_size=8", "model.heads=2", "model.layers=1",
                           "model.intermediate_size=16", "model.max_positions=32"), "set tokenizer.vocab="),
    "a model without layers": (("model=textcnn", "tokenizer.vocab={folder}/own/vocab.txt"), "no attention layers"),
    "several teachers": (("method.teacher=[{folder}/teacher,{folder}/teacher]",), "method.teacher is"),
    "a layer that is not there": (("method.layers=[0,4]",), "name one of the teacher's layers, from 0 to 3"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_teacher_of_layers_that_does_not_fit_is_refused(
    name: str, both: Both, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more, said = REFUSED[name]
    options = [one for one in both.options("method=tinybert") if not (one.startswith("model") and "textcnn" in more[0])]
    given = [one.format(folder=both.folder) for one in more]
    keys = {one.partition("=")[0] for one in given}
    options = [one for one in options if one.partition("=")[0] not in keys]
    train(*options, *given, f"hydra.run.dir={tmp_path}/run", status=2)
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
