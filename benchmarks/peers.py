"""The peers, as installed packages: a training step, a weight sample in prediction, and Laplace's diagonal.

Each is used as its own documentation uses it, on the network as anyone would write it, with torch's default Adam.
``peers.txt`` holds the exact versions. Whatever is not installed, or breaks, is left out with its reason.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

Made = tuple[Callable[[], object], Callable[[], object]]
"""A training step, and one weight sample's forward pass over many images."""

NUM_EXAMPLES = 10_000


def bayesian_torch(network: nn.Module, x: Tensor, y: Tensor, many: Tensor, kind: str = "Reparameterization") -> Made:
    from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn, get_kl_loss

    given = {"prior_mu": 0.0, "prior_sigma": 1.0, "posterior_mu_init": 0.0, "posterior_rho_init": -4.0}
    dnn_to_bnn(network, {**given, "type": kind, "moped_enable": False, "moped_delta": 0.5})
    optimizer = torch.optim.Adam(network.parameters())

    def step() -> None:
        optimizer.zero_grad()
        (F.cross_entropy(network(x), y) + get_kl_loss(network) / NUM_EXAMPLES).backward()
        optimizer.step()

    return step, without_gradient(lambda: network(many))


def bayesian_torch_flipout(network: nn.Module, x: Tensor, y: Tensor, many: Tensor) -> Made:
    return bayesian_torch(network, x, y, many, "Flipout")


def torchbnn(network: nn.Module, x: Tensor, y: Tensor, many: Tensor) -> Made:
    import torchbnn as bnn

    def layer(old: nn.Module) -> nn.Module:
        if isinstance(old, nn.Conv2d):
            return bnn.BayesConv2d(0, 0.1, old.in_channels, old.out_channels, old.kernel_size, 1, old.padding)
        assert isinstance(old, nn.Linear)
        return bnn.BayesLinear(0, 0.1, old.in_features, old.out_features)

    network, divergence = replaced(network, layer), bnn.BKLLoss(reduction="mean", last_layer_only=False)
    optimizer = torch.optim.Adam(network.parameters())

    def step() -> None:
        optimizer.zero_grad()
        (F.cross_entropy(network(x), y) + 0.1 * divergence(network)).sum().backward()
        optimizer.step()

    return step, without_gradient(lambda: network(many))


def blitz(network: nn.Module, x: Tensor, y: Tensor, many: Tensor) -> Made:
    from blitz.losses import kl_divergence_from_nn
    from blitz.modules import BayesianConv2d, BayesianLinear

    def layer(old: nn.Module) -> nn.Module:
        if isinstance(old, nn.Conv2d):
            return BayesianConv2d(old.in_channels, old.out_channels, old.kernel_size, padding=old.padding)
        assert isinstance(old, nn.Linear)
        return BayesianLinear(old.in_features, old.out_features)

    network = replaced(network, layer)
    optimizer = torch.optim.Adam(network.parameters())

    def step() -> None:
        optimizer.zero_grad()
        (F.cross_entropy(network(x), y) + kl_divergence_from_nn(network) / NUM_EXAMPLES).backward()
        optimizer.step()

    return step, without_gradient(lambda: network(many))


def ivon(network: nn.Module, x: Tensor, y: Tensor, many: Tensor) -> Made:
    import ivon as package

    optimizer = package.IVON(network.parameters(), lr=0.1, ess=NUM_EXAMPLES)

    def step() -> None:
        with optimizer.sampled_params(train=True):
            optimizer.zero_grad()
            F.cross_entropy(network(x), y).backward()
        optimizer.step()

    def forward() -> None:
        with optimizer.sampled_params(), torch.no_grad():
            network(many)

    return step, forward


def posteriors(network: nn.Module, x: Tensor, y: Tensor, many: Tensor) -> Made:
    import posteriors as package
    import torchopt

    def log_posterior(values: Any, batch: Any) -> tuple[Tensor, Tensor]:
        outputs = torch.func.functional_call(network, values, batch[0])
        prior = package.diag_normal_log_prob(values)
        return -F.cross_entropy(outputs, batch[1]) + prior / NUM_EXAMPLES, outputs

    values = {name: value.detach().clone() for name, value in network.named_parameters()}
    temperature = 1 / NUM_EXAMPLES
    transform = package.vi.diag.build(log_posterior, torchopt.adam(lr=1e-3), temperature, init_log_sds=-4.0)
    state = [transform.init(values)]

    def step() -> None:
        state[0] = transform.update(state[0], (x, y))[0]

    def forward() -> None:
        with torch.no_grad():
            torch.func.functional_call(network, package.vi.diag.sample(state[0]), many)

    return step, forward


def pyro(network: nn.Module, x: Tensor, y: Tensor, many: Tensor) -> Made:
    import pyro as package
    import pyro.distributions as dist
    from pyro.infer import SVI, Trace_ELBO
    from pyro.infer.autoguide import AutoNormal

    package.clear_param_store()
    priors = {n: dist.Normal(0.0, 1.0).expand(p.shape).to_event(p.dim()) for n, p in network.named_parameters()}

    def model(images: Tensor, labels: Tensor | None = None) -> Tensor:
        values = {name: package.sample(name.replace(".", "_"), prior) for name, prior in priors.items()}
        outputs = torch.func.functional_call(network, values, images)
        with package.plate("examples", NUM_EXAMPLES, subsample_size=len(images)):
            package.sample("label", dist.Categorical(logits=outputs), obs=labels)
        return outputs

    guide = AutoNormal(model, init_scale=0.02)
    inference = SVI(model, guide, package.optim.Adam({"lr": 1e-3}), Trace_ELBO())

    def forward() -> None:
        with torch.no_grad():
            values = guide(x, y)  # it wants the labels it was made with; its values do not depend on them
            named = {name: values[name.replace(".", "_")] for name in priors}
            torch.func.functional_call(network, named, many)

    return lambda: inference.step(x, y), forward


PEERS: dict[str, tuple[str, Callable[..., Made]]] = {
    "ivon": ("ivon-opt", ivon),
    "torchbnn": ("torchbnn", torchbnn),
    "bayesian-torch, reparameterised": ("bayesian-torch", bayesian_torch),
    "posteriors, vi.diag": ("posteriors", posteriors),
    "BLiTZ": ("blitz-bayesian-pytorch", blitz),
    "Pyro, AutoNormal": ("pyro-ppl", pyro),
    "bayesian-torch, flipout": ("bayesian-torch", bayesian_torch_flipout),
}


def laplace(network: nn.Module, x: Tensor, y: Tensor, backend: str) -> Callable[[], object]:
    """laplace-torch's diagonal over all the images."""
    import laplace as package
    from laplace import curvature

    loader = DataLoader(TensorDataset(x, y), batch_size=128)

    def fit() -> None:
        kind = getattr(curvature, backend)
        package.DiagLaplace(network.eval(), "classification", backend=kind).fit(loader)

    return fit


LAPLACE = {"laplace-torch, AsdlEF": "AsdlEF", "laplace-torch, BackPackGGN": "BackPackGGN"}


def replaced(network: nn.Module, layer: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """The network with another layer in the place of every convolution and linear map."""
    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, (nn.Conv2d, nn.Linear)):
                setattr(parent, name, layer(child))
    return network


def without_gradient(call: Callable[[], object]) -> Callable[[], object]:
    """The call, with nothing kept for a backward pass."""

    def forward() -> None:
        with torch.no_grad():
            call()

    return forward
