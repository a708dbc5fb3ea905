"""From pretrained weights to a first belief, a fresh start of some layers, and the search for a width."""

import copy
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from pretrained_cases import Recurrent, Tied, assert_same, float64_alone, small_net
from torch import Tensor, nn

from postprior.data.parts import as_part
from postprior.errors import DivergedError, NetworkError, PartError, SettingError
from postprior.learning import pretrained
from postprior.learning.absorb import absorb
from postprior.learning.likelihoods import Categorical, Gaussian
from postprior.learning.pretrained import (
    fisher_diagonal,
    laplace_belief,
    laplace_sd,
    pretrained_belief,
    search_prior_sd,
    start_anew,
)
from postprior.learning.settings import Settings
from postprior.learning.training import Progress
from postprior.networks.convert import first_belief


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    with float64_alone():
        yield


# ---------------------------------------------------------------- Laplace


def test_laplace_is_the_exact_posterior_of_an_orthogonal_design() -> None:
    design = torch.linalg.qr(torch.randn(40, 5)).Q * torch.tensor([1.0, 2, 3, 4, 5])
    network, part = nn.Linear(5, 1, bias=False), as_part((design, torch.randn(40, 1)))
    fisher = fisher_diagonal(network, part, Gaussian(sd=0.7), kind="ggn")
    exact = torch.linalg.inv(design.T @ design / 0.7**2 + 2.5 * torch.eye(5)).diagonal().sqrt()
    torch.testing.assert_close(laplace_sd(fisher, 2.5)["weight"], exact[None])
    # At a temperature the old examples count for more, as they do in absorb.
    colder = torch.linalg.inv(design.T @ design / 0.7**2 / 0.05 + 2.5 * torch.eye(5)).diagonal().sqrt()
    torch.testing.assert_close(laplace_sd(fisher, 2.5, temperature=0.05)["weight"], colder[None])


def test_a_weight_without_curvature_has_the_prior_width() -> None:
    fisher = fisher_diagonal(Tied(), as_part((torch.randn(4, 3), torch.arange(4) % 3)), Categorical())
    assert torch.equal(laplace_sd(fisher, 4.0)["unused"], torch.full((2,), 0.5))


@pytest.mark.parametrize("precision", [0.0, -1.0, math.inf, math.nan])
def test_a_prior_precision_must_be_positive(precision: float) -> None:
    with pytest.raises(SettingError, match="prior_precision="):
        laplace_sd({"weight": torch.ones(2)}, precision)


def test_laplace_belief_is_its_three_steps() -> None:
    network, part = small_net(1), as_part((torch.randn(20, 3), torch.randn(20, 1)))
    belief = laplace_belief(network, part, Gaussian(), carry=["0.*"], prior_precision=3.0, kind="ggn", prior_sd=0.4)
    sd = laplace_sd(fisher_diagonal(network, part, Gaussian(), kind="ggn"), 3.0)
    torch.testing.assert_close(belief.sd()["0.weight"], sd["0.weight"])
    torch.testing.assert_close(belief.sd()["2.weight"], torch.full((1, 4), 0.4))
    assert "likelihood.log_sd" in belief.weights


# ---------------------------------------------------------------- the belief


def normed_net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def test_only_carried_parameters_are_centred_on_the_network() -> None:
    network = normed_net()
    belief = pretrained_belief(network, carry=["0.*", "1.weight"], sd=0.1, prior_sd="fan_in")
    first = first_belief(network, prior_sd="fan_in")
    for name, value in network.named_parameters():
        carried = name in ("0.weight", "0.bias", "1.weight")
        torch.testing.assert_close(belief.mean()[name], value.detach() if carried else first.mean()[name])
        expected = torch.full_like(value, 0.1) if carried else first.sd()[name]
        torch.testing.assert_close(belief.sd()[name], expected.detach())


def test_carrying_nothing_is_the_first_belief() -> None:
    network = normed_net()
    belief, first = pretrained_belief(network, carry=(), sd=0.1), first_belief(network)
    assert_same(belief.mean(), first.mean())
    assert_same(belief.sd(), first.sd())


