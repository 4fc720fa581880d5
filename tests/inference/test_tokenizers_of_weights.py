"""Weights that bring a tokenizer of another kind than WordPiece: runs compute what transformers computes with both."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.inference.hubs import KINDS, save
from tests.inference.runs import STEPS, export, predict
from tests.training.in_process import STANDING_STILL, train
from tests.training.kinds import SPANS, TASKS, Kind, read, write

transformers = pytest.importorskip("transformers")

TEXTS = [
    "ab cd", "a", "ｃｄ ﬁ, a  b", "北京ab 京", "zzz ab～", " ef gh ", "hgfe dcba\tcafe\u0301", "(ab) ef,gh", "…",
    "b" * 90,
]  # fmt: skip


@pytest.fixture(scope="module", params=KINDS)
def hub(request: Any, tmp_path_factory: Any) -> Path:
    folder: Path = tmp_path_factory.mktemp("hub") / request.param
    save(folder, KINDS[request.param]())
    return folder


def kind_of(hub: Path, kind: Kind) -> Kind:
    model = ("model=bert", f"model.pretrained={hub}", "data.max_len=32")
    return Kind((*kind.options, *STANDING_STILL, *STEPS), kind.row, model)


def run_of(hub: Path, folder: Path, kind: Kind, *more: str) -> Path:
    """Train a run whose encoder keeps the weights of the folder."""
    train(*kind_of(hub, kind).overrides(folder), *more, f"hydra.run.dir={folder}/run")
    return folder / "run"


def predicted(run: Path, folder: Path, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    write(folder / "rows.jsonl", rows)
    predict(f"run={run}", f"input={folder}/rows.jsonl", f"output={folder}/found.jsonl", "logits=true")
    return read(folder / "found.jsonl")


class Reference:
    """Transformers, with the folder's own weights and tokenizer, and the head of a run."""

    def __init__(self, hub: Path, run: Path):
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(hub)
        self.encoder = transformers.AutoModel.from_pretrained(hub).eval()
        self.weights = load_file(run / "checkpoints/best-1/model.safetensors")

    def hidden(self, *texts: Any, **options: Any) -> tuple[Any, torch.Tensor]:
        inputs = self.tokenizer(*texts, return_tensors="pt", truncation=True, max_length=32, **options)
        with torch.inference_mode():
            return inputs, self.encoder(**inputs).last_hidden_state[0]

    def logits(self, vectors: torch.Tensor) -> Any:
        head = self.weights["head.linear.weight"], self.weights["head.linear.bias"]
        return torch.nn.functional.linear(vectors, *head).tolist()


@pytest.mark.parametrize("name", ["classify", "match"])
def test_logits_of_texts_and_pairs_are_those_of_transformers(hub: Path, tmp_path: Path, name: str) -> None:
    run = run_of(hub, tmp_path, TASKS[name])
    reference = Reference(hub, run)
    # Both cut pairs differently, so only single texts are too long.
    short = [text for text in TEXTS if len(text) < 15]
    texts = [(one, other) for one, other in zip(short, reversed(short), strict=True)] if name == "match" else TEXTS
    roles = ("text_a", "text_b") if name == "match" else ("text",)
    pairs = texts if name == "match" else [(text,) for text in texts]
    found = predicted(run, tmp_path, [dict(zip(roles, pair, strict=True)) for pair in pairs])
    for pair, one in zip(pairs, found, strict=True):
        _, hidden = reference.hidden(*pair)
        assert one["logits"] == pytest.approx(reference.logits(hidden[0]), abs=1e-5), pair


def test_cosines_of_texts_are_those_of_transformers(hub: Path, tmp_path: Path) -> None:
    run = run_of(hub, tmp_path, TASKS["siamese with contrastive loss"])
    reference = Reference(hub, run)
    rows = [{"text_a": one, "text_b": other} for one, other in zip(TEXTS, TEXTS[1:], strict=False)]
    for row, one in zip(rows, predicted(run, tmp_path, rows), strict=True):
        first, second = (reference.hidden(row[side])[1].mean(0) for side in ("text_a", "text_b"))
        assert one["similarity"] == pytest.approx(float(torch.cosine_similarity(first, second, 0)), abs=1e-5)


