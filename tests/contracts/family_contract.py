"""What every family of beliefs about one weight tensor must do.

A newcomer subclasses `FamilyContract`, names the family, and writes a factory and a slow, plain oracle:

    class TestMine(FamilyContract):
        family = Mine
        def make(self, seed): ...                          # a member with nothing at its start value, in float64
        def oracle_log_density(self, member, draw): ...    # by another way than the family's own
"""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.autograd.functional import hessian
from torch.utils._python_dispatch import TorchDispatchMode

from postprior.errors import BeliefError, SettingError
from postprior.families import FAMILIES, KL, Draw, Factorized, Family, Natural, Role, family_for, frozen, kl, name_of

Scalar = Callable[[], Tensor]
ROLES: tuple[Role, ...] = ("kernel", "dense", "other")
NUM_DRAWS = 3000


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(shape: tuple[int, ...], seed: int, scale: float = 1.0) -> Tensor:
    """Standard normal numbers in float64, times the scale."""
    return scale * torch.randn(shape, generator=generator(seed), dtype=torch.float64)


def positive(shape: tuple[int, ...], seed: int, around: float = 0.3) -> Tensor:
    """Numbers above zero, spread around one value."""
    return around * normal(shape, seed, 0.4).exp()


class _Brought(TorchDispatchMode):
    """Notices tensors that are made of Python's numbers, as ``torch.tensor`` and ``new_tensor`` make them."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.lift_fresh.default:
            self.calls.append(str(func))
        return func(*args, **(kwargs or {}))


class FamilyContract(ABC):
    """Subclass it with a name that starts with Test; pytest collects what is inherited."""

    family: ClassVar[type[Family]]
    shape: ClassVar[tuple[int, ...]] = (3, 2, 2, 2)
    spreads: ClassVar[bool] = True
    """Whether two draws differ."""
    gives_local_moments: ClassVar[bool] = False
    num_moment_draws: ClassVar[float] = math.inf
    """Draws behind the family's own mean() and sd(), where they are not exact."""
    sd_rtol: ClassVar[float] = 1e-12

    @abstractmethod
    def make(self, seed: int) -> Family:
        """A member of the shape, in float64, with nothing at its start value; other seeds give other members."""

    @abstractmethod
    def oracle_log_density(self, member: Family, draw: Draw) -> float:
        """The log-density of the draw, by a slow and plain way."""

    def asked_sd(self, mean: Tensor, sd: Tensor) -> Tensor:
        """The width that from_gaussian(mean, sd) has, where the family extends the Gaussian in its stated way."""
        del mean
        return sd

    # From a Gaussian.

    def test_from_gaussian_has_the_mean_and_the_sd_that_were_asked(self) -> None:
        mean, sd = normal(self.shape, 1), positive(self.shape, 2)
        member = self.family.from_gaussian(mean, sd, generator(0))
        torch.testing.assert_close(member.mean().detach(), mean, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(member.sd().detach(), self.asked_sd(mean, sd), rtol=self.sd_rtol, atol=0)

    def test_a_first_prior_around_zero_is_the_gaussian_that_was_asked(self) -> None:
        sd = positive(self.shape, 3)
        member = self.family.first_prior(torch.zeros_like(sd), sd, generator(0))
        assert not member.mean().any()
        torch.testing.assert_close(
            member.sd().detach(), sd if self.spreads else torch.zeros_like(sd), rtol=1e-12, atol=0
        )

    def test_from_gaussian_shares_a_parameter_and_copies_a_tensor(self) -> None:
        mean = normal(self.shape, 1)
        parameter = torch.nn.Parameter(mean.clone())
        assert self.family.from_gaussian(parameter, positive(self.shape, 2), generator(0)).location is parameter
        copied = self.family.from_gaussian(mean, positive(self.shape, 2), generator(0))
        assert copied.location.data_ptr() != mean.data_ptr()

    def test_the_location_has_the_shape_of_the_weight_and_is_no_width(self) -> None:
        member = self.make(1)
        names = {name for name, parameter in member.named_parameters() if parameter is member.location}
        assert len(names) == 1
        assert not names & member.spread
        assert member.spread <= {name for name, _ in member.named_parameters()}
        assert member.location.shape == member.mean().shape == member.sd().shape == self.shape

    # On a GPU.

    def test_a_step_brings_no_numbers_from_python(self) -> None:
        # Such numbers stop a GPU's queue, and no step with them can be recorded; what is kept may bring some once.
        member, prior = self.make(1), frozen(self.make(2))
        for seen in (_Brought(), _Brought()):
            with seen:
                draw = member.draw(generator(0))
                (kl(member, prior, draw) + draw.weight.sum()).backward()
        assert not seen.calls

    # Round trip.

    def test_round_trip_through_tensors_keeps_everything(self) -> None:
        member = self.make(1)
        tensors = {name: tensor.clone() for name, tensor in member.state_dict().items()}
        again = self.family.from_tensors(tensors)
        assert type(again) is self.family
        assert again.state_dict().keys() == tensors.keys()
        assert torch.equal(again.mean(), member.mean())
        assert torch.equal(again.sd(), member.sd())
        for seed in range(3):
            assert _equal(again.draw(generator(seed)), member.draw(generator(seed)))
        draw = member.draw(generator(7))
        assert torch.equal(again.log_density(draw), member.log_density(draw))

    def test_a_family_made_from_tensors_owns_its_memory(self) -> None:
        member = self.make(1)
        before = member.mean().detach().clone()
        again = self.family.from_tensors(member.state_dict())
        assert _places(again).isdisjoint(_places(member))
        with torch.no_grad():
            again.location.add_(1)
        assert torch.equal(member.mean(), before)

    def test_the_table_of_families_knows_it(self) -> None:
        assert FAMILIES[name_of(self.make(1))] is self.family
        for role in ROLES:
            assert family_for(name_of(self.make(1)), role) is (self.family if role in self.family.roles else Factorized)
        with pytest.raises(SettingError, match=r"family='mine' is not known: expected one of .*point.*multiplicative"):
            family_for("mine", "dense")

    # Draws.

    def test_draws_follow_the_generator_and_nothing_else(self) -> None:
        member = self.make(1)
        state = torch.get_rng_state()
        source = generator(5)
        first, second = member.draw(source), member.draw(source)
        torch.rand(3, generator=generator(0))
        replayed = generator(5)
        assert _equal(member.draw(replayed), first)
        assert _equal(member.draw(replayed), second)
        assert torch.equal(first.weight, second.weight) is not self.spreads
        assert torch.equal(member.draw(generator(6)).weight, first.weight) is not self.spreads
        assert torch.equal(torch.get_rng_state(), state)
        assert first.weight.shape == self.shape

    def test_mean_and_sd_are_the_same_at_every_call_and_touch_no_global_generator(self) -> None:
        member, state = self.make(1), torch.get_rng_state()
        assert torch.equal(member.mean(), member.mean())
        assert torch.equal(member.sd(), member.sd())
        assert torch.equal(torch.get_rng_state(), state)

    def test_a_draw_has_the_gradient_of_its_finite_differences(self) -> None:
        member = self.make(1)
        direction = normal(self.shape, 2)
        (member.draw(generator(3)).weight * direction).sum().backward()
        for name, parameter in member.named_parameters():
            assert parameter.grad is not None, name
            along = normal(tuple(parameter.shape), 4)
            slope = slope_along(lambda: (member.draw(generator(3)).weight * direction).sum(), parameter, along)
            assert float((parameter.grad * along).sum()) == pytest.approx(slope, rel=1e-6, abs=1e-8), name
            assert parameter.grad.any(), name

    def test_a_mirrored_draw_is_as_likely_and_mirrors_back(self) -> None:
        member = self.make(1)
        draw = member.draw(generator(1))
        mirrored = member.mirrored(draw)
        assert torch.equal(mirrored.weight, draw.weight) is not self.spreads
        torch.testing.assert_close(member.log_density(mirrored), member.log_density(draw), rtol=1e-10, atol=1e-10)
        again = member.mirrored(mirrored)
        torch.testing.assert_close(again.weight, draw.weight, rtol=1e-12, atol=1e-12)
        direction = normal(self.shape, 2)
        (mirrored.weight * direction).sum().backward()
        for name, parameter in member.named_parameters():
            assert parameter.grad is not None, name
            along = normal(tuple(parameter.shape), 4)
            slope = slope_along(
                lambda: (member.mirrored(member.draw(generator(1))).weight * direction).sum(), parameter, along
            )
            assert float((parameter.grad * along).sum()) == pytest.approx(slope, rel=1e-6, abs=1e-8), name

    def test_sample_moments_are_the_mean_and_the_sd(self) -> None:
        member, source = self.make(1), generator(0)
        with torch.no_grad():
            samples = torch.stack([member.draw(source).weight for _ in range(NUM_DRAWS)])
            mean, sd = member.mean(), member.sd()
        gaps = samples - samples.mean(0)
        sample_sd = gaps.square().mean(0).sqrt()
        share = 1 / NUM_DRAWS + 1 / self.num_moment_draws
        error_of_mean = sample_sd * share**0.5
        error_of_variance = ((gaps**4).mean(0) - sample_sd**4).clamp_min(0).sqrt() * share**0.5
        assert ((samples.mean(0) - mean).abs() <= 4 * error_of_mean + 1e-12).all()
        assert ((sample_sd.square() - sd.square()).abs() <= 4 * error_of_variance + 1e-12).all()
        assert bool((sd > 0).all()) is self.spreads

    # Densities.

    def test_log_density_is_the_oracles(self) -> None:
        member, other = self.make(1), self.make(2)
        for draw in (member.draw(generator(0)), member.draw(generator(1)), other.draw(generator(2))):
            expected = self.oracle_log_density(member, Draw(*(t if t is None else t.detach() for t in draw)))
            assert float(member.log_density(draw).detach()) == pytest.approx(expected, rel=1e-8, abs=1e-8)

    def test_log_density_of_a_changed_copy_is_its_own(self) -> None:
        # Whatever a frozen member keeps of its own arithmetic must not follow its copies around.
        old, new = frozen(self.make(1)), self.make(2)
        draw = new.draw(generator(0))
        old.log_density(draw)
        kl(new, old, draw)
        changed = copy.deepcopy(old).requires_grad_(True)
        with torch.no_grad():
            for mine, others in zip(changed.parameters(), new.parameters(), strict=True):
                mine.copy_(others)
        expected = new.log_density(draw).detach()
        torch.testing.assert_close(frozen(changed).log_density(draw).detach(), expected, rtol=1e-12, atol=0)

    def test_log_density_follows_what_is_loaded_into_a_frozen_member(self) -> None:
        member, new = frozen(self.make(1)), self.make(2)
        draw = new.draw(generator(0))
        member.log_density(draw)
        member.load_state_dict(new.state_dict())
        torch.testing.assert_close(member.log_density(draw), new.log_density(draw).detach(), rtol=1e-12, atol=0)

    def test_a_belief_does_not_diverge_from_itself(self) -> None:
        member = self.make(1)
        for seed in range(5):
            draw = member.draw(generator(seed))
            assert abs(float(kl(member, frozen(member), draw).detach())) < 1e-10
            again = self.family.from_tensors(member.state_dict())
            assert abs(float(kl(member, again, draw).detach())) < 1e-10

    def test_two_beliefs_diverge(self) -> None:
        member, other, source = self.make(1), self.make(2), generator(0)
        values = [float(kl(member, other, member.draw(source)).detach()) for _ in range(50)]
        assert (sum(values) > 0) is self.spreads

    def test_its_own_pair_is_in_the_table(self) -> None:
        assert (self.family, self.family) in KL

    # Natural parameters.

    def test_sums_of_natural_parameters_are_products_of_densities(self) -> None:
        one, two = frozen(self.make(1)), frozen(self.make(2))
        first, second = one.natural(), two.natural()
        if first is None or second is None:
            assert first is None
            assert second is None
            with pytest.raises(BeliefError, match="no natural parameters"):
                self.family.from_natural(Natural(torch.ones(self.shape), torch.ones(self.shape)))
            return
        product = self.family.from_natural(first + second)
        draws = [one.draw(generator(seed)) for seed in range(5)]
        gaps = [(one.log_density(d) + two.log_density(d) - product.log_density(d)).item() for d in draws]
        assert gaps == pytest.approx([gaps[0]] * len(gaps), rel=1e-9, abs=1e-9)
        restored = product.natural()
        assert restored is not None
        quotient = self.family.from_natural(restored + second * -1)
        for name, value in one.state_dict().items():
            torch.testing.assert_close(quotient.state_dict()[name], value, rtol=1e-9, atol=1e-9)
        with pytest.raises(BeliefError, match=r"(\d+) of \1 (weights|kernels) would have no positive precision"):
            self.family.from_natural(first * -0.5)

    # Frozen copies.

    def test_a_frozen_copy_trains_nothing_and_shares_nothing(self) -> None:
        member = self.make(1)
        copied, before = frozen(member), member.mean().detach().clone()
        assert type(copied) is self.family
        assert not any(parameter.requires_grad for parameter in copied.parameters())
        assert all(parameter.requires_grad for parameter in member.parameters())
        assert _places(copied).isdisjoint(_places(member))
        assert torch.equal(copied.mean(), before)
        assert torch.equal(copied.sd(), member.sd())
        assert _equal(copied.draw(generator(1)), member.draw(generator(1)))
        assert not copied.draw(generator(1)).weight.requires_grad
        with torch.no_grad():
            member.location.add_(1)
        assert torch.equal(copied.mean(), before)

    # Local moments.

    def test_local_moments_are_those_of_the_weight_given_the_latent(self) -> None:
        # A Gaussian shows its mean and covariance in the slope and curvature of its log-density.
        member = self.make(1)
        draw = Draw(*(t if t is None else t.detach() for t in member.draw(generator(0))))
        moments = member.local_moments(draw)
        assert (moments is not None) is self.gives_local_moments
        if moments is None:
            return
        mean, variance = (moment.detach() for moment in moments)
        curvature = -hessian(lambda weight: member.log_density(Draw(weight, draw.latent)), draw.weight)
        precision = curvature.reshape(variance.numel(), variance.numel())
        torch.testing.assert_close(precision, (1 / variance).flatten().diag(), rtol=1e-10, atol=1e-10)
        weight = draw.weight.clone().requires_grad_(True)
        (slope,) = torch.autograd.grad(member.log_density(Draw(weight, draw.latent)), weight)
        torch.testing.assert_close(slope, (mean - draw.weight) / variance, rtol=1e-9, atol=1e-9)


def slope_along(function: Scalar, parameter: Tensor, direction: Tensor, step: float = 1e-5) -> float:
    """The slope of the function along a direction of one parameter, by central differences."""
    values: list[float] = []
    for sign in (1, -1):
        with torch.no_grad():
            parameter.add_(sign * step * direction)
            values.append(float(function()))
            parameter.sub_(sign * step * direction)
    return (values[0] - values[1]) / (2 * step)


def _equal(one: Draw, other: Draw) -> bool:
    pairs = zip(one, other, strict=True)
    return all(a is b if a is None or b is None else torch.equal(a, b) for a, b in pairs)


def _places(member: Family) -> set[int]:
    return {tensor.data_ptr() for tensor in member.state_dict().values() if tensor.numel()}
