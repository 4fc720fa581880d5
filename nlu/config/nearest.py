"""What was probably meant by a wrong name: the nearest valid one, or what another program calls it."""

import difflib
from collections.abc import Iterable
from typing import Any

CLOSE = 0.6
"""Similarity above which a name may be meant."""
LONGEST_NAME = 100
"""Characters. A longer name is hardly a typing error, and the cost of comparing is the product of both lengths."""

_LENGTH = "trainer.max_duration=3ep (epochs), 500st (steps) or 32000ex (examples)"
KEYS = {
    **dict.fromkeys(("epochs", "num_epochs", "max_epochs", "num_train_epochs", "max_steps", "num_steps"), _LENGTH),
    "learning_rate": "optimizer.lr", "max_length": "data.max_len", "max_seq_length": "data.max_len",
    "gradient_accumulation_steps": "trainer.accumulation", "accumulate_grad_batches": "trainer.accumulation",
    "per_device_train_batch_size": "trainer.batch_size, over all devices together", "output_dir": "hydra.run.dir",
    "bf16": "precision=bf16", "fp16": "precision=bf16", "model_name_or_path": "model=hf model.pretrained=hf://NAME",
    "warmup_ratio": "scheduler.warmup=0.1", "warmup_steps": "scheduler.warmup=500st",
    "lr_scheduler_type": "scheduler.anneal", "max_grad_norm": "trainer.clip_norm",
    "gradient_clip_val": "trainer.clip_norm", "eval_steps": "trainer.eval_interval=500st",
    "val_check_interval": "trainer.eval_interval=0.25ep", "save_steps": "trainer.save_interval=500st",
    "logging_steps": "trainer.log_interval=50st", "save_total_limit": "trainer.keep_best",
    "metric_for_best_model": "trainer.major_metric", "early_stopping_patience": "trainer.patience=1ep",
    "train_file": "data.train", "validation_file": "data.dev", "test_file": "data.test",
    **dict.fromkeys(("cv", "kfold", "k_fold", "n_folds", "num_folds", "cross_validation"), "folds=5"),
    **{name: f"tracker={name}" for name in ("wandb", "tensorboard", "mlflow")},
    **dict.fromkeys(("gpus", "num_gpus", "n_gpu", "nproc_per_node"), "trainer.devices=2"),
    **dict.fromkeys(("metric", "metrics"), "trainer.major_metric for training; every metric of the task is computed"),
    "n_trials": "hydra.sweeper.n_trials", "n_jobs": "hydra.sweeper.n_jobs",
}  # fmt: skip
"""Keys of other programs, and what to write here; names close to one of our keys need no entry."""

_WHOLE_KEYS = {
    "model": "run=RUN for a trained run",
    "data": "input=FILE for rows to predict",
    "input.path": "data.test=FILE for rows to score; only nlu.predict has input",
}
"""Keys of our other commands, and what to write instead."""
_FILES = (".csv", ".tsv", ".json", ".jsonl", ".parquet", ".xlsx", ".txt", ".conll", ".gz")
_CHOICES = {
    "scheduler": {
        "cosine": "scheduler=one_cycle scheduler.anneal=cosine",
        "linear": "scheduler=one_cycle scheduler.anneal=linear",
        "polynomial": "scheduler=one_cycle scheduler.anneal=polynomial",
        "constant_with_warmup": "scheduler=constant scheduler.warmup=500st",
    },
    "task": {
        **dict.fromkeys(("ner", "pos", "tagging", "token_classification", "sequence_labeling"), "task=tag"),
        **dict.fromkeys(("classification", "text_classification", "sentiment"), "task=classify"),
        **dict.fromkeys(("pair", "nli", "paraphrase", "matching"), "task=match"),
        **dict.fromkeys(("regression", "sts"), "task=regress"),
        **dict.fromkeys(("multi_label", "multilabel_classification"), "task=multilabel"),
        **dict.fromkeys(("retrieval", "ranking", "search"), "task=retrieve"),
        **dict.fromkeys(("sbert", "bi_encoder", "biencoder", "embed", "embedding"), "task=siamese"),
    },
    "loss": {
        **dict.fromkeys(("ce", "crossentropy", "xent", "nll", "softmax"), "loss=cross_entropy"),
        **dict.fromkeys(("mnrl", "multiple_negatives_ranking", "ntxent", "simcse"), "loss=info_nce"),
        **dict.fromkeys(("l2", "mean_squared_error", "huber"), "loss=mse"),
        **dict.fromkeys(("bce_with_logits", "binary_cross_entropy"), "loss=bce, or loss=bce_multilabel"),
    },
    "precision": dict.fromkeys(("fp16", "16", "16-mixed", "bf16-mixed", "amp", "mixed"), "precision=bf16"),
    "method": {"none": "method=plain", "r_drop": "method=rdrop", "r-drop": "method=rdrop"},
    "tracker": {"tb": "tracker=tensorboard", "false": "tracker=none"},
}
_VALUES: dict[str, dict[Any, str]] = {
    "resume": {
        True: "write resume=auto to continue the run in hydra.run.dir, or to start one",
        False: "write resume=never",
    }
}
_METRICS = {
    "acc": ("accuracy",), "f1_score": ("f1", "f1_macro"), "macro_f1": ("f1_macro",), "weighted_f1": ("f1_weighted",),
    "roc_auc": ("auc",), "matthews": ("mcc",), "matthews_corrcoef": ("mcc",),
    "spearmanr": ("spearman",), "pearsonr": ("pearson",), "mse": ("rmse",), "map": ("average_precision",),
    "eval_loss": ("loss",), "val_loss": ("loss",),
}  # fmt: skip
_FUNCTIONS = {
    "loguniform": "tag(log,interval(1e-5,5e-4))", "log_uniform": "tag(log,interval(1e-5,5e-4))",
    "uniform": "interval(0,0.3)", "quniform": "range(1,9,2)", "randint": "int(interval(1,8))",
    "categorical": "choice(16,32)", "suggest_float": "interval(0,0.3)", "suggest_int": "int(interval(1,8))",
}  # fmt: skip
"""Functions of other search spaces, and an example of ours."""


