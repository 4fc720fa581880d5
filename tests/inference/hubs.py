"""Folders of weights with a tokenizer of another kind than WordPiece."""

import random
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

SPECIALS = ["<s>", "<pad>", "</s>", "<unk>"]
TEMPLATES = {"single": "<s> $A </s>", "pair": "<s> $A </s> </s> $B </s>", "special_tokens": [("<s>", 0), ("</s>", 2)]}


def unigram() -> Backend:
    """XLM-RoBERTa's kind: pieces with scores after NFKC, ▁ for a space."""
    rng = random.Random(0)
    words = [*"abcdefgh", *"北京(),.é", "ab", "cd", "fi", "ef", "caf", "北京"]
    pieces = [*words, "▁", *(f"▁{word}" for word in ("a", "b", "ab", "cd", "ef", "北", "hg"))]
    scored = [(piece, -6 * rng.random() - len(piece) ** -1) for piece in pieces]
    backend = Backend(models.Unigram([*((name, 0.0) for name in SPECIALS), *scored, ("<mask>", 0.0)], unk_id=3))
    backend.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("  ", " ")])
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    return backend


def bpe() -> Backend:
    """RoBERTa's kind: merges of bytes."""
    backend = Backend(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=290, special_tokens=SPECIALS, show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )  # fmt: skip
    backend.train_from_iterator(["ab cd ab 北京 ef gh"] * 5, trainer)
    return backend


KINDS = {"unigram": unigram, "bpe": bpe}


def save(folder: Path, backend: Backend) -> None:
    """Save a folder as transformers does: random weights, of which a few rows belong to no token, and a tokenizer."""
    transformers = pytest.importorskip("transformers")
    backend.add_special_tokens([*SPECIALS, "<mask>"])
    backend.post_processor = processors.TemplateProcessing(**TEMPLATES)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=backend.get_vocab_size() + 5, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=40, initializer_range=0.4, pad_token_id=1,
    )  # fmt: skip
    transformers.BertModel(config).save_pretrained(folder)
    names = {"bos": "<s>", "eos": "</s>", "cls": "<s>", "sep": "</s>", "pad": "<pad>", "unk": "<unk>", "mask": "<mask>"}
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, **{f"{role}_token": name for role, name in names.items()}
    )
    fast.save_pretrained(folder)
