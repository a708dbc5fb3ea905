"""A training step, and a weight sample in prediction, over the same on the plain network: ratios in one run.

    python benchmarks/train_step.py [--rounds 15] [--threads 1]

The floor of a step with weight samples is the plain step, plus drawing as many normal numbers as there are weights,
plus the KL and its gradient, plus Adam over twice the parameters. The cases are interleaved, process time is measured,
and the median of the rounds' ratios is printed.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from postprior.batch import Batch
from postprior.families import FAMILIES
from postprior.learning.likelihoods import Categorical
from postprior.learning.objective import Step, divergence, negative_log_likelihood, objective
from postprior.learning.settings import Settings
from postprior.learning.steps import adam
from postprior.networks.convert import bayesianize, first_belief
from postprior.networks.zoo import LeNet5, ThreeConvThreeFC

BATCH = 128


def plain_step(network: nn.Module, x: Tensor, y: Tensor) -> Callable[[], None]:
    """Forward, backward and Adam on the plain network."""
    optimizer = torch.optim.Adam(network.parameters(), fused=True)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(network(x), y).backward()
        optimizer.step()

    return step


def bayesian_step(network: nn.Module, family: str, local: bool, x: Tensor, y: Tensor) -> Callable[[], None]:
    """The same with a belief: one weight sample, the exact objective."""
    posterior = bayesianize(network, family, local_reparameterization=local).train()
    prior = first_belief(network, family)
    posterior.gather(prior.weights)
    terms = {
        "data": negative_log_likelihood(Categorical()),
        "kl": divergence(posterior, prior.weights, 0.1),
    }
    optimizer = adam(posterior, Settings())

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        draws = posterior.draw()
        outputs = posterior.run(draws, x)
        loss, _ = objective(terms, Step(Batch((x,), {}, y), y, outputs, draws, 10_000))
        loss.backward()
        optimizer.step()

    return step


def plain_forward(network: nn.Module, x: Tensor) -> Callable[[], None]:
    """One forward pass of the plain network."""

    @torch.no_grad()
    def forward() -> None:
        network(x)

    return forward


def sampled_forward(network: nn.Module, family: str, x: Tensor) -> Callable[[], None]:
    """One weight sample and its forward pass."""
    posterior = bayesianize(network, family).eval()

    @torch.no_grad()
    def forward() -> None:
        posterior.run(posterior.draw(), x)

    return forward


def ratios(cases: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """The median over rounds of each case's process time over the first case's."""
    for case in cases.values():
        case()
    times = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            began = time.process_time()
            case()
            times[name].append(time.process_time() - began)
    base = next(iter(times.values()))
    return {name: statistics.median(a / b for a, b in zip(found, base, strict=True)) for name, found in times.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    torch.manual_seed(0)
    for make, shape in ((LeNet5, (1, 28, 28)), (ThreeConvThreeFC, (3, 32, 32))):
        x, y, many = torch.randn(BATCH, *shape), torch.randint(10, (BATCH,)), torch.randn(1000, *shape)
        network = make()
        steps = {"plain": plain_step(make(), x, y)}
        steps |= {family: bayesian_step(network, family, False, x, y) for family in FAMILIES}
        steps["factorized, local"] = bayesian_step(network, "factorized", True, x, y)
        forwards = {"plain": plain_forward(make().eval(), many)}
        forwards |= {family: sampled_forward(network, family, many) for family in FAMILIES}
        for title, cases in (("training step", steps), ("weight sample on 1,000 images", forwards)):
            for name, ratio in ratios(cases, chosen.rounds).items():
                print(f"{make.__name__:<18}{title:<32}{name:<20}{ratio:6.2f} x", flush=True)


if __name__ == "__main__":
    main()
