"""What a recorded step must not do shows without a GPU: bring numbers of Python's to tensors, or read any back."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from postprior.data.parts import as_part
from postprior.learning import objective
from postprior.learning.likelihoods import Categorical
from postprior.learning.predict import frozen_network
from postprior.learning.settings import Settings
from postprior.learning.steps import STEPS_BEFORE_RECORDING, Stepper
from postprior.maths import seeds
from postprior.networks.convert import first_belief, starting_posterior
from postprior.networks.zoo import SmallConvNet

NEVER = {"lift_fresh", "_local_scalar_dense", "nonzero"}
"""Operations by which numbers go from Python to a tensor, or from a tensor to Python."""

CHECK = "_local_scalar_dense"
"""For each sample a step on the CPU asks whether all labels are in range; on a GPU it does not."""


class Watch(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in NEVER:
            self.seen.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def watched_step(family: str, **settings: Any) -> list[str]:
    """What the first step that would be recorded does of what it must not."""
    chosen, likelihood = Settings(batch_size=4, **settings), Categorical()
    torch.manual_seed(0)
    network = SmallConvNet(in_channels=1, num_classes=3)
    prior = first_belief(network, family)
    generator = seeds.stream("cpu", 0)
    posterior = starting_posterior(network, prior, 0.02, chosen.local_reparameterization, generator).train()
    posterior.gather(prior.weights)
    terms = {
        "data": objective.negative_log_likelihood(likelihood),
        "kl": objective.divergence(posterior, prior.weights, 1.0),
    }
    if chosen.function_space:
        old = frozen_network(network, prior)
        terms["function space"] = objective.function_space(old, likelihood, chosen.function_space, generator)
    part = as_part((torch.randn(8, 1, 8, 8), torch.arange(8) % 3))
    stepper = Stepper(posterior, part, likelihood, terms, chosen, 8, 100)
    items = list(stepper.items(torch.Generator()))
    for _ in range(STEPS_BEFORE_RECORDING):
        stepper._step(items[0])
    with Watch() as watch:
        stepper._step(items[1])
    return watch.seen


@pytest.mark.parametrize("family", ["point", "factorized", "channelwise", "multiplicative"])
@pytest.mark.parametrize(
    "settings",
    [{}, {"local_reparameterization": True}, {"num_samples": 2}, {"function_space": 0.3}, {"schedule": "linear"}],
    ids=["plain", "local", "mirrored", "function space", "falling rate"],
)
def test_a_step_can_be_recorded(family: str, settings: dict[str, Any]) -> None:
    assert watched_step(family, **settings) == [CHECK] * settings.get("num_samples", 1)


def test_the_watch_sees_what_cannot_be_recorded() -> None:
    with Watch() as watch:
        numbers = torch.ones(2).new_tensor([0.0, 1.0])
        nn.functional.relu(numbers)
        float(numbers.sum())
    assert watch.seen == ["lift_fresh", "_local_scalar_dense"]
