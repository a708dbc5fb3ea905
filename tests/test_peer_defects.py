"""One test for each defect found in a peer library (research/peers-bayes.md), saying what happens here instead."""

import importlib.metadata
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from postprior import Belief, Learner, Settings, absorb, as_part, bayesianize, first_belief
from postprior.batch import Batch
from postprior.errors import PartError
from postprior.families import FAMILIES, Channelwise, Draw, Factorized, Multiplicative, frozen, kl
from postprior.learning.likelihoods import Categorical, Custom
from postprior.learning.objective import Step, divergence, objective, total_kl
from postprior.networks.convert import gaussian_belief
from postprior.networks.zoo import SmallConvNet

START_SD = 0.02


def conv_net(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(64, 3)).double()


def images(num: int = 30, seed: int = 1) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(seed)
    return (
        torch.randn(num, 1, 6, 6, generator=source, dtype=torch.float64),
        torch.randint(3, (num,), generator=source),
    )


def divergence_by_hand(network: nn.Module, sd: float, prior_sd: float) -> float:
    """Σ over all weights of KL(N(w, sd²) ‖ N(0, prior_sd²)), number by number."""
    weights = [w for parameter in network.parameters() for w in parameter.flatten().tolist()]
    return sum(math.log(prior_sd / sd) + (sd**2 + w**2) / (2 * prior_sd**2) - 0.5 for w in weights)


def beliefs_are_equal(one: Belief, other: Belief) -> bool:
    def tensors(belief: Belief) -> dict[str, Tensor]:
        weights = {f"{n}/{k}": v for n, family in belief.weights.items() for k, v in family.state_dict().items()}
        return {**weights, **belief.buffers}

    ours, theirs = tensors(one), tensors(other)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_defect_1_the_kl_is_a_sum_over_all_weights_not_a_mean_of_means() -> None:
    network = conv_net()
    expected = divergence_by_hand(network, START_SD, 1.0)
    assert expected > 500
    posterior = bayesianize(network, start_sd=START_SD)
    prior = first_belief(network)
    found = total_kl(posterior.families(), prior.weights, posterior.draw())
    assert float(found.detach()) == pytest.approx(expected, rel=1e-10)
    # Per block it is the same number, since nothing inside a block is correlated yet.
    blocks = bayesianize(network, "channelwise", start_sd=START_SD)
    found = total_kl(blocks.families(), first_belief(network, "channelwise").weights, blocks.draw())
    assert float(found.detach()) == pytest.approx(expected, rel=1e-10)


def test_defect_1_the_kl_is_divided_by_the_size_of_the_part_not_of_the_batch() -> None:
    network = conv_net()
    posterior, prior = bayesianize(network, start_sd=START_SD), first_belief(network)
    inputs, labels = images(5)
    draws = posterior.draw()
    terms = {"kl": divergence(posterior, prior.weights, temperature=0.3)}
    step = Step(Batch((inputs,), {}, labels), labels, posterior.run(draws, inputs), draws, num_examples=1000)
    loss, nats = objective(terms, step)
    expected = 0.3 * divergence_by_hand(network, START_SD, 1.0)
    assert float(nats["kl"]) == pytest.approx(expected, rel=1e-10)
    assert float(loss.detach()) == pytest.approx(expected / 1000, rel=1e-10)


def test_defect_1_the_report_of_an_absorption_gives_the_sum() -> None:
    network = conv_net()
    likelihood = Custom(lambda outputs, targets: 0 * outputs.sum(1))
    settings = Settings(steps=1, learning_rate=1e-12, temperature=0.25, batch_size=4)
    prior = first_belief(network, prior_sd=0.7)
    _, update = absorb(network, prior=prior, part=as_part(images()), likelihood=likelihood, settings=settings)
    expected = divergence_by_hand(network, START_SD, 0.7)
    assert update.kl == pytest.approx(expected, rel=1e-8)
    assert update.epochs[0].kl == pytest.approx(expected, rel=1e-8)
    assert update.elbo == pytest.approx(-0.25 * expected, rel=1e-8)


