"""Online EWC: fine-tuning that is held near its last weights, by how much the past parts cared about each of them.

References:
    Overcoming catastrophic forgetting in neural networks (Kirkpatrick et al., 2017). https://arxiv.org/abs/1612.00796
    Progress & Compress (Schwarz et al., 2018), section 3.2: one running Fisher for all parts, here with γ = 1, since
    the parts are i.i.d. and none is to be forgotten. https://arxiv.org/abs/1805.06370
"""

import torch
from torch import Tensor, nn

from postprior.batch import Part
from postprior.learning.likelihoods import Categorical
from postprior.learning.objective import Step, Term
from postprior.learning.pretrained import fisher_diagonal
from postprior.networks.belief import Belief
from postprior.paper.beginnings import at_mean


class Consolidation:
    """What EWC carries from part to part beside the weights: the sum of the parts' diagonal empirical Fishers."""

    def __init__(self, strength: float) -> None:
        self._strength = strength
        self._fisher: dict[str, Tensor] = {}
        self._centre: dict[str, Tensor] = {}

    def terms(self) -> dict[str, Term]:
        """The penalty λ/2 Σᵢ Fᵢ (wᵢ - w*ᵢ)², in nats; nothing before the first part.

        A summand of the objective and not a prior of the family "factorized", because ``absorb`` takes the family of
        the posterior from the prior's, and here the posterior is a point.
        """
        return {"ewc": self._penalty} if self._fisher else {}

    def add(self, network: nn.Module, belief: Belief, part: Part, seed: int) -> None:
        """Take note of a part that was just learned."""
        new = fisher_diagonal(at_mean(network, belief), part, Categorical(), seed=seed)
        self._fisher = {name: self._fisher[name] + value if self._fisher else value for name, value in new.items()}
        self._centre = belief.mean()

    def _penalty(self, step: Step) -> Tensor:
        squares = [
            (fisher * (step.draws[name].weight - self._centre[name]).square()).sum()
            for name, fisher in self._fisher.items()
        ]
        return 0.5 * self._strength * torch.stack(squares).sum()
