"""What to write for an unknown name: one of another program or of an earlier version, or else the nearest key."""

import re
from collections.abc import Collection
from functools import cache

from nlu.config.choices import RUN, SCHEMAS, conf_dir, targets_of
from nlu.config.keys import schema_of
from nlu.config.nearest import hint

# NAME NAME ... -> ANSWER | a word of explanation. Of several answers with " / " between them it is the first whose key
# the command has; "-" says that nothing takes the place of the name.
_OF_OTHERS = """
learning_rate -> optimizer.lr
epochs num_train_epochs max_epoch -> trainer.max_duration=3ep | or 500st (steps), 32000ex (examples)
max_steps max_update -> trainer.max_duration=500st | or 3ep (epochs), 32000ex (examples)
per_device_train_batch_size -> trainer.batch_size | over all devices together
per_device_eval_batch_size -> trainer.eval_batch_size / batch_size | over all devices together
gradient_accumulation_steps update_freq -> trainer.accumulation
warmup_ratio -> scheduler.warmup=0.1 | a share of the run, or 500st
warmup_steps -> scheduler.warmup=500st | or a share of the run: 0.1
lr_scheduler_type lr_scheduler -> scheduler=one_cycle | its shape: scheduler.anneal=linear, cosine or polynomial
scheduler=linear -> scheduler=one_cycle scheduler.anneal=linear
scheduler=cosine -> scheduler=one_cycle scheduler.anneal=cosine
optimizer=adam -> optimizer=adamw
max_grad_norm -> trainer.clip_norm
label_smoothing_factor -> loss.label_smoothing
eval_steps -> trainer.eval_interval=500st | or 0.25ep
eval_strategy evaluation_strategy -> trainer.eval_interval=1ep
save_steps -> trainer.save_interval=500st | each evaluation saves too
logging_steps -> trainer.log_interval=50st
save_total_limit -> trainer.keep_best | the last state is always kept too
load_best_model_at_end -> - | the best weights and the last state are always kept
metric_for_best_model -> trainer.major_metric | python -m nlu.train --help names the metrics
major_metric=acc -> accuracy
early_stopping_patience tolerance -> trainer.patience=1ep
output_dir save_dir -> run=RUN / hydra.run.dir=FOLDER | of a --multirun: hydra.sweep.dir=FOLDER
overwrite_output_dir -> - | without hydra.run.dir each command writes into a new folder
resume_from_checkpoint -> resume=auto | with the same hydra.run.dir
do_train do_eval do_predict -> - | a run scores data.dev and data.test; nlu.evaluate and nlu.predict use a trained run
train_file train_subset data_source -> data.train=FILE
validation_file valid_subset -> data.dev=FILE
test_file -> data.test=FILE / input=FILE
distill -> logits=true / method=distil method.teacher=RUN
max_train_samples -> data.max_rows | the first rows of each file
max_eval_samples -> max_rows / trainer.eval_rows
text_column_name -> 'data.fields={text: COLUMN}' / 'input.fields={text: COLUMN}'
processor loader -> task=classify | or match, tag, siamese, ...; data.format and data.fields say how to read rows
num_labels -> - | the data tell how many labels there are
data_dir cache_dir -> - | stores of tokens and fetched files are in the folder NLU_CACHE
max_seq_length max_length -> data.max_len
pad_to_max_length -> - | sequences are packed without padding
dataloader_num_workers workers -> - | texts are tokenized on all cores, and batches need no worker processes
group_by_length -> trainer.bucket_batches | on by default; 1 = off
lower do_lower_case -> tokenizer.lowercase=true
tokenizer_name vocab_file -> tokenizer.vocab=FILE | by default that of the weights
model_name_or_path -> model=hf model.pretrained=hf://NAME | or model=bert for BERT and its family: docs/models.md
pretrained_model -> model.pretrained=PATH / run=RUN
task=ner -> task=tag
task=pair -> task=match
loss=ce -> loss=cross_entropy
fp16 -> precision=fp16 | or bf16, where the hardware has it; precision=auto chooses
bf16 -> precision=bf16
device=gpu -> cuda
distributed_world_size -> trainer.devices / devices
report_to -> tracker=tensorboard | or wandb, mlflow
__parent__ -> experiment=NAME | a file with a list `defaults` is based on others: docs/experiments.md
loguniform() -> tag(log,interval(1e-5,5e-4))
uniform() -> interval(0,0.3)
x-prepro -> python -m nlu.preprocess
x-train -> python -m nlu.train
x-eval -> python -m nlu.evaluate
x-pred -> python -m nlu.predict
x-tune -> python -m nlu.train --multirun hydra/sweeper=hyperband
"""
"""Names of XDPX and of Hugging Face that users type."""
_OURS = """
model -> model=NAME / run=RUN | a trained run has its model
data -> data=NAME / input=FILE | the rows to predict
input.path -> input=FILE / data.test=FILE | only nlu.predict has input
data.part data.parts -> - | one job preprocesses all rows, on all cores; data.stream=true trains meanwhile
parallel trainer.parallel use_bmuf -> - | the gradients of all processes are summed in each step
trainer.reduce_dtype parallel.reduce_dtype -> - | gradients are summed in fp32
trainer.kernels -> - | torch's own kernels train
tokenizer.kind -> tokenizer.vocab=tokenizer.json | the package tokenizers learns Unigram; tokenizer=subwords, WordPiece
precision.attention -> precision=int8_compiled | its attention multiplies in fp32, that of int8 in bf16
precision.master_weights -> precision=bf16 | fp16 weights without a float32 copy lose small updates
replay -> resume=auto trainer.detect_anomaly=true | with the command of the run: it runs into the same step again
watch debug=watch -> inspect=true | norms of all modules; nlu.runs.summary.scalar records any number of your modules
export -> - | nlu.export max_rows=10000 compares an export with its run on so many rows
requests_per_s proxies -> - | a reverse proxy limits the requests of a client, and sends the token: docs/serving.md
classes -> - | nlu.train task.chosen_classes=["1"] makes a run whose scores count these classes
max_loss fractions eval_rows -> fraction=0.3 | nlu.prune shows the score before and after
best_f1 threshold_f1 best_accuracy threshold_accuracy -> - | task.threshold=auto of nlu.train chooses the threshold
format=torch_export -> format=onnx
of=batch_size -> trainer.batch_size=auto | the most that fit into memory, found before the first step
max_batch_size -> - | trainer.batch_size=auto finds the size of micro-batches
model=re2 -> model=match_cnn task=match | the words of two texts are no longer aligned
task.score_queries -> task=rerank | with MRR, NDCG and MAP of each query
optimizer.kernel -> - | torch's fused kernel updates the weights on CUDA
--html --json -> - | nlu.report errors --rows 1000 prints more rows, and nlu.report --csv every digit of a table
--where -> - | name the folders of the runs
--near --by --rank-by --seed -> - | nlu.report errors shows classes and lengths; python -m nlu.data finds equal texts
--join -> - | the table over the folders of all folds joins them
--keep-best -> - | trainer.keep_best of nlu.train decides how many checkpoints a run keeps
--data -> - | name the files: python -m nlu.data train=FILE dev=FILE
fixed_length -> - | python -m onnxruntime.tools.make_dynamic_shape_fixed fixes the shape of an export
hydra.sweeper.max_batch_size -> - | hydra.launcher.array_parallelism of Slurm limits the jobs that run at once
hydra.sweeper.until_plateau -> hydra.sweeper.max_examples=100ep | with asha or freeze_thaw; or a smaller n_trials
hydra/sweeper/sampler=qmc hydra/sweeper/sampler=cmaes -> hydra/sweeper/sampler=random | or tpe, gp
hydra/sweeper/sampler=nsgaii hydra/sweeper/sampler=nsgaiii -> hydra/sweeper/sampler=tpe | with several objectives too
hydra.sweeper.max_hours -> - | timeout 8h python -m nlu.train ... ends the search, and the same command continues it
hydra.sweeper.enqueue hydra.sweeper.warm_start -> - | the first trial has the values of prior=
hydra.sweeper.use_defaults -> - | the first trial has the values of prior= in its sweeps
hydra.sweeper.gpus_per_trial -> trainer.devices=2 | a GPU for each process of a trial; CUDA_VISIBLE_DEVICES lists them
hydra.sweeper.keep=rungs -> hydra.sweeper.keep=best | checkpoints of paused trials stay until the end
hydra.launcher.gpus_per_node -> hydra.launcher.gpus
hydra.launcher.cpus_per_task -> hydra.launcher.cpus | a key of hydra/launcher=slurm; jobs of local may use all cores
hydra.launcher.mem_gb -> hydra.launcher.memory_gb | a key of hydra/launcher=slurm; jobs of local may use all memory
hydra.launcher.comment hydra.launcher.gres -> 'hydra.launcher.additional_parameters={NAME: VALUE}' | options of sbatch
hydra.launcher.trials_per_job -> 'hydra.launcher.additional_parameters={gres: "shard:1"}' | small jobs, that share a GPU
hydra.launcher.modules -> 'hydra.launcher.setup=[". /etc/profile", "module load NAME"]' | lines of shell
hydra.launcher.container hydra.launcher.container_mounts -> 'hydra.launcher.srun_args=["--container-image=IMAGE"]'
hydra.launcher.nodes hydra.launcher.tasks_per_node -> hydra/launcher=slurm | a job of local is one process here
hydra.launcher.stderr_to_stdout -> - | standard output and standard error of a job are two files
hydra.launcher.wait -> hydra/launcher=local | or slurm, pai; launchers of other packages wait for their jobs
hydra.launcher.before -> - | nlu.train prepares its data itself, and nlu.preprocess can be submitted first
hydra.launcher.after -> - | submit the next command with run=MIRROR, the mirror of the run: nlu.export, nlu.evaluate
hydra.launcher.python -> - | a job of hydra/launcher=pai runs the python3 on the PATH of hydra.launcher.image
hydra.launcher.include -> - | git add FILE, without a commit, has it sent with the code; data go on the store
hydra.launcher.code_limit_mb -> - | code has at most 100 MB; put data on the store
"""
"""Whole keys of other commands of nlu and of its earlier versions."""
_FILES = (".csv", ".tsv", ".json", ".jsonl", ".parquet", ".xlsx", ".txt", ".conll", ".gz")
LONGEST_HINT = 200
"""Characters of a hint; a longer one names too many keys to be read."""


