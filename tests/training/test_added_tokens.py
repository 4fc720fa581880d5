"""tokenizer.added_tokens: markers with vectors of their own in every run; and tokens that weights bring themselves."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import nlu
from nlu.data.tokenizing import load_tokenizer
from tests.data.hub_folders import DEBERTA, ENTITIES, merges, words
from tests.few import first
from tests.inference.runs import export, predict
from tests.training.in_process import NO_DROPOUT, PLAIN, STANDING_STILL, train
from tests.training.kinds import read

MARKERS = 'tokenizer.added_tokens=["[E1]","[/E1]","<url>"]'
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
         "max_position_embeddings": 64, "initializer_range": 0.4}  # fmt: skip
RELATIVE = {"type_vocab_size": 0, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 16}
STEPS = ("trainer.max_duration=4st", "trainer.eval_interval=2st", "trainer.save_interval=2st")


@pytest.fixture(scope="module")
def transformers() -> Any:
    return pytest.importorskip("transformers")


def weights(folder: Path, transformers: Any, kind: str, *, files: dict[str, Any] | None = None) -> np.ndarray:
    """Write a folder of random weights, and return its word vectors, some of which may belong to no token."""
    folder.mkdir()
    torch.manual_seed(0)
    if kind == "bert":
        words(files=files)(folder)
        config = transformers.BertConfig(vocab_size=600 + 3 * (files is not None), **SIZES)
    elif kind == "roberta":
        merges("roberta")(folder)
        config = transformers.RobertaConfig(vocab_size=len(transformers.AutoTokenizer.from_pretrained(folder)), **SIZES)
    else:
        DEBERTA(folder)
        config = transformers.DebertaV2Config(vocab_size=400, **SIZES, **RELATIVE)
    model = transformers.AutoModel.from_config(config)
    model.save_pretrained(folder)
    return model.get_input_embeddings().weight.detach().numpy()


def overrides(folder: Path, model: str, *more: str) -> tuple[str, ...]:
    rows = [f"[E1] {who} [/E1] sees <url> and the dog,{label}\n" for who, label in (("fox", "yes"), ("мир", "no"))]
    (folder / "rows.csv").write_text("text,label\n" + "".join(rows) * 8)
    data = ("data=files", f"data.train={folder}/rows.csv", f"data.dev={folder}/rows.csv", "data.max_len=32")
    dropout = NO_DROPOUT if model == "bert" else ("model.head_dropout=0",)
    return (*data, f"model={model}", f"model.pretrained={folder}/hub", *dropout, *PLAIN, *STEPS, *more)


def vectors_of(run: Path, step: str = "best-1") -> tuple[np.ndarray, dict[str, int]]:
    tensors = load_file(run / "checkpoints" / step / "model.safetensors")
    (table,) = (value for name, value in tensors.items() if name.endswith("word_embeddings.weight"))
    tokenizer = load_tokenizer(run / "checkpoints" / step, None)
    assert tokenizer is not None
    return table, tokenizer.vocabulary


@pytest.mark.parametrize(("kind", "model"), first(2, [("bert", "bert"), ("roberta", "hf"), ("deberta", "hf")]))
def test_new_tokens_begin_near_the_mean_and_all_others_keep_their_vectors(
    transformers: Any, tmp_path: Path, kind: str, model: str
) -> None:
    theirs = weights(tmp_path / "hub", transformers, kind)
    train(*overrides(tmp_path, model, MARKERS, *STANDING_STILL), f"hydra.run.dir={tmp_path}/run")
    found, number_of = vectors_of(tmp_path / "run")
    new = [number_of[token] for token in ("[E1]", "[/E1]", "<url>")]
    assert new == [new[0], new[0] + 1, new[0] + 2] and len(found) == max(len(theirs), new[-1] + 1)
    np.testing.assert_allclose(found[: new[0]], theirs[: new[0]], atol=1e-6)
    spread = found[new] - theirs[: new[0]].mean(0)
    # The mean plus random numbers of the deviation that vectors of a new encoder have.
    assert 0.15 < spread.std() < 0.6 and len(np.unique(found[new].round(4), axis=0)) == 3
    # Trained, unlike in the run above.
    train(*overrides(tmp_path, model, MARKERS), f"hydra.run.dir={tmp_path}/trained")
    assert (np.abs(vectors_of(tmp_path / "trained", "last")[0][new] - found[new]).max(1) > 1e-3).all()


def test_a_run_with_markers_continues_to_the_same_bytes_and_serves_as_weights(
    transformers: Any, tmp_path: Path
) -> None:
    weights(tmp_path / "hub", transformers, "bert")
    own = overrides(tmp_path, "bert", MARKERS)
    train(*own, f"hydra.run.dir={tmp_path}/whole")
    train(*own, "trainer.stop_after=2st", f"hydra.run.dir={tmp_path}/parts")
    train(*own, "resume=auto", f"hydra.run.dir={tmp_path}/parts")
    ends = [(tmp_path / run / "checkpoints/last/model.safetensors").read_bytes() for run in ("whole", "parts")]
    assert ends[0] == ends[1]
    # Its vocabulary has the markers already, whether they are asked for again or not.
    for more in ((), (MARKERS,)):
        later = overrides(tmp_path, "bert", f"model.pretrained={tmp_path}/whole", *more, *STANDING_STILL)
        train(*later, f"hydra.run.dir={tmp_path}/later{len(more)}")
        np.testing.assert_allclose(
            vectors_of(tmp_path / f"later{len(more)}")[0], vectors_of(tmp_path / "whole")[0], atol=1e-6
        )


def test_predictions_and_exports_read_markers_as_one_token(transformers: Any, tmp_path: Path) -> None:
    weights(tmp_path / "hub", transformers, "bert")
    train(*overrides(tmp_path, "bert", MARKERS), f"hydra.run.dir={tmp_path}/run")
    texts = ["[E1] the fox [/E1] and <URL>", "dog[E1]dog"]
    (tmp_path / "texts.csv").write_text("".join(f"{text}\n" for text in ["text", *texts]))
    predict(f"run={tmp_path}/run", f"input={tmp_path}/texts.csv", f"output={tmp_path}/found.jsonl", "logits=true")
    export(f"run={tmp_path}/run", "format=huggingface", f"out={tmp_path}/out")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    for text, row in zip(texts, read(tmp_path / "found.jsonl"), strict=True):
        inputs = tokenizer(text, return_tensors="pt")
        assert set(inputs["input_ids"][0].tolist()) & {600, 601, 602}
        with torch.inference_mode():
            assert row["logits"] == pytest.approx(model(**inputs).logits[0].tolist(), abs=2e-5)


def test_tokens_of_added_tokens_json_have_their_rows_of_the_weights(transformers: Any, tmp_path: Path) -> None:
    weights(tmp_path / "hub", transformers, "bert", files=ENTITIES)
    train(*overrides(tmp_path, "bert", *STANDING_STILL), f"hydra.run.dir={tmp_path}/run")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hub")
    model = transformers.AutoModel.from_pretrained(tmp_path / "hub").eval()
    text = "[E1] the fox [/E1] and <url>"
    inputs = tokenizer(text, return_tensors="pt")
    assert {600, 601, 602} < set(inputs["input_ids"][0].tolist())
    with torch.inference_mode():
        right = model(**inputs).last_hidden_state[0, 0].numpy()
    np.testing.assert_allclose(nlu.load(tmp_path / "run", device="cpu").encode([text])[0], right, atol=1e-5)


def test_another_vocabulary_than_that_of_the_weights_does_not_grow_to_their_size(
    transformers: Any, tmp_path: Path, capsys: Any
) -> None:
    weights(tmp_path / "hub", transformers, "bert")
    lines = (tmp_path / "hub/vocab.txt").read_text().split("\n")[:-1]
    (tmp_path / "other.txt").write_text("\n".join(lines[:500]) + "\n")
    own = overrides(tmp_path, "bert", MARKERS)
    train(*own, f"tokenizer.vocab={tmp_path}/other.txt", f"hydra.run.dir={tmp_path}/run", status=2)
    assert "the tokenizer has 503 tokens, but the weights" in capsys.readouterr().err
    train(*own, f"tokenizer.vocab={tmp_path}/hub/vocab.txt", f"hydra.run.dir={tmp_path}/same")
    assert len(vectors_of(tmp_path / "same")[0]) == 603
