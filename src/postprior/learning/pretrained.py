"""From a pretrained network to a first belief: a fixed width, a searched one, or Laplace's width of every weight.

The paper's section on pretraining: p(w) = N(w | w*, σ²) around the pretrained weights w*.
Shapes: B examples, K vectors an example, * the axes of one example's output.
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.nn.modules.batchnorm import _NormBase  # pyright: ignore[reportPrivateUsage]

from postprior.batch import Batch, Part
from postprior.errors import DivergedError, NetworkError, PartError, SettingError
from postprior.learning import layerwise
from postprior.learning.absorb import absorb
from postprior.learning.checks import check_finite, outputs_of, targets_of
from postprior.learning.likelihoods import Likelihood, Values
from postprior.learning.predict import device_of, dtype_of, frozen_network, score
from postprior.learning.settings import Settings
from postprior.learning.training import Progress
from postprior.maths import seeds
from postprior.networks.bayesian import BayesianNetwork, copy_network, learnable
from postprior.networks.belief import Belief
from postprior.networks.convert import check_positive, first_belief, gaussian_belief, matching, prior_widths
from postprior.networks.layers import sites

LARGEST_GGN_OUTPUT = 100
"""Output elements an example up to which the exact Gauss-Newton diagonal, one backward pass each, is worth its time."""

Kind = Literal["empirical", "monte_carlo", "ggn"]
Weights = Mapping[str, Tensor]


def pretrained_belief(
    network: nn.Module,
    family: str = "factorized",
    *,
    carry: Sequence[str] = ("*",),
    sd: float | Mapping[str, Tensor],
    prior_sd: float | str = 1.0,
    point: Sequence[str] = (),
    frozen: Sequence[str] = (),
    unknowns: Mapping[str, tuple[float, float]] | None = None,
) -> Belief:
    """The first belief N(w*, sd²) about the parameters that a ``carry`` pattern matches, w* being the network's own.

    ``sd`` is one number, or a tensor for each carried parameter, such as ``laplace_sd`` gives; what a mapping says of
    other parameters is passed over. All others are believed in as ``first_belief`` does, with ``prior_sd``.
    A "multiplicative" belief has width ``sd`` given its multipliers; these widen it further.

        >>> network = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> belief = pretrained_belief(network, carry=["0.*"], sd=0.1)
        >>> torch.equal(belief.mean()["0.weight"], network[0].weight)
        True
    """
    parameters = dict(learnable(network))
    carried = _carried(network, carry)
    single = matching(parameters, point, "point") | matching(parameters, frozen, "frozen")
    widths, centres = prior_widths(network, prior_sd), sites(network)
    means: dict[str, Tensor] = {}
    sds: dict[str, Tensor] = {}
    for name, value in parameters.items():
        # A parameter that has no width of its own anyway need not be given one.
        needs_sd = name not in single and value.requires_grad and value.is_floating_point()
        means[name] = value.detach() if name in carried else torch.full_like(value, centres[name].neutral)
        sds[name] = torch.full_like(value, widths[name])
        if name in carried and needs_sd:
            sds[name] = _carried_sd(sd, name, value)
    return gaussian_belief(network, family, means, sds, point=point, frozen=frozen, unknowns=unknowns)


def start_anew(network: nn.Module, carry: Sequence[str], *, seed: int) -> nn.Module:
    """A copy in which each layer with parameters that no ``carry`` pattern matches begins again.

    Layers are drawn anew by their own ``reset_parameters``, which resets running statistics too; carried parameters
    stay as they are, even where they share a layer with others. A normalisation layer without weights goes by the names
    of its statistics. A layer starts the same whatever else is carried, and the global generators are left alone. To
    change the number of classes, replace the head yourself: it is as new as one drawn here.

        >>> network = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> fresh = start_anew(network, carry=["0.*"], seed=0)
        >>> torch.equal(fresh[0].weight, network[0].weight), torch.equal(fresh[2].weight, network[2].weight)
        (True, False)
    """
    fresh = copy_network(network)
    names = {id(parameter): name for name, parameter in learnable(fresh)}  # a tied parameter has one name
    tensors = dict([*fresh.named_parameters(), *fresh.named_buffers()])
    carried = _carried(fresh, carry)
    before = {name: value.detach().clone() for name, value in tensors.items()}
    anew: set[str] = set()
    # Children first, since a layer may have its own way to begin with its children's parameters.
    for prefix, module in reversed(list(fresh.named_modules())):
        own = {names[id(p)] for p in module.parameters(recurse=False) if id(p) in names}
        buffers = {name for name, _ in module.named_buffers(prefix, recurse=False)}
        if isinstance(module, _NormBase) and not own:
            own = buffers
        if not own <= carried:
            with seeds.quarantined(device_of(fresh), seed, "anew", prefix):
                _reset(prefix, module)
            anew |= own | buffers
    with torch.no_grad():
        for name in (before.keys() - anew) | carried:
            tensors[name].copy_(before[name])
    return fresh


def fisher_diagonal(
    network: nn.Module,
    part: Part,
    likelihood: Likelihood,
    *,
    kind: Kind = "empirical",
    num_samples: int = 1,
    seed: int = 0,
    batch_size: int = 32,
) -> dict[str, Tensor]:
    """The diagonal curvature of -log p(D | w) at the network's weights, summed over the part's examples.

    "empirical" squares the gradient of every example at its own target, and "monte_carlo" at ``num_samples`` targets
    drawn from the network's prediction; "ggn" is the exact Gauss-Newton diagonal, which "monte_carlo" has as its mean.
    The last two need no targets. All modules are in eval mode; noise to be learned is at the mean of its first prior.

    Where all weights belong to linear layers and convolutions, each used once, one pass forward and one backward serve
    ``batch_size`` examples, and no example's gradient is kept. Other networks have gradients taken by ``vmap``, in
    memory of about ``batch_size`` networks, or, where ``vmap`` refuses (recurrent layers, control flow that looks at
    data), example by example.

    References:
        Limitations of the empirical Fisher approximation (Kunstner, Balles and Hennig, 2019).
        https://arxiv.org/abs/1905.12558
    """
    known = ("empirical", "monte_carlo", "ggn")
    if kind not in known:
        raise SettingError(f"kind={kind!r}: expected {', '.join(known)}")
    for name, value in (("num_samples", num_samples), ("batch_size", batch_size)):
        if value < 1:
            raise SettingError(f"{name}={value}: expected a whole number from 1")
    asked = frozen_network(network, first_belief(network, "point"))
    device, dtype = device_of(asked.network), dtype_of(asked.network)
    numbers = likelihood.unknowns().items()
    values = {name: torch.tensor(mean, dtype=dtype, device=device) for name, (mean, _) in numbers}
    weights = {name: p.detach() for name, p in learnable(asked.network) if p.is_floating_point()}
    generator = seeds.stream(device, seed, "fisher")
    sums = _Sums(asked, weights)
    first = 0
    with torch.enable_grad(), seeds.quarantined(device, seed, "fisher"):
        for batch in part.batches(batch_size):
            batch = batch.to(device, dtype)
            check_finite(batch, first)
            if first == 0:
                _check_apart(asked, batch)
            size = len(batch)
            for start in range(0, size, batch_size):  # a loader's batches are as large as the user made them
                some = batch.cut(start, batch_size) if size > batch_size else batch
                labels = batch if kind == "empirical" else None
                targets = targets_of(labels, first)[start : start + batch_size] if labels else None

                def vectors(outputs: Tensor, targets: Tensor | None = targets, first: int = first + start) -> Tensor:
                    checked = None if targets is None else likelihood.check(outputs, targets, first)
                    return _vectors(kind, outputs, checked, likelihood, values, num_samples, generator)

                sums.add(some, vectors, first + start)
            first += size
    if first == 0:
        raise PartError("the part is empty: expected at least one example")
    return sums.total


def laplace_sd(fisher: Weights, prior_precision: float, temperature: float = 1.0) -> dict[str, Tensor]:
    """1/√(fisher / temperature + prior_precision) for every weight: Laplace's approximation to what old data taught.

    The prior precision, 1/sd² of the belief before the old data, keeps every width finite. ``temperature`` is that of
    ``Settings``, where below 1 each example counts for more.
    """
    check_positive("prior_precision", prior_precision)
    check_positive("temperature", temperature)
    return {name: (value / temperature + prior_precision).rsqrt() for name, value in fisher.items()}


def laplace_belief(
    network: nn.Module,
    part: Part,
    likelihood: Likelihood,
    family: str = "factorized",
    *,
    carry: Sequence[str] = ("*",),
    prior_precision: float,
    temperature: float = 1.0,
    kind: Kind = "empirical",
    prior_sd: float | str = 1.0,
    point: Sequence[str] = (),
    frozen: Sequence[str] = (),
    seed: int = 0,
) -> Belief:
    """``pretrained_belief`` with Laplace's widths from the old part that the network was pretrained on."""
    fisher = fisher_diagonal(network, part, likelihood, kind=kind, seed=seed)
    sd = laplace_sd(fisher, prior_precision, temperature)
    options: dict[str, Any] = {"prior_sd": prior_sd, "point": point, "frozen": frozen}
    return pretrained_belief(network, family, carry=carry, sd=sd, unknowns=likelihood.unknowns(), **options)


