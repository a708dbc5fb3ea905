"""Sampling outputs instead of weights: the moments are those of the weights, for every option of a linear layer.

A layer's output is linear in its weight, so autograd's Jacobian J in weight and bias gives the exact moments:
mean = layer(x) at the mean weights, variance = diag(J diag(σ²) Jᵀ).
"""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.functional import jacobian
from torch.func import functional_call

from contracts.family_contract import generator, normal, slope_along
from postprior import bayesianize
from postprior.families import Draw, Factorized, Multiplicative
from postprior.maths import gaussian
from postprior.networks.bayesian import BayesianNetwork

NUM_CALLS = 1200

LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(4, 3), (2, 4)),
    "linear without bias": (lambda: nn.Linear(4, 3, bias=False), (2, 4)),
    "linear with middle axes": (lambda: nn.Linear(3, 2), (2, 2, 3)),
    "conv1d strided, padded": (lambda: nn.Conv1d(2, 3, 3, stride=2, padding=1), (2, 2, 5)),
    "conv1d circular": (lambda: nn.Conv1d(2, 3, 3, padding=2, padding_mode="circular"), (1, 2, 4)),
    "conv1d same, dilated": (lambda: nn.Conv1d(2, 2, 3, padding="same", dilation=2), (2, 2, 5)),
    "conv2d": (lambda: nn.Conv2d(2, 3, 2), (1, 2, 3, 3)),
    "conv2d strided, padded": (lambda: nn.Conv2d(2, 2, (3, 2), stride=(2, 1), padding=(1, 2)), (1, 2, 4, 3)),
    "conv2d without bias": (lambda: nn.Conv2d(2, 2, 2, bias=False), (1, 2, 3, 3)),
    "conv2d reflect": (lambda: nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"), (1, 2, 3, 3)),
    "conv2d circular, same": (lambda: nn.Conv2d(1, 2, 3, padding="same", padding_mode="circular"), (1, 1, 3, 4)),
    "conv2d replicate": (lambda: nn.Conv2d(1, 2, 3, padding=(1, 2), padding_mode="replicate"), (1, 1, 3, 3)),
    "conv2d dilated": (lambda: nn.Conv2d(2, 2, 2, dilation=(2, 1)), (1, 2, 4, 3)),
    "conv2d grouped": (lambda: nn.Conv2d(4, 6, 2, groups=2), (1, 4, 3, 3)),
    "conv2d depthwise": (lambda: nn.Conv2d(3, 3, 2, groups=3, stride=2), (1, 3, 4, 4)),
    "conv3d": (lambda: nn.Conv3d(2, 2, 2, stride=(1, 2, 1), padding=(0, 1, 0)), (1, 2, 3, 3, 2)),
    "conv1d transposed": (lambda: nn.ConvTranspose1d(2, 3, 3, stride=2, output_padding=1), (1, 2, 3)),
    "conv2d transposed": (
        lambda: nn.ConvTranspose2d(4, 4, 2, stride=2, padding=1, output_padding=1, groups=2, dilation=2),
        (1, 4, 2, 3),
    ),
    "conv3d transposed": (lambda: nn.ConvTranspose3d(2, 2, 2, stride=(1, 2, 1)), (1, 2, 2, 2, 1)),
}
CASES = pytest.mark.parametrize("case", LAYERS.values(), ids=LAYERS.keys())
Case = tuple[Callable[[], nn.Module], tuple[int, ...]]


def made(case: Case, family: str = "factorized") -> tuple[BayesianNetwork, Tensor]:
    """The layer with means and widths of many sizes, in training mode, and an input."""
    bayesian = bayesianize(case[0]().double(), family, local_reparameterization=True).train()
    with torch.no_grad():
        for i, (name, parameter) in enumerate(bayesian.beliefs.named_parameters()):
            if name.endswith((".mu", "log_sd")):
                parameter.copy_(normal(tuple(parameter.shape), i + 1, 0.5))
    return bayesian, normal(case[1], 99)


def jacobians(bayesian: BayesianNetwork, inputs: Tensor, means: dict[str, Tensor]) -> dict[str, Tensor]:
    """∂ output / ∂ each parameter, [outputs, weights]."""
    found: dict[str, Tensor] = {}
    for name, value in means.items():

        def output(tensor: Tensor, name: str = name) -> Tensor:
            return functional_call(bayesian.network, {**means, name: tensor}, (inputs,)).flatten()

        jacobi = jacobian(output, value)
        assert isinstance(jacobi, Tensor)
        found[name] = jacobi.flatten(1)
    return found


