"""Several processes that learn one part together learn what one process learns, each thing counted once."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import postprior
from postprior import Checkpointing, Settings, distributed
from postprior.data.parts import as_part
from postprior.errors import SettingError, StoppedError
from postprior.learning import objective
from postprior.learning.absorb import Update
from postprior.learning.objective import Step
from postprior.learning.shards import Shard, own_share
from postprior.learning.steps import Stepper
from postprior.networks.bayesian import from_belief
from postprior.networks.belief import Belief, digest
from postprior.store.tensors import read_tensors, write_tensors
from processes import said, together

NOISE_SD = 0.7
NUM_EXAMPLES = 22
"""Divisible by 2 and not by 4."""


def examples(count: int = NUM_EXAMPLES) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    return torch.randn(count, 3, generator=g), torch.randint(2, (count,), generator=g)


def network(*, norm: bool = False) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first = [nn.BatchNorm1d(3)] if norm else []
        return nn.Sequential(*first, nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def absorbed(*, seed: int = 0, norm: bool = False, **more: Any) -> tuple[Belief, Update]:
    settings = Settings(**{"epochs": 3, "batch_size": 12, "learning_rate": 0.01, **more.pop("settings", {})})
    made = network(norm=norm)
    prior = postprior.first_belief(made, "factorized", prior_sd=1.0)
    likelihood, part = postprior.Categorical(), as_part(more.pop("data", examples()))
    return postprior.absorb(made, prior=prior, part=part, likelihood=likelihood, settings=settings, seed=seed, **more)


# One step: the objective and its slopes.


def one_step(family: str) -> dict[str, Any]:
    """Every figure and slope of a step on the whole part, with the same noise in all processes."""
    made = network()
    prior = postprior.first_belief(made, family, prior_sd=0.3, point=["2.bias"])
    posterior = from_belief(made, prior, generator=torch.Generator().manual_seed(7))
    with torch.no_grad():  # away from the prior, so that the KL has slopes
        for parameter in posterior.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    posterior.gather(prior.weights)
    likelihood, part = postprior.Categorical(), own_share(as_part(examples()))
    terms = {
        "data": objective.negative_log_likelihood(likelihood),
        "kl": objective.divergence(posterior, prior.weights, 1.0),
    }
    settings = Settings(batch_size=NUM_EXAMPLES)
    stepper = Stepper(posterior, part, likelihood, terms, settings, NUM_EXAMPLES, 1)
    stepper.take(next(iter(stepper.items(torch.Generator().manual_seed(0)))))
    slopes = {n: p.grad for n, p in posterior.named_parameters() if p.grad is not None}
    if posterior.gathered:
        slopes |= {"mu": posterior.gathered.mu.grad, "log_sd": posterior.gathered.log_sd.grad}
    nats = {name: float(value) for name, value in stepper.sums.items()}
    return {"nelbo": stepper.nelbo, **nats, "slopes": {n: s.tolist() for n, s in slopes.items() if s is not None}}


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("family", ["factorized", "multiplicative"])
def test_a_step_has_the_objective_and_slopes_of_one_process(family: str, count: int, tmp_path: Path) -> None:
    alone = one_step(family)
    assert alone["kl"] > 1
    assert "mu" in alone["slopes"]
    for found in said(together(count, lambda _: one_step(family), tmp_path)):
        # The KL is counted once, the data as often as there are examples; both would show in the slopes too.
        assert found["kl"] == pytest.approx(alone["kl"], rel=1e-5)
        assert found["data"] == pytest.approx(alone["data"], rel=1e-5)
        assert found["nelbo"] == pytest.approx(alone["nelbo"], rel=1e-5)
        assert found["slopes"].keys() == alone["slopes"].keys()
        for name, slope in alone["slopes"].items():
            expected = torch.tensor(slope)
            gap = (torch.tensor(found["slopes"][name]) - expected).abs().max()
            assert gap <= 1e-5 * max(1.0, float(expected.abs().max())), name


# Whole absorptions.


def exact_problem() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Orthogonal columns, so that the posterior factorises, and the exact posterior."""
    g = torch.Generator().manual_seed(0)
    x = torch.linalg.qr(torch.randn(402, 3, generator=g, dtype=torch.float64))[0] * 402**0.5
    y = x @ torch.tensor([0.8, -1.5, 0.3], dtype=torch.float64)
    y = y + NOISE_SD * torch.randn(len(x), generator=g, dtype=torch.float64)
    precision = (x.T @ x) / NOISE_SD**2 + torch.eye(3, dtype=torch.float64)
    return x, y, torch.linalg.solve(precision, x.T @ y / NOISE_SD**2), precision.diag() ** -0.5


