"""Every choice of every group composes with the others, and lists the keys that its target takes."""

import dataclasses
from itertools import product
from typing import Any

import pytest

from nlu.config.choices import choice_of, conf_dir
from nlu.config.schema import Run

WITH_TARGET = (
    "task", "model", "head", "data", "tokenizer", "loss", "method", "optimizer", "scheduler", "precision",
    "adapter", "tracker",
)  # fmt: skip
OTHERS = ("trainer", "experiment", "debug")
SOFT = ("kl", "mse_logits")
"""Losses of soft targets, which no named data set has."""
SINGLE = ("chnsenticorp", "reviews", "sst2", "tnews")
PAIRS = ("afqmc", "lcqmc")
TAGGED = ("cluener", "conll2003")
FITTING = {
    "classify": SINGLE, "match": PAIRS, "siamese": PAIRS, "retrieve": PAIRS, "rerank": PAIRS, "tag": TAGGED,
    "regress": (*SINGLE, *PAIRS), "multilabel": (*SINGLE, *PAIRS), "soft": (), "mlm": (*SINGLE, *PAIRS, "cluener"),
    "mlm_pairs": PAIRS,
}  # fmt: skip
"""The data sets whose fields a task can read; whether labels are numbers only their rows say."""
OF_CLASSES = {"classify", "match", "siamese"}
READERS = {
    "cross_entropy": {*OF_CLASSES, "tag", "mlm", "mlm_pairs"}, "focal": {*OF_CLASSES, "tag"},
    "ghm_c": {*OF_CLASSES, "tag"},
    "taylor": {*OF_CLASSES, "tag"}, "bce": OF_CLASSES, "circle": OF_CLASSES, "mse": {"regress"},
    "bce_multilabel": {"multilabel"}, "contrastive": {"siamese", "retrieve"}, "info_nce": {"siamese", "retrieve"},
    **dict.fromkeys(("cosent", "angle", "cosine_mse"), {"siamese"}),
    **dict.fromkeys(SOFT, {"soft"}), **dict.fromkeys(("listwise", "pairwise", "margin_mse"), {"rerank", "retrieve"}),
}  # fmt: skip
"""The tasks that each loss is for."""


def test_the_top_level_keys_and_the_groups_are_these(composer):
    config = composer.plain()
    assert set(config) == {
        "seed", "seeds", "folds", "fold", "resume", "mirror", "take", "stores", "dry_run", "inspect", "note",
        "plugins", "trusted_packages", "trial", "loss", "head", "method", "task", "optimizer", "model", "data",
        "tokenizer",
        "scheduler", "precision", "adapter", "tracker", "trainer",
    }  # fmt: skip
    assert {field.name for field in dataclasses.fields(Run) if field.init} == set(config)
    groups = {path.name for path in conf_dir().iterdir() if path.is_dir() and not path.name.startswith("_")}
    assert groups == {*WITH_TARGET, *OTHERS, "hydra"}


@pytest.mark.thorough
def test_every_task_fits_exactly_the_data_sets_with_its_fields(composer, choices):
    assert set(choices("task")) == set(FITTING)
    assert {*SINGLE, *PAIRS, *TAGGED, "files"} == set(choices("data"))
    for task, name in product(choices("task"), [*SINGLE, *PAIRS, *TAGGED]):
        found = composer.problems_of(composer.choose(data=name, task=task))
        assert bool(found) == (name not in FITTING[task]), f"task={task} data={name}"


def with_data(composer, task: str, choice: dict[str, str]) -> dict[str, Any]:
    """Return the configuration of a task, a further choice and data that the task can read."""
    if task != "soft":
        return composer.choose(task=task, data=FITTING[task][0], **choice)
    config = composer.choose(task=task, data="files", **choice)
    fields = {"text": "text", "logits": "logits"}
    return config | {"data": config["data"] | {"fields": fields, "labels": ["bad", "good"]}}


@pytest.mark.thorough
def test_a_loss_fits_exactly_the_tasks_whose_outputs_it_reads(composer, choices):
    assert set(choices("loss")) == set(READERS)
    for task, loss in product(choices("task"), choices("loss")):
        found = composer.problems_of(with_data(composer, task, {"loss": loss}))
        assert bool(found) == (task not in READERS[loss]), f"task={task} loss={loss}: {found}"


def test_choices_that_leave_a_size_to_the_weights_bring_weights(composer, choices):
    for name in choices("model"):
        node = composer.choose(model=name)["model"]
        if node["_target_"] == "nlu.models.encoders.bert.Bert":
            assert (node["hidden_size"] is None) == (node["pretrained"] is not None), name


def test_each_key_that_a_choice_leaves_to_the_user_is_one_problem(composer):
    for choice, keys in ({"data": "files"}, ["data.train"]), ({"model": "hf"}, ["model.pretrained"]), (
        {"method": "distil"}, ["method.teacher"],
    ):  # fmt: skip
        config = composer.plain(*(f"{group}={name}" for group, name in choice.items()))
        assert [text.partition("; set it to")[0] for text in composer.problems_of(config)] == [
            f"{key} is not set" for key in keys
        ]


def test_files_that_a_data_set_fetches_are_pinned_by_a_digest(composer, choices):
    for name in choices("data"):
        data = composer.choose(data=name)["data"]
        sources = [*(data["urls"] or {}).values(), *(data["train"].values() if isinstance(data["train"], dict) else [])]
        assert all("://" not in source or "#sha256=" in source for source in sources), name
        named = [data[key] for key in ("train", "dev", "test") if isinstance(data[key], str) and name != "files"]
        assert set(named) == set(data["urls"] or {}), name


def test_every_named_data_set_names_its_labels_so_that_its_first_rows_are_enough(composer, choices):
    for name in set(choices("data")) - {"files"}:
        labels = composer.choose(data=name)["data"]["labels"]
        # The order in which they would be found, which is that of older runs.
        assert labels and labels == sorted(labels), name


def test_a_class_of_several_choices_is_called_like_its_module():
    assert choice_of("model", "nlu.models.encoders.textcnn.TextCnn") == "textcnn"
    assert choice_of("model", "nlu.models.encoders.bert.Bert") == "bert"