@pytest.mark.parametrize("family", ["factorized", "channelwise", "multiplicative", "point"])
def test_widths_of_every_weight_reach_every_family(family: str) -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2))
    sds = {name: torch.rand_like(value) + 0.1 for name, value in network.named_parameters()}
    belief = pretrained_belief(network, family, sd={**sds, "elsewhere": torch.ones(1)})
    assert_same(belief.mean(), {name: value.detach() for name, value in network.named_parameters()})
    if family == "multiplicative":
        given_latent = {n: f.log_sd.exp() for n, f in belief.weights.items()}  # type: ignore[union-attr]
        assert_same(given_latent, sds)
    elif family != "point":
        assert_same(belief.sd(), sds)


def test_points_and_frozen_ones_need_no_width() -> None:
    network = normed_net()
    network[1].requires_grad_(False)
    sds = {"0.weight": torch.full((4, 3), 0.2)}
    belief = pretrained_belief(network, carry=["0.*", "1.*", "3.*"], sd=sds, point=["*.bias"], frozen=["3.*"])
    assert belief.points == {"0.bias", "1.weight", "1.bias", "3.weight", "3.bias"}
    assert_same(belief.mean(), {name: value.detach() for name, value in network.named_parameters()})


def test_what_a_belief_refuses() -> None:
    network = normed_net()
    ones = {name: torch.ones_like(value) for name, value in network.named_parameters()}
    refused: list[tuple[dict[str, Any], str]] = [
        ({"carry": ["conv.*"], "sd": 0.1}, r"carry: 'conv.\*' matches no parameter"),
        ({"carry": "0.*", "sd": 0.1}, r"carry='0.\*': expected a sequence of patterns"),
        ({"sd": 0.0}, "sd=0.0: expected a finite number above 0"),
        ({"sd": {"0.weight": ones["0.weight"]}}, "sd says nothing of 0.bias, which is carried"),
        ({"sd": {**ones, "0.bias": torch.ones(5)}}, r"sd of 0.bias has shape \(5,\), expected \(4,\)"),
        ({"sd": {**ones, "0.bias": torch.zeros(4)}}, "sd of 0.bias is not everywhere a finite number above 0"),
        ({"sd": {**ones, "0.bias": torch.full((4,), math.inf)}}, "sd of 0.bias is not everywhere"),
    ]
    for options, message in refused:
        with pytest.raises(SettingError, match=message):
            pretrained_belief(network, **options)


def test_a_narrow_belief_holds_on_to_the_weights_and_a_wide_one_lets_go() -> None:
    network = nn.Linear(4, 1)
    x = torch.randn(30, 4)
    part = as_part((x, x @ torch.full((4, 1), 3.0)))
    moved: list[float] = []
    for sd in (0.001, 10.0):
        prior = pretrained_belief(network, sd=sd)
        settings = Settings(steps=300, learning_rate=0.05)
        belief, _ = absorb(network, prior=prior, part=part, likelihood=Gaussian(sd=1.0), settings=settings)
        moved.append(float((belief.mean()["weight"] - network.weight).abs().max().detach()))
    assert moved[0] < 0.01
    assert moved[1] > 2


# ---------------------------------------------------------------- starting anew


def same(one: nn.Module, other: nn.Module) -> set[str]:
    """The parameters and buffers that agree."""
    others = other.state_dict()
    return {name for name, value in one.state_dict().items() if torch.equal(value, others[name])}


def used(network: nn.Module, x: Tensor) -> nn.Module:
    """The network with running statistics and normalisation weights that are not those of a new one."""
    with torch.no_grad():
        network(x)
        for value in network.parameters():
            value.add_(torch.rand_like(value))
    return network


STATISTICS = {"1.running_mean", "1.running_var", "1.num_batches_tracked"}


def test_what_is_carried_stays_and_the_rest_begins_again() -> None:
    network = used(normed_net(), torch.randn(9, 3))
    carried = {"0.weight", "0.bias", "1.weight", "1.bias", *STATISTICS}
    assert same(network, start_anew(network, ["0.*", "1.*"], seed=0)) == carried
    fresh = start_anew(network, ["0.*"], seed=0)
    assert same(network, fresh) == {"0.weight", "0.bias"}
    new = nn.BatchNorm1d(4)
    assert_same(fresh.get_submodule("1").state_dict(), new.state_dict())
    assert same(network, start_anew(network, ["*"], seed=0)) == set(network.state_dict())
    assert same(network, start_anew(network, [], seed=0)) == set()