@dataclass(frozen=True)
class Trial:
    """How one width did on the held-out share."""

    sd: float
    nll: float
    """Per example, in nats; infinite where training diverged."""
    accuracy: float | None


@dataclass(frozen=True)
class SearchResult:
    """The width with the smallest held-out NLL, and all that were tried."""

    sd: float
    trials: tuple[Trial, ...]


def search_prior_sd(
    network: nn.Module,
    part: Part,
    likelihood: Likelihood,
    *,
    sds: Sequence[float],
    carry: Sequence[str] = ("*",),
    family: str = "factorized",
    prior_sd: float | str = 1.0,
    point: Sequence[str] = (),
    frozen: Sequence[str] = (),
    settings: Settings | None = None,
    share: float = 0.2,
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
) -> SearchResult:
    """Grid search for the one width of ``pretrained_belief``: absorb the part without a share, score on that share.

    Every width meets the same split and the same seed. ``progress`` hears of steps as in ``absorb``, counted over all
    widths. Learn the whole part afterwards, with the width found.
    """
    if not sds:
        raise SettingError("sds is empty: expected at least one width to try")
    for sd in sds:
        check_positive("sds", sd)
    settings = replace(settings or Settings(), score_samples=0)
    learned, held = _split(part, share, settings.batch_size, seed)
    options: dict[str, Any] = {"prior_sd": prior_sd, "point": point, "frozen": frozen}
    trials: list[Trial] = []
    for i, sd in enumerate(sds):
        told = partial(_tell, progress, i, len(sds)) if progress else None
        prior = pretrained_belief(network, family, carry=carry, sd=sd, unknowns=likelihood.unknowns(), **options)
        try:
            belief, _ = absorb(
                network, prior=prior, part=learned, likelihood=likelihood, settings=settings, seed=seed, progress=told
            )
            found = score(network, belief, held, likelihood, seed=seed)
            trials.append(Trial(sd, found.nll if math.isfinite(found.nll) else math.inf, found.accuracy))
        except DivergedError:  # one bad width must not cost the others
            trials.append(Trial(sd, math.inf, None))
    best = min(trials, key=lambda trial: trial.nll)
    if best.nll == math.inf:
        raise DivergedError(f"training diverged with every one of {len(sds)} widths: lower learning_rate")
    return SearchResult(best.sd, tuple(trials))


