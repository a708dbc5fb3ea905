"""Every network is made Bayesian whole: nothing left out, no option dropped, the original left as it was."""

import copy

import pytest
import torch
from conversion_cases import CASES, KINDS, Case, call, check_shared, close, equal, make, seeded
from torch import nn

from contracts.family_contract import generator
from postprior import BayesianNetwork, bayesianize
from postprior.families import FAMILIES, Point
from postprior.networks.bayesian import check_fits

# torch says that it has no faster code for this one.
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN:UserWarning")


def all_but(*names: str) -> pytest.MarkDecorator:
    kept = {name: case for name, case in CASES.items() if name not in names}
    return pytest.mark.parametrize("case", kept.values(), ids=kept.keys())


BIG = ("LeNet5", "ThreeConvThreeFC")
EVERY_CASE, SMALL_CASES = all_but(), all_but(*BIG)
REAL_CASES = all_but(*BIG, "complex parameter")  # torch itself turns complex numbers into real ones here
EVERY_FAMILY = pytest.mark.parametrize("family", FAMILIES)


def has_widths(bayesian: BayesianNetwork) -> bool:
    return not all(isinstance(family, Point) for family in bayesian.families().values())


@pytest.mark.parametrize("name", KINDS)
def test_each_kind_of_layer_is_in_the_case_of_its_name(name: str) -> None:
    assert any(type(module) is KINDS[name] for module in make(CASES[name]).modules())


@pytest.mark.parametrize("name", ["conv1d", "conv2d", "conv3d"])
def test_the_convolutions_here_have_no_option_at_its_default(name: str) -> None:
    layer = make(CASES[name])
    assert isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)
    plain = type(layer)(layer.in_channels, layer.out_channels, layer.kernel_size)  # type: ignore[arg-type]
    for option in ("stride", "padding", "padding_mode", "dilation", "groups"):
        assert getattr(layer, option) != getattr(plain, option), option


@EVERY_CASE
@EVERY_FAMILY
def test_at_the_mean_it_is_the_original(case: Case, family: str) -> None:
    original = make(case)
    bayesian = bayesianize(original, family)
    with bayesian.at_mean(), torch.no_grad():
        close(call(bayesian.eval(), case), call(original.eval(), case), atol=1e-6)
        close(call(bayesian.train(), case), call(original.train(), case), atol=1e-6)


@REAL_CASES
@EVERY_FAMILY
def test_to_double_everything_goes_along(case: Case, family: str) -> None:
    original = make(case)
    bayesian = bayesianize(original, family).to(torch.float64).eval()
    for name, tensor in [*bayesian.named_parameters(), *bayesian.named_buffers()]:
        assert tensor.dtype in (torch.float64, torch.int64), name
    with bayesian.at_mean(), torch.no_grad():
        expected = call(copy.deepcopy(original).double().eval(), case, torch.float64)
        assert all(value.dtype == torch.float64 for value in expected)
        close(call(bayesian, case, torch.float64), expected, atol=1e-10, rtol=1e-10)
    check_shared(bayesian)
    assert all(draw.weight.dtype != torch.float32 for draw in bayesian.draw().values())


@EVERY_CASE
@EVERY_FAMILY
def test_calls_sample_by_the_generator_alone(case: Case, family: str) -> None:
    bayesian, state = bayesianize(make(case), family, start_sd=0.1).eval(), torch.get_rng_state()
    with torch.no_grad():
        first, second = seeded(bayesian, case, 1), call(bayesian, case)
        with bayesian.at_mean():
            mean = call(bayesian, case)
        assert equal(seeded(bayesian, case, 1), first)
        assert equal(call(bayesian, case), second)
        assert equal(first, second) is not has_widths(bayesian)
        assert equal(first, mean) is not has_widths(bayesian)
    assert torch.equal(torch.get_rng_state(), state)


