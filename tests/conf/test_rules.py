"""The rules between groups, on the shipped configuration: what is at the limit fits, what is beyond it is refused."""

import pytest


@pytest.fixture
def problems_of(composer):
    """Return a function that gives the problems of the default configuration with overrides."""
    return lambda *overrides: composer.problems_of(composer.plain(*overrides))


@pytest.mark.parametrize(("positions", "max_len"), [("64", 64), ("null", 512)])
def test_rows_may_be_as_long_as_the_model_has_positions_and_no_longer(problems_of, positions, max_len):
    model = ["model=bert_tiny", "model.pretrained=null", f"model.max_positions={positions}"]
    assert problems_of(*model, f"data.max_len={max_len}") == []
    (problem,) = problems_of(*model, f"data.max_len={max_len + 1}")
    start = f"data.max_len is {max_len + 1}, but the model has {max_len} positions; set it to <= {max_len}"
    assert problem == f"{start}; data.long=windows reads longer texts in windows"
    assert problems_of(*model, f"data.max_len={max_len}", "data.long=windows") == []
    # Two texts, and words that are masked, are not read in windows.
    for task in (["task=match", "data=lcqmc"], ["task=mlm", "data=files", "data.train=a", "data.fields={text: 0}"]):
        problems = problems_of(*model, *task, f"data.max_len={max_len + 1}")
        assert start in problems, problems
        refused = problems_of(*model, *task, f"data.max_len={max_len}", "data.long=windows")
        assert any(problem.startswith("data.long is windows, ") for problem in refused), refused


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["data.stride=8"], "data.stride is 8, but data.long is cut; set data.long=windows, or data.stride=null"),
        (
            ["data.long=windows", "data.stride=33", "data.max_len=64"],
            "data.stride is 33, more than half of data.max_len, 64; set it to <= 32",
        ),
    ],
)
def test_a_stride_belongs_to_windows_and_is_at_most_half_of_one(problems_of, overrides, says):
    assert problems_of("model=bert_tiny", *overrides) == [says]


@pytest.mark.parametrize("model", ["bert", "hf"])
def test_weights_on_this_machine_say_how_long_rows_may_be(problems_of, tmp_path, model):
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 40}')
    chosen = [f"model={model}", f"model.pretrained={tmp_path}"]
    assert problems_of(*chosen, "data.max_len=40") == []
    (problem,) = problems_of(*chosen, "data.max_len=41")
    assert problem.startswith("data.max_len is 41, but the model has 40 positions; set it to <= 40; ")
    (tmp_path / "config.json").write_text("[")
    assert problems_of(*chosen, "data.max_len=41") == [], "what is wrong with weights shows when they are loaded"


@pytest.mark.parametrize("name", ["bert-base-uncased", "google-bert/bert-base-chinese"])
def test_the_error_for_a_bare_hub_name_shows_the_hf_address(problems_of, name):
    (problem,) = problems_of("model=bert", f"model.pretrained={name}")
    assert f"which does not exist here; a model of the hub is written hf://{name}; set it to" in problem
    (problem,) = problems_of("model=bert", "model.pretrained=/no/such/folder")
    assert "the hub is written" not in problem


@pytest.mark.parametrize(
    ("given", "what"),
    [([], "not set"), (["model.pretrained=null"], "null"), (["model.pretrained=3"], "3")],
)
def test_an_encoder_of_transformers_without_weights_is_refused_with_valid_ones(problems_of, given, what):
    (problem,) = problems_of("model=hf", *given)
    rule = "a folder in Hugging Face layout, hf://NAME or RUN/best"
    refused = f"model.pretrained is {what} but must be {rule}; set model.pretrained to such a value"
    assert problem == (refused if given else f"model.pretrained is not set; set it to {rule}")


