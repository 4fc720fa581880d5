"""`inspect` and `watch`: norms, ratios and activations by module, compared with numbers of saved states."""

from pathlib import Path

import numpy as np
import pytest

from nlu.runs.inside import findings_of
from nlu.runs.records import read_rows
from nlu.tracking.tracker import past_points
from tests.training.in_process import (
    MODEL,
    PLAIN,
    STANDING_STILL,
    TINY,
    at_backward,
    column,
    composed,
    killed_in_backward,
    sets,
    start,
    tensors,
    train,
)  # fmt: skip
from tests.training.kinds import KINDS, TASKS, Kind, classes, transformers_model
from tests.training.mixtures import CLASSES, TAGS, mixture
from tests.training.test_kinds_in_processes import run_in_two

ALL = "inspect=[gradients,updates,activations]"
EVERY_ROW = ("trainer.batch_size=27", "trainer.clip_norm=0.001", "optimizer.betas=[0.5,0.999]", "trainer.ema_decay=0")
LAYER = "backbone.encoder.layer.0"
MINE = '''
import torch

from nlu.models.encoders.bert import Bert


class Even(Bert):
    """Its queries and keys are 0, so all tokens get the same attention."""

    def __init__(self, *given, **options):
        super().__init__(*given, **options)
        torch.nn.init.zeros_(self.encoder["layer"][0].attention.self["qkv"].weight)


class Sick(Bert):
    """Feed-forward units that never fire, attention to a single token, and a gradient that explodes in pass 7."""

    def __init__(self, *given, **options):
        super().__init__(*given, **options)
        layer = self.encoder["layer"][0]
        torch.nn.init.constant_(layer.intermediate["dense"].bias, -50.0)
        layer.attention.self["qkv"].weight.data.mul_(1e5)
        self.passes = 0
        layer.attention.output.dense.weight.register_hook(self.explode)

    def explode(self, gradient):
        self.passes += 1
        return gradient * 1e7 if self.passes == 7 else gradient
'''