def test_four_processes_end_at_the_exact_posterior_of_a_linear_gaussian_model(tmp_path: Path) -> None:
    x, y, mean, sd = exact_problem()

    def learn(_: int) -> Any:
        layer = nn.Linear(3, 1, bias=False).double()
        nn.init.zeros_(layer.weight)
        learner = postprior.Learner(
            layer,
            likelihood=postprior.Gaussian(sd=NOISE_SD),
            steps=500,
            learning_rate=0.02,
            schedule="linear",
            batch_size=len(x),
            start_sd=0.02,
            local_reparameterization=True,
            num_samples=2,
            score_samples=0,
        )
        update = learner.absorb((x, y))
        belief = learner.belief
        return [belief.mean()["weight"][0].tolist(), belief.sd()["weight"][0].tolist(), update.num_examples]

    found = said(together(4, learn, tmp_path))
    assert found == [found[0]] * 4
    found_mean, found_sd = (torch.tensor(each, dtype=torch.float64) for each in found[0][:2])
    assert found[0][2] == len(x)
    assert ((found_mean - mean) / sd).abs().max() < 0.01
    assert (found_sd / sd - 1).abs().max() < 0.01


def test_each_process_has_its_own_noise_and_examples_and_all_end_alike(tmp_path: Path) -> None:
    def learn(_: int) -> Any:
        seen: dict[str, list[Any]] = {"draws": [], "inputs": []}

        def spy(step: Step) -> Tensor:
            seen["draws"].append(step.draws["0.weight"].weight.detach().flatten().tolist())
            seen["inputs"].append(step.batch.args[0].tolist())
            return torch.zeros(())

        belief, update = absorbed(settings={"epochs": 1}, terms={"spy": spy})
        assert update.before is not None
        figures = [update.num_steps, update.kl, update.data_term, update.before.nll, update.num_examples]
        return {**seen, "belief": digest(belief), "figures": figures, "global": torch.rand(()).item()}

    alone = learn(0)
    found = said(together(4, learn, tmp_path))
    for step in range(2):
        draws = [each["draws"][step] for each in found]
        assert all(draws[i] != draws[j] for i in range(4) for j in range(i))
    assert found[0]["draws"][0] == alone["draws"][0]
    rows = [tuple(row) for each in found for batch in each["inputs"] for row in batch]
    assert sorted(rows) == sorted(map(tuple, examples()[0].tolist()))
    assert [len(each["inputs"]) for each in found] == [2] * 4
    assert len({each["belief"] for each in found}) == 1
    assert [each["figures"] for each in found] == [found[0]["figures"]] * 4
    # The old belief met the whole part, with the same weight samples everywhere.
    assert found[0]["figures"][3] == pytest.approx(alone["figures"][3], rel=1e-5)
    assert found[0]["figures"][::4] == alone["figures"][::4]


def test_running_statistics_are_those_of_the_whole_part(tmp_path: Path) -> None:
    def learn(_: int) -> Any:
        belief, _ = absorbed(norm=True)
        return [
            belief.buffers["0.running_mean"].tolist(),
            belief.buffers["0.running_var"].tolist(),
            dict(belief.counts),
        ]

    x, _ = examples()
    for mean, variance, counts in said(together(4, learn, tmp_path)):
        torch.testing.assert_close(torch.tensor(mean), x.mean(0))
        torch.testing.assert_close(torch.tensor(variance), x.var(0))
        assert counts == {"0": NUM_EXAMPLES}


def test_early_stopping_is_decided_alike(tmp_path: Path) -> None:
    x, y = examples(60)
    settings = {"holdout": 0.2, "patience": 2, "epochs": 60, "learning_rate": 0.1}

    def learn(_: int) -> Any:
        belief, update = absorbed(settings=settings, data=(x, y), norm=True)
        held = [epoch.holdout_nll for epoch in update.epochs]
        return [digest(belief), held, update.stopped_early, update.num_examples]

    found = said(together(2, learn, tmp_path))
    assert found[0] == found[1]
    assert found[0][2:] == [True, 48]
    assert len(found[0][1]) < 60


@pytest.mark.parametrize("holdout", [0.0, 0.2])
def test_one_asks_to_stop_all_stop_and_resuming_ends_at_the_same_bytes(holdout: float, tmp_path: Path) -> None:
    file = tmp_path / "checkpoint.safetensors"
    settings = {"holdout": holdout, "num_samples": 2}

    def learn(rank: int) -> Any:
        whole, _ = absorbed(settings=settings, norm=True)
        asked = 0

        def stop() -> bool:
            nonlocal asked
            asked += 1
            return rank == 1 and asked == 5

        def save(tensors: Any, about: Any) -> None:
            assert rank == 0, "only the first process writes"
            write_tensors(file, tensors, json.loads(json.dumps(about)))

        with pytest.raises(StoppedError, match="step 5 of 6"):
            absorbed(settings=settings, norm=True, checkpointing=Checkpointing(save, math.inf, None, stop))
        again = Checkpointing(save, math.inf, read_tensors(file))
        resumed, _ = absorbed(settings=settings, norm=True, checkpointing=again)
        return [digest(whole), digest(resumed)]

    found = said(together(2, learn, tmp_path))
    assert len({each for both in found for each in both}) == 1
    with pytest.raises(SettingError, match="made with processes=2, found processes=1"):
        absorbed(settings=settings, norm=True, checkpointing=Checkpointing(lambda *_: None, 1.0, read_tensors(file)))


