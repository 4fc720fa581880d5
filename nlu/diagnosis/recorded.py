"""Reasons why a score may differ, from the records of a run: its end, code, versions, machine, start, settings."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nlu.config.choices import choice_of, target_of
from nlu.config.errors import UserError
from nlu.config.targets import TARGET, build
from nlu.config.words import counted, path_text
from nlu.diagnosis.check import Check, broken, warning
from nlu.inference.evaluation import changed_commit, changed_versions
from nlu.inference.locate import Located
from nlu.inference.trained import decided_at, scores_at
from nlu.metrics.thresholds import is_setting
from nlu.reports.aggregate import spread_of
from nlu.reports.runs import LOG, RunRecord, is_run, parts, read_run
from nlu.runs.checkpoint import read_order
from nlu.runs.provenance import code_changes, starts_of
from nlu.runs.records import Cell, read_rows
from nlu.storage.files import read_json
from nlu.training.precision import NumberFormat
from nlu.training.ranks import Ranks
from nlu.training.resuming import changes, machine_of

LISTED = 6
LOADED = re.compile(r".* pretrained (?P<what>.+): (?P<loaded>\d+) of (?P<all>\d+) tensors of the model loaded")
MISSING = re.compile(r".*   (?:missing: (?P<missing>.+)|mismatched: (?P<mismatched>\S+) is .+)")
HEAD = "head."


def ending(run: RunRecord) -> Check:
    """Report how the run ended. The score of a run that has not ended may still change."""
    if run.state == "failed":
        return broken("state", f"failed: {run.error}", "correct that, then run its command with resume=auto")
    if run.state in ("running", "unfinished"):
        why = "has not ended yet" if run.state == "running" else "ended before its last step"
        remedy = "wait for its end" if run.state == "running" else "run its command again with resume=auto"
        return warning("state", f"{run.state}: it {why}, so its best checkpoint may be replaced", remedy)
    return Check("state", f"{run.state}, {run.examples or 0:,} examples seen")


def scored_at(located: Located, run: RunRecord) -> Iterator[Check]:
    """Report the evaluation of the weights, and whether all records of it agree."""
    step, (metrics, are_its_own) = _step_of(located.checkpoint), scores_at(located.checkpoint)
    name = located.checkpoint.name
    value = metrics.get(run.set_name or "", {}).get(run.metric or "")
    shown = (
        f"{name}: step {step}, {run.set_name} {run.metric} {value:.4f}" if value is not None else f"{name}: step {step}"
    )
    if not are_its_own:
        yield warning(
            "which weights",
            f"{shown} is the score of an earlier step: last was trained since",
            "name best, or wait for the next evaluation",
        )
    elif run.best_step is not None and step != run.best_step:
        yield warning(
            "which weights",
            f"{shown}, but the score of the run is that of step {run.best_step}",
            "name the run itself for its best weights",
        )
    else:
        yield Check("which weights", shown)
    rows = [row for row in _evaluations(located.run_dir) if row["step"] == step]
    held = {(name, metric): value for name, some in metrics.items() for metric, value in some.items()}
    wrong = [
        f"{row['set']} {row['metric']}: {row['value']!r} in valid.tsv, {held[place]!r} in the checkpoint"
        for row in rows
        if are_its_own and (place := (str(row["set"]), str(row["metric"]))) in held and row["value"] != held[place]
    ]
    if wrong:
        remedy = "trust neither: run it again, python -m nlu.train --rerun RUN"
        yield broken("records", f"disagree: {wrong[0]}{_and_more(len(wrong) - 1)}", remedy)
    else:
        yield Check("records", f"valid.tsv and the checkpoint agree in {counted(len(rows), 'score')} of step {step}")


def _step_of(checkpoint: Path) -> int | None:
    score = read_json(checkpoint / "score.json")
    if score is not None:
        return score.get("step")
    return ((read_json(checkpoint / "state.json") or {}).get("state") or {}).get("step")


def _evaluations(run_dir: Path) -> list[dict[str, Cell]]:
    path = run_dir / "valid.tsv"
    return list(read_rows(path)) if path.is_file() else []


def code(run_dir: Path, trusted: list[str]) -> Iterator[Check]:
    """Check whether the modules, and the commit of a checkout, are those that the run used."""
    snapshots = code_changes(run_dir, trusted)
    # The last version of the code computed the final score; earlier ones are reported below.
    path, changed = list(snapshots.items())[-1] if snapshots else (run_dir, None)
    if changed is None:
        yield warning("code", "the run kept no code.zip", "train it again with this version to be sure")
    elif changed:
        first = ", ".join(f"{name} {how}" for name, how in list(changed.items())[:LISTED])
        says = f"{counted(len(changed), 'module')} not as in {path.name}: {first}{_and_more(len(changed) - LISTED)}"
        remedy = f"unzip {path_text(path)} into an empty folder, and run the command there"
        yield warning("code", says, remedy)
    else:
        yield Check("code", f"every module is as in {path.name}")
    if len(snapshots) > 1:
        says = f"the run went through {len(snapshots)} versions of the code, code.zip to {path.name}"
        remedy = "train it again without interruption if the score must be reproduced"
        yield warning("code on the way", says, remedy)
    yield _commit(starts_of(run_dir), changed is None or bool(changed))


def _commit(starts: list[Any], is_other_code: bool) -> Check:
    """Compare the commits. A difference only matters if modules of nlu differ."""
    if not starts:
        return warning("commit", "the run has no provenance.json", "train it again with this version")
    changed = changed_commit(starts[-1])
    if not changed:
        return Check("commit", "the same, with the same changes")
    says = changed[0].removeprefix("code: commit ")
    if is_other_code:
        return warning("commit", says, "check out the commit that it was trained with")
    return Check("commit", f"{says}, in other files than nlu's modules")


def versions(run_dir: Path) -> Check:
    """Compare the versions of packages."""
    starts = starts_of(run_dir)
    if not starts:
        return warning("versions", "the run has no provenance.json", "train it again with this version")
    if changed := changed_versions(starts[-1]):
        there = starts[-1]["versions"]
        wanted = " ".join(
            f"{name}=={version.partition('+')[0]}" for name, version in there.items() if name != "python" and version
        )
        return warning("versions", "; ".join(changed), f"in a separate environment: pip install {wanted}")
    return Check("versions", f"the same: {', '.join(f'{name} {v}' for name, v in starts[-1]['versions'].items())}")


def starts(run_dir: Path) -> Check:
    """Check whether the run was continued, and with different versions or devices."""
    found = starts_of(run_dir)
    if len(found) < 2:
        return Check("starts", "one, from its first step to its last")
    differing = [
        name
        for name in ("versions", "devices", "world_size", "cpu")
        # Each start is compared with the first one: a run that went back to its first machine has still been elsewhere.
        if any(start.get(name) != found[0].get(name) for start in found)
    ]
    says = f"{len(found)} starts"
    if differing:
        return warning(
            "starts",
            f"{says}, with other {', '.join(differing)}, so its bytes are not those of an uninterrupted run",
            "train it again without interruption if the score must be reproduced",
        )
    return Check("starts", f"{says} on the same machine, which give the bytes of an uninterrupted run")


def computed_on(
    run_dir: Path, ranks: Ranks, precision_node: Mapping[str, Any], trusted: Sequence[str] = ()
) -> Iterator[Check]:
    """Compare device, threads, kernels and number of processes, and check the precision, a node of its group."""
    last = run_dir / "checkpoints" / "last"
    if (last / "state.json").is_file():
        _, order = read_order(last)
        changed = changes(order, {**order, "world_size": ranks.world_size, "machine": machine_of(ranks)})
        names = {
            "device": "device",
            "version of torch": "torch",
            "threads": "threads",
            "kernels": "kernels",
            "processes": "ranks",
        }
        for sentence in changed:
            name = next((short for word, short in names.items() if word in sentence), "machine")
            yield warning(
                name,
                sentence.replace("continued", "scored"),
                f"set OMP_NUM_THREADS={order['machine']['threads']}"
                if name == "threads"
                else "score it there, or expect differences in the last digits",
            )
        if not changed:
            machine = order["machine"]
            yield Check(
                "device, threads",
                f"as there: {machine['device']}, {counted(machine['threads'], 'thread')}, kernels "
                f"for {machine['cpu']}, {counted(order['world_size'], 'rank')}",
            )
    else:
        yield warning(
            "device, threads",
            "checkpoints/last, which records where it was trained, is missing",
            "score it on the machine where it was trained",
        )
    precision: NumberFormat = build(precision_node, trusted=trusted)
    name = precision_node.get("dtype", choice_of("precision", precision_node[TARGET]))
    if slow := precision.warning(ranks.device):
        yield warning("precision", f"{name}; {slow}", "score it on a device that has them")
    else:
        yield Check("precision", f"{name}, as trained; precision=... of nlu.evaluate changes it")


def beginning(run_dir: Path, pretrained: str | None) -> Check:
    """Check whether tensors of the encoder were initialized at random instead of from the pretrained weights."""
    if pretrained is None:
        return Check("pretrained weights", "none: model.pretrained=null, so each seed has other initial weights")
    folders = [run_dir, run_dir.parent] if is_run(run_dir.parent) else [run_dir]
    logs = [path for folder in folders if (path := folder / LOG).is_file()]
    lines = [line for path in logs for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]
    place = next((number for number, line in enumerate(lines) if LOADED.fullmatch(line)), None)
    if place is None:
        return warning(
            "pretrained weights",
            f"{pretrained}; log.txt, which counts the loaded tensors, is missing",
            "look at the first lines of a training from the same weights",
        )
    match = LOADED.fullmatch(lines[place])
    assert match, "found above"
    # The log lists what is missing and what is mismatched in the lines below the count.
    listed = [found for line in lines[place + 1 : place + 4] if (found := MISSING.fullmatch(line))]
    absent = [name for found in listed for name in (found["missing"] or found["mismatched"]).split(", ")]
    # Pretrained weights usually lack the head of a new task, but never part of the encoder.
    of_encoder = [name for name in absent if not name.removeprefix("backbone.").startswith(HEAD)]
    says = f"{match['loaded']} of {match['all']} tensors loaded"
    if of_encoder:
        return warning(
            "pretrained weights",
            f"{says}; {len(of_encoder)} of the encoder were random, such as {of_encoder[0]}",
            "choose the model group and the sizes that fit the weights",
        )
    return Check("pretrained weights", f"{says}; {'the head was random' if absent else 'nothing is missing'}")


def settings(located: Located, run: RunRecord) -> Iterator[Check]:
    """Report settings that affect scores of the same weights, or of the same command."""
    config, facts = run.config, read_json(located.run_dir / "data.json") or {}
    own = (facts.get("sets") or {}).get(run.set_name or "", {})
    yield from _rows(config, facts, own, run.set_name)
    yield _seed(located.run_dir, run)
    if run.folds:
        yield Check(
            "folds",
            f"fold {run.fold} of {run.folds}: its dev set has these rows; scores of other folds are not comparable",
        )
    evaluations = {row["step"] for row in _evaluations(located.run_dir)}
    if len(evaluations) > 1:
        yield Check(
            "best of many",
            f"the best of {len(evaluations)} evaluations on {run.set_name} is optimistic, unlike the "
            "score on test, which is not used to choose it",
        )
    if config.get("trainer.ema_decay"):
        yield Check(
            "moving average",
            f"scores are those of the moving average (ema_decay {config['trainer.ema_decay']}), "
            "which best checkpoints contain; model.safetensors of last has other weights",
        )
    for name, threshold in decided_at(located.checkpoint).items():
        if is_setting(name):
            yield Check(name, f"{threshold:.4g}, decided on {run.set_name}; another one gives other scores")


def _is_mixture(config: dict[str, Any]) -> bool:
    return bool(config.get("data._target_") == target_of("data", "mixture"))


def _rows(config: dict[str, Any], facts: dict[str, Any], own: dict[str, Any], name: str | None) -> Iterator[Check]:
    if config.get("data.max_rows"):
        yield warning(
            "rows read",
            f"data.max_rows={config['data.max_rows']}: only so many rows of each file, also of {name}",
            "only compare it with scores of the same rows",
        )
    if config.get("data.dev") is None and not config.get("folds.count") and not _is_mixture(config):
        yield Check(
            "dev set",
            f"data.dev=null: {config.get('data.dev_fraction', 0):.0%} of the training texts, chosen "
            "by their hash: the same for every seed",
        )
    if own.get("examples"):
        yield Check(
            "size of the set", f"{counted(own['examples'], 'row')} of {name}: one row is {1 / own['examples']:.2%}"
        )
    if own.get("in_train"):
        yield warning(
            "rows in train",
            f"{counted(own['in_train'], 'text')} of {name} in the training set too, so its score is optimistic",
            "remove them from one of the two",
        )
    skipped = {key: part["bad_rows"] for key, part in (facts.get("sets") or {}).items() if part.get("bad_rows")}
    if skipped:
        shown = ", ".join(f"{count:,} of {key}" for key, count in skipped.items())
        remedy = "correct them, or leave them out elsewhere too"
        yield warning("rows left out", f"{shown} (data.on_bad_row=skip)", remedy)
    if own.get("cut_to_max_len"):
        yield Check(
            "texts cut",
            f"{counted(own['cut_to_max_len'], 'row')} of {name} longer than data.max_len="
            f"{config.get('data.max_len')}; score them with the same max_len",
        )


def _seed(run_dir: Path, run: RunRecord) -> Check:
    above = run_dir.parent
    try:
        others = [read_run(path) for path in parts(above)] if is_run(above) else []
    # Another seed may be damaged; this check is about the run itself.
    except (UserError, OSError):
        others = []
    spread = spread_of(other.value(run.set_name, run.metric) for other in others if other.fold == run.fold)
    if spread is not None and spread.sd is not None:
        return Check(
            "seed", f"{run.seed}; over {spread.n} seeds {run.metric} is {spread.mean:.4f} with sd {spread.sd:.4f}"
        )
    return Check("seed", f"only {run.seed}; seeds=5 shows how much the score depends on the seed")


def _and_more(count: int) -> str:
    return f" and {count} more" if count > 0 else ""