def test_a_pattern_may_cut_through_a_layer() -> None:
    network = used(normed_net(), torch.randn(9, 3))
    assert same(network, start_anew(network, ["*.weight"], seed=0)) == {"0.weight", "1.weight", "3.weight"}


def test_neither_the_network_nor_the_global_generator_changes() -> None:
    network = used(normed_net(), torch.randn(9, 3))
    state, random = copy.deepcopy(network.state_dict()), torch.get_rng_state()
    one, again, other = (start_anew(network, ["0.*"], seed=seed) for seed in (1, 1, 2))
    assert torch.equal(random, torch.get_rng_state())
    assert_same(network.state_dict(), state, rtol=0, atol=0)
    assert_same(one.state_dict(), again.state_dict(), rtol=0, atol=0)
    assert not {"3.weight", "3.bias"} & same(one, other)
    # A layer starts the same whatever else is carried.
    assert {"3.weight", "3.bias"} <= same(one, start_anew(network, ["1.*"], seed=1))


def test_statistics_without_weights_go_by_their_own_names() -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, affine=False), nn.Linear(4, 2))
    used(network, torch.randn(9, 3))
    assert same(network, start_anew(network, ["0.*", "1.*"], seed=0)) >= STATISTICS
    assert not same(network, start_anew(network, ["0.*"], seed=0)) & STATISTICS
    assert (
        pretrained_belief(network, carry=["0.*", "1.*"], sd=0.1).weights.keys()
        == dict(network.named_parameters()).keys()
    )


class Parent(nn.Module):
    """Begins again with its children, buffers and all."""

    def __init__(self) -> None:
        super().__init__()
        self.child, self.own = nn.BatchNorm1d(3), nn.Parameter(torch.ones(3))
        self.register_buffer("clock", torch.zeros(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.child.reset_parameters()
        nn.init.normal_(self.own)
        self.get_buffer("clock").zero_()

    def forward(self, x: Tensor) -> Tensor:
        self.get_buffer("clock").add_(1)
        return self.child(x) * self.own


def test_a_parent_does_not_reset_what_a_child_carries() -> None:
    network = used(Parent(), torch.randn(9, 3))
    assert same(network, start_anew(network, ["child.weight", "child.bias"], seed=0)) == {
        f"child.{leaf}" for leaf in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    }


def test_layers_of_one_shape_begin_apart() -> None:
    fresh = start_anew(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), [], seed=0)
    assert not torch.equal(fresh.get_parameter("0.weight"), fresh.get_parameter("1.weight"))


def test_tied_recurrent_and_attention_layers() -> None:
    tied = nn.ModuleDict({"into": nn.Embedding(5, 3), "out": nn.Linear(3, 5, bias=False)})
    tied["out"].weight = tied["into"].weight
    fresh = start_anew(tied, [], seed=0)
    assert fresh.get_parameter("into.weight") is fresh.get_parameter("out.weight")
    assert not same(tied, fresh)
    assert same(tied, start_anew(tied, ["into.*"], seed=0)) == {"into.weight", "out.weight"}
    assert same(Recurrent(), start_anew(Recurrent(), ["head.*"], seed=0)) == set()
    attention = nn.MultiheadAttention(4, 2)
    with torch.no_grad():
        for value in attention.parameters():
            value.add_(1)
    new = start_anew(attention, [], seed=0)
    assert not same(attention, new)
    assert new.get_parameter("out_proj.bias").eq(0).all(), "a new one begins with zero here"


def test_a_layer_that_cannot_begin_again() -> None:
    with pytest.raises(NetworkError, match=r"the network .Tied. has parameters .* no reset_parameters"):
        start_anew(Tied(), ["first.*"], seed=0)
    start_anew(Tied(), ["scale", "unused"], seed=0)
    normed = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)))
    with pytest.raises(NetworkError, match=r"0.parametrizations.weight \(ParametrizationList\)"):
        start_anew(normed, ["0.bias"], seed=0)
    with pytest.raises(SettingError, match=r"carry: 'conv.\*' matches no parameter"):
        start_anew(normed, ["conv.*"], seed=0)


# ---------------------------------------------------------------- the search

SETTINGS = Settings(steps=250, learning_rate=0.05)