def _carried(network: nn.Module, carry: Sequence[str]) -> set[str]:
    """Parameters and buffers, since a normalisation layer without weights has no other names to carry it by."""
    return matching({**dict(learnable(network)), **dict(network.named_buffers())}, carry, "carry")


def _carried_sd(sd: float | Weights, name: str, value: Tensor) -> Tensor:
    if not isinstance(sd, Mapping):
        check_positive("sd", sd)
        return torch.full_like(value, sd)
    if name not in sd:
        raise SettingError(f"sd says nothing of {name}, which is carried: give its widths, or carry fewer parameters")
    if sd[name].shape != value.shape:
        raise SettingError(
            f"sd of {name} has shape {tuple(sd[name].shape)}, expected {tuple(value.shape)}, the shape of the weights"
        )
    width = sd[name].detach().to(value)
    if not ((width > 0) & width.isfinite()).all():
        raise SettingError(f"sd of {name} is not everywhere a finite number above 0: see laplace_sd")
    return width


def _reset(prefix: str, module: nn.Module) -> None:
    # nn.MultiheadAttention has the method under a private name.
    method = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
    if method is None:
        raise NetworkError(
            f"{prefix or 'the network'} ({type(module).__name__}) has parameters that are not carried and no "
            "reset_parameters() to begin them again with: give it that method, or carry its parameters"
        )
    method()


