"""Which rate and which decay every parameter of a tiny BERT gets, and what stays frozen."""

import copy

import numpy as np
import pytest
import torch

from nlu.config.checks.validate import wrong_values
from nlu.config.errors import UserError
from nlu.models.encoders.bert import Bert
from nlu.models.heads.crf import CrfHead
from nlu.models.task_model import TaskModel
from nlu.optim.adamw import AdamW
from nlu.optim.optimizer import FusedAdamW, set_learning_rate, update
from tests.composing import prepared
from tests.models.parts import labels, task_model

LAYERS = 2


@pytest.fixture
def model():
    torch.manual_seed(0)
    backbone = Bert(
        50, None, pretrained=None, hidden_size=16, layers=LAYERS, heads=2, intermediate_size=32,
        pooling="pooler",
    )  # fmt: skip
    return task_model(backbone, "single", 3)


def settings_of(model, optimizer):
    """The rate and the decay of each parameter, by name."""
    groups = {id(p): (group["lr"], group["weight_decay"]) for group in optimizer.param_groups for p in group["params"]}
    return {name: groups.get(id(parameter)) for name, parameter in model.named_parameters()}


def step(model, optimizer):
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.ones_like(parameter)
    optimizer.step()


def test_every_parameter_is_trained_and_biases_and_norms_do_not_decay(model):
    settings = settings_of(model, AdamW(lr=1e-3, weight_decay=0.1).build(model))
    without = {name for name, (_, decay) in settings.items() if decay == 0}
    assert without == {name for name in settings if name.endswith("bias") or "LayerNorm" in name}
    assert {decay for name, (_, decay) in settings.items() if name not in without} == {0.1}
    assert {lr for lr, _ in settings.values()} == {1e-3}