def nearest(name: str, valid: Iterable[str], count: int = 3) -> list[str]:
    """Return up to `count` of the dotted names in `valid` that are closest to `name`, best first.

    The last part counts most, since users mostly misspell a key or leave out its group.
    """
    if len(name) > LONGEST_NAME:
        return []
    scores = {candidate: _similarity(name, candidate) for candidate in sorted(set(valid) - {name})}
    close = [candidate for candidate, score in scores.items() if score >= CLOSE]
    return sorted(close, key=lambda candidate: -scores[candidate])[:count]


def _similarity(name: str, candidate: str) -> float:
    """Return the similarity of two names, from 0 to 1; 0 if it is less than CLOSE."""
    (group, _, last_part), (other_group, _, other_last_part) = name.rpartition("."), candidate.rpartition(".")
    matcher = difflib.SequenceMatcher(None, last_part.lower(), other_last_part.lower())
    # The cheap upper bounds first: the similarity of the last parts bounds that of the names.
    if matcher.real_quick_ratio() < CLOSE or matcher.quick_ratio() < CLOSE or (same_last := matcher.ratio()) < CLOSE:
        return 0.0
    same_group = difflib.SequenceMatcher(None, group.lower(), other_group.lower()).ratio()
    return same_last * (0.8 + 0.2 * same_group)


def hint(name: str, valid: Iterable[str]) -> str:
    """Return `nearest: a, b`, else all valid names, if there are any."""
    names = sorted(set(valid))
    if close := nearest(name, names):
        return f"nearest: {', '.join(close)}"
    return f"valid: {', '.join(names)}" if names else "nothing to choose from"


def key_hint(key: str, valid: Iterable[str]) -> str:
    """Return what to write for a key of another program, else the hint among the `valid` keys."""
    return key_elsewhere(key) or hint(key, valid)


def key_elsewhere(key: str) -> str | None:
    """Return what to write for a key of another program or of another command; None if it is not known."""
    meant = _WHOLE_KEYS.get(key) or KEYS.get(key.rpartition(".")[2])
    return None if meant is None else f"write {meant}"


def choice_elsewhere(group: str, choice: str) -> str | None:
    """Return what to write for another program's name of a choice; None if it is not known."""
    if group == "data" and choice.lower().endswith(_FILES):
        return f"write data=files data.train={choice} for rows in a file"
    if group == "model" and ("/" in choice or "-" in choice):
        return f"write model=hf model.pretrained=hf://{choice} for a model of the Hugging Face hub"
    meant = _CHOICES.get(group, {}).get(choice.lower())
    return None if meant is None else f"write {meant}"


def value_elsewhere(key: str, value: Any) -> str | None:
    """Return what to write for a value that a key of ours takes in another program; None if it is not known."""
    known = _VALUES.get(key, {})
    return next((text for wrong, text in known.items() if value is wrong), None)


def metrics_elsewhere(metric: str, known: Iterable[str]) -> list[str]:
    """Return the metrics among `known` that another program's name may mean."""
    return [name for name in _METRICS.get(metric.lower(), ()) if name in set(known)]


def function_elsewhere(value: str) -> str | None:
    """Return an example of ours if a value calls a function of another search space."""
    return _FUNCTIONS.get(value.partition("(")[0].strip().lower()) if value.endswith(")") else None