@torch.no_grad()
def _check_apart(asked: BayesianNetwork, batch: Batch) -> None:
    """Raise a NetworkError unless each output is a matter of its own example."""
    outputs = outputs_of(asked, asked.means(), batch, 0)
    alone = outputs_of(asked, asked.means(), _cut(batch, len(outputs), 0, 1), 0)
    tolerance = 0.01 * float(outputs.nan_to_num().abs().max())
    if not torch.allclose(alone, outputs[:1], rtol=0, atol=tolerance, equal_nan=True):
        raise NetworkError(
            "in eval mode the output for an example changes with the others in its batch, so it has no "
            "curvature of its own: give normalisation layers running statistics, and draw nothing at random"
        )


def _vectors(
    kind: Kind,
    outputs: Tensor,
    targets: Tensor | None,
    likelihood: Likelihood,
    values: Values,
    num_samples: int,
    generator: torch.Generator,
) -> Tensor:
    """Vectors a, [B, K, *], such that the wanted diagonal is that of Σ Jᵀ a aᵀ J, J being outputs by weights."""
    if kind == "ggn":
        if outputs[0].numel() > LARGEST_GGN_OUTPUT:
            raise SettingError(
                f"kind='ggn' takes a backward pass for each of {outputs[0].numel()} output elements an example, "
                f"expected {LARGEST_GGN_OUTPUT} at most: choose kind='monte_carlo', which has the same mean"
            )
        return likelihood.curvature_root(outputs, values)
    draws = range(num_samples)
    labels = [likelihood.sample(outputs, values, generator) for _ in draws] if targets is None else [targets]
    leaf = outputs.detach().requires_grad_()
    slopes = [torch.autograd.grad(likelihood.log_prob(leaf, label, values).sum(), leaf)[0] for label in labels]
    return torch.stack(slopes, 1) / len(slopes) ** 0.5


class _Sums:
    """Σ over examples and their vectors of (Jᵀ a)², for every weight."""

    def __init__(self, asked: BayesianNetwork, weights: Weights) -> None:
        self._asked, self._weights = asked, weights
        self._by_layer: layerwise.Squares | None = layerwise.Squares(asked.network, weights)
        self._ways = [_all_at_once, _one_by_one]
        self.total = {name: torch.zeros_like(value) for name, value in weights.items()}

    def add(self, batch: Batch, vectors: Callable[[Tensor], Tensor], first: int) -> None:
        """``vectors`` makes the vectors from the outputs; ``first`` numbers the batch's first example."""
        while True:
            try:
                if self._by_layer:
                    new = self._by_layer.of(batch, vectors)
                else:
                    with torch.no_grad():
                        outputs = outputs_of(self._asked, self._asked.means(), batch, first)
                    new = self._ways[0](self._asked.network, self._weights, batch, vectors(outputs))
                break
            except torch.OutOfMemoryError:
                raise
            except (RuntimeError, ValueError, TypeError, IndexError):
                if self._by_layer:
                    self._by_layer = None
                elif len(self._ways) == 1:
                    raise
                else:
                    del self._ways[0]
        for name, value in new.items():
            self.total[name] += value


