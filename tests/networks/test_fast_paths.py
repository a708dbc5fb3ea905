"""The fast path of training is the plain one on every network of the conversion contract."""

from contextlib import nullcontext
from functools import partial

import pytest
import torch
from conversion_cases import CASES, call, make
from torch import Tensor, nn

from contracts.family_contract import generator
from postprior import bayesianize, first_belief
from postprior.families import Draw, Factorized
from postprior.learning.objective import total_kl
from postprior.maths import gaussian
from postprior.networks import gathered
from postprior.networks.bayesian import BayesianNetwork

# torch says that it has no faster code for this one.
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN:UserWarning")

KL_WEIGHT = 0.01


def double(bayesian: BayesianNetwork) -> BayesianNetwork:
    return bayesian.to(torch.float64).eval()


either_device = pytest.mark.parametrize("caches", [frozenset({"cpu"}), frozenset()], ids=["as a CPU", "as a GPU"])


@either_device
@pytest.mark.parametrize("name", [name for name in CASES if name != "complex parameter"])  # it learns as a point
def test_slopes_of_joined_gaussians_are_the_plain_ones(
    name: str, caches: frozenset[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathered, "WITH_CACHES", caches)
    case = CASES[name]
    plain, joined = (double(bayesianize(make(case), start_sd=0.1)) for _ in range(2))
    prior = first_belief(make(case).to(torch.float64), prior_sd=0.3).weights
    joined.gather(prior)
    assert joined.gathered is not None
    assert joined.gathered.shapes.keys() == plain.families().keys()
    fast = joined.draw(generator(2))
    noises: dict[str, Tensor] = {}
    slow: dict[str, Draw] = {}
    for name, family in plain.families().items():
        assert isinstance(family, Factorized)
        noises[name] = ((fast[name].weight - family.mu) / family.sd()).detach()
        slow[name] = Draw(family.mu + family.log_sd.exp() * noises[name])
    for bayesian, draws in ((plain, slow), (joined, fast)):
        with bayesian.at(draws):
            outputs = call(bayesian, case, torch.float64)
        own = bayesian.gathered
        kl = own.kl() if own else total_kl(plain.families(), prior, draws)
        (
            sum((value * torch.randn(value.shape, generator=generator(1))).sum() for value in outputs) + KL_WEIGHT * kl
        ).backward()
        bayesian.settle()
    expected = torch.cat([family.location.grad.flatten() for family in plain.families().values()])  # type: ignore[union-attr]
    torch.testing.assert_close(joined.gathered.mu.grad, expected, rtol=1e-9, atol=1e-9)
    widths = [family.log_sd.grad for family in plain.families().values() if isinstance(family, Factorized)]
    expected = torch.cat([width.flatten() for width in widths if width is not None])
    torch.testing.assert_close(joined.gathered.log_sd.grad, expected, rtol=1e-9, atol=1e-9)


@either_device
@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("name", [name for name in CASES if name != "complex parameter"])
def test_slopes_where_outputs_are_sampled_are_the_plain_ones(
    name: str, mirrored: bool, caches: frozenset[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathered, "WITH_CACHES", caches)
    """Both draw in another order, so all noise is one."""
    case = CASES[name]
    for noise in ("noise", "noise_in_order"):
        monkeypatch.setattr(gaussian, noise, lambda like, _: torch.ones_like(like))
    plain, joined = (double(bayesianize(make(case), start_sd=0.1, local_reparameterization=True)) for _ in range(2))
    prior = first_belief(make(case).to(torch.float64), prior_sd=0.3).weights
    joined.gather(prior)
    assert joined.gathered is not None
    found: list[Tensor] = []
    for bayesian in (plain, joined):
        bayesian.training = True  # the layers themselves stay in their other mode, in which none drops anything
        draws = bayesian.draw()
        with bayesian.mirroring() if mirrored else nullcontext():
            given = bayesian.mirrored(draws) if mirrored else draws
            outputs = call(partial(bayesian.run, given), case, torch.float64)
        own = bayesian.gathered
        kl = own.kl() if own else total_kl(plain.families(), prior, draws)
        (
            sum((value * torch.randn(value.shape, generator=generator(1))).sum() for value in outputs) + KL_WEIGHT * kl
        ).backward()
        bayesian.settle()
        found.append(torch.cat([value.detach().flatten() for value in outputs]))
    torch.testing.assert_close(*found)
    expected = torch.cat([slope_of(family.location) for family in plain.families().values()])
    torch.testing.assert_close(joined.gathered.mu.grad, expected, rtol=1e-9, atol=1e-9)
    expected = torch.cat([slope_of(f.log_sd) for f in plain.families().values() if isinstance(f, Factorized)])
    torch.testing.assert_close(joined.gathered.log_sd.grad, expected, rtol=1e-9, atol=1e-9)


def slope_of(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad.flatten()