@pytest.mark.parametrize("family", ["factorized", "channelwise", "multiplicative"])
def test_defect_2_a_prior_around_pretrained_weights_is_used_and_is_in_the_file(tmp_path: Path, family: str) -> None:
    network = conv_net()
    pretrained = {name: parameter.detach().clone() for name, parameter in network.named_parameters()}
    prior = gaussian_belief(network, family, pretrained, {n: torch.full_like(w, 0.1) for n, w in pretrained.items()})
    assert all(torch.equal(family.location, pretrained[name]) for name, family in prior.weights.items())
    Learner(network, prior=prior).save(tmp_path / "prior.safetensors")
    again = Learner.load(tmp_path / "prior.safetensors", conv_net(seed=9)).belief
    assert beliefs_are_equal(again, prior)
    assert torch.equal(again.weights["2.weight"].location, pretrained["2.weight"])
    # At the pretrained weights nothing pulls; from anywhere else it pulls there, not to zero.
    posterior = bayesianize(network, family)
    location = posterior.families()["2.weight"].location
    for away, direction in ((0.0, 0), (0.1, 1), (-0.1, -1)):
        with torch.no_grad():
            location.copy_(pretrained["2.weight"] + away)
        divergence_there = total_kl(posterior.families(), again.weights, posterior.draw())
        (slope,) = torch.autograd.grad(divergence_there, location)
        assert (slope.sign() == direction).all()


def test_defect_3_a_bare_linear_root_is_converted() -> None:
    bayesian, inputs = bayesianize(nn.Linear(3, 2), start_sd=0.5), torch.ones(1, 3)
    assert set(bayesian.belief().weights) == {"weight", "bias"}
    assert not torch.equal(bayesian(inputs), bayesian(inputs))


@pytest.mark.parametrize("family", FAMILIES)
def test_defect_3_padding_mode_is_kept(family: str) -> None:
    network = nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular").double()
    inputs, _ = images(2)
    bayesian = bayesianize(network, family)
    with bayesian.at_mean():
        torch.testing.assert_close(bayesian(inputs), network(inputs))
    zeros = nn.functional.conv2d(inputs, network.weight, network.bias, padding=1)
    assert not torch.allclose(network(inputs), zeros)


@pytest.mark.parametrize("family", FAMILIES)
def test_defect_3_output_padding_is_kept(family: str) -> None:
    network = nn.ConvTranspose2d(1, 1, 3, stride=2, padding=1, output_padding=1)
    inputs = torch.ones(1, 1, 6, 6)
    assert bayesianize(network, family)(inputs).shape == network(inputs).shape == (1, 1, 12, 12)


@pytest.mark.parametrize("family", FAMILIES)
def test_defect_3_multi_head_attention_is_converted_whole(family: str) -> None:
    network = nn.MultiheadAttention(4, 2)
    bayesian, inputs = bayesianize(network, family), torch.randn(3, 2, 4)
    assert set(bayesian.belief().weights) == set(dict(network.named_parameters()))
    with bayesian.at_mean():
        torch.testing.assert_close(bayesian(inputs, inputs, inputs), network(inputs, inputs, inputs))


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN:UserWarning")
@pytest.mark.parametrize("family", FAMILIES)
def test_defect_3_an_lstm_keeps_its_layers_and_directions(family: str) -> None:
    network = nn.LSTM(3, 4, num_layers=2, bidirectional=True)
    bayesian, inputs = bayesianize(network, family, start_sd=0.3), torch.randn(5, 2, 3)
    names = set(bayesian.belief().weights)
    assert len(names) == 16
    assert {"weight_ih_l1_reverse", "bias_hh_l0", "weight_hh_l1"} <= names
    (outputs, (hidden, _)), (again, _) = bayesian(inputs), bayesian(inputs)
    assert outputs.shape == (5, 2, 8)
    assert hidden.shape == (4, 2, 4)
    assert torch.equal(outputs, again) is (family == "point")


def test_defect_4_each_layer_adds_its_whole_kl_whatever_else_there_is() -> None:
    # Neither half a nat a weight is missing, nor does the number of layers scale the gradient.
    torch_layers = [nn.Linear(3, 4), nn.Linear(4, 5), nn.Linear(5, 2)]
    deep = nn.Sequential(*torch_layers).double()
    posterior, prior = bayesianize(deep), first_belief(deep)
    whole = total_kl(posterior.families(), prior.weights, posterior.draw())
    (slope,) = torch.autograd.grad(whole, posterior.families()["1.weight"].location)
    torch.testing.assert_close(slope, deep[1].weight.detach())  # ∂ KL / ∂ μ = μ for a N(0, 1) prior
    alone = [divergence_by_hand(layer, START_SD, 1.0) for layer in torch_layers]
    assert float(whole.detach()) == pytest.approx(sum(alone), rel=1e-10)
    at_prior = total_kl(prior.weights, prior.weights, posterior.draw())
    assert float(at_prior) == 0