@cache
def table(text: str) -> dict[str, str]:
    """Return the answer to each name of a text of rows."""
    rows = (line.partition(" -> ") for line in text.strip().splitlines())
    return {name: answer for names, _, answer in rows for name in names.split()}


def hint_of_key(key: str, valid: Collection[str], schema: str = RUN) -> str:
    """Return what to write for an unknown key, given the `valid` ones; `schema` names the command's top-level keys.

    If the valid keys are too many to be read, the hint points to `--cfg job`.
    """
    name = key.rpartition(".")[2].lower()
    text = hint(key, valid)
    text = text if len(text) <= LONGEST_HINT else "see --cfg job for all keys"
    is_of_group = any(each.rpartition(".")[2].lower() == name for each in valid)
    # With its group, as in loss.threshold, a key of ours is meant, even if another program has the same name.
    of_choice = key_of_another_choice(key, schema)
    if of_choice is not None and "." in key:
        return of_choice
    # Only its group may be wrong.
    return text if is_of_group else key_elsewhere(key, schema) or of_choice or text


def key_elsewhere(key: str, schema: str | None = None) -> str | None:
    """Return what to write for a key, KEY=VALUE, FUNCTION() or command of another program; None if unknown.

    `schema` is the dotted name of the dataclass of the command's keys; None = any command.
    """
    answer = table(_OURS).get(key) or table(_OF_OTHERS).get(key.rpartition(".")[2].lower())
    return None if answer is None else _text(answer, schema)