def test_a_head_of_a_users_package_fits_any_task(problems_of, tmp_path, monkeypatch):
    (tmp_path / "mypackage.py").write_text(
        "class Head:\n    def __init__(self, width, target, *, depth: int = 1): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    chosen = ("trusted_packages=[mypackage]", "head._target_=mypackage.Head")
    assert problems_of(*chosen, "+head.depth=2") == []
    # Our heads state the tasks that they fit.
    (problem,) = problems_of("head=crf")
    assert problem == "head is crf, but task=classify takes linear, mlp, transformers; set head=auto for the task's own"


def test_a_class_of_ones_own_package_may_bring_a_rule(problems_of, tmp_path, monkeypatch):
    (tmp_path / "ruled_package.py").write_text(
        'def problems(config, task):\n    yield f\'seed is {config["seed"]}, but {task["kind"]} needs another\'\n\n'
        "class Half:\n    rules_of_config = 'ruled_package.problems'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    (problem,) = problems_of("trusted_packages=[ruled_package]", "adapter._target_=ruled_package.Half")
    assert problem == "seed is 1, but nlu.metrics.kinds.ClassKind needs another"


DERIVED = """
from nlu.config.types import PositiveInt
from nlu.models.encoders.bert import Bert
from nlu.models.heads.pairs import SidesHead
from nlu.tasks.classify import Classify

class LongBert(Bert):
    def __init__(self, vocab_size, source, *, pretrained: str | None = None): ...

class Sides(SidesHead):
    def __init__(self, width, target, *, depth: PositiveInt = 1): ...

class Ruled(Classify):
    rules = ["no swearing"]
    rules_of_config = ["no", "name"]
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Classes derived from those of nlu, some with a constructor of their own."""
    (tmp_path / "own_classes.py").write_text(DERIVED)
    monkeypatch.syspath_prepend(tmp_path)
    return "trusted_packages=[own_classes]"


@pytest.mark.parametrize(
    "chosen",
    [
        ["~model", "+model._target_=own_classes.LongBert", "data.max_len=1024"],
        ["task=siamese", "data=lcqmc", "~head", "+head._target_=own_classes.Sides"],
        ["task._target_=own_classes.Ruled"],
    ],
    ids=["model", "head", "task"],
)
def test_a_derived_class_is_held_only_to_rules_for_keys_of_its_own(problems_of, own, chosen):
    assert problems_of(own, *chosen) == []


def test_in_batch_negatives_need_another_pair_beside_each_one(composer):
    options = ("data=lcqmc", "task=siamese", "loss=info_nce", "trainer.batch_size=1")
    assert composer.problems_of(composer.plain(*options, "trainer.accumulation=2")) == []
    (problem,) = composer.problems_of(composer.plain(*options))
    assert "trainer.batch_size is 1, so a pair is alone" in problem


@pytest.mark.parametrize("name", ["train", "test"])
def test_a_file_for_each_label_wants_files_of_plain_lines(problems_of, name):
    files = ("data=files", "data.train=my.csv", f"data.{name}={{good: my.csv, bad: my.csv}}")
    (problem,) = problems_of(*files, "data.fields={text: 0, label: 1}")
    assert "a file for each label, but data.format is auto; set data.format=lines where each line is a text" in problem
    assert problems_of(*files, "data.train={good: my.csv, bad: my.csv}", "data.format=lines") == []


OWN = "data=files data.train=my.csv data.fields={text:0,label:1}"
SIDES, CRF = "task=siamese data=lcqmc head=sides", "data=cluener task=tag head=crf"
AT_THE_LIMIT = [
    (f"{OWN} data.dev_fraction=0.01", f"{OWN} data.dev_fraction=0", "data.dev is null and data.dev_fraction is 0,"),
    (f"{OWN} data.dev_fraction=0.99", f"{OWN} data.dev_fraction=1", "data.dev is null and data.dev_fraction is 1,"),
    (f"{OWN} folds.count=2 data.dev_fraction=0", f"{OWN} folds.count=1", "folds.count is 1 but must be"),
    (f"{OWN} data.dev=my.csv data.dev_fraction=0", f"{OWN} data.dev=no.csv", "'no.csv', which does not exist"),
    (f"{OWN} data.urls={{no.csv:https://x/y}} data.dev=no.csv", f"{OWN} data.dev=none*.csv", "which no file matches"),
    ("trainer.batch_size=2 trainer.devices=2", "trainer.batch_size=1 trainer.devices=2", "set it to >= 2"),
    (OWN, OWN.replace("0", "-1"), "data.fields.text is -1 but columns are counted from 0; set it to a number >= 0"),
    (OWN, OWN.replace(",", ",txt:2,"), "data.fields.txt: unknown field; nearest: text"),
    (OWN, OWN.replace("label:1", "text_b:1"), "needs label as well; set data.fields"),
    ("folds.count=5 fold=4", "folds.count=5 fold=5", "set fold to <= 4"),
    ("folds.count=5 fold=0", "fold=0", "fold is 0, but folds.count is null; set folds=5"),
    ("folds.count=5 fold=0 resume=.", "folds.count=5 resume=.", "set resume to auto or never"),
    ("seeds=1 resume=.", "seeds=2 resume=.", "set resume to auto or never"),
    ("seeds=2 resume=auto", "resume=no_such_folder", "resume is 'no_such_folder', which is not a folder"),
    (f"{OWN} folds.group_by=shop", f"{OWN} folds.group_by=shop data.dev=my.csv", "no training row is held out"),
    ("model=bert_tiny model.heads=4", "model=bert_tiny model.heads=7", "model.heads is 7, which does not divide"),
    ("tokenizer.vocab=my.csv", "tokenizer.vocab=no.txt", "tokenizer.vocab is 'no.txt', which does not exist"),
    (f"{OWN} data.exclude_dev_from_train=true data.dev=my.csv", f"{OWN} data.exclude_dev_from_train=true", "is null"),
    ("trainer.patience=null trainer.eval_interval=0", "trainer.patience=1ep trainer.eval_interval=0", "scores only at"),
    ("trainer.patience=2ep trainer.eval_interval=1ep", "trainer.patience=1ep trainer.eval_interval='0'", "scores only"),
    ("trainer.save=false", "trainer.save=false trainer.keep_best=2", "trainer.save is false, so no checkpoint exists"),
    ("trainer.major_metric=f1_macro", "trainer.major_metric=f1_score", "nearest: f1_macro; set"),
    ("trainer.major_metric=f1", "trainer.major_metric=acuracy", "nearest: accuracy"),
    (f"{SIDES} head.features=concat", f"{SIDES} head.features=cosine", "set head.features=concat, or head=auto"),
    (f"{SIDES} loss=contrastive head.features=cosine", f"{SIDES} loss=contrastive head.features=concat",
     "which reads cosine; set head.features=cosine"),
    ("task=regress data=files data.train=my.csv data.fields={text:0,label:1}", "loss=mse", "which reads number, but"),
    (CRF, f"{CRF} loss=focal", "loss is focal, but head=crf takes the place of the loss"),
    ("task=tag data=files data.train=my.csv data.format=conll data.fields={tokens:0,tags:1}",
     "task=tag data=files data.train=my.csv data.format=conll data.fields=null", "CoNLL columns have no names"),
]  # fmt: skip
"""what fits, what does not, and what is said of it"""


@pytest.mark.parametrize(("fits", "refused", "said"), AT_THE_LIMIT)
def test_values_at_a_limit_pass_and_values_beyond_it_break_one_rule(
    problems_of, tmp_path, monkeypatch, fits, refused, said
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.csv").write_text("a,b\n")
    assert problems_of(*fits.split()) == []
    (problem,) = problems_of(*refused.split())
    assert said in problem


def test_lines_of_a_label_have_files_by_label_in_every_set(problems_of):
    lines = ("data=files", "data.format=lines", "data.train={a: my.csv, b: my.csv}", "data.fields=null")
    assert problems_of(*lines, "data.dev={a: my.csv}", "data.test={b: my.csv}") == []
    for name in ("dev", "test"):
        (problem,) = problems_of(*lines, f"data.{name}=my.csv")
        assert problem.startswith(f"data.{name} is 'my.csv', but with data.format=lines a file holds no labels")


def test_of_a_head_that_cannot_be_read_only_that_is_reported(problems_of):
    (problem,) = problems_of("head._target_=nlu.models.heads.mlp.MlpHed")
    assert problem.startswith("head._target_ cannot be read: ")
