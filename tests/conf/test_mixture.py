"""data=mixture and task=composite: what they are composed of, and what is checked of each set."""

import pytest

from nlu.data.dataset import Files
from tests.conf.test_choices import FITTING, READERS
from tests.few import first

BOTH = ("task=composite", "data=mixture")
ONE = ("+data@data.sets.one=afqmc", "+task@task.tasks.one=match")
OTHER = ("+data@data.sets.other=cluener", "+task@task.tasks.other=tag")


def test_the_named_data_sets_and_tasks_can_be_several_of_one_run(composer):
    config = composer.plain(*BOTH, *ONE, *OTHER, "+head@task.heads.other=crf")
    assert config["task"]["_target_"] == "nlu.tasks.composite.Composite"
    assert config["data"]["sets"]["one"]["_target_"] == f"{Files.__module__}.{Files.__qualname__}"
    assert config["task"]["heads"]["other"]["transitions_lr"] == 0.01
    assert composer.problems_of(config) == []


@pytest.mark.parametrize("task", first(1, [task for task, fitting in FITTING.items() if fitting]))
def test_every_task_with_its_own_loss_can_be_one_of_several(composer, task):
    for loss in ("cross_entropy", *(loss for loss in READERS if task in READERS[loss])):
        config = composer.plain(
            *BOTH, *ONE, f"+data@data.sets.new={FITTING[task][0]}", f"+task@task.tasks.new={task}",
            f"+loss@task.losses.new={loss}", "trainer.major_metric=one/accuracy",
        )  # fmt: skip
        found = composer.problems_of(config)
        assert bool(found) == (task not in READERS[loss]), f"task={task} loss={loss}: {found}"
        assert all(text.startswith("task.losses.new is ") for text in found)


def test_a_set_without_a_target_is_rows_in_files(composer):
    config = composer.plain(*BOTH, *ONE)
    config["data"]["sets"]["mine"] = {"train": "my.csv", "fields": {"text": "review", "label": "stars"}}
    config["task"]["tasks"]["mine"] = {"_target_": "nlu.tasks.classify.Classify"}
    assert composer.problems_of(config) == []
    config["data"]["sets"]["mine"]["max_length"] = 64
    (problem,) = composer.problems_of(config)
    assert problem.startswith("data.sets.mine.max_length: unknown key")


PROBLEMS = {
    "no set": (
        BOTH,
        [
            "data.sets is not set; choose one for each set, by a name of your own: +data@data.sets.NAME=CHOICE",
            "task.tasks is not set; choose one",
        ],
    ),
    "only the data": (("data=mixture", *ONE[:1]), ["data is mixture, but task is not composite"]),
    "only the task": (("task=composite", *ONE[1:]), ["task is composite, but data is not a mixture"]),
    "a name with a hyphen": (
        (*BOTH, "+data@data.sets.a-b=afqmc", "+task@task.tasks.a-b=match"),
        ["data.sets.a-b: a set cannot be called a-b"],
    ),
    "a head that does not fit": (
        (*BOTH, *ONE, "+head@task.heads.one=crf"), ["task.heads.one is crf, but task.tasks.one=match takes linear"],
    ),
    "said once": ((*BOTH, *ONE, *OTHER, "trainer.devices=64"), ["trainer.batch_size is 32 over all devices"]),
    "too long": ((*BOTH, *ONE, "data.sets.one.max_len=600", "model=bert_tiny", "tokenizer.vocab=vocab.txt"),
                 ["data.sets.one.max_len is 600, but the model has 512 positions"]),
    "a mean with a falling metric": (
        (*BOTH, *ONE, "+data@data.sets.w=afqmc", "+task@task.tasks.w=mlm"),
        ["trainer.major_metric is null, the mean of the tasks' own metrics, but lower values of loss, that of w, are "
         "better; set trainer.major_metric=NAME/METRIC, such as one/accuracy"],
    ),
    "a loss for all": ((*BOTH, *ONE, *OTHER, "loss=focal"), ["loss is focal, but with task=composite each"]),
}  # fmt: skip


@pytest.mark.parametrize("name", PROBLEMS)
def test_problems_of_a_set_name_its_key(composer, name):
    overrides, expected = PROBLEMS[name]
    found = composer.problems_of(composer.plain(*overrides))
    assert len(found) == len(expected), found
    for text, beginning in zip(sorted(found), sorted(expected), strict=True):
        assert text.startswith(beginning)
