"""Many parts learned at once, each by a worker of its own, and put together: partitioned variational inference.

The belief is the prior times one factor for every part. At first each worker learns from the prior; in a round of
refinement it learns from the belief without its own factor, so that it knows what the others have found. Every factor
stands in the product once, however often it is refined. Ashman et al., Partitioned variational inference, 2022.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn

from postprior.errors import BeliefError, SettingError
from postprior.learning.combine import product
from postprior.networks.belief import Belief

Learn = Callable[[Sequence[tuple[int, Belief]]], Sequence[Belief]]
"""The posteriors of some parts, by number, each from the prior that stands beside it; at once, if one can."""

Factor = list[tuple[Belief, float]]
"""What a part has said: a product of beliefs to these powers. It need not be a distribution itself."""


@dataclass(frozen=True)
class Together:
    """What came of parts learned at once."""

    belief: Belief
    waited: int
    """How often a worker sat a round out, as the others' factors alone left it no proper belief to learn from."""


def absorb_apart(network: nn.Module, prior: Belief, num_parts: int, learn: Learn, *, rounds: int = 0) -> Together:
    """The belief after all parts, none of which has waited for another.

    ``rounds`` of refinement follow the first. As all workers move at once in them, and together would overshoot what
    each is right to do alone, the belief goes to the geometric mean of their posteriors, which is always a belief.
    """
    if rounds < 0:
        raise SettingError(f"rounds={rounds}: expected a whole number from 0")
    found = learn([(number, prior) for number in range(num_parts)])
    factors: list[Factor] = [[(posterior, 1.0), (prior, -1.0)] for posterior in found]
    whole = product(network, [(prior, 1.0), *(term for factor in factors for term in factor)])
    waited = 0
    for _ in range(rounds):
        cavities: dict[int, Belief] = {}
        for number, factor in enumerate(factors):
            try:
                cavities[number] = product(network, [(whole, 1.0), *((each, -power) for each, power in factor)])
            except BeliefError:
                waited += 1
        share = 1 / max(len(cavities), 1)
        # The found factor is posterior / cavity, and the cavity whole / factor: what is new is posterior / whole.
        news = {
            number: [(posterior, share), (whole, -share)]
            for number, posterior in zip(cavities, learn(list(cavities.items())), strict=True)
        }
        whole = product(network, [(whole, 1.0), *(term for new in news.values() for term in new)])
        for number, new in news.items():
            factors[number] += new
    return Together(whole, waited)
