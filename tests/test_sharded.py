"""A belief cut among processes learns what a whole one learns; what only a whole one can do is refused."""

import math
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import postprior
from postprior import Learner, Settings, distributed
from postprior.data.parts import as_part
from postprior.learning import objective
from postprior.learning.objective import Step
from postprior.learning.shards import own_share
from postprior.learning.steps import Stepper
from postprior.networks import drawing
from postprior.networks.belief import digest
from postprior.networks.drawing import Noise, ShardedNetwork, noise_of
from postprior.networks.sharded import Cut, ShardedBelief, first_share, hollow, starting_share
from processes import said, together
from test_distributed import NOISE_SD, NUM_EXAMPLES, exact_problem, examples

LIKELIHOOD = postprior.Categorical()


class Tied(nn.Module):
    """Reads one weight twice and one without calling its layer; 11 and 33 are divisible by neither 2 nor 4."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.attention = nn.Linear(3, 11), nn.MultiheadAttention(11, 1, batch_first=True)
        self.norm, self.last = nn.LayerNorm(11), nn.Linear(11, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.gelu(self.first(x))
        mixed, _ = self.attention(hidden[:, None], hidden[:, None], hidden[:, None], need_weights=False)
        back = F.linear(self.norm(mixed[:, 0]), self.first.weight.T)
        return self.last(F.gelu(self.first(back)))


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Tied()


def beliefs() -> tuple[postprior.Belief, postprior.Belief]:
    """A prior, and a posterior some way from it."""
    made = network()
    moved = {n: p.detach() + 0.1 * torch.randn(p.shape, generator=_seeded(1)) for n, p in made.named_parameters()}
    sds = {n: torch.full_like(p, 0.2) for n, p in moved.items()}
    prior = postprior.first_belief(made, "factorized", prior_sd=0.3)
    return prior, postprior.networks.convert.gaussian_belief(made, "factorized", moved, sds)


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# One step.


def by_hand(seed: int) -> dict[str, Any]:
    """The objective and its slopes by autograd alone, whole, for the noise of one draw and of its mirror image."""
    made, (prior, posterior) = network(), beliefs()
    names = list(prior.weights)
    mu = {n: posterior.weights[n].mean().clone().requires_grad_() for n in names}
    log_sd = {n: posterior.weights[n].sd().log().requires_grad_() for n in names}
    x, y = examples()
    data = torch.zeros(())
    for sign in (1, -1):
        weights = {n: mu[n] + log_sd[n].exp() * noise_of(n, Noise(seed, sign), mu[n]) for n in names}
        data = data + F.cross_entropy(torch.func.functional_call(made, weights, (x,)), y, reduction="sum") / 2
    q = {n: torch.distributions.Normal(mu[n], log_sd[n].exp()) for n in names}
    p = {n: torch.distributions.Normal(prior.weights[n].mean(), prior.weights[n].sd()) for n in names}
    kl = torch.stack([torch.distributions.kl_divergence(q[n], p[n]).sum() for n in names]).sum()
    nelbo = (data + kl) / NUM_EXAMPLES
    nelbo.backward()
    slopes = {f"{n} {what}": v[n].grad for what, v in (("mu", mu), ("log_sd", log_sd)) for n in names}
    figures = {"nelbo": nelbo, "data": data, "kl": kl}
    return {**{name: float(value.detach()) for name, value in figures.items()}, "slopes": slopes}


def one_step(seed: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The same from a share, with the same noise in all processes; own stretches of the slopes."""
    monkeypatch.setattr(drawing, "SMALL", 8)  # so that these tensors, too, are drawn again
    prior, posterior = (ShardedBelief.of(belief) for belief in beliefs())
    sharded = ShardedNetwork(network(), prior, posterior.mu, posterior.log_sd, _seeded(0))
    sharded.draw = lambda generator=None: sharded.gathered.begin() or sharded.draws_with(Noise(seed))  # type: ignore
    part = own_share(as_part(examples()))
    terms = {"data": objective.negative_log_likelihood(LIKELIHOOD), "kl": objective.divergence(sharded, {}, 1.0)}
    settings = Settings(batch_size=NUM_EXAMPLES, num_samples=2)
    stepper = Stepper(sharded, part, LIKELIHOOD, terms, settings, NUM_EXAMPLES, 1)
    stepper.take(next(iter(stepper.items(_seeded(0)))))
    shares = sharded.gathered
    slopes = {
        f"{name} {what}": [shares.cut.own(name), piece.tolist()]
        for what, vector in (("mu", shares.mu.grad), ("log_sd", shares.log_sd.grad))
        for name, piece in shares.cut.pieces(vector)  # type: ignore
    }
    room = torch.ones(shares.cut.total, dtype=torch.bool)
    for _, piece in shares.cut.pieces(room):
        piece.zero_()
    nats = {name: float(value) for name, value in stepper.sums.items()}
    vectors = (shares.mu, shares.log_sd, shares.mu.grad, shares.log_sd.grad)
    unused = [float(v.detach()[room].abs().sum()) for v in vectors if v is not None]
    return {"nelbo": stepper.nelbo, **nats, "slopes": slopes, "in the room that is not needed": unused}


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_step_has_the_objective_and_slopes_of_a_whole_belief(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, seed = by_hand(3), 3
    assert expected["kl"] > 1
    covered = dict.fromkeys(expected["slopes"], 0)
    work = said(together(count, lambda _: one_step(seed, monkeypatch), tmp_path))
    for found in work:
        for figure in ("nelbo", "data", "kl"):
            assert found[figure] == pytest.approx(expected[figure], rel=1e-5), figure
        for name, ((start, stop), slope) in found["slopes"].items():
            whole = expected["slopes"][name].flatten()
            gap = (torch.tensor(slope) - whole[start:stop]).abs()
            assert gap.numel() == 0 or gap.max() <= 1e-5 * max(1.0, float(whole.abs().max())), name
            covered[name] += stop - start
        assert found["in the room that is not needed"] == [0, 0, 0, 0]
    assert covered == {name: slope.numel() for name, slope in expected["slopes"].items()}


def test_autograd_keeps_no_tensor_that_was_drawn() -> None:
    made = nn.Sequential(*(nn.Linear(128, 128, bias=False) for _ in range(4)))
    prior = first_share(made)
    sharded = ShardedNetwork(made, prior, *starting_share(made, prior, 0.02, 0), _seeded(0))
    drawn: list[weakref.ref[Tensor]] = []
    original = sharded.gathered.drawn

    def watched(name: str, noise: Noise) -> tuple[Tensor, Tensor]:
        alive = sum(each() is not None for each in drawn)
        assert alive <= 2, "more than a tensor and its shift at a time"
        pair = original(name, noise)
        drawn.extend(weakref.ref(tensor.untyped_storage()) for tensor in pair)  # type: ignore
        return pair

    sharded.gathered.drawn = watched  # type: ignore
    x = torch.randn(2, 128)
    sharded.run(sharded.draw(), x).sum().backward()
    # Forward once each; backward once each, and not twice for the slope in the inputs and that in the weight.
    assert len(drawn) == 2 * 8


# Whole absorptions.


def test_four_processes_end_at_the_exact_posterior_of_a_linear_gaussian_model(tmp_path: Path) -> None:
    x, y, mean, sd = exact_problem()

    def learn(_: int) -> Any:
        layer = nn.Linear(3, 1, bias=False).double()
        nn.init.zeros_(layer.weight)
        # Widths learn from noise alone: at a lower rate they come closer.
        noise = {"num_samples": 2, "spread_rate": 0.2, "score_samples": 0}
        options: dict[str, Any] = {**noise, "learning_rate": 0.04, "schedule": "linear", "batch_size": len(x)}
        likelihood = postprior.Gaussian(sd=NOISE_SD)
        learner = Learner(layer, likelihood=likelihood, steps=350, shard=True, **options)

        update = learner.absorb((x, y))
        share = learner.share
        whole = share.whole()
        return [
            whole.mean()["weight"][0].tolist(),
            whole.sd()["weight"][0].tolist(),
            update.num_examples,
            len(share.mu),
        ]

    found = said(together(4, learn, tmp_path))
    assert found == [found[0]] * 4
    found_mean, found_sd = (torch.tensor(each, dtype=torch.float64) for each in found[0][:2])
    assert found[0][2:] == [len(x), 1], "three weights on four processes: one each, and one without"
    assert ((found_mean - mean) / sd).abs().max() < 0.01
    # From the noise of 700 samples; evidence that was counted four times would halve it.
    assert (found_sd / sd - 1).abs().max() < 0.05


def learned(rank: int) -> Any:
    """Two parts, with running statistics, an unknown of the likelihood, and what each process saw."""
    del rank
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 7), nn.Tanh(), nn.Linear(7, 1))
    settings: dict[str, Any] = {"epochs": 2, "batch_size": 12, "learning_rate": 0.01, "clip_norm": 0.5}
    learner = Learner(made, likelihood=postprior.Gaussian(), shard=True, seed=5, **settings)
    x, _ = examples()
    updates = [learner.absorb((part, part.sum(1, keepdim=True))) for part in (x, x[:9] + 1)]
    share = learner.share
    seeds = int(torch.randint(2**62, (), generator=torch.Generator().manual_seed(0)))
    assert updates[0].before is not None
    figures = [[u.kl, u.data_term, u.num_steps, u.before.nll] for u in updates if u.before]
    mean = share.buffers["0.running_mean"].tolist()
    return [digest(share.whole()), figures, mean, dict(share.counts), [share.num_parts, share.num_examples], seeds]