@pytest.mark.parametrize("family", [Factorized, Channelwise])
def test_defect_5_a_tight_prior_pulls_however_far_away(family: type[Factorized] | type[Channelwise]) -> None:
    sd, away = 1e-4, 50.0
    zeros = torch.zeros(1, 1, 3, dtype=torch.float64)
    prior = frozen(family.from_gaussian(zeros, zeros + sd, torch.Generator()))
    weight = (zeros + away * sd).requires_grad_(True)
    log_density = prior.log_density(Draw(weight))
    one = -(away**2) / 2 - math.log(sd) - 0.5 * math.log(2 * math.pi)  # -1250 + 8.3 for each weight
    assert float(log_density.detach()) == pytest.approx(3 * one, rel=1e-10)
    (slope,) = torch.autograd.grad(log_density, weight)
    torch.testing.assert_close(slope, torch.full_like(slope, -away / sd))
    posterior = family.from_gaussian(weight.detach(), zeros + sd, torch.Generator())
    (slope,) = torch.autograd.grad(kl(posterior, prior, posterior.draw(torch.Generator())), posterior.mu)
    torch.testing.assert_close(slope, torch.full_like(slope, away / sd))


def test_defect_5_training_under_a_tight_prior_returns_to_it() -> None:
    network = nn.Linear(2, 1, bias=False).double()
    with torch.no_grad():
        network.weight.fill_(5e-3)
    prior = first_belief(network, prior_sd=1e-4)
    likelihood = Custom(lambda outputs, targets: 0 * outputs.sum(1))
    part = as_part((torch.zeros(4, 2), torch.zeros(4)))
    settings = Settings(steps=400, learning_rate=1e-4, spread_rate=100.0, batch_size=4, score_samples=0)
    belief, update = absorb(network, prior=prior, part=part, likelihood=likelihood, settings=settings)
    assert belief.mean()["weight"].abs().max() < 1e-4
    assert 0 <= update.kl < 1


@pytest.mark.parametrize("outputs", [1, 2, 7])
def test_defect_6_the_default_reduction_is_a_sum(outputs: int) -> None:
    network = nn.Linear(3, outputs).double()
    for parameter in network.parameters():
        nn.init.constant_(parameter, 0.5)
    posterior, prior = bayesianize(network), first_belief(network)
    one = math.log(1 / START_SD) + (START_SD**2 + 0.25) / 2 - 0.5
    found = total_kl(posterior.families(), prior.weights, posterior.draw())
    assert float(found.detach()) == pytest.approx(4 * outputs * one, rel=1e-10)


def test_defect_7_posterior_becomes_prior_on_the_torch_that_is_installed() -> None:
    # No probabilistic framework stands between us and torch that could change under our feet.
    requires = " ".join(importlib.metadata.requires("postprior") or []).lower()
    assert not any(peer in requires for peer in ("pyro", "tyxe", "blitz", "bayesian-torch"))
    code = "import sys, postprior; postprior.Learner; print(sorted({'pyro', 'tyxe'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"

    network, settings = conv_net(), Settings(epochs=2, batch_size=10)
    first = first_belief(network)
    options = {"likelihood": Categorical(), "settings": settings}
    second, _ = absorb(network, prior=first, part=as_part(images(seed=1)), **options)
    third, update = absorb(network, prior=second, part=as_part(images(seed=2)), **options)
    unused = {name: Draw(torch.empty(0)) for name in third.weights}
    assert update.kl == pytest.approx(float(total_kl(third.weights, second.weights, unused)), rel=1e-10)
    assert update.kl < 0.5 * float(total_kl(third.weights, first.weights, unused))
    assert (third.num_parts, third.num_examples) == (2, 60)


class Explodes:
    """A likelihood that fails at one of its calls, as a user's own may."""

    def __init__(self, at_call: int) -> None:
        self.calls, self.at_call = 0, at_call

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == self.at_call:
            raise ZeroDivisionError
        return outputs.log_softmax(1)[range(len(targets)), targets]


