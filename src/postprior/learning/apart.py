"""Many parts learned at once, each by a worker of its own, and put together: partitioned variational inference.

The belief is the prior times one factor for every part. At first each worker learns from the prior; in a round of
refinement it learns from the belief without its own factor, so that it knows what the others have found. Every factor
stands in the product once, however often it is refined. Ashman et al., Partitioned variational inference, 2022.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn

from postprior.errors import SettingError
from postprior.learning.combine import product, set_back
from postprior.networks.belief import Belief

Learn = Callable[[Sequence[tuple[int, Belief]]], Sequence[Belief]]
"""The posteriors of some parts, by number, each from the prior that stands beside it; at once, if one can."""

Factor = list[tuple[Belief, float]]
"""What a part has said: a product of beliefs to these powers. It need not be a distribution itself."""


@dataclass(frozen=True)
class Together:
    """What came of parts learned at once."""

    belief: Belief
    set_back: int
    """How many weights or kernels came out less sure of a part than they went in, and were set back to before it."""


def absorb_apart(network: nn.Module, prior: Belief, num_parts: int, learn: Learn, *, rounds: int = 0) -> Together:
    """The belief after all parts, none of which has waited for another.

    ``rounds`` of refinement follow the first. As all workers move at once in them, and together would overshoot what
    each is right to do alone, the belief goes to the geometric mean of their posteriors, which is always a belief.
    """
    if rounds < 0:
        raise SettingError(f"rounds={rounds}: expected a whole number from 0")
    dropped = 0

    def learned(tasks: Sequence[tuple[int, Belief]]) -> list[Belief]:
        nonlocal dropped
        pairs = [set_back(found, before) for found, (_, before) in zip(learn(tasks), tasks, strict=True)]
        dropped += sum(count for _, count in pairs)
        return [belief for belief, _ in pairs]

    posteriors = learned([(number, prior) for number in range(num_parts)])
    factors: list[Factor] = [[(posterior, 1.0), (prior, -1.0)] for posterior in posteriors]
    whole = product(network, [(prior, 1.0), *(term for factor in factors for term in factor)])
    for _ in range(rounds):
        # No factor takes evidence away, so without any one of them there still is a belief.
        cavities = [product(network, [(whole, 1.0), *((each, -power) for each, power in own)]) for own in factors]
        # The found factor is posterior / cavity, and the cavity whole / factor: what is new is posterior / whole.
        share = 1 / num_parts
        news: list[Factor] = [[(posterior, share), (whole, -share)] for posterior in learned(list(enumerate(cavities)))]
        whole = product(network, [(whole, 1.0), *(term for new in news for term in new)])
        for factor, new in zip(factors, news, strict=True):
            factor += new
    return Together(whole, dropped)