def test_parts_one_after_another(tmp_path: Path) -> None:
    found = said(together(2, learned, tmp_path))
    assert found[0] == found[1]
    again = said(together(2, learned, tmp_path))
    assert again == found, "same seed, same bytes"
    belief, figures, mean, counts, numbers, _ = found[0]
    assert isinstance(belief, str)
    assert all(math.isfinite(figure) for each in figures for figure in each)
    x, _ = examples()
    torch.testing.assert_close(torch.tensor(mean), torch.cat([x, x[:9] + 1]).mean(0))
    assert counts == {"0": NUM_EXAMPLES + 9}
    assert numbers == [2, NUM_EXAMPLES + 9]
    # The old belief is asked with the same samples everywhere, so that they do not depend on how many ask.
    alone = said(together(1, learned, tmp_path))[0]
    assert figures[0][3] == pytest.approx(alone[1][0][3], rel=1e-4)


def test_each_process_has_its_own_noise(tmp_path: Path) -> None:
    def draws(_: int) -> Any:
        seen: list[int] = []
        original = ShardedNetwork.draws_with

        def spied(self: ShardedNetwork, noise: Noise) -> Any:
            seen.append(noise.seed)
            return original(self, noise)

        ShardedNetwork.draws_with = spied  # type: ignore
        Learner(network(), shard=True, epochs=1, batch_size=12, score_samples=3).absorb(examples())
        return seen

    one, other = said(together(2, draws, tmp_path))
    # Two batches with three samples each before, alike everywhere; then two steps, nothing alike.
    assert one[:6] == other[:6]
    assert one[:3] == one[3:6]
    assert len(set(one[6:]) | set(other[6:])) == 4


