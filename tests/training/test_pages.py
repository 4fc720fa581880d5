"""Every command that README and docs/ show runs, on a few rows and for a few steps, with small random weights.

What cannot run here is listed with its reason, in NOT_HERE and nowhere else.
"""

import os
import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests import warm
from tests.conf.pages import PAGES, ROOT, commands_of, commands_on_runs_of, write_files
from tests.serving.servers import serving

pytestmark = pytest.mark.thorough

NOT_HERE = {
    "nlu.encode model=": "needs pretrained weights; tests/inference/test_encode.py has small ones",
    "launcher=slurm": "needs Slurm; make test-slurm starts one",
    "experiment=tnews_bert": "names a file that the page shows, with weights of a former program",
    "hf://datasets/": "needs a data set of the hub; tests/storage/test_hub.py has one",
    "hf://distilbert/": "needs weights from the hub; tests/models/formats/test_fine_tuned.py has such models",
    "model.pooled_layers=": "needs more layers than the small model of these tests has",
    "method.teacher=outputs/teacher": "needs the run of the command before it; others learn from outputs/mine",
    "launcher=joblib": "needs that plugin; tests/launchers/test_slots.py has a launcher of its kind",
    "launcher=pai": "needs an account; tests/services runs jobs over doubles of PAI",
    "postgresql://": "needs a database; tests/services runs searches on one",
    "s3://": "needs an object store; tests/services runs searches on one",
    "oss://": "needs an object store; tests/services has a double of one",
    "odps://": "needs an account; tests/inference/test_predict_table.py writes into a double of MaxCompute",
}
SIZES = {
    "bert": ("hidden_size=8", "layers=1", "heads=2", "intermediate_size=16", "max_positions=128", "pretrained=null"),
    "textcnn": ("embedding_size=8", "hidden_size=8"),
    "static": ("embedding_size=8",),
}
SHORT = ("trainer.max_duration=4st", "trainer.eval_interval=2st", "trainer.batch_size=8", "trainer.device=cpu")
RUN = ("data=files", "data.train=shop.csv", "data.fields={text: review, label: stars}")
REVIEWS = ("data.train={negative: bad.txt, positive: good.txt}",)


def every_command() -> dict[str, str]:
    """Return each command once, with the page that shows it first."""
    found: dict[str, str] = {}
    for page in PAGES:
        for command in (*commands_of(page), *commands_on_runs_of(page)):
            found.setdefault(" ".join(command.split()), page.name)
    return found


COMMANDS = [(page, command) for command, page in every_command().items()]