def _all_at_once(network: nn.Module, weights: Weights, batch: Batch, vectors: Tensor) -> dict[str, Tensor]:
    size = len(vectors)
    batch = _changed(batch, size, lambda value: value.unsqueeze(1))  # each example is then a batch of one

    def one(args: tuple[Any, ...], kwargs: dict[str, Any], rows: Tensor) -> dict[str, Tensor]:
        def outputs_at(values: dict[str, Tensor]) -> Tensor:
            return functional_call(network, values, args, kwargs)

        pulled: Any = vjp(outputs_at, dict(weights))
        sums = {name: torch.zeros_like(value) for name, value in weights.items()}
        for row in rows.unsqueeze(1):
            slopes: dict[str, Tensor] = pulled[1](row)[0]
            sums = {name: total + slopes[name].square() for name, total in sums.items()}
        return sums

    axes = tuple(_axis(value, size) for value in batch.args), {k: _axis(v, size) for k, v in batch.kwargs.items()}, 0
    with warnings.catch_warnings():
        # Where torch itself falls back to a loop, the result is the same.
        warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
        each = vmap(one, in_dims=axes)(batch.args, dict(batch.kwargs), vectors)
    return {name: value.sum(0) for name, value in each.items()}


def _one_by_one(network: nn.Module, weights: Weights, batch: Batch, vectors: Tensor) -> dict[str, Tensor]:
    leaves = {name: value.detach().requires_grad_() for name, value in weights.items()}
    sums = {name: torch.zeros_like(value) for name, value in weights.items()}
    for i, rows in enumerate(vectors.unsqueeze(2)):
        example = _cut(batch, len(vectors), i, 1)
        output: Tensor = functional_call(network, leaves, example.args, dict(example.kwargs))
        for row in rows:
            slopes = torch.autograd.grad(
                output, tuple(leaves.values()), row, retain_graph=True, allow_unused=True, materialize_grads=True
            )
            for total, slope in zip(sums.values(), slopes, strict=True):
                total += slope.square()
    return sums


def _axis(value: Any, size: int) -> int | None:
    """The axis of a network's input that counts examples, if it has one."""
    return 0 if isinstance(value, Tensor) and value.dim() > 0 and len(value) == size else None


def _changed(batch: Batch, size: int, change: Callable[[Tensor], Tensor]) -> Batch:
    """The inputs of the batch, of ``size`` examples, with every tensor of examples changed."""

    def changed(value: Any) -> Any:
        return value if _axis(value, size) is None else change(value)

    return Batch(tuple(map(changed, batch.args)), {key: changed(value) for key, value in batch.kwargs.items()}, None)


def _cut(batch: Batch, size: int, start: int, length: int) -> Batch:
    return _changed(batch, size, lambda value: value[start : start + length])


def _split(part: Part, share: float, batch_size: int, seed: int) -> tuple[Part, Part]:
    if not 0 < share < 1:
        raise SettingError(f"share={share}: expected a share above 0 and below 1")
    num_examples = sum(map(len, part.batches(batch_size)))
    num_held = round(share * num_examples)
    if not 0 < num_held < num_examples:
        raise PartError(
            f"share={share} of {num_examples} examples leaves {num_held} to judge by and {num_examples - num_held} to "
            "learn from: expected at least one of each; give a larger part"
        )
    return part.split(num_held, seeds.stream("cpu", seed, "search"))


def _tell(progress: Callable[[Progress], None], done: int, count: int, now: Progress) -> None:
    progress(Progress(done * now.num_steps + now.step, count * now.num_steps, now.nelbo))