def choice_elsewhere(group: str, choice: str) -> str | None:
    """Return what to write for a choice that is the name of a file, of a model of the hub, or of another program."""
    if group == "data" and choice.lower().endswith(_FILES):
        return f"write data=files data.train={choice} for rows in a file"
    if (known := key_elsewhere(f"{group}={choice}".lower())) is None and group == "model" and {"/", "-"} & set(choice):
        return f"write model=hf model.pretrained=hf://{choice} for a model of the Hugging Face hub"
    return known


def key_of_another_choice(key: str, schema: str | None = None) -> str | None:
    """Return which choices have a key that those of the command leave out; None if none has.

    It is looked for in its group, or in all groups if it is given without one.
    """
    group, _, name = key.rpartition(".")
    owners = []
    for each in [group] if group else sorted(path.name for path in conf_dir().iterdir() if path.is_dir()):
        if found := [choice for choice, keys in _choices(each).items() if name in keys]:
            named = " or ".join(f"{each}={choice}" for choice in found[:3]) + " or others" * (len(found) > 3)
            command = "" if _is_of(each, schema) else ", in python -m nlu.train"
            owners.append(f"{'a key' if group else f'{each}.{name}'} of {named}{command}")
    return f"it is {' or '.join(owners[:3])}" if owners else None


@cache
def _choices(group: str) -> dict[str, frozenset[str]]:
    """Return the keys of each choice of a group, {} if there is no such group."""
    return {choice: frozenset(schema_of(target).keys) for choice, target in targets_of(group).items()}


def _text(answer: str, schema: str | None) -> str:
    ours, _, explained = answer.partition(" | ")
    if ours == "-":
        return f"leave it out: {explained}"
    why = f"; {explained}" if explained else ""
    answers = ours.split(" / ")
    if (fits := next((one for one in answers if _is_of(one, schema)), None)) is not None:
        return f"write {fits}{why}"
    command = next(name for name, each in SCHEMAS.items() if _is_of(answers[0], each))
    return f"it is {answers[0]} of python -m nlu.{command}{why}"


def _is_of(ours: str, schema: str | None) -> bool:
    """Whether a command has the top-level key of an answer; all have Hydra's, and any other command may be used."""
    key = re.split(r"[.=/ ]", ours.lstrip("'"))[0]
    return schema not in SCHEMAS.values() or key in ("hydra", "python", "experiment", *schema_of(schema).keys)