def regression(num_examples: int, dimensions: int) -> tuple[Any, Tensor]:
    x, weight = torch.randn(num_examples, dimensions), torch.randn(dimensions)
    return as_part((x, (x @ weight + 0.5 * torch.randn(num_examples))[:, None])), weight


def pretrained_line(weight: Tensor) -> nn.Linear:
    network = nn.Linear(len(weight), 1, bias=False)
    with torch.no_grad():
        network.weight.copy_(weight)
    return network


def test_right_weights_are_best_held_on_to_and_wrong_ones_let_go() -> None:
    part, weight = regression(num_examples=20, dimensions=15)
    options: dict[str, Any] = {"sds": [0.01, 3.0], "settings": SETTINGS, "share": 0.3, "seed": 3}
    right = search_prior_sd(pretrained_line(weight), part, Gaussian(sd=0.5), **options)
    assert right.sd == 0.01
    part, weight = regression(num_examples=100, dimensions=5)
    wrong = search_prior_sd(pretrained_line(-weight), part, Gaussian(sd=0.5), **options)
    assert wrong.sd == 3.0
    assert [trial.sd for trial in wrong.trials] == [0.01, 3.0]
    assert wrong.trials[1].nll < wrong.trials[0].nll
    assert wrong.trials[0].accuracy is None


def test_the_search_scores_what_the_exact_posterior_predicts() -> None:
    # Points are predicted by N(x w, sd²): with all weights held tightly, the score is that of the network itself.
    part, weight = regression(num_examples=20, dimensions=3)
    network = pretrained_line(weight)
    found = search_prior_sd(network, part, Gaussian(sd=0.5), sds=[1e-6], settings=Settings(steps=1), share=0.5, seed=5)
    held = pretrained._split(part, 0.5, 128, 5)[1]
    (batch,) = held.batches(128)
    assert batch.targets is not None
    expected = -torch.distributions.Normal(network(batch.args[0]), 0.5).log_prob(batch.targets).mean()
    assert found.trials[0].nll == pytest.approx(float(expected.detach()), rel=1e-3)


def test_the_search_repeats_itself_and_tells_how_far_it_is() -> None:
    x, y = torch.randn(40, 3), torch.arange(40) % 3
    settings, heard = replace(SETTINGS, steps=5), list[Progress]()
    options: dict[str, Any] = {"sds": [0.1, 1.0], "carry": ["0.*"], "settings": settings}
    one, again = (
        search_prior_sd(small_net(), as_part((x, y)), Categorical(), **options, progress=tell)
        for tell in (heard.append, None)
        if torch.manual_seed(1)
    )
    assert one == again
    torch.manual_seed(1)
    assert one != search_prior_sd(small_net(), as_part((x, y)), Categorical(), **options, seed=1)
    assert all(trial.accuracy is not None for trial in one.trials)
    assert [now.step for now in heard] == list(range(1, 11))
    assert {now.num_steps for now in heard} == {10}


def test_a_width_that_diverges_does_not_cost_the_others() -> None:
    part, weight = regression(num_examples=20, dimensions=3)
    options: dict[str, Any] = {"settings": replace(SETTINGS, steps=20), "share": 0.5}
    network = pretrained_line(weight)
    found = search_prior_sd(network, part, Gaussian(sd=0.5), sds=[1e-200, 1.0], **options)
    assert found.sd == 1.0
    assert found.trials[0].nll == math.inf
    with pytest.raises(DivergedError, match="every one of 1 widths"):
        search_prior_sd(network, part, Gaussian(sd=0.5), sds=[1e-200], **options)


def test_what_a_search_refuses() -> None:
    part, weight = regression(num_examples=3, dimensions=2)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"sds": []}, "sds is empty"),
        ({"sds": [0.1, -1.0]}, "sds=-1.0"),
        ({"sds": [0.1], "share": 0.0}, "share=0.0: expected a share above 0 and below 1"),
        ({"sds": [0.1], "share": 0.1}, "share=0.1 of 3 examples leaves 0 to judge by and 3 to learn from"),
    ]
    for options, message in refused:
        with pytest.raises((SettingError, PartError), match=message):
            search_prior_sd(pretrained_line(weight), part, Gaussian(sd=0.5), **options)
