"""What conversion does with single kinds of layers and parameters, and what it refuses."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from conversion_cases import CASES, call, check_shared, close, equal, make, numbers, seeded, x
from torch import Tensor, nn

from contracts.family_contract import generator
from postprior import Learner, bayesianize, first_belief
from postprior.errors import NetworkError, SettingError
from postprior.families import FAMILIES, Channelwise, Factorized, Multiplicative
from postprior.networks.bayesian import from_belief, learnable

# torch says that it has no faster code for this one.
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN:UserWarning")


EVERY_FAMILY = pytest.mark.parametrize("family", FAMILIES)

# Which family stands where.


def test_a_family_stands_where_it_is_made_for() -> None:
    network = nn.Sequential(nn.Conv2d(2, 3, 2), nn.ConvTranspose1d(2, 2, 2), nn.Linear(3, 2), nn.LayerNorm(2))
    network.append(nn.LSTM(2, 3, proj_size=2)).append(nn.MultiheadAttention(4, 2)).append(nn.Embedding(3, 2))
    matrices = {
        *("2.weight", "4.weight_ih_l0", "4.weight_hh_l0", "4.weight_hr_l0"),
        *("5.in_proj_weight", "5.out_proj.weight"),
    }
    kernels = {"0.weight", "1.weight"}
    for family, kind, names in (
        ("channelwise", Channelwise, kernels),
        ("multiplicative", Multiplicative, kernels | matrices),
    ):
        members = bayesianize(network, family).families()
        assert {name for name, member in members.items() if isinstance(member, kind)} == names
        assert {type(member) for name, member in members.items() if name not in names} == {Factorized}


def test_first_priors_are_centred_on_what_changes_nothing() -> None:
    network = nn.Sequential(nn.Conv1d(2, 4, 3, groups=2), nn.BatchNorm1d(4), nn.GroupNorm(2, 4), nn.RMSNorm(4))
    network.append(nn.Linear(4, 2)).append(nn.ConvTranspose2d(4, 2, 3))
    belief = first_belief(network, prior_sd=0.5)
    means, sds = belief.mean(), belief.sd()
    ones = {"1.weight", "2.weight", "3.weight"}
    assert all((means[name] == (1 if name in ones else 0)).all() for name in means)
    assert all(torch.allclose(sd, torch.tensor(0.5)) for sd in sds.values())
    widths = {name: float(sd.mean()) for name, sd in first_belief(network, prior_sd="fan_in").sd().items()}
    expected = {"0.weight": 1 * 3, "0.bias": 1 * 3, "4.weight": 4, "4.bias": 4, "5.weight": 4 * 9, "5.bias": 4 * 9}
    assert all(widths[name] == pytest.approx(inputs**-0.5) for name, inputs in expected.items())
    assert widths["1.weight"] == pytest.approx(1)


# Points and frozen parameters.


@EVERY_FAMILY
def test_point_and_frozen_patterns(family: str) -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))
    inputs = x(4, 1, 3, 3)
    bayesian = bayesianize(network, family, point=("*.bias",), frozen=("1.*", "0.weight"), start_sd=0.1)
    belief = bayesian.belief()
    assert belief.held == {"1.weight", "1.bias", "0.weight"}
    points = {"0.bias", "1.weight", "1.bias", "0.weight", "3.bias"} | ({"3.weight"} if family == "point" else set())
    assert belief.points == points
    bayesian(inputs).square().sum().backward()
    for name, member in bayesian.families().items():
        for parameter in member.parameters():
            assert parameter.requires_grad is (name not in belief.held)
            assert (parameter.grad is not None) is (name not in belief.held)
    assert all(torch.equal(belief.mean()[name], dict(network.named_parameters())[name]) for name in points)


def test_parameters_that_do_not_learn_are_held() -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    network[0].requires_grad_(False)
    bayesian = bayesianize(network)
    assert bayesian.belief().held == {"0.weight", "0.bias"}
    assert not any(p.requires_grad for p in network[0].parameters())
    assert all(torch.equal(bayesian.draw()[f"0.{n}"].weight, p) for n, p in network[0].named_parameters())
    assert {n for n, p in bayesian.network.named_parameters() if p.requires_grad} == {"1.weight", "1.bias"}


@pytest.mark.parametrize("setting", ["point", "frozen"])
@pytest.mark.parametrize("function", [bayesianize, first_belief])
def test_a_pattern_that_matches_nothing_is_a_mistake(function: Callable[..., Any], setting: str) -> None:
    with pytest.raises(SettingError, match=rf"{setting}: 'layer1.\*' matches no parameter; there are 0.weight, 0.bias"):
        function(nn.Sequential(nn.Linear(3, 2)), **{setting: ("*.bias", "layer1.*")})
    with pytest.raises(SettingError, match=rf"{setting}='\*.bias': expected a sequence of patterns"):
        function(nn.Sequential(nn.Linear(3, 2)), **{setting: "*.bias"})


@pytest.mark.parametrize("width", [0.0, -1.0, float("inf"), float("nan")])
def test_widths_must_be_positive_and_finite(width: float) -> None:
    with pytest.raises(SettingError, match=r"start_sd=.*: expected a finite number above 0"):
        bayesianize(nn.Linear(3, 2), start_sd=width)
    with pytest.raises(SettingError, match=r"prior_sd=.*: expected a finite number above 0"):
        first_belief(nn.Linear(3, 2), prior_sd=width)


# Layers with ways of their own.


def test_the_fast_path_of_a_transformer_uses_the_sampled_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    case, calls = CASES["transformer encoder"], list[int]()
    fast = torch._transformer_encoder_layer_fwd

    def counted(*args: Any, **kwargs: Any) -> Tensor:
        calls.append(1)
        return fast(*args, **kwargs)

    monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", counted)
    original = make(case).eval()
    bayesian = bayesianize(original, start_sd=0.1).eval().requires_grad_(False)
    with torch.no_grad():
        expected = call(original, case)
        assert len(calls) == 2
        with bayesian.at_mean():
            close(call(bayesian, case), expected, atol=1e-6)
        assert len(calls) == 4
        fast_output = seeded(bayesian, case, 1)
        assert len(calls) == 6
        with torch.enable_grad():
            slow_output = seeded(bayesian.requires_grad_(True), case, 1)
        assert len(calls) == 6
    close(fast_output, slow_output, atol=1e-5)
    assert (fast_output[0] - expected[0]).abs().max() > 1e-2


def test_a_tied_weight_has_one_belief_and_one_sample() -> None:
    bayesian = bayesianize(make(CASES["tied decoder"]), start_sd=0.5)
    assert "decoder.weight" not in bayesian.families()
    draws = bayesian.draw(generator(1))
    table = draws["embedding.weight"].weight
    hidden = torch.tanh(table[numbers] @ draws["hidden.weight"].weight.T + draws["hidden.bias"].weight)
    torch.testing.assert_close(bayesian.run(draws, numbers), hidden @ table.T + draws["decoder.bias"].weight)


@EVERY_FAMILY
def test_a_complex_parameter_learns_as_a_point(family: str) -> None:
    network = make(CASES["complex parameter"])
    learner = Learner(network, family=family, likelihood="gaussian", epochs=2, batch_size=5)
    update = learner.absorb((x(10, 3), x(10, 2)))
    assert isinstance(update.kl, float)
    learned = learner.belief.mean()["scale"]
    assert learned.is_complex()
    assert not torch.equal(learned.imag, network.get_parameter("scale").imag)
    assert not learner.belief.mean()["likelihood.log_sd"].is_complex()


def test_a_module_used_twice_has_one_sample_a_call() -> None:
    bayesian = bayesianize(make(CASES["same module twice"]), start_sd=0.5)
    assert set(bayesian.families()) == {"first.weight", "first.bias"}
    draws, inputs = bayesian.draw(generator(1)), x(4, 3)
    weight, bias = draws["first.weight"].weight, draws["first.bias"].weight
    torch.testing.assert_close(bayesian.run(draws, inputs), torch.tanh(inputs @ weight.T + bias) @ weight.T + bias)


@pytest.mark.parametrize("name", ["same module twice", "two names of one parameter", "tied decoder", "lstm"])
def test_tied_parameters_stay_tied_in_and_after_calls(name: str) -> None:
    network, case = make(CASES[name]), CASES[name]
    first = bayesianize(network, start_sd=0.5)
    for bayesian in (first, from_belief(network, first.belief(), generator=generator(0))):
        check_shared(bayesian)
        outputs = call(bayesian, case)
        check_shared(bayesian)
        assert all(parameter.is_leaf for parameter in bayesian.parameters())
        draws = bayesian.draw(generator(1))
        plain = copy.deepcopy(network)
        with torch.no_grad():
            for alias, parameter in plain.named_parameters():
                parameter.copy_(draws[alias].weight)
        with bayesian.at(draws):
            close(call(bayesian, case), call(plain, case), atol=1e-6)
        assert not equal(outputs, call(plain, case))


def test_names_that_differ_in_a_dot_and_a_slash_have_beliefs_of_their_own() -> None:
    members = bayesianize(make(CASES["slashes in names"])).families()
    assert {name: tuple(member.location.shape) for name, member in members.items()} == {
        "a/weight": (2,),
        "a~weight": (2,),
        "a.weight": (2, 3),
        "a.bias": (2,),
    }


def test_a_pinned_draw_stays_until_its_context_ends_even_by_an_error() -> None:
    bayesian, inputs = bayesianize(nn.Linear(3, 2), start_sd=0.5), x(4, 3)
    draws = bayesian.draw(generator(1))
    expected = bayesian.run(draws, inputs)
    with bayesian.at(draws):
        assert torch.equal(bayesian(inputs), expected)
        with bayesian.at_mean():
            assert not torch.equal(bayesian(inputs), expected)
        assert torch.equal(bayesian(inputs), expected)
    with pytest.raises(ZeroDivisionError), bayesian.at(draws):
        raise ZeroDivisionError
    assert not torch.equal(bayesian(inputs), expected)


# What cannot be made Bayesian.


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_script_module_is_refused() -> None:
    with pytest.raises(NetworkError, match="TorchScript network cannot be called with sampled weights"):
        bayesianize(torch.jit.script(nn.Linear(3, 2)))


@pytest.mark.parametrize(
    "layer", [lambda: nn.LazyLinear(2), lambda: nn.LazyConv2d(2, 3), nn.LazyBatchNorm1d], ids=["linear", "conv", "norm"]
)
def test_a_lazy_layer_without_shape_is_refused(layer: Callable[[], nn.Module]) -> None:
    with pytest.raises(NetworkError, match=r"1.weight has no shape yet: call the network once on an example"):
        bayesianize(nn.Sequential(nn.Linear(3, 3), layer()))


def test_a_lazy_layer_with_its_shape_is_taken() -> None:
    network = nn.Sequential(nn.LazyLinear(2))
    network(x(4, 3))
    assert bayesianize(network)(x(4, 3)).shape == (4, 2)


def test_a_bayesian_network_is_refused() -> None:
    with pytest.raises(NetworkError, match="Bayesian already: pass the plain network it was made from"):
        bayesianize(bayesianize(nn.Linear(3, 2)))


@pytest.mark.parametrize("network", [nn.ReLU(), nn.Sequential(nn.Flatten(), nn.BatchNorm1d(3, affine=False))])
def test_a_network_without_parameters_is_refused(network: nn.Module) -> None:
    with pytest.raises(NetworkError, match="has no floating parameters: there is nothing to have a belief about"):
        bayesianize(network)


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
def test_the_old_weight_norm_is_refused_and_the_new_one_named() -> None:
    with pytest.raises(NetworkError, match=r"Linear cannot be copied .*\.parametrizations\.weight_norm does not"):
        bayesianize(nn.utils.weight_norm(nn.Linear(3, 2)))


def test_a_child_called_likelihood_is_refused() -> None:
    with pytest.raises(NetworkError, match="called 'likelihood', a name kept for the noise: rename it"):
        bayesianize(nn.ModuleDict({"likelihood": nn.Linear(3, 2)}))


def test_learnable_parameters_come_once_and_whole_numbers_not_at_all() -> None:
    assert [name for name, _ in learnable(make(CASES["tied decoder"]))] == [
        *("embedding.weight", "hidden.weight", "hidden.bias", "decoder.bias")
    ]
    assert [name for name, _ in learnable(make(CASES["whole numbers"]))] == ["layer.weight", "layer.bias"]