def test_layers_on_the_device_meta_are_made_one_at_a_time(tmp_path: Path) -> None:
    def learn(_: int) -> Any:
        with torch.device("meta"):
            made = nn.Sequential(nn.Linear(3, 40), nn.Tanh(), nn.Linear(40, 2))
        learner = Learner(made, shard=True, epochs=1, learning_rate=1e-6)
        learner.absorb(examples())
        return learner.share.whole().mean()["2.weight"].tolist()

    found = said(together(2, learn, tmp_path))
    assert found[0] == found[1]
    assert torch.tensor(found[0]).std() == pytest.approx(40**-0.5 / 3**0.5, rel=0.3), "as nn.Linear makes them"
    with torch.device("meta"):
        bare = nn.ParameterList([torch.zeros(3)])
    with pytest.raises(postprior.errors.NetworkError, match="has no reset_parameters of its own"):
        starting_share(bare, first_share(bare), 0.02, 0)


# Shares.


def test_shares_are_the_belief_however_it_is_cut(tmp_path: Path) -> None:
    belief = beliefs()[1]

    def shared(_: int) -> Any:
        share = ShardedBelief.of(belief)
        assert digest(share.whole()) == digest(belief)
        return [share.digest(), len(share.mu)]

    total = sum(family.mean().numel() for family in belief.weights.values())
    for count in (1, 2, 4):
        found = said(together(count, shared, tmp_path))
        assert len({each[0] for each in found}) == 1
        assert all(total / count <= each[1] < total / count + len(belief.weights) for each in found)
    cut = Cut({"a": torch.Size([5]), "b": torch.Size([])}, 3, 4)
    assert (cut.own("a"), cut.own("b"), cut.length("a"), cut.total) == ((5, 5), (1, 1), 2, 3)