def exact_moments(bayesian: BayesianNetwork, inputs: Tensor, latent: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Mean and variance of every output element, given the multipliers where there are some."""
    means: dict[str, Tensor] = {}
    variances: dict[str, Tensor] = {}
    for name, family in bayesian.families().items():
        assert isinstance(family, Factorized | Multiplicative)
        scale = latent if isinstance(family, Multiplicative) and latent is not None else 1.0
        means[name] = (scale * family.mu).detach()
        variances[name] = (2 * family.log_sd).exp().detach()
    mean = functional_call(bayesian.network, means, (inputs,)).detach()
    shares = [j.square() @ variances[name].flatten() for name, j in jacobians(bayesian, inputs, means).items()]
    return mean, torch.stack(shares).sum(0).view_as(mean)


def check_moments(samples: Tensor, mean: Tensor, variance: Tensor) -> None:
    gaps = samples - samples.mean(0)
    error_of_mean = gaps.square().mean(0).sqrt() / len(samples) ** 0.5
    error_of_variance = ((gaps**4).mean(0) - gaps.square().mean(0) ** 2).sqrt() / len(samples) ** 0.5
    assert ((samples.mean(0) - mean).abs() <= 4.5 * error_of_mean + 1e-12).all()
    assert ((gaps.square().mean(0) - variance).abs() <= 4.5 * error_of_variance + 1e-12).all()


@pytest.fixture
def ones_for_noise(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All noise is one, so that a sample is its mean plus one standard deviation."""
    for name in ("noise", "noise_in_order"):
        monkeypatch.setattr(gaussian, name, lambda like, generator: torch.ones_like(like))
    return iter(())


@CASES
@pytest.mark.usefixtures("ones_for_noise")
def test_mean_and_spread_are_exact(case: Case) -> None:
    bayesian, inputs = made(case)
    found = bayesian(inputs).detach()
    families = bayesian.families()
    means = {name: family.mean().detach() for name, family in families.items()}
    js = jacobians(bayesian, inputs, means)
    spread = (js["weight"].square() @ families["weight"].sd().detach().square().flatten()).sqrt()
    bias = js["bias"] @ families["bias"].sd().detach() if "bias" in js else torch.zeros_like(spread)
    expected = functional_call(bayesian.network, means, (inputs,)).detach() + (spread + bias).view_as(found)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-6 if (spread < 1e-6).any() else 1e-10)


@CASES
def test_local_samples_and_weight_samples_have_the_exact_moments(case: Case) -> None:
    bayesian, inputs = made(case)
    mean, variance = exact_moments(bayesian, inputs)
    with torch.no_grad():
        local = torch.stack([bayesian(inputs) for _ in range(NUM_CALLS)])
        bayesian.eval()
        plain = torch.stack([bayesian(inputs) for _ in range(NUM_CALLS)])
    check_moments(local, mean, variance)
    check_moments(plain, mean, variance)


@pytest.mark.parametrize("name", ["linear", "conv2d strided, padded", "conv2d grouped", "conv2d transposed"])
def test_given_the_multipliers_both_have_the_exact_moments(name: str) -> None:
    bayesian, inputs = made(LAYERS[name], "multiplicative")
    family = bayesian.families()["weight"]
    assert isinstance(family, Multiplicative)
    with torch.no_grad():
        latent = 1 + normal(tuple(family.latent_mean.shape), 5, 0.7)
        mean, variance = exact_moments(bayesian, inputs, latent)
        source, local, plain = generator(6), list[Tensor](), list[Tensor]()
        for _ in range(NUM_CALLS):
            weight = gaussian.sample(latent * family.mu, family.log_sd, source)
            draws = {**bayesian.draw(), "weight": Draw(weight, latent)}
            local.append(bayesian.train().run(draws, inputs))
            plain.append(bayesian.eval().run(draws, inputs))
    check_moments(torch.stack(local), mean, variance)
    check_moments(torch.stack(plain), mean, variance)


@CASES
def test_each_example_gets_noise_of_its_own_while_training_and_only_then(case: Case) -> None:
    bayesian, inputs = made(case)
    twice = torch.cat([inputs[:1], inputs[:1]])
    first, second = bayesian.train()(twice).chunk(2)
    means = {name: family.mean().detach() for name, family in bayesian.families().items()}
    doubtful = jacobians(bayesian, inputs[:1], means)["weight"].any(1).view_as(first)  # but where padding alone is seen
    assert (first != second)[doubtful].double().mean() > 0.9
    assert torch.equal(first[~doubtful], second[~doubtful])
    first, second = bayesian.eval()(twice).chunk(2)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    bayesian.train().local_reparameterization = False
    first, second = bayesian(twice).chunk(2)
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_noise_of_different_outputs_is_independent_given_the_bias() -> None:
    bayesian, inputs = made(LAYERS["conv2d without bias"])
    with torch.no_grad():
        samples = torch.stack([bayesian(inputs).flatten() for _ in range(4000)])
    off_diagonal = torch.corrcoef(samples.T) - torch.eye(samples.shape[1])
    assert off_diagonal.abs().max() < 5 / 4000**0.5