def test_what_one_process_refuses_is_told_by_all(tmp_path: Path) -> None:
    x, y = examples()
    bad = x.clone()
    bad[7, 1] = math.nan

    def learn(rank: int) -> Any:
        told: list[str] = []
        loader = DataLoader(TensorDataset(x, y), batch_size=4)
        for data, seed in (((bad, y), 0), (loader, 0), ((x[:1], y[:1]), 0), ((x, y), rank)):
            with pytest.raises(postprior.PostpriorError) as raised:
                absorbed(data=data, seed=seed)
            told.append(f"{type(raised.value).__name__}: {raised.value}")
        return told

    found = said(together(2, learn, tmp_path))
    assert found[0] == found[1]
    assert found[0][0].startswith("PartError: example 3: input holds nan")
    assert "as process 1 of 2 counts, whose example k is example 2 k + 1 of the part" in found[0][0]
    assert "give the dataset rather than its DataLoader" in found[0][1]
    assert "the part has 1 examples for 2 processes; start fewer" in found[0][2]
    assert "process 1 began with another seed (1) than the first (0)" in found[0][3]


# Shares of a part.


@pytest.mark.parametrize(("count", "size", "batch_size"), [(22, 4, 8), (23, 4, 4), (9, 4, 2), (64, 3, 16), (9, 2, 100)])
def test_shares_are_the_part_and_take_the_same_steps(count: int, size: int, batch_size: int) -> None:
    part = as_part((torch.arange(count).unsqueeze(1).float(), torch.zeros(count)))
    assert hasattr(part, "chunks")
    numbers = next(iter(part.chunks(count)))  # pyright: ignore[reportAttributeAccessIssue]
    lengths = tuple(len(numbers[start::size]) for start in range(size))
    shares = [Shard(part, numbers[start::size], lengths, start) for start in range(size)]  # pyright: ignore
    for chosen in (shares, [share.split(round(0.3 * count), torch.Generator())[0] for share in shares]):
        chunks = [list(share.chunks(batch_size, torch.Generator())) for share in chosen]
        assert len({len(each) for each in chunks}) == 1
        assert min(len(chunk) for each in chunks for chunk in each) >= (2 if batch_size >= 2 * size else 1)
        # Values of weight 1 estimate the number of examples, whatever the batches.
        total = sum(map(len, chosen))
        assert sum(share.weight * total for share in chosen) / size == pytest.approx(total)
    learned, held = zip(*(share.split(round(0.3 * count), torch.Generator()) for share in shares), strict=True)
    assert sum(map(len, held)) == round(0.3 * count)
    found = torch.cat([next(share.chunks(10**9)) for share in (*learned, *held)])
    assert found.sort().values.tolist() == list(range(count))


def test_alone_nothing_happens() -> None:
    values = torch.arange(3.0)
    distributed.average([values])
    distributed.broadcast([values])
    assert values.tolist() == [0, 1, 2]
    assert (distributed.rank(), distributed.size(), distributed.is_first(), distributed.key()) == (0, 1, True, ())
    assert (distributed.total(2.0), distributed.largest(2.0), distributed.told("x")) == (2.0, 2.0, "x")
    with distributed.joined():
        assert distributed.size() == 1
    with pytest.raises(SettingError, match="timeout=0: expected a number of seconds above 0"), distributed.joined(0):
        pass


def test_large_tensors_are_averaged_like_small_ones(tmp_path: Path) -> None:
    def averaged(rank: int) -> Any:
        tensors = [
            torch.full((3,), float(rank)),
            torch.full((2, distributed.LARGE), float(rank)),
            torch.full((2,), complex(rank, -rank)),
            torch.tensor(float(rank), dtype=torch.float64),
        ]
        distributed.average(tensors)
        expected = [torch.full_like(tensor, 0.5) for tensor in tensors]
        expected[2] = torch.full((2,), 0.5 - 0.5j)
        return [torch.equal(a, b) for a, b in zip(tensors, expected, strict=True)]

    assert said(together(2, averaged, tmp_path)) == [[True] * 4] * 2
