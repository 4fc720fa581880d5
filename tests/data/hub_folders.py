"""Tokenizers as they lie in folders of the Hugging Face hub: small ones, trained on a few sentences of many scripts."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend

SENTENCES = [
    "The quick brown fox jumps over the lazy dog, again and again.", "It's a café – naïve, isn't it? Yes!",
    "Ich würde gern größere Straßen sehen.", "Привет, мир! Как дела?", "Το γρήγορο ζώο τρέχει.",
    "東京都に住んでいます。今日はとても良い天気ですね。", "中国的经济发展很快，我们都很高兴。", "这部电影非常好看！",
    "ภาษาไทยเป็นภาษาที่ไม่มีช่องว่าง", "서울에서 만나요. 안녕하세요!", "مرحبا بالعالم، كيف حالك؟", "שלום עולם",
    "नमस्ते दुनिया, आप कैसे हैं?", "<url> [E1] 100% of $5.50 (approx.) #tag @user", "I'll do what they've done; ok.",
]  # fmt: skip
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
Maker = Callable[[Path], None]


def described(folder: Path, kind: str, files: dict[str, Any] | None = None, **keys: Any) -> None:
    """Write the configuration of the architecture, that of the tokenizer with these keys, and further files of JSON."""
    for name, content in {"config.json": {"model_type": kind}, "tokenizer_config.json": keys, **(files or {})}.items():
        if content:
            (folder / name).write_text(json.dumps(content))


def pieces(kind: str, name: str, *, model: str = "unigram", **options: Any) -> Maker:
    """A model of sentencepiece."""

    def make(folder: Path) -> None:
        path = folder / name
        pytest.importorskip("sentencepiece").SentencePieceTrainer.train(
            sentence_iterator=iter(SENTENCES * 3), model_prefix=str(path.with_suffix("")), vocab_size=700,
            model_type=model, hard_vocab_limit=False, minloglevel=2, **options,
        )  # fmt: skip
        described(folder, kind)

    return make


def words(
    kind: str = "bert", *, specials: list[str] = BERT, more: tuple[str, ...] = (), lowercase: bool = True, **keys: Any
) -> Maker:
    """A vocab.txt of 600 lines, also with the tokens `more`."""

    def make(folder: Path) -> None:
        backend = Backend(models.WordPiece(unk_token="[UNK]"))
        backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=700, special_tokens=specials, show_progress=False)
        backend.train_from_iterator(SENTENCES * 3, trainer)
        numbers = backend.get_vocab()
        lines = [*sorted(numbers, key=numbers.__getitem__), *more]
        lines += [f"[unused{number}]" for number in range(len(lines), 600)]
        (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in lines))
        described(folder, kind, **keys)

    return make


def bytes_backend(specials: list[str] = ROBERTA, sentences: list[str] = SENTENCES, size: int = 700) -> Backend:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=specials, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )  # fmt: skip
    backend.train_from_iterator(sentences * 3, trainer)
    return backend


def merges(kind: str, specials: list[str] = ROBERTA, **keys: Any) -> Maker:
    """vocab.json and merges.txt"""

    def make(folder: Path) -> None:
        bytes_backend(specials).model.save(str(folder))
        described(folder, kind, **keys)

    return make


def modernbert(folder: Path) -> None:
    """A tokenizer.json of bytes, whose [MASK] takes the blank before it."""
    backend = bytes_backend([*BERT, "|||IP_ADDRESS|||"])
    backend.normalizer = normalizers.NFC()
    backend.add_special_tokens([AddedToken("[MASK]", lstrip=True, special=True)])
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    backend.save(str(folder / "tokenizer.json"))
    described(folder, "modernbert", tokenizer_class="PreTrainedTokenizerFast", unk_token="[UNK]", mask_token="[MASK]")


def saved(make: Maker, **changed: Any) -> Maker:
    """What save_pretrained writes, with changed keys of tokenizer_config.json."""

    def written(folder: Path) -> None:
        make(folder)
        found = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(folder)
        for path in folder.iterdir():
            if path.name != "config.json":
                path.unlink()
        found.save_pretrained(folder)
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        (folder / "tokenizer_config.json").write_text(json.dumps({**settings, **changed}))

    return written


DEBERTA = pieces(
    "deberta-v2", "spm.model", pad_id=0, unk_id=3, bos_id=1, eos_id=2, pad_piece="[PAD]", bos_piece="[CLS]",
    eos_piece="[SEP]", unk_piece="[UNK]",
)  # fmt: skip
ALBERT = pieces(
    "albert", "spiece.model", pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, user_defined_symbols="[CLS],[SEP],[MASK]",
    normalization_rule_name="nmt_nfkc_cf",
)  # fmt: skip
T5: dict[str, Any] = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
ENTITIES = {"added_tokens.json": {"[E1]": 600, "[/E1]": 601, "<url>": 602}}
NAMED = {
    "special_tokens_map.json": {
        "unk_token": "<unk>",
        "cls_token": {"content": "<s>", "lstrip": False},
        "sep_token": "</s>",
    }
}
LISTED = {
    "600": {
        "content": "<url>",
        "lstrip": True,
        "normalized": False,
        "rstrip": False,
        "single_word": False,
        "special": False,
    }
}
KINDS: dict[str, Maker] = {
    "bert": words(), "bert, cased": words(do_lower_case=False, lowercase=False),
    "bert, accents kept": words(strip_accents=False),
    "bert, accents gone": words(do_lower_case=False, strip_accents=True),
    "bert, ideographs in words": words(tokenize_chinese_chars=False),
    "bert with added_tokens.json": words(files=ENTITIES),
    "bert with added_tokens_decoder": words(added_tokens_decoder=LISTED),
    "bert with a special word": words(more=("[unused1]",), additional_special_tokens=["[unused1]", "<x>"]),
    "bert with RoBERTa's names": words(specials=ROBERTA, files=NAMED),
    "roberta": merges("roberta"), "deberta": DEBERTA, "albert": ALBERT, "t5": pieces("t5", "spiece.model", **T5),
    "xlm-roberta": pieces("xlm-roberta", "sentencepiece.bpe.model"), "modernbert": modernbert,
    "mpnet": words("mpnet", specials=[*ROBERTA, "[UNK]"]),
    "saved bert with other settings": saved(words(), do_lower_case=False, tokenize_chinese_chars=False),
}  # fmt: skip