@pytest.fixture(scope="module", autouse=True)
def package(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("package")
    (folder / "insides.py").write_text(MINE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield


def table(run_dir: Path, step: int = 1) -> dict[str, dict[str, float]]:
    """Return the rows of a step by name, without empty cells."""
    rows = [row for row in read_rows(run_dir / "inspect.tsv") if row["step"] == step]
    return {row["name"]: {key: value for key, value in row.items() if value is not None} for row in rows}


def by_module(values: dict[str, np.ndarray]) -> dict[str, float]:
    """Return the Euclidean norm of the values of each module's parameters."""
    squares: dict[str, float] = {}
    for name, value in values.items():
        module = name.rpartition(".")[0]
        squares[module] = squares.get(module, 0.0) + float((value**2).sum())
    return {name: value**0.5 for name, value in squares.items()}


def test_norms_of_gradients_and_updates_are_those_of_the_saved_state(tmp_path: Path) -> None:
    common = (*TINY, *sets(tmp_path), *EVERY_ROW, "trainer.clip_norm=0")
    for steps in (1, 2):
        train(*common, ALL, f"trainer.max_duration={steps}st", f"hydra.run.dir={tmp_path / str(steps)}")
    # The first moment after a step is half of its gradient.
    state = tensors(tmp_path / "1", "last/optimizer")
    moments = {name.partition(":")[2]: 2 * value for name, value in state.items() if name.startswith("exp_avg:")}
    seen = table(tmp_path / "1")
    assert {name: seen[name]["gradient"] for name in seen if "gradient" in seen[name]} == pytest.approx(
        by_module(moments), rel=1e-5
    )
    before, after = (tensors(tmp_path / name, "last/model") for name in ("1", "2"))
    trained = {name: before[name] for name in moments}
    changes, sizes = by_module({name: after[name] - before[name] for name in trained}), by_module(trained)
    seen = table(tmp_path / "2", 2)
    # The weights are saved in single precision, a change of them has fewer digits.
    assert {name: seen[name]["update"] for name in seen if "update" in seen[name]} == pytest.approx(
        {name: changes[name] / sizes[name] for name in changes}, rel=1e-3
    )
    assert sum(values["gradient"] ** 2 for values in seen.values() if "gradient" in values) ** 0.5 == pytest.approx(
        column(tmp_path / "2", "gnorm")[1], rel=1e-5
    )


def test_activations_are_those_of_all_tokens_of_the_step(tmp_path: Path) -> None:
    files = sets(tmp_path)
    lengths = [len(line.split("\t")[0].split()) + 2 for line in (tmp_path / "train.tsv").read_text().splitlines()]
    common = (*MODEL, *PLAIN, *files, *EVERY_ROW, *STANDING_STILL, "trainer.batch_size=7", "trainer.accumulation=4")
    mine = ("model._target_=insides.Even", "trusted_packages=[insides]", "trainer.max_duration=1st")
    train(*common, *mine, "inspect=activations", "watch=backbone.embeddings.*", f"hydra.run.dir={tmp_path / 'run'}")
    positions = tensors(tmp_path / "run", "last/model")["backbone.embeddings.position_embeddings.weight"]
    given = np.concatenate([positions[:length] for length in lengths])
    seen = table(tmp_path / "run")
    row = seen["backbone.embeddings.position_embeddings"]
    assert row["rms"] == pytest.approx((given**2).mean() ** 0.5, rel=1e-5)
    assert row["largest"] == pytest.approx(np.abs(given).max(), rel=1e-5)
    assert (row["mean"], row["std"]) == pytest.approx((given.mean(), given.std()), rel=1e-4)
    weight = seen["backbone.embeddings.position_embeddings.weight"]
    assert (weight["kind"], weight["norm"]) == ("parameter", pytest.approx((positions**2).sum() ** 0.5, rel=1e-5))
    assert (weight["mean"], weight["std"]) == pytest.approx((positions.mean(), positions.std()), rel=1e-4)
    assert weight["gradient"] > 0 and "gradient" not in row
    # Each of its tokens has the same share of a query.
    attention = seen["layer 0"]
    assert attention["peak"] == pytest.approx(len(lengths) / sum(lengths), rel=1e-5)
    assert attention["entropy"] == pytest.approx(1, rel=1e-5)
    # The last layer sees all tokens, also where only the first ones are read.
    assert seen[f"{LAYER}.output.LayerNorm"]["rms"] == pytest.approx(1, rel=1e-3)
    assert seen[f"{LAYER}.output.dense"]["dead"] == 0
    said = (tmp_path / "run/log.txt").read_text()
    assert "step 1: backbone.embeddings.word_embeddings.weight: gradient" in said


KINDS_INSIDE = {
    "dropout": Kind((), classes), "fgm": KINDS["fgm"], "LoRA": KINDS["LoRA"],
    "frozen": Kind(("optimizer.freeze=['backbone.encoder*']",), classes),
    **{name: KINDS[name] for name in ("fgm of a TextCNN", "an LSTM with a CRF", "an RE2 of pairs", "mlm")},
    "siamese": TASKS["siamese"],
}  # fmt: skip
FEW = ("dropout", "LoRA", "an LSTM with a CRF")


@pytest.mark.parametrize(
    "name", [name if name in FEW else pytest.param(name, marks=pytest.mark.thorough) for name in KINDS_INSIDE]
)
def test_a_run_that_is_inspected_has_the_same_bytes(name: str, tmp_path: Path) -> None:
    options = KINDS_INSIDE[name].overrides(tmp_path)
    same_bytes(options, tmp_path)
    seen = table(tmp_path / "run", 2)
    modules = [values for values in seen.values() if values["kind"] == "module"]
    total = sum(values.get("gradient", 0) ** 2 for values in modules) ** 0.5
    assert total == pytest.approx(column(tmp_path / "run", "gnorm")[1], rel=1e-5)
    updated = {name for name, values in seen.items() if "update" in values}
    assert updated and all("gradient" in seen[name] for name in updated)
    if name == "frozen":
        assert not any("backbone.encoder" in one for one in updated)
        assert any("backbone.encoder" in one and "rms" in values for one, values in seen.items())


@pytest.mark.thorough
def test_an_encoder_of_transformers_shows_its_attention(tmp_path: Path) -> None:
    same_bytes((*PLAIN, *sets(tmp_path), *transformers_model(tmp_path / "hub")), tmp_path)
    seen = table(tmp_path / "run", 2)
    assert 0 < seen["layer 0"]["peak"] < 1 and 0 < seen["layer 0"]["entropy"] < 1
    assert seen["backbone.inner.encoder.layer.0.output.LayerNorm"]["rms"] == pytest.approx(1, rel=1e-2)


def same_bytes(options: tuple[str, ...], folder: Path) -> None:
    """Run two steps with and without inspection, and compare weights, optimizer and rows."""
    common = (*options, "trainer.batch_size=4", "trainer.accumulation=2", "trainer.max_duration=2st")
    start(composed(*common), folder / "plain")
    start(composed(*common, ALL, "watch=*.weight"), folder / "run")
    for path in ("checkpoints/last/model.safetensors", "checkpoints/last/optimizer.safetensors", "valid.tsv"):
        assert (folder / "run" / path).read_bytes() == (folder / "plain" / path).read_bytes(), path
    for name in ("loss", "gnorm"):
        assert column(folder / "run", name) == column(folder / "plain", name)


def test_a_set_of_a_mixture_has_values_at_its_steps(tmp_path: Path) -> None:
    options = mixture(tmp_path, {"shop": CLASSES, "names": TAGS}, "trainer.max_duration=6st")
    start(composed(*options, "inspect=gradients"), tmp_path / "run")
    rows = read_rows(tmp_path / "run/inspect.tsv")
    steps = {name: {row["step"] for row in rows if f"head.{name}." in str(row["name"])} for name in ("shop", "names")}
    assert steps["shop"] and steps["names"] and not steps["shop"] & steps["names"]
    assert steps["shop"] | steps["names"] == set(range(1, 7))


def test_a_killed_run_writes_the_rows_of_an_uninterrupted_one(tmp_path: Path) -> None:
    common = (*TINY, *sets(tmp_path), ALL, "watch=head*", "trainer.log_interval=2st", "trainer.max_duration=6st",
              "trainer.save_interval=3st", "trainer.eval_interval=0")  # fmt: skip
    train(*common, f"hydra.run.dir={tmp_path / 'whole'}")
    with killed_in_backward(5):
        train(*common, f"hydra.run.dir={tmp_path / 'killed'}")
    train(*common, "resume=auto", f"hydra.run.dir={tmp_path / 'killed'}")
    whole = (tmp_path / "whole/inspect.tsv").read_bytes()
    assert {row["step"] for row in read_rows(tmp_path / "whole/inspect.tsv")} == {2, 4, 6}
    assert (tmp_path / "killed/inspect.tsv").read_bytes() == whole
    # A tracker that a continued run has got receives them too.
    points = {point.step: point.values for point in past_points(tmp_path / "whole", 4)}
    row = table(tmp_path / "whole", 4)["head.linear"]
    assert {column: points[4][f"inspect/{column}/head.linear"] for column in ("gradient", "update", "rms", "mean")} == {
        column: row[column] for column in ("gradient", "update", "rms", "mean")
    }


@pytest.mark.thorough
def test_two_ranks_see_what_one_sees(tmp_path: Path) -> None:
    # A last micro-batch of one row, of which the second rank has none.
    options = (*TINY, *sets(tmp_path, train_rows=11), "trainer.batch_size=2", "trainer.accumulation=6")
    config = composed(*options, ALL, "watch=head*", "trainer.max_duration=1st")
    start(config, tmp_path / "single")
    run_in_two([(config, tmp_path / "together")], tmp_path)
    single, together = table(tmp_path / "single"), table(tmp_path / "together")
    assert list(single) == list(together)
    for name, values in single.items():
        numbers = {key: value for key, value in values.items() if isinstance(value, float)}
        assert {key: together[name][key] for key in numbers} == pytest.approx(numbers, rel=1e-3, abs=1e-7), name


def test_dead_saturated_and_exploding_modules_are_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    mine = ("model._target_=insides.Sick", "trusted_packages=[insides]", "optimizer.lr=1e-6")
    options = (*TINY, *sets(tmp_path), *mine, ALL, "trainer.max_duration=8st")
    train(*options, "model.activation=relu", f"hydra.run.dir={tmp_path / 'run'}")
    found = [finding.says for finding in findings_of(tmp_path / "run")]
    exploding, dead, saturated = found[:3]
    assert exploding.startswith(f"{LAYER}.attention.output.dense explodes: its gradient norm is")
    assert "at step 7" in exploding
    assert dead.startswith(f"100% of the units that {LAYER}.output.dense reads are dead")
    assert saturated.startswith("the attention of layer 0 is saturated")
    # No gradient passes through units that are 0.
    assert any(f"the gradient of {LAYER}.intermediate.dense vanishes: its norm is 0" in says for says in found)
    said = capfd.readouterr().err
    assert "inside the model: " + found[0] in said and "lower optimizer.lr" in said


def test_what_was_seen_before_an_error_is_drawn_and_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    mine = ("model._target_=insides.Sick", "trusted_packages=[insides]", "model.activation=relu")
    with at_backward(4, lambda gradient: gradient * float("nan")):
        train(*TINY, *sets(tmp_path), *mine, ALL, f"hydra.run.dir={tmp_path / 'run'}", status=2)
    assert {row["step"] for row in read_rows(tmp_path / "run/inspect.tsv")} == {1, 2, 3}
    assert (tmp_path / "run/plots/inspect-gradients.png").exists()
    said = capfd.readouterr().err
    assert f"inside the model: 100% of the units that {LAYER}.output.dense reads are dead" in said
    assert "at step 4" in said


def test_a_pattern_that_matches_nothing_is_refused_with_the_nearest_name(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    train(*TINY, *sets(tmp_path), "watch=[head*,head.linear.wieght]", f"hydra.run.dir={tmp_path / 'run'}",
          status=2)  # fmt: skip
    said = capfd.readouterr().err
    assert "watch has the pattern 'head.linear.wieght', which matches no parameter and no module" in said
    assert "nearest: head.linear.weight" in said
    assert not (tmp_path / "run/config.yaml").exists()


def test_an_unknown_kind_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train(*TINY, *sets(tmp_path), "inspect=[gradient]", f"hydra.run.dir={tmp_path / 'run'}", status=2)
    assert "one of gradients, updates, activations" in capfd.readouterr().err


def test_the_preset_watches_both_ends_at_every_step(tmp_path: Path) -> None:
    train(*TINY[:-1], *sets(tmp_path), "debug=watch", "trainer.max_duration=2st", f"hydra.run.dir={tmp_path / 'run'}")
    for step in (1, 2):
        assert {"backbone.embeddings.word_embeddings.weight", "head.linear"} <= table(tmp_path / "run", step).keys()