def test_what_only_a_whole_belief_can_do_is_refused(tmp_path: Path) -> None:
    lstm = nn.LSTM(3, 4)
    padded = nn.Sequential(nn.Embedding(9, 3, padding_idx=0))
    half = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2).double())
    still = nn.Linear(3, 2)
    still.bias.requires_grad_(False)

    def mine(step: Step) -> Tensor:
        return step.outputs.sum()

    cases: list[tuple[Any, dict[str, Any], str]] = [
        (network(), {"family": "multiplicative"}, "family='multiplicative'"),
        (network(), {"point": ["*.bias"]}, "point="),
        (network(), {"terms": {"mine": mine}}, "terms="),
        (network(), {"holdout": 0.2}, "holdout=0.2 needs a whole belief"),
        (network(), {"precision": "bfloat16"}, "precision='bfloat16' needs a whole belief"),
        (network(), {"function_space": 0.3}, "function_space=0.3 needs a whole belief"),
        (network(), {"local_reparameterization": True}, "local_reparameterization=True needs a whole belief"),
        (lstm, {}, "is an LSTM, which keeps a list of its weights"),
        (padded, {}, "0 has a padding row"),
        (half, {}, "weights of 2 types"),
        (still, {}, "bias is frozen"),
    ]

    def refused(_: int) -> Any:
        told: list[str] = []
        for made, options, _expected in cases:
            with pytest.raises(postprior.PostpriorError) as raised:
                Learner(made, shard=True, **options).absorb(examples())
            told.append(str(raised.value))
        learner = Learner(network(), shard=True, epochs=1)
        asks: list[Callable[[], Any]] = [
            lambda: learner.belief,
            lambda: learner.predict(examples()[0]),
            lambda: learner.score(examples()),
            lambda: learner.save(tmp_path / "learner.safetensors"),
            learner.mean_network,
        ]
        for ask in asks:
            with pytest.raises(postprior.errors.BeliefError, match=r"learner.share.whole\(\)"):
                ask()
        return told

    for told in said(together(2, refused, tmp_path)):
        for (*_, expected), found in zip(cases, told, strict=True):
            assert expected in found
    outside = Learner(network(), shard=True)

    def elsewhere(_: int) -> Any:
        with pytest.raises(postprior.errors.BeliefError, match="share 0 of a belief cut for 1 processes, and here is"):
            outside.absorb(examples())

    said(together(2, elsewhere, tmp_path))


def test_a_bad_example_of_one_process_is_refused_by_all(tmp_path: Path) -> None:
    x, y = examples()
    bad, odd = x.clone(), y.clone()
    bad[7, 1], odd[3] = math.nan, 5

    def learn(_: int) -> Any:
        told: list[str] = []
        for data in ((bad, y), (x, odd)):
            learner = Learner(network(), shard=True, epochs=1)
            before = learner.share.digest()
            with pytest.raises(postprior.errors.PartError) as raised:
                learner.absorb(data)
            assert learner.share.digest() == before
            told.append(str(raised.value))
        return told

    found = said(together(2, learn, tmp_path))
    assert found[0] == found[1]
    assert found[0][0].startswith("example 3: input holds nan")
    assert "as process 1 of 2 counts" in found[0][0]
    assert found[0][1].startswith("example 1 has target 5, expected a label from 0 to 1 (as process 1 of 2")


def test_weights_used_in_another_order_are_noticed(tmp_path: Path) -> None:
    class Either(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(3, 2, bias=False), nn.Linear(3, 2, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            first, second = (self.one, self.other) if distributed.rank() else (self.other, self.one)
            return first(x) + second(x)

    def learn(_: int) -> Any:
        with pytest.raises(postprior.errors.NetworkError, match="in different orders"):
            Learner(Either(), shard=True, epochs=1).absorb(examples())

    said(together(2, learn, tmp_path))


def test_weights_are_not_there_outside_of_a_call() -> None:
    made = nn.Linear(3, 2)
    prior = first_share(made)
    sharded = ShardedNetwork(made, prior, prior.mu, prior.log_sd, _seeded(0))
    with pytest.raises(postprior.errors.NetworkError, match="weight was read outside of a call"):
        _ = sharded.network.weight
    assert all(parameter.is_meta for parameter in hollow(made).parameters())
    assert not made.weight.is_meta