@CASES
def test_the_gradient_is_that_of_finite_differences(case: Case) -> None:
    bayesian, inputs = made(case)

    def value() -> Tensor:
        bayesian.generator.manual_seed(3)
        out = bayesian(inputs)
        return (out * normal(tuple(out.shape), 4)).sum()

    value().backward()
    for name, parameter in bayesian.beliefs.named_parameters():
        assert parameter.grad is not None, name
        along = normal(tuple(parameter.shape), 7)
        slope = slope_along(value, parameter, along, step=1e-6)
        assert float((parameter.grad * along).sum()) == pytest.approx(slope, rel=1e-5, abs=1e-6), name
        assert parameter.grad.any(), name


@CASES
@pytest.mark.parametrize("family", ["factorized", "multiplicative"])
def test_where_all_inputs_are_zero_no_gradient_is_nan(case: Case, family: str) -> None:
    bayesian, inputs = made(case, family)
    inputs = torch.zeros_like(inputs, requires_grad=True)
    bayesian(inputs).square().sum().backward()
    assert inputs.grad is not None
    assert inputs.grad.isfinite().all()
    for name, parameter in bayesian.named_parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_half_precision_zero_inputs_give_no_nan_either(dtype: torch.dtype) -> None:
    bayesian = bayesianize(nn.Linear(3, 2), local_reparameterization=True).train()
    with torch.autocast("cpu", dtype):
        bayesian(torch.zeros(4, 3)).float().square().sum().backward()
    for name, parameter in bayesian.named_parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all(), name


class OtherUse(nn.Module):
    """A layer's weight used by the network itself, not by the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2, bias=False)
        self.embedding = nn.Embedding(4, 3)

    def forward(self, inputs: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return inputs @ self.layer.weight.T, self.embedding(numbers), self.embedding.weight @ self.layer.weight.T


def test_a_weight_used_in_another_way_is_the_plain_sample() -> None:
    bayesian = bayesianize(OtherUse().double(), local_reparameterization=True).train()
    inputs, numbers, draws = normal((5, 3), 1), torch.tensor([3, 1, 3]), bayesian.draw(generator(2))
    product, looked_up, both = bayesian.run(draws, inputs, numbers)
    weight, table = draws["layer.weight"].weight, draws["embedding.weight"].weight
    assert torch.equal(product, inputs @ weight.T)
    assert torch.equal(looked_up, table[numbers])
    assert torch.equal(both, table @ weight.T)


def test_a_tied_weight_is_sampled_locally_only_where_it_is_a_linear_map() -> None:
    network = nn.Sequential(nn.Embedding(6, 3), nn.Linear(3, 6, bias=False)).double()
    network[1].weight = network[0].weight
    bayesian = bayesianize(network, local_reparameterization=True, start_sd=0.3).train()
    draws = bayesian.draw(generator(1))
    table, mean = draws["0.weight"].weight, bayesian.families()["0.weight"].mean()
    with torch.no_grad():
        outputs = torch.stack([bayesian.run(draws, torch.tensor([2, 4])) for _ in range(4000)])
        looked_up = table[[2, 4]]
    check_moments(outputs, looked_up @ mean.detach().T, (looked_up.square() @ torch.full((3, 6), 0.09).double()))


def test_families_with_correlated_weights_are_sampled_plainly() -> None:
    bayesian = bayesianize(nn.Conv2d(2, 3, 2).double(), "channelwise", local_reparameterization=True).train()
    inputs, draws = normal((2, 2, 3, 3), 1), bayesian.draw(generator(2))
    weights = {name: draw.weight for name, draw in draws.items()}
    assert torch.equal(bayesian.run(draws, inputs), functional_call(bayesian.network, weights, (inputs,)))


@CASES
@pytest.mark.parametrize("local", [True, False])
def test_a_sample_and_its_mirror_average_to_the_mean(case: Case, local: bool) -> None:
    bayesian, inputs = made(case)
    bayesian.local_reparameterization = local
    draws = bayesian.draw()
    first = bayesian.run(draws, inputs)
    with bayesian.mirroring():
        mirrored = bayesian.run(bayesian.mirrored(draws), inputs)
    mean, _ = exact_moments(bayesian, inputs)
    torch.testing.assert_close((first + mirrored) / 2, mean, rtol=1e-10, atol=1e-10)
    assert (first != mirrored).double().mean() > 0.9
    again = bayesian.run(bayesian.draw(), inputs)
    assert not torch.isclose(again, first).any()
    assert not torch.isclose(again, mirrored).any()
