"""A belief as a plain module: its weight samples drawn once and kept, its uncertainty among the outputs.

Shapes: B examples, K weight samples, * the axes of one prediction.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, cast, final

import torch
from torch import Tensor, nn

from postprior.errors import SettingError
from postprior.families import Draw
from postprior.learning.checks import check_unknowns
from postprior.learning.likelihoods import Bernoulli, Categorical, Likelihood
from postprior.learning.predict import dtype_of, frozen_network
from postprior.maths import seeds
from postprior.networks.bayesian import BayesianNetwork, likelihood_values
from postprior.networks.belief import Belief


@final
class Baked(nn.Module):
    """Answers as ``predict`` does, with samples that are part of the module: raw inputs in, named tensors out.

    For classes, and for yes or no: ``mean``, ``entropy`` and ``mutual_information``. For other targets: ``mean``,
    ``variance`` and ``epistemic_variance``. At the mean weights there is no doubt about the weights to report, so the
    last of the three is not there.

    It takes K times the memory and time of the network, for nothing else tells how the K samples disagree. Kept and
    computed once, whatever K is: the inputs and their normalisation, point estimates, frozen weights and buffers.
    """

    def __init__(
        self,
        samples: "Sequence[_Sample]",
        likelihood: Likelihood,
        *,
        at_mean: bool,
        by_name: Sequence[str],
        mean: Tensor,
        sd: Tensor,
    ) -> None:
        super().__init__()
        self.samples = nn.ModuleList(samples)
        self.likelihood, self.at_mean, self.by_name = likelihood, at_mean, tuple(by_name)
        self.input_mean: Tensor
        self.input_sd: Tensor
        self.register_buffer("input_mean", mean)
        self.register_buffer("input_sd", sd)

    @property
    def output_names(self) -> tuple[str, ...]:
        """The keys of what a call returns."""
        classes = isinstance(self.likelihood, (Categorical, Bernoulli))
        names = ("mean", "entropy", "mutual_information") if classes else ("mean", "variance", "epistemic_variance")
        return names[:2] if self.at_mean else names

    def forward(self, *inputs: Tensor) -> dict[str, Tensor]:
        """What is predicted for B examples, by name."""
        fed = (self._normalised(inputs[0]), *inputs[1:])
        each = [cast(_Sample, sample)(fed, self.by_name) for sample in self.samples]
        means = torch.stack([mean for mean, _, _ in each])  # [K, B, *]
        mean = means.mean(0)
        epistemic = means.var(0, correction=0)
        variance = torch.stack([variance for _, variance, _ in each]).mean(0) + epistemic
        entropy = self.likelihood.entropy(mean, variance)
        found = {"mean": mean, "variance": variance, "epistemic_variance": epistemic}
        if entropy is not None:
            within = torch.stack([entropy for _, _, entropy in each]).mean(0)
            # Below zero by rounding only.
            found |= {"entropy": entropy, "mutual_information": (entropy - within).clamp_min(0)}
        return {name: found[name] for name in self.output_names}

    def _normalised(self, inputs: Tensor) -> Tensor:
        if self.input_mean.numel() == 0:
            return inputs
        return (inputs.to(self.input_mean.dtype) - self.input_mean) / self.input_sd


@final
class _Sample(nn.Module):
    """The network at one draw of its weights, and what its likelihood had drawn with them."""

    def __init__(self, network: nn.Module, values: Mapping[str, Tensor], likelihood: Likelihood) -> None:
        super().__init__()
        self.network, self.likelihood = network, likelihood
        self.values = nn.ParameterDict({name: nn.Parameter(v, requires_grad=False) for name, v in values.items()})

    def forward(self, inputs: tuple[Tensor, ...], by_name: tuple[str, ...]) -> tuple[Tensor, Tensor, Tensor | None]:
        outputs = self.network(**dict(zip(by_name, inputs, strict=True))) if by_name else self.network(*inputs)
        found = self.likelihood.predictive(outputs, cast(Mapping[str, Tensor], self.values))
        return found.mean, found.variance, found.entropy


@torch.no_grad()
def baked(
    network: nn.Module,
    belief: Belief,
    likelihood: Likelihood,
    *,
    num_samples: int = 30,
    at_mean: bool = False,
    seed: int = 0,
    by_name: Sequence[str] = (),
    mean: Tensor | None = None,
    sd: Tensor | None = None,
) -> Baked:
    """The belief with ``num_samples`` weight samples drawn as ``predict`` draws them for this seed, on the CPU.

    ``by_name``: where the network takes its inputs by name, those names, in the order in which the module shall take
    them. ``mean`` and ``sd``: the (first) input, of any number type, becomes (input - mean) / sd before anything else;
    they broadcast against it, so that channels of images need the shape [C, 1, 1].

        >>> belief = first_belief(nn.Linear(3, 2))
        >>> sorted(baked(nn.Linear(3, 2), belief, Categorical(), num_samples=4)(torch.zeros(5, 3)))
        ['entropy', 'mean', 'mutual_information']
    """
    if num_samples < 1:
        raise SettingError(f"num_samples={num_samples}: expected a whole number from 1")
    check_unknowns(belief, likelihood)
    normalisation = _checked_normalisation(mean, sd, dtype_of(network))
    bayesian = frozen_network(network, belief)
    generator = seeds.stream(bayesian.generator.device, seed, "predict")
    draws = [bayesian.means()] if at_mean else (bayesian.draw(generator) for _ in range(num_samples))
    shared = _shared_tensors(bayesian, belief)
    samples = [_Sample(_at(bayesian.network, draw, shared), likelihood_values(draw), likelihood) for draw in draws]
    module = Baked(samples, likelihood, at_mean=at_mean, by_name=by_name, mean=normalisation[0], sd=normalisation[1])
    return module.eval().cpu()


def _at(network: nn.Module, draw: Mapping[str, Draw], shared: Mapping[int, Tensor]) -> nn.Module:
    """A copy of the network with the weights of the draw, which keeps the shared tensors themselves."""
    network = copy.deepcopy(network, dict[int, Any](shared))
    for name, parameter in network.named_parameters():
        if name in draw and id(parameter) not in shared:
            parameter.copy_(draw[name].weight)
    return network


def _shared_tensors(bayesian: BayesianNetwork, belief: Belief) -> dict[int, Tensor]:
    points = (p for name, p in bayesian.network.named_parameters() if name in belief.points)
    return {id(tensor): tensor for tensor in (*points, *bayesian.network.buffers())}


def _checked_normalisation(mean: Tensor | None, sd: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    if mean is None or sd is None:
        if mean is not sd:
            raise SettingError("normalisation needs both a mean and an sd, or neither: give the one that is missing")
        return torch.empty(0, dtype=dtype), torch.empty(0, dtype=dtype)
    if not (mean.isfinite().all() and sd.isfinite().all() and (sd > 0).all()):
        raise SettingError(
            f"normalisation by mean {mean.flatten().tolist()} and sd {sd.flatten().tolist()}: expected finite numbers, "
            "and an sd above 0; where the inputs do not vary, divide by 1"
        )
    return mean.to(dtype), sd.to(dtype)
