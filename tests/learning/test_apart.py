"""Parts learned at once: exact where Bayes' rule is, and closer to the sequence with every round where it is not."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from test_combine import NOISE_SD, bayes, line, orthogonal_part
from torch import Tensor

import postprior
from postprior.errors import BeliefError, SettingError
from postprior.families import Factorized
from postprior.learning.apart import absorb_apart
from postprior.networks.belief import Belief


@pytest.mark.parametrize("rounds", [0, 1, 5])
def test_exact_beliefs_are_exact_after_any_number_of_rounds(rounds: int) -> None:
    network, base = line()
    base = bayes(base, orthogonal_part(99))
    parts = [orthogonal_part(seed) for seed in range(4)]
    in_turn = base
    for part in parts:
        in_turn = bayes(in_turn, part)
    asked: list[list[int]] = []

    def learn(tasks: Sequence[tuple[int, Belief]]) -> list[Belief]:
        asked.append([number for number, _ in tasks])
        return [bayes(prior, parts[number]) for number, prior in tasks]

    found = absorb_apart(network, base, 4, learn, rounds=rounds)
    assert asked == [[0, 1, 2, 3]] * (rounds + 1)
    assert found.set_back == 0
    torch.testing.assert_close(found.belief.mean(), in_turn.mean(), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.belief.sd(), in_turn.sd(), rtol=1e-9, atol=1e-9)
    assert (found.belief.num_parts, found.belief.num_examples) == (in_turn.num_parts, in_turn.num_examples)


def test_refinement_ends_where_all_parts_learned_at_once_would() -> None:
    network, prior = line()
    g = torch.Generator().manual_seed(0)
    x = torch.randn(200, 3, generator=g).double()
    x[:, 1] += x[:, 0]  # what one weight says the other might say, which a factorised belief cannot hold
    y = x @ torch.tensor([[0.8], [-1.5], [0.3]]).double() + NOISE_SD * torch.randn(200, 1, generator=g).double()
    parts = list(zip(x.chunk(4), y.chunk(4), strict=True))

    def best(prior: Belief, part: tuple[Tensor, Tensor]) -> Belief:
        """The factorised Gaussian closest to the exact posterior: its mean, and its precision's diagonal."""
        x, y = part
        width, mean = prior.sd()["weight"][0] ** -2, prior.mean()["weight"][0]
        precision = torch.diag(width) + x.T @ x / NOISE_SD**2
        found = torch.linalg.solve(precision, width * mean + (x.T @ y)[:, 0] / NOISE_SD**2)
        family = Factorized(found[None], -0.5 * precision.diag().log()[None])
        counts = {"num_parts": prior.num_parts + 1, "num_examples": prior.num_examples + len(x)}
        return replace(prior, weights={"weight": family}, **counts)

    def learn(tasks: Sequence[tuple[int, Belief]]) -> list[Belief]:
        return [best(prior, parts[number]) for number, prior in tasks]

    at_once = best(prior, (x, y))
    gaps: list[float] = []
    for rounds in (0, 10, 100):
        found = absorb_apart(network, prior, 4, learn, rounds=rounds).belief
        gaps.append(float((found.mean()["weight"] - at_once.mean()["weight"]).norm()))
    assert gaps[1] < 0.5 * gaps[0]
    assert gaps[2] < 1e-2 * gaps[0]
    torch.testing.assert_close(found.sd(), at_once.sd(), rtol=1e-6, atol=1e-6)


def test_a_worker_takes_no_evidence_of_others_away() -> None:
    network, base = line()
    wide, part = postprior.first_belief(network, prior_sd=9.0), orthogonal_part(0)

    def learn(tasks: Sequence[tuple[int, Belief]]) -> list[Belief]:
        # One comes out far less sure than it went in, as learning by gradients may.
        return [wide if number == 0 else bayes(prior, part) for number, prior in tasks]

    found = absorb_apart(network, base, 2, learn, rounds=2)
    assert found.set_back == 3 * 3
    torch.testing.assert_close(found.belief.mean(), bayes(base, part).mean(), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.belief.sd(), bayes(base, part).sd(), rtol=1e-9, atol=1e-9)


def test_flows_and_wrong_settings_are_refused() -> None:
    network, base = line()
    flow = postprior.first_belief(network, "multiplicative")
    with pytest.raises(BeliefError, match="no product in closed form"):
        absorb_apart(network, flow, 2, lambda tasks: [prior for _, prior in tasks])
    with pytest.raises(SettingError, match="rounds=-1"):
        absorb_apart(network, base, 2, lambda tasks: [prior for _, prior in tasks], rounds=-1)
