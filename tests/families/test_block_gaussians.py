"""Samples and KL of block Gaussians, whose gradients are written down, against autograd through whole stacks."""

import pytest
import torch
from torch import Tensor

from contracts.family_contract import generator, normal
from postprior.families import Channelwise, divergence
from postprior.maths import cholesky

SHAPE = (3, 5, 2, 2)


def family(seed: int) -> Channelwise:
    return Channelwise(normal(SHAPE, seed), normal((3, 5, 6), seed + 1, 0.5), normal((3, 5, 4), seed + 2, 0.5))


def slopes(value: Tensor, of: Channelwise) -> tuple[Tensor, ...]:
    return torch.autograd.grad(value, (of.mu, of.lower, of.log_diagonal))


@pytest.fixture(params=[1, 100, cholesky.NEAR], autouse=True)
def near(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks one by one, some at a time with a rest, and all at once."""
    monkeypatch.setattr(cholesky, "NEAR", request.param)


def test_kl_and_its_slopes() -> None:
    own, prior = family(1), family(4).requires_grad_(False)
    found = divergence.channelwise(own, prior, own.draw(generator(0)))
    inverse = cholesky.inverse(prior.factor())
    distance = cholesky.multiply(inverse, (own.mu - prior.mu).flatten(2))
    log_det_ratio = prior.log_diagonal.sum() - own.log_diagonal.sum()
    expected = cholesky.kl_from_white(inverse @ own.factor(), distance, log_det_ratio)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(slopes(3 * found, own), slopes(3 * expected, own), rtol=1e-10, atol=1e-12)


def test_a_sample_and_its_slopes() -> None:
    own, white = family(7), normal((3, 5, 4), 10)
    found = cholesky.sample(own.mu.flatten(2), own.lower, own.log_diagonal, white).view_as(own.mu)
    expected = own.mu + cholesky.multiply(own.factor(), white).view_as(own.mu)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    along = normal(SHAPE, 11)
    of_found, of_expected = slopes((found * along).sum(), own), slopes((expected * along).sum(), own)
    torch.testing.assert_close(of_found, of_expected, rtol=1e-10, atol=1e-12)
