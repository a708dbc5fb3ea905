"""What is minimised: equation (2) of the paper with its sign turned, as a sum of terms."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from postprior.batch import Batch
from postprior.families import Draw, Family, kl
from postprior.learning.likelihoods import Likelihood
from postprior.networks.bayesian import BayesianNetwork, likelihood_values
from postprior.networks.drawing import Trainable


@dataclass(frozen=True)
class Step:
    """One weight sample on one mini-batch: all that a term may look at."""

    batch: Batch
    targets: Tensor
    outputs: Tensor
    draws: Mapping[str, Draw]
    num_examples: int
    """Examples in the whole part."""
    weight: float = 1.0
    """What this batch's mean counts for; see ``shards``. Terms that go by ``whole_part`` need not know."""

    def whole_part(self, per_example: Tensor) -> Tensor:
        """An unbiased estimate of the sum over the part from values [B] of the mini-batch."""
        return per_example.mean() * (self.num_examples * self.weight)


Term = Callable[[Step], Tensor]
"""A summand of the objective: nats for the whole part, differentiable in the posterior."""


def negative_log_likelihood(likelihood: Likelihood) -> Term:
    """-E[log p(D_t | w)], summed over the part's examples."""

    def term(step: Step) -> Tensor:
        return -step.whole_part(likelihood.log_prob(step.outputs, step.targets, likelihood_values(step.draws)))

    return term


def divergence(posterior: Trainable, prior: Mapping[str, Family], temperature: float) -> Term:
    """temperature x KL(q(w | φ_t) ‖ q(w | φ_t-1)), summed over all weights; held ones never move and add nothing."""
    apart = {name: family for name, family in posterior.ungathered().items() if name not in posterior.held}

    def term(step: Step) -> Tensor:
        if posterior.gathered is None:
            return temperature * total_kl(apart, prior, step.draws)
        joined = posterior.gathered.kl()
        return temperature * (joined + total_kl(apart, prior, step.draws) if apart else joined)

    return term


def total_kl(posterior: Mapping[str, Family], prior: Mapping[str, Family], draws: Mapping[str, Draw]) -> Tensor:
    """The KL in nats, exact where it has a closed form."""
    each = [kl(q, prior[name], draws[name]) for name, q in posterior.items()]
    return torch.stack(each).sum() if each else torch.zeros(())


def function_space(old: BayesianNetwork, likelihood: Likelihood, weight: float, generator: torch.Generator) -> Term:
    """weight x cross-entropy from the old belief's predictions to the new ones, on the new part's inputs.

    One weight sample of the old belief a step makes it unbiased for the old belief's averaged predictions.
    """

    def term(step: Step) -> Tensor:
        with torch.no_grad():
            old_outputs: Any = old.run(old.draw(generator), *step.batch.args, **step.batch.kwargs)
        values = likelihood_values(step.draws)
        return weight * step.whole_part(
            likelihood.cross_entropy(old_outputs.to(step.outputs.dtype), step.outputs, values)
        )

    return term


def objective(terms: Mapping[str, Term], step: Step) -> tuple[Tensor, dict[str, Tensor]]:
    """The sum of the terms per example, which is the one place where anything is divided, and each term in nats."""
    nats = {name: term(step) for name, term in terms.items()}
    return reduce(torch.add, nats.values()) / step.num_examples, {k: v.detach() for k, v in nats.items()}