@pytest.mark.parametrize("family", FAMILIES)
def test_defect_8_an_exception_in_a_training_step_leaves_everything_as_it_was(family: str) -> None:
    network = nn.Sequential(nn.BatchNorm2d(1), *conv_net().children()).double()
    options = {"family": family, "epochs": 2, "batch_size": 8, "score_samples": 0}
    learner = Learner(network, likelihood=Explodes(at_call=10**9), **options)
    learner.absorb(images(seed=1))
    before, held = learner.belief, {n: v.clone() for n, v in network.state_dict().items()}
    kept = [value.clone() for member in before.weights.values() for value in member.state_dict().values()]
    state = torch.get_rng_state()
    learner.likelihood = Custom(Explodes(at_call=9))
    with pytest.raises(ZeroDivisionError):
        learner.absorb(images(seed=2))
    assert learner.belief is before
    values = [value for member in before.weights.values() for value in member.state_dict().values()]
    assert all(torch.equal(one, other) for one, other in zip(values, kept, strict=True))
    assert all(torch.equal(value, held[name]) for name, value in network.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    # What comes next is what would have come without the exception, twice over.
    learner.likelihood = Custom(Explodes(at_call=10**9))
    learner.absorb(images(seed=2))
    learner.absorb(images(seed=3))
    undisturbed = Learner(network, likelihood=Explodes(at_call=10**9), **options)
    for seed in (1, 2, 3):
        undisturbed.absorb(images(seed=seed))
    assert beliefs_are_equal(learner.belief, undisturbed.belief)


def test_defect_8_a_refused_part_leaves_the_belief_as_it_was() -> None:
    learner = Learner(conv_net(), epochs=1)
    before = learner.belief
    inputs, labels = images()
    inputs[17, 0, 2, 3] = torch.nan
    with pytest.raises(PartError, match=r"example 17: input holds nan, expected finite numbers"):
        learner.absorb((inputs, labels))
    assert learner.belief is before


@pytest.mark.parametrize("family", FAMILIES)
def test_defect_8_resuming_from_a_file_is_going_on(tmp_path: Path, family: str) -> None:
    options = {"family": family, "epochs": 2, "batch_size": 8, "seed": 3, "temperature": 0.5}
    learner = Learner(conv_net(), **options)
    learner.absorb(images(seed=1))
    learner.save(tmp_path / "learner.safetensors")
    resumed = Learner.load(tmp_path / "learner.safetensors", conv_net())
    one, other = learner.absorb(images(seed=2)), resumed.absorb(images(seed=2))
    assert (one.kl, one.data_term) == (other.kl, other.data_term)
    assert beliefs_are_equal(learner.belief, resumed.belief)
    assert resumed.belief.num_parts == 2


@pytest.mark.parametrize("family", FAMILIES)
def test_defect_9_the_bias_of_a_convolution_is_believed_trained_and_saved(tmp_path: Path, family: str) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = SmallConvNet().double()
    biases = {name for name, _ in network.named_parameters() if name.endswith("bias")}
    learner = Learner(network, family=family, epochs=2, batch_size=8, learning_rate=0.01)
    source = torch.Generator().manual_seed(1)
    inputs = torch.randn(20, 1, 8, 8, generator=source, dtype=torch.float64)
    learner.absorb((inputs, torch.randint(10, (20,), generator=source)))
    means, sds, start = learner.belief.mean(), learner.belief.sd(), dict(network.named_parameters())
    assert biases <= means.keys()
    for name in biases:
        moved = ~torch.isclose(means[name], start[name].detach())
        assert moved.double().mean() > 0.5, name  # a unit that never fires has nothing to learn from
        assert bool((sds[name] > 0).all()) is (family != "point")
        assert bool((sds[name] != START_SD).all())
    learner.save(tmp_path / "learner.safetensors")
    again = Learner.load(tmp_path / "learner.safetensors", network).belief
    assert all(torch.equal(again.mean()[name], means[name]) for name in biases)
    assert beliefs_are_equal(again, learner.belief)
    assert {f"beliefs.of/{name.replace('.', '/')}" for name in biases} <= {
        key.rpartition(".")[0] for key in bayesianize(network, family).state_dict()
    }


@pytest.mark.parametrize("shape", [(3, 2, 2, 4), (3, 2, 5), (3, 4)])
def test_defect_9_a_multiplier_moves_the_weights_of_its_own_filter_channel_or_input_and_no_others(
    shape: tuple[int, ...],
) -> None:
    ones = torch.ones(shape, dtype=torch.float64)
    member = Multiplicative.from_gaussian(ones, 0.1 * ones, torch.Generator().manual_seed(0))
    latent = torch.ones_like(member.latent_mean)
    latent[(0, 3) if len(shape) == 2 else (2, 0)] = 5.0
    moments = member.local_moments(Draw(ones, latent))
    assert moments is not None
    expected = ones.clone()
    expected[(slice(None), 3) if len(shape) == 2 else (2, 0)] = 5.0
    assert torch.equal(moments[0].detach(), expected)