def test_logits_of_words_are_those_of_transformers_at_their_first_tokens(hub: Path, tmp_path: Path) -> None:
    run = run_of(hub, tmp_path, TASKS["tag"])
    reference = Reference(hub, run)
    # AutoTokenizer encodes each word of a list by itself, so RoBERTa's kind needs the space before it.
    rows = [{"tokens": text.split()} for text in TEXTS if len(text) < 15]
    for row, one in zip(rows, predicted(run, tmp_path, rows), strict=True):
        words = [" " * (number > 0 and hub.name == "bpe") + word for number, word in enumerate(row["tokens"])]
        inputs, hidden = reference.hidden(words, is_split_into_words=True)
        places = inputs.word_ids()
        firsts = [places.index(number) for number in range(len(words))]
        assert torch.tensor(one["logits"]).numpy() == pytest.approx(
            torch.tensor(reference.logits(hidden[firsts])).numpy(), abs=1e-5
        )


def test_spans_of_a_text_are_read_at_its_own_tokens_and_given_in_its_characters(hub: Path, tmp_path: Path) -> None:
    run = run_of(hub, tmp_path, SPANS)
    reference = Reference(hub, run)
    # No piece reaches over the end of a unit here, so the tokens of a text are those of its units. Bytes keep each of
    # several spaces.
    texts = ["ab cd", "ｃｄ ﬁ, a b", "(ab) ef,gh", "北ab 京", "cafe\u0301(ab…"]
    texts += ["a  (b", " ef\u3000gh"] if hub.name == "unigram" else []
    for text, one in zip(texts, predicted(run, tmp_path, [{"text": text} for text in texts]), strict=True):
        _, hidden = reference.hidden(text)
        units = [match.span() for match in re.finditer(r"[(),…北京]|[^(),…北京\s]+", text)]
        offsets = reference.tokenizer(text, return_offsets_mapping=True)["offset_mapping"]
        # A word begins with the space before it, which may be a token by itself.
        ends = [0, *(end for _, end in units[:-1])]
        firsts = [next(place for place, (_, end) in enumerate(offsets) if end > before) for before in ends]
        assert len(one["logits"]) == len(units), text
        assert torch.tensor(one["logits"]).numpy() == pytest.approx(
            torch.tensor(reference.logits(hidden[firsts])).numpy(), abs=1e-5
        ), text
        starts, ends = {start for start, _ in units}, {end - 1 for _, end in units}
        assert all(span["first"] in starts and span["last"] in ends for span in one["prediction"])
        assert all(text[span["first"] : span["last"] + 1] == span["text"] for span in one["prediction"])


def test_an_export_with_such_a_tokenizer_gives_the_same_tokens_and_logits(hub: Path, tmp_path: Path) -> None:
    run = run_of(hub, tmp_path, TASKS["match"])
    export(f"run={run}", "format=huggingface", f"out={tmp_path}/out")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert (tokenizer.pad_token, tokenizer.cls_token, tokenizer.sep_token) == ("<pad>", "<s>", "</s>")
    assert model.config.pad_token_id == tokenizer.pad_token_id == 1
    reference = Reference(hub, run)
    for pair in [("ab cd", "北京 zz"), ("ﬁ", "ef, gh")]:
        inputs, hidden = reference.hidden(*pair)
        own = tokenizer(*pair, return_tensors="pt")
        assert own["input_ids"].tolist() == inputs["input_ids"].tolist()
        with torch.inference_mode():
            assert model(**own).logits[0].tolist() == pytest.approx(reference.logits(hidden[0]), abs=2e-5)
