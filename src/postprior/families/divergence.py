"""The one table of divergences: (family of the posterior, family of the prior) -> KL in nats, summed over weights."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from postprior.errors import BeliefError
from postprior.families.channelwise import Channelwise
from postprior.families.factorized import Factorized
from postprior.families.family import Draw, Family
from postprior.families.multiplicative import Multiplicative
from postprior.families.point import Point
from postprior.maths import cholesky, gaussian


def kl(posterior: Family, prior: Family, draw: Draw) -> Tensor:
    """KL(posterior ‖ prior) of one weight tensor; ``draw`` is a sample of the posterior, for rows that need one."""
    row = KL.get((type(posterior), type(prior)))
    if row is None:
        known = ", ".join(f"({q.__name__}, {p.__name__})" for q, p in KL)
        raise BeliefError(
            f"no divergence is known from a {type(posterior).__name__} posterior to a {type(prior).__name__} prior: "
            f"expected one of {known}; choose a family whose pair is listed, or add its row to families/divergence.py"
        )
    return row(posterior, prior, draw)


def nothing(posterior: Point, prior: Point, draw: Draw) -> Tensor:
    """Fine-tuning: the past does not hold the new value back."""
    del prior, draw
    return posterior.value.real.new_zeros(())


def penalty(posterior: Point, prior: Factorized | Channelwise, draw: Draw) -> Tensor:
    """-log p̃(w): the KL but for the point's own entropy, which is infinite and constant (maximum a posteriori)."""
    return -prior.log_density(draw)


def factorized(posterior: Factorized, prior: Factorized, draw: Draw) -> Tensor:
    """Exact."""
    del draw
    return gaussian.kl(posterior.mu, posterior.log_sd, prior.mu, prior.log_sd)


def channelwise(posterior: Channelwise, prior: Channelwise, draw: Draw) -> Tensor:
    """Exact."""
    del draw
    units = cholesky.Whitening(prior.mu.flatten(2), prior.inverse_factor(), prior.log_diagonal)
    return cholesky.kl(posterior.mu.flatten(2), posterior.lower, posterior.log_diagonal, units)


def channelwise_to_factorized(posterior: Channelwise, prior: Factorized, draw: Draw) -> Tensor:
    """Exact."""
    del draw
    precision = (-prior.log_sd).exp().flatten(2)
    factor = precision.unsqueeze(-1) * posterior.factor()
    distance = precision * (posterior.mu - prior.mu).flatten(2)
    return cholesky.kl_from_white(factor, distance, prior.log_sd.sum() - posterior.log_diagonal.sum())


def factorized_to_channelwise(posterior: Factorized, prior: Channelwise, draw: Draw) -> Tensor:
    """Exact."""
    del draw
    inverse = prior.inverse_factor()
    factor = inverse * posterior.log_sd.exp().flatten(2).unsqueeze(-2)
    distance = cholesky.multiply(inverse, (posterior.mu - prior.mu).flatten(2))
    return cholesky.kl_from_white(factor, distance, prior.log_diagonal.sum() - posterior.log_sd.sum())


def multiplicative(posterior: Multiplicative, prior: Multiplicative, draw: Draw) -> Tensor:
    """Unbiased: exact in w given z (Appendix C: cross-entropy minus entropy), and one sample of z for the rest."""
    z = draw.latent
    assert z is not None, "a draw of this family carries its multipliers"
    given_latent = gaussian.kl_at_distance(z * (posterior.mu - prior.mu), posterior.log_sd, prior.log_sd)
    known = draw.latent_log_density
    return given_latent + (posterior.latent_log_density(z) if known is None else known) - prior.latent_log_density(z)


# Any family may appear in a row, so the table itself can only say that a row takes two families and a draw.
KL: dict[tuple[type[Family], type[Family]], Callable[[Any, Any, Draw], Tensor]] = {
    (Point, Point): nothing,
    (Point, Factorized): penalty,
    (Point, Channelwise): penalty,
    (Factorized, Factorized): factorized,
    (Factorized, Channelwise): factorized_to_channelwise,
    (Channelwise, Channelwise): channelwise,
    (Channelwise, Factorized): channelwise_to_factorized,
    (Multiplicative, Multiplicative): multiplicative,
}