class RMSNorm(torch.nn.Module):
    """A norm of a library's own, one weight for each place and feature."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4, 16))


def test_neither_one_dimensional_parameters_nor_norms_of_any_class_decay(model):
    model.head.more = torch.nn.ModuleDict(
        {"torchs": torch.nn.RMSNorm(16), "own": RMSNorm(), "groups": torch.nn.GroupNorm(2, 16),
         "linear": torch.nn.Linear(16, 16), "convolution": torch.nn.Conv1d(16, 16, 3)}
    )  # fmt: skip
    model.head.scale = torch.nn.Parameter(torch.ones(16))
    model.head.temperature = torch.nn.Parameter(torch.tensor(0.05))
    settings = settings_of(model, AdamW(weight_decay=0.1).build(model))
    decays = {name.removeprefix("head."): decay for name, (_, decay) in settings.items() if name.startswith("head.")}
    assert decays == {
        "linear.weight": 0.1, "linear.bias": 0, "scale": 0, "temperature": 0, "more.torchs.weight": 0,
        "more.own.weight": 0, "more.groups.weight": 0, "more.groups.bias": 0, "more.linear.weight": 0.1,
        "more.linear.bias": 0, "more.convolution.weight": 0.1, "more.convolution.bias": 0,
    }  # fmt: skip


TRANSITIONS = ["head.transitions_CC", "head.start_C", "head.end_C"]


@pytest.mark.parametrize(
    ("written", "rate"), [({}, 0.01), ({"transitions_lr": 0.5}, 0.5), ({"transitions_lr": None}, 3e-4)]
)
def test_scores_of_a_crf_that_begin_at_zero_learn_at_a_separate_rate(model, written, rate):
    crf = TaskModel(model.backbone, CrfHead(16, labels(3, "units"), None, **written), "units")
    optimizer = AdamW(lr=1e-4, top_lr_ratio=3.0, layer_lr_decay=0.5, weight_decay=0.0).build(crf)
    rates = {name: lr for name, (lr, _) in settings_of(crf, optimizer).items()}
    assert [rates[name] for name in TRANSITIONS] == pytest.approx([rate] * 3)
    assert rates["head.linear.weight"] == rates["head.linear.bias"] == pytest.approx(3e-4)
    # The rate that is shown is that of the optimizer, also if the head sets another.
    assert set_learning_rate(optimizer, 0.5) == pytest.approx(1.5e-4)
    step(crf, optimizer)
    # The first step of Adam is as long as the rate.
    for name, parameter in crf.named_parameters():
        if name in TRANSITIONS:
            torch.testing.assert_close(parameter.detach(), torch.full_like(parameter, -rate / 2), rtol=1e-4, atol=0)


def test_a_frozen_crf_stays_frozen(model):
    crf = TaskModel(model.backbone, CrfHead(16, labels(3, "units"), None), "units")
    settings = settings_of(crf, AdamW(freeze=["head.*_C*"]).build(crf))
    assert [name for name, found in settings.items() if found is None] == TRANSITIONS


def test_the_rate_falls_with_depth_and_the_top_has_its_own(model):
    settings = settings_of(model, AdamW(lr=1.0, layer_lr_decay=0.5, top_lr_ratio=10.0).build(model))
    rates = {
        "backbone.embeddings.": 0.5**LAYERS, "backbone.encoder.layer.0.": 0.5, "backbone.encoder.layer.1.": 1.0,
        "backbone.pooler.": 10.0, "head.": 10.0,
    }  # fmt: skip
    for name, (lr, _) in settings.items():
        assert lr == next(rate for prefix, rate in rates.items() if name.startswith(prefix)), name


def test_without_decay_by_depth_all_layers_have_the_same_rate(model):
    settings = settings_of(model, AdamW(lr=1.0, top_lr_ratio=3.0).build(model))
    assert {lr for name, (lr, _) in settings.items() if "encoder" in name or "embeddings" in name} == {1.0}


def test_the_learning_rate_is_set_as_a_factor_of_each_groups_own(model):
    optimizer = AdamW(lr=1.0, layer_lr_decay=0.5, top_lr_ratio=4.0).build(model)
    for factor in (0.5, 0.25):
        assert set_learning_rate(optimizer, factor) == 4.0 * factor
        assert {lr for lr, _ in settings_of(model, optimizer).values()} == {
            rate * factor for rate in (4.0, 1.0, 0.5, 0.25)
        }


def test_frozen_weights_do_not_move_and_all_others_do(model):
    optimizer = AdamW(lr=1e-2, freeze=["backbone.embeddings.*", "*.layer.0.*"]).build(model)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    step(model, optimizer)
    stayed = {name for name, parameter in model.named_parameters() if torch.equal(parameter, before[name])}
    assert stayed == {name for name in before if "embeddings" in name or ".layer.0." in name}
    assert all(group["params"] for group in optimizer.param_groups)


def test_parameters_that_a_model_froze_stay_frozen(model):
    model.backbone.embeddings.word_embeddings.weight.requires_grad_(False)
    settings = settings_of(model, AdamW(freeze=["head.*"]).build(model))
    assert [name for name, found in settings.items() if found is None] == [
        "backbone.embeddings.word_embeddings.weight", "head.linear.weight", "head.linear.bias",
    ]  # fmt: skip


def test_a_pattern_that_matches_nothing_is_refused_with_names_that_exist(model):
    with pytest.raises(UserError, match=r"'embeddings\.\*'.*matches no parameter.*backbone\.embeddings"):
        AdamW(freeze=["embeddings.*"]).build(model)


def test_freezing_everything_is_refused(model):
    with pytest.raises(UserError, match=r"\['\*'\], which leaves nothing to train"):
        AdamW(freeze=["*"]).build(model)


def test_a_rate_of_zero_by_name_is_refused_with_the_key_that_freezes():
    with pytest.raises(UserError) as caught:
        prepared(["model=textcnn", "data=afqmc", "optimizer.lr_by_name={head.*: 0, backbone.*: 1e-3}"])
    (problem,) = caught.value.problems
    assert problem.startswith("optimizer.lr_by_name.head.* is 0") and 'optimizer.freeze=["head.*"]' in problem


@pytest.mark.parametrize("betas", [[0.9, 1.0], [-0.1, 0.9], [0.9]])
def test_betas_outside_their_range_are_refused(betas):
    (problem,) = wrong_values("optimizer.", {"betas": betas}, "nlu.optim.adamw.AdamW")
    assert problem.startswith(f"optimizer.betas is {betas} but must be a list of 2 items, each item a number")


def test_a_step_moves_by_the_rate_and_decays_apart_from_the_gradient(model):
    optimizer = AdamW(lr=0.1, weight_decay=0.5, eps=1e-12).build(model)
    weight, bias = model.head.linear.weight, model.head.linear.bias
    before = weight.detach().clone(), bias.detach().clone()
    step(model, optimizer)
    torch.testing.assert_close(weight.detach(), before[0] * (1 - 0.1 * 0.5) - 0.1)
    torch.testing.assert_close(bias.detach(), before[1] - 0.1)


DEFAULTS = {"lr": 2e-4, "betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 0.01}
OTHERS = {"lr": 1e-2, "betas": (0.7, 0.9), "eps": 1e-3, "weight_decay": 0.1}


@pytest.mark.parametrize("written", [{}, OTHERS])
def test_the_updates_are_those_of_torchs_own_fused_adamw_bit_for_bit(model, written):
    other = copy.deepcopy(model)
    optimizer = AdamW(**written).build(model)
    # All arguments of torch's own are written here, not read from the tested code.
    expected = {**DEFAULTS, **written}
    without = [p for name, p in other.named_parameters() if name.endswith("bias") or "LayerNorm" in name]
    decaying = [p for name, p in other.named_parameters() if not (name.endswith("bias") or "LayerNorm" in name)]
    groups = [{"params": decaying}, {"params": without, "weight_decay": 0.0}]
    reference = torch.optim.AdamW(groups, fused=True, **expected)
    for number in range(3):
        torch.manual_seed(number)
        for parameter, twin in zip(model.parameters(), other.parameters(), strict=True):
            parameter.grad = torch.randn_like(parameter)
            twin.grad = parameter.grad.clone()
        optimizer.step()
        reference.step()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters(), strict=True))
    optimizer.zero_grad()
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("written", [{}, OTHERS])
def test_three_steps_are_those_of_the_papers_algorithm_in_double_precision(model, written):
    # Loshchilov & Hutter 2019, algorithm 2, with a schedule of 1.
    expected = {**DEFAULTS, **written}
    lr, (beta1, beta2), eps, decay = (expected[key] for key in ("lr", "betas", "eps", "weight_decay"))
    optimizer = AdamW(**written).build(model)
    weight = model.head.linear.weight
    theta, first, second = weight.detach().double().numpy().copy(), 0.0, 0.0
    rng = np.random.default_rng(0)
    for step in (1, 2, 3):
        # Small gradients, beside which eps counts.
        gradient = rng.normal(size=weight.shape) * 1e-3
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        weight.grad = torch.from_numpy(gradient).float()
        optimizer.step()
        first, second = beta1 * first + (1 - beta1) * gradient, beta2 * second + (1 - beta2) * gradient**2
        update = (first / (1 - beta1**step)) / (np.sqrt(second / (1 - beta2**step)) + eps)
        theta = theta - lr * update - lr * decay * theta
    np.testing.assert_allclose(weight.detach().numpy(), theta, rtol=1e-5, atol=1e-8)


def test_the_last_pattern_that_matches_a_name_sets_its_rate_and_decay(model):
    settings = settings_of(
        model,
        AdamW(
            lr=1e-3, top_lr_ratio=7.0, weight_decay=0.1, lr_by_name={"*": 1e-5, "head.*": 1e-4},
            weight_decay_by_name={"*.bias": 0.3, "head.*": 0.0},
        ).build(model),
    )  # fmt: skip
    assert settings["head.linear.weight"] == (1e-4, 0.0) and settings["head.linear.bias"] == (1e-4, 0.0)
    assert settings["backbone.pooler.dense.bias"] == (1e-5, 0.3)
    assert settings["backbone.pooler.dense.weight"] == (1e-5, 0.1)


def test_rates_by_name_follow_the_schedule_but_are_not_the_rate_that_is_shown(model):
    optimizer = AdamW(lr=1e-3, lr_by_name={"head.*": 1e-1}).build(model)
    assert set_learning_rate(optimizer, 0.5) == 5e-4
    assert settings_of(model, optimizer)["head.linear.weight"][0] == 0.05


@pytest.mark.parametrize("key", ["lr_by_name", "weight_decay_by_name"])
def test_a_pattern_that_matches_no_parameter_is_refused(model, key):
    with pytest.raises(UserError, match=rf"optimizer.{key} has the pattern 'heads.\*', which matches no parameter"):
        AdamW(**{key: {"heads.*": 0.5}}).build(model)


@pytest.mark.parametrize("of", [FusedAdamW, torch.optim.AdamW])
def test_the_kernel_divides_gradients_and_leaves_out_a_failed_step_as_others_do(of):
    torch.manual_seed(0)
    parameter, twin = torch.nn.Parameter(torch.randn(7, 5)), torch.nn.Parameter(torch.empty(7, 5))
    twin.data.copy_(parameter.data)
    optimizer, reference = of([parameter], lr=0.1, fused=True), torch.optim.AdamW([twin], lr=0.1)
    for failed in (0.0, 1.0, 0.0):
        parameter.grad = torch.randn(7, 5)
        twin.grad = None if failed else parameter.grad / 3.7
        update(optimizer, [parameter.grad], torch.tensor(3.7), torch.tensor(failed))
        reference.step()
        torch.testing.assert_close(parameter, twin)
