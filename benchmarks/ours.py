"""The cases that need postprior and torch alone: a plain step or forward pass, and ours."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import postprior
from postprior.batch import Batch
from postprior.data.parts import as_inputs, as_part
from postprior.learning import objective
from postprior.learning.graph import RecordedStep
from postprior.learning.likelihoods import Categorical
from postprior.learning.predict import predict
from postprior.learning.pretrained import fisher_diagonal
from postprior.learning.settings import Settings
from postprior.learning.steps import STEPS_BEFORE_RECORDING, Stepper
from postprior.maths import seeds
from postprior.networks.bayesian import BayesianNetwork
from postprior.networks.belief import Belief
from postprior.networks.convert import first_belief, starting_posterior
from postprior.networks.zoo import LeNet5, ThreeConvThreeFC

NETWORKS: dict[str, tuple[type[nn.Module], tuple[int, ...]]] = {
    "LeNet5": (LeNet5, (1, 28, 28)),
    "3Conv3FC": (ThreeConvThreeFC, (3, 32, 32)),
}
BATCH = 128
MANY = 1000


def as_written(network: nn.Module) -> nn.Sequential:
    """The same layers as anyone would write them: memory in torch's default order, ReLU before pooling."""
    layers = list(network.get_submodule("features").children())
    for i, layer in enumerate(layers[:-1]):
        if isinstance(layer, nn.MaxPool2d):
            layers[i], layers[i + 1] = layers[i + 1], layer
    return nn.Sequential(*layers, network.get_submodule("classifier"))


def data(name: str, size: int, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Images of the network's shape; what they show does not matter to how long they take."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(size, *NETWORKS[name][1], generator=generator), torch.randint(10, (size,), generator=generator)
    return x.to(device), y.to(device)


def plain_step(
    network: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    bf16: bool = False,
    fused: bool | None = None,
    recorded: bool = False,
) -> Callable[[], None]:
    """Forward, backward and Adam on the plain network; on a GPU recorded and replayed as ours is, if that is wanted."""
    network, recorded = network.to(x.device), recorded and x.is_cuda
    optimizer = torch.optim.Adam(network.parameters(), fused=fused, capturable=recorded)

    def step(batch: Any) -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=bf16):
            outputs = network(*batch.args)
        F.cross_entropy(outputs.float(), batch.targets).backward()
        optimizer.step()

    batch = Batch((x,), {}, y)
    if not recorded:
        return lambda: step(batch)
    for _ in range(STEPS_BEFORE_RECORDING):
        step(batch)
    kept = RecordedStep(step, batch, seeds.stream(x.device, 0))
    return lambda: kept.replay(batch)


def our_step(name: str, family: str, x: Tensor, y: Tensor, **settings: Any) -> Callable[[], None]:
    """One step on a network of the paper's."""
    return step_of(NETWORKS[name][0](), family, x, y, **settings)


def step_of(network: nn.Module, family: str, x: Tensor, y: Tensor, **settings: Any) -> Callable[[], None]:
    """One step as ``absorb`` takes it, with all its checks."""
    network, chosen, likelihood = network.to(x.device), Settings(**settings), Categorical()
    prior = first_belief(network, family)
    generator = seeds.stream(x.device, 0)
    posterior = starting_posterior(network, prior, 0.02, chosen.local_reparameterization, generator).train()
    posterior.gather(prior.weights)
    terms = {
        "data": objective.negative_log_likelihood(likelihood),
        "kl": objective.divergence(posterior, prior.weights, 1.0),
    }
    stepper = Stepper(posterior, as_part((x, y)), likelihood, terms, chosen, 10_000, 10**9)
    batch = Batch((x,), {}, y)
    return lambda: stepper.take(batch)


def plain_forward(network: nn.Module, x: Tensor, *, bf16: bool = False) -> Callable[[], None]:
    """One forward pass over all images at once."""
    network = network.to(x.device).eval()

    @torch.no_grad()
    def forward() -> None:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=bf16):
            network(x)

    return forward


def our_prediction(name: str, family: str, x: Tensor, num_samples: int, **options: Any) -> Callable[[], None]:
    """A prediction as a user asks for it."""
    network, belief = NETWORKS[name][0]().to(x.device), belief_about(name, family).to(x.device)
    part, likelihood = as_inputs(x), Categorical()

    def forward() -> None:
        predict(network, belief, part, likelihood, num_samples=num_samples, **options)

    return forward


def belief_about(name: str, family: str) -> Belief:
    """A belief about a network that has not been trained."""
    bayesian: BayesianNetwork = postprior.bayesianize(NETWORKS[name][0](), family)
    return bayesian.belief()


def our_laplace(name: str, x: Tensor, y: Tensor, kind: Any) -> Callable[[], None]:
    """The diagonal curvature over all the images."""
    network, part = NETWORKS[name][0](), as_part((x, y))
    return lambda: void(fisher_diagonal(network, part, Categorical(), kind=kind))


def plain_epoch(network: nn.Module, x: Tensor, y: Tensor, *, fused: bool | None = None) -> Callable[[], None]:
    """One pass of training over all the images."""
    optimizer = torch.optim.Adam(network.parameters(), fused=fused)

    def epoch() -> None:
        for images, labels in zip(x.split(BATCH), y.split(BATCH), strict=True):
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(network(images), labels).backward()
            optimizer.step()

    return epoch


def void(_: object) -> None:
    """Nothing."""