def run(folder: Path, *arguments: str, module: str = "nlu.train") -> None:
    """Run a command in a folder, and assert that it ends well; a server is ended once it listens."""
    if module == "nlu.serve" and "--interactive" not in arguments:
        with serving(folder / arguments[0].removeprefix("run="), *arguments[1:]):
            return
    done = warm.run(["-m", module, *arguments], cwd=folder, env={**os.environ, "NLU_DATA": "nowhere"})
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files, runs and the search that commands name."""
    folder = tmp_path_factory.mktemp("pages")
    write_files(folder)
    small = [f"model.{size}" for size in SIZES["bert"]]
    for name in ("run", "mine", "again", "a", "b"):
        seed = f"seed={2 if name == 'b' else 1}"
        run(folder, "model=bert_tiny", *small, *RUN, *SHORT, seed, f"hydra.run.dir=outputs/{name}")
    ranking = ("task=rerank", "data=files", "data.train=candidates.jsonl", "hydra.run.dir=outputs/reranker")
    run(folder, "model=bert_tiny", *small, *SHORT, *ranking)
    run(folder, "model=bert_tiny", *small, *RUN, *SHORT, "folds=2", "hydra.run.dir=outputs/folds")
    search = ("--multirun", "hydra/sweeper=hyperband", "hydra.sweep.dir=outputs/search", "hydra.sweeper.n_trials=2")
    run(folder, "model=bert_tiny", *small, *RUN, *SHORT, *search, "optimizer.lr=interval(1e-4,1e-3)")
    (several,) = (command for _, command in COMMANDS if "data=mixture" in command and "questions" in command)
    run(folder, *made_small(several, folder)[1:], "hydra.run.dir=outputs/several")
    grid = ("--multirun", "hydra/launcher=local", "hydra.sweep.dir=outputs/grid", "seed=1,2")
    run(folder, "model=bert_tiny", *small, *RUN, *SHORT, *grid)
    run(folder, "run=outputs/mine", "format=huggingface", "out=exported", module="nlu.export")
    return folder


def made_small(command: str, folder: Path) -> list[str]:
    """Return module and arguments of a command, with RUN and NEW replaced, few steps, and small random weights."""
    text = command.partition(" -m ")[2].replace("NEW", "outputs/new").replace("FILE", "new.csv")
    # A head has a name in a run of several tasks.
    module, *given = shlex.split(text.replace("RUN", "outputs/several" if "head_name=" in text else "outputs/run"))
    chosen = {argument.partition("=")[0]: argument.partition("=")[2] for argument in given if "=" in argument}
    if module != "nlu.train" or "--rerun" in given or "--cfg" in given or any(one.startswith("@") for one in given):
        return [module, *given]
    added = [SHORT[0], *(one for one in SHORT[1:] if one.partition("=")[0] not in chosen)]
    model = chosen.get("model", "simbert_tiny")
    if model == "hf" or chosen.get("model.trim_vocab") == "true" or "model.keep_layers" in chosen:
        added += [f"model.pretrained={_transformers_model(folder)}"]
    elif "model.pretrained" not in chosen or chosen["model.pretrained"] == "null":
        added += [f"model.{size}" for size in SIZES[model if model in SIZES else "bert"]]
    added += [] if {"data", "experiment"} & set(chosen) else REVIEWS
    # Weights would bring the vocabulary that several sets share.
    added += ["tokenizer.vocab=vocab.txt"] if chosen.get("data") == "mixture" else []
    added += ["hydra.sweeper.n_trials=2"] if "hyperband" in command else []
    return [module, *given, *added]


def _transformers_model(folder: Path) -> Path:
    """Write a small random model in the layout of the hub, and return its folder."""
    transformers = pytest.importorskip("transformers")
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "broken", "late", "good", "fast"]
    config = transformers.BertConfig(
        vocab_size=len(vocab), hidden_size=8, num_hidden_layers=4, num_attention_heads=2, intermediate_size=16
    )
    transformers.BertModel(config).save_pretrained(folder / "hub")
    (folder / "hub" / "vocab.txt").write_text("\n".join(vocab) + "\n")
    return folder / "hub"


@pytest.mark.parametrize(("page", "command"), COMMANDS, ids=[command[:90] for _, command in COMMANDS])
def test_the_command_runs(page: str, command: str, prepared: Path, tmp_path: Path) -> None:
    for mark, reason in NOT_HERE.items():
        if mark in command:
            pytest.skip(f"not runnable here: {reason}")
    folder = tmp_path / "folder"
    shutil.copytree(prepared, folder)
    module, *arguments = made_small(command, folder)
    # What the command itself is to write is not there before.
    for place in re.findall(r"hydra\.(?:run|sweep)\.dir=(\S+)", command):
        shutil.rmtree(folder / place, ignore_errors=True)
    for file in re.findall(r"\boutput=(\S+)", command):
        (folder / file).unlink(missing_ok=True)
    run(folder, *arguments, module=module)


def test_the_program_of_a_page_runs(prepared: Path, tmp_path: Path) -> None:
    shutil.copytree(prepared, tmp_path / "folder")
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    for program in re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        # The command's default model is fetched, and trains longer.
        small = program.replace('"model=simbert_tiny"', '"model=textcnn", "trainer.max_duration=2st"')
        done = warm.run(["-c", small], cwd=tmp_path / "folder", env=dict(os.environ))
        assert done.returncode == 0, f"{small}\n{done.stderr}"


def test_the_first_program_of_the_front_page_finds_no_text_that_differs(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    # Texts of 2 to 61 words; heads are at least 12 wide, as docs/guarantees.md asks.
    lines = [f"{' '.join(f'w{(n + word) % 37}' for word in range(2 + n % 60))}\t{n % 2}\n" for n in range(120)]
    (tmp_path / "texts.tsv").write_text("".join(lines))
    rows = ("data=files", "data.train=texts.tsv", "data.dev_fraction=0.5", "data.fields={text: 0, label: 1}")
    model = ("model=bert_tiny", *(f"model.{size}" for size in SIZES["bert"]), "model.hidden_size=32")
    run(tmp_path, *model, *rows, *SHORT, "precision=bf16", "hydra.run.dir=outputs/mine")
    run(tmp_path, "run=outputs/mine", "format=huggingface", "out=mine-hf", module="nlu.export")
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    program = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[0]
    done = warm.run(["-c", program], cwd=tmp_path, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    of_transformers, of_nlu = done.stdout.splitlines()[-2:]
    said = "of 40 texts have another score in the batch"
    assert of_nlu == f"nlu: 0 {said}" and of_transformers.endswith(said)
    assert re.search(rf"^    transformers: [1-9]\d* {said}\n    {of_nlu}$", page, re.MULTILINE)


def test_each_reason_not_to_run_a_command_is_still_needed() -> None:
    for mark in NOT_HERE:
        assert any(mark in command for _, command in COMMANDS), mark