@SMALL_CASES
@EVERY_FAMILY
def test_the_original_is_left_as_it_was(case: Case, family: str) -> None:
    original = make(case).eval()
    before = {name: tensor.clone() for name, tensor in original.state_dict().items()}
    identities = {name: id(parameter) for name, parameter in original.named_parameters(remove_duplicate=False)}
    grads = {name: parameter.requires_grad for name, parameter in original.named_parameters()}
    state, text = torch.get_rng_state(), repr(original)
    bayesian = bayesianize(original, family).train()
    optimizer = torch.optim.SGD([p for p in bayesian.parameters() if p.requires_grad], lr=0.1)
    sum(value.abs().sum() for value in call(bayesian, case)).backward()
    optimizer.step()
    bayesian.belief()
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(module.training for module in original.modules())
    assert original.state_dict().keys() == before.keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in original.state_dict().items())
    assert {name: id(p) for name, p in original.named_parameters(remove_duplicate=False)} == identities
    assert {name: parameter.requires_grad for name, parameter in original.named_parameters()} == grads
    assert all(parameter.grad is None for parameter in original.parameters())
    assert repr(original) == text


@SMALL_CASES
@EVERY_FAMILY
def test_options_of_layers_are_kept(case: Case, family: str) -> None:
    original = make(case)
    assert repr(bayesianize(original, family).network) == repr(original)


@SMALL_CASES
@EVERY_FAMILY
def test_a_state_dict_carries_everything(case: Case, family: str) -> None:
    saved = bayesianize(make(case), family, start_sd=0.1).eval()
    fresh = bayesianize(make(case, seed=1), family, start_sd=0.2, seed=5).eval()
    with torch.no_grad():
        for parameter in saved.beliefs.parameters():
            parameter.mul_(1.1)
        fresh.load_state_dict(saved.state_dict())
        assert equal(seeded(fresh, case, 3), seeded(saved, case, 3))
        with fresh.at_mean(), saved.at_mean():
            assert equal(call(fresh, case), call(saved, case))
    check_shared(fresh)


@EVERY_CASE
@EVERY_FAMILY
def test_every_floating_parameter_has_a_belief(case: Case, family: str) -> None:
    original = make(case)
    belief = bayesianize(original, family).belief()
    floating = {n: p for n, p in original.named_parameters() if p.is_floating_point() or p.is_complex()}
    assert belief.weights.keys() == floating.keys()
    assert belief.held == frozenset()
    sds, means = belief.sd(), belief.mean()
    for name, parameter in floating.items():
        assert sds[name].shape == means[name].shape == parameter.shape
        torch.testing.assert_close(means[name], parameter.detach(), rtol=1e-5, atol=1e-7)
        assert (name in belief.points) is (family == "point" or parameter.is_complex())
        assert bool((sds[name] > 0).all()) is (name not in belief.points), name
    assert belief.buffers.keys() == dict(original.named_buffers()).keys()
    assert all(torch.equal(belief.buffers[name], buffer) for name, buffer in original.named_buffers())
    check_fits(original, belief)


@SMALL_CASES
@EVERY_FAMILY
def test_backward_reaches_everything_that_learns(case: Case, family: str) -> None:
    bayesian = bayesianize(make(case), family).eval()
    outputs = call(bayesian, case)
    sum((value * torch.randn(value.shape, generator=generator(1))).sum() for value in outputs).backward()
    for name, member in bayesian.families().items():
        for own, parameter in member.named_parameters():
            assert parameter.requires_grad, (name, own)
            assert parameter.grad is not None, (name, own)
        location = member.location.grad
        assert location is not None
        assert (location.to_dense() if location.is_sparse else location).any(), name


@SMALL_CASES
@EVERY_FAMILY
def test_a_deep_copy_is_whole_and_its_own(case: Case, family: str) -> None:
    bayesian = bayesianize(make(case), family, start_sd=0.1).eval()
    with torch.no_grad():
        call(bayesian, case)
    copied = copy.deepcopy(bayesian)
    with torch.no_grad():
        expected = seeded(bayesian, case, 4)
        assert equal(seeded(copied, case, 4), expected)
        for parameter in copied.parameters():
            parameter.add_(1)
        assert equal(seeded(bayesian, case, 4), expected)
    check_shared(copied)
