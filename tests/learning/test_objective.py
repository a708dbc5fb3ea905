"""The terms of the objective are unbiased: over many draws and mini-batches they average to what can be computed."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from contracts.family_contract import generator, normal, positive
from postprior.batch import Batch
from postprior.data.parts import as_part
from postprior.families import Factorized, Point
from postprior.learning.likelihoods import Bernoulli, Gaussian
from postprior.learning.objective import Step, Term, divergence, function_space, negative_log_likelihood, objective
from postprior.networks.bayesian import BayesianNetwork
from postprior.networks.convert import first_belief

NOISE_SD, NUM_EXAMPLES, BATCH_SIZE, NUM_PASSES = 0.7, 20, 6, 600
X, Y = normal((NUM_EXAMPLES, 3), 1), normal((NUM_EXAMPLES, 1), 2)
PART = as_part((X, Y))


def posterior(*, local: bool = False) -> BayesianNetwork:
    """One linear layer, whose expected log-likelihood is a sum that can be written down."""
    family = Factorized(normal((1, 3), 3), positive((1, 3), 4, around=0.8).log())
    network = nn.Linear(3, 1, bias=False).double()
    options = {"local_reparameterization": local, "generator": generator(5)}
    return BayesianNetwork(network, {"weight": family}, **options).train()


def expected_nll(bayesian: BayesianNetwork) -> Tensor:
    """-E[log p(D | w)] over the whole part, with E[(y - x w)²] = (y - x μ)² + x² σ²."""
    family = bayesian.families()["weight"]
    squares = (Y - X @ family.mean().T).square() + X.square() @ family.sd().square().T
    return (squares / (2 * NOISE_SD**2) + 0.5 * math.log(2 * math.pi * NOISE_SD**2)).sum()


def estimates(bayesian: BayesianNetwork, term: Term, mirrored: bool) -> list[Tensor]:
    """The term at every mini-batch of many passes, the last of each smaller; averaged with its image if mirrored."""
    found: list[Tensor] = []
    order = generator(6)
    for _ in range(NUM_PASSES):
        for batch in PART.batches(BATCH_SIZE, order):
            assert batch.targets is not None
            draws = bayesian.draw()
            outputs = bayesian.run(draws, *batch.args)
            value = term(Step(batch, batch.targets, outputs, draws, NUM_EXAMPLES))
            if mirrored:
                with bayesian.mirroring():
                    draws = bayesian.mirrored(draws)
                    outputs = bayesian.run(draws, *batch.args)
                value = (value + term(Step(batch, batch.targets, outputs, draws, NUM_EXAMPLES))) / 2
            found.append(value)
    return found


def check_unbiased(found: Tensor, expected: Tensor) -> None:
    """The mean over the first axis is what is expected, within 4 standard errors, which are small beside it."""
    error = found.std(0) / len(found) ** 0.5
    assert ((found.mean(0) - expected).abs() <= 4 * error).all(), (found.mean(0), expected, error)
    assert (error < 0.1 * expected.abs().max()).all()


@pytest.mark.parametrize("mirrored", [False, True], ids=["single draws", "mirrored draws"])
@pytest.mark.parametrize("local", [False, True], ids=["weights sampled", "outputs sampled"])
def test_the_data_term_and_its_gradient_are_unbiased(local: bool, mirrored: bool) -> None:
    bayesian = posterior(local=local)
    parameters = list(bayesian.families()["weight"].parameters())
    values = estimates(bayesian, negative_log_likelihood(Gaussian(sd=NOISE_SD)), mirrored)
    slopes = [torch.autograd.grad(value, parameters) for value in values]
    exact = expected_nll(bayesian)
    exact_slopes = torch.autograd.grad(exact, parameters)
    check_unbiased(torch.stack(values).detach(), exact.detach())
    for i, expected in enumerate(exact_slopes):
        check_unbiased(torch.stack([slope[i] for slope in slopes]), expected)


def test_the_function_space_term_is_unbiased_for_the_old_beliefs_averaged_prediction() -> None:
    mean, sd, weight = 1.2, 0.9, 0.3
    width = torch.tensor([[sd]], dtype=torch.float64)
    families = (Factorized(torch.full_like(width, mean), width.log()), Point(torch.full_like(width, -0.4)))
    old, new = (BayesianNetwork(nn.Linear(1, 1, bias=False).double(), {"weight": family}) for family in families)
    x = normal((8, 1), 1)
    draws = new.draw()
    step = Step(Batch((x,), {}, x), x, new.run(draws, x), draws, num_examples=80)
    term = function_space(old, Bernoulli(), weight, generator(2))
    found = torch.stack([term(step) for _ in range(3000)]).detach()
    # The old prediction: the mean of a sigmoid under a Gaussian, by quadrature.
    nodes, shares = (torch.tensor(each) for each in np.polynomial.hermite_e.hermegauss(60))
    chance = (x * (mean + sd * nodes)).sigmoid() @ (shares / shares.sum())
    logit = -0.4 * x[:, 0]
    cross_entropy = -(chance * nn.functional.logsigmoid(logit) + (1 - chance) * nn.functional.logsigmoid(-logit))
    check_unbiased(found, weight * 80 * cross_entropy.mean())


def test_the_objective_is_the_sum_of_its_terms_over_the_size_of_the_part() -> None:
    bayesian, likelihood = posterior(), Gaussian(sd=NOISE_SD)
    prior = first_belief(bayesian.network, prior_sd=0.5)
    terms = {
        "data": negative_log_likelihood(likelihood),
        "kl": divergence(bayesian, prior.weights, temperature=0.3),
        "mine": lambda step: 7.0 * step.outputs.mean(),
    }
    draws = bayesian.draw()
    step = Step(Batch((X,), {}, Y), Y, bayesian.run(draws, X), draws, NUM_EXAMPLES)
    loss, nats = objective(terms, step)
    assert nats.keys() == terms.keys()
    for name, term in terms.items():
        assert float(nats[name]) == pytest.approx(float(term(step).detach()), rel=1e-12)
    assert float(loss.detach()) == pytest.approx(sum(map(float, nats.values())) / NUM_EXAMPLES, rel=1e-12)
    log_p = torch.distributions.Normal(X @ draws["weight"].weight.T, NOISE_SD).log_prob(Y).sum()
    assert float(nats["data"]) == pytest.approx(-float(log_p.detach()), rel=1e-12)
