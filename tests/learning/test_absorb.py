"""Absorbing one part: what is reported, what is refused, and that nothing is lost whatever goes wrong."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import postprior
from postprior.errors import DivergedError, NetworkError, PartError, SettingError
from postprior.learning.objective import Step
from postprior.learning.training import Progress


def blobs(num_examples: int = 60, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (num_examples,), generator=g)
    return torch.randn(num_examples, 4, generator=g) + 2 * nn.functional.one_hot(y, 4), y


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def learner(**settings: Any) -> postprior.Learner:
    return postprior.Learner(network(), **{"epochs": 3, "batch_size": 16, **settings})


def same(a: postprior.Belief, b: postprior.Belief) -> bool:
    tensors = [(x[name], y[name]) for x, y in ((a.mean(), b.mean()), (a.sd(), b.sd())) for name in x]
    return all(torch.equal(x, y) for x, y in tensors) and a.num_parts == b.num_parts


def test_the_report_keeps_data_term_and_kl_apart() -> None:
    model = learner(temperature=0.5)
    update = model.absorb(blobs())
    assert update.num_examples == 60
    assert update.num_steps == 3 * 4
    assert update.data_term < 0 < update.kl
    assert update.elbo == pytest.approx(update.data_term - 0.5 * update.kl)
    assert len(update.epochs) == 3
    assert update.data_term == update.epochs[-1].data_term
    assert model.belief.num_parts == 1
    assert model.belief.num_examples == 60


def test_the_kl_reported_is_that_of_posterior_from_prior_in_nats() -> None:
    model = learner(temperature=0.1)
    before = model.belief
    update = model.absorb(blobs())
    mean, sd, old_mean, old_sd = model.belief.mean(), model.belief.sd(), before.mean(), before.sd()
    exact = sum(
        float(
            torch.distributions.kl_divergence(
                torch.distributions.Normal(mean[name], sd[name]),
                torch.distributions.Normal(old_mean[name], old_sd[name]),
            ).sum()
        )
        for name in mean
    )
    assert update.kl == pytest.approx(exact, rel=1e-4)


def test_the_part_is_scored_under_the_old_belief_before_it_is_learned() -> None:
    model = learner(epochs=30, temperature=0.1, learning_rate=1e-2)
    model.absorb(blobs(seed=1))
    old, data = model.belief, blobs(seed=2)
    update = model.absorb(data)
    assert update.before is not None
    scored = postprior.score(
        model.network, old, postprior.as_part(data), model.likelihood, num_samples=200, seed=5, batch_size=16
    )
    assert update.before.nll == pytest.approx(scored.nll, abs=0.05)
    assert update.before.accuracy == pytest.approx(scored.accuracy, abs=0.05)
    assert model.absorb(blobs(seed=3), score_samples=0).before is None


def test_the_objective_counts_every_example_once_whatever_the_batch_size() -> None:
    """The nats of the data term do not depend on how the part is cut into batches."""
    found = {}
    for batch_size in (10, 30, 60):
        model = learner(family="point", batch_size=batch_size, epochs=1, learning_rate=1e-12)
        found[batch_size] = model.absorb(blobs()).data_term
    plain = -nn.functional.cross_entropy(network()(blobs()[0]), blobs()[1], reduction="sum")
    for value in found.values():
        assert value == pytest.approx(float(plain.detach()), rel=1e-4)


def nan_at(index: int) -> Any:
    x, y = blobs()
    x[index, 1] = float("nan")
    return x, y


def label_at(index: int, label: int) -> Any:
    x, y = blobs()
    y[index] = label
    return x, y


class Raising(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[None].expand(2, -1, -1)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "nan": (lambda: nan_at(37), r"example 37: input holds nan, expected finite numbers"),
    "infinite": (lambda: (blobs()[0] / 0, blobs()[1]), r"example 0: input holds (inf|-inf|nan)"),
    "label too large": (lambda: label_at(21, 3), r"example 21 has target 3, expected a label from 0 to 2"),
    "label negative": (lambda: label_at(5, -1), r"example 5 has target -1"),
    "labels as floats": (lambda: (blobs()[0], blobs()[1].float()), r"labels are torch.float32, expected whole numbers"),
    "one-hot labels": (
        lambda: (blobs()[0], nn.functional.one_hot(blobs()[1], 3)),
        r"labels have shape \(16, 3\), expected \(16,\).*argmax",
    ),
    "other shape": (lambda: (blobs()[0][:, :3], blobs()[1]), r"refused the batch that starts at example 0.*\(16, 3\)"),
    "empty": (lambda: (torch.zeros(0, 4), torch.zeros(0, dtype=torch.long)), "the part is empty"),
    "lengths": (lambda: (blobs()[0], blobs()[1][:-1]), "expected as many targets as inputs"),
    "inputs only": (lambda: blobs()[0], r"expected \(inputs, targets\)|numbers"),
    "words": (lambda: (blobs()[0], ["a"] * 60), "expected numbers in a tensor or array"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_part_is_refused_with_its_example_and_the_belief_is_as_it_was(case: str) -> None:
    make, message = REFUSED[case]
    model = learner()
    model.absorb(blobs())
    before = model.belief
    with pytest.raises(PartError, match=message):
        model.absorb(make())
    assert model.belief is before
    model.absorb(blobs(seed=1))  # and it still learns
    assert model.belief.num_parts == 2


def test_a_ragged_dataset_is_refused_with_the_example() -> None:
    class Ragged(Dataset[tuple[Tensor, int]]):
        def __len__(self) -> int:
            return 20

        def __getitem__(self, i: int) -> tuple[Tensor, int]:
            return torch.zeros(5 if i == 13 else 4), 0

    with pytest.raises(PartError, match=r"example 13 is .*shape .5"):
        learner().absorb(Ragged())


def test_a_loss_that_diverges_stops_and_leaves_the_belief() -> None:
    model = postprior.Learner(
        nn.Linear(4, 1), likelihood=lambda out, y: -((out[:, 0] * 1e30) ** 2), epochs=1, score_samples=0
    )
    before = model.belief
    with pytest.raises(DivergedError, match="the loss became inf at step 1"):
        model.absorb((blobs()[0], blobs()[1].float()))
    assert model.belief is before


def test_an_exception_of_the_users_leaves_the_belief() -> None:
    def explode(step: Step) -> Tensor:
        raise RuntimeError("mine")

    model = postprior.Learner(network(), epochs=1, terms={"mine": explode})
    before = model.belief
    with pytest.raises(RuntimeError, match="mine"):
        model.absorb(blobs())
    assert model.belief is before
    assert same(model.belief, learner().belief)


def test_a_network_that_returns_no_tensor_is_named() -> None:
    class Pair(nn.Linear):
        def forward(self, x: Tensor) -> Any:
            return super().forward(x), x

    with pytest.raises(NetworkError, match="returned tuple, expected one tensor"):
        postprior.Learner(Pair(4, 3)).absorb(blobs())


def test_outputs_of_another_shape_than_the_targets_are_refused() -> None:
    with pytest.raises(PartError, match="labels have shape"):
        postprior.Learner(Raising()).absorb(blobs())


def test_same_seed_same_belief_and_other_seeds_others() -> None:
    def learned(seed: int) -> postprior.Belief:
        model = postprior.Learner(network(), epochs=2, seed=seed)
        model.absorb(blobs(seed=1))
        torch.rand(7)  # the global generator has no say
        model.absorb(blobs(seed=2))
        return model.belief

    assert same(learned(0), learned(0))
    assert not same(learned(0), learned(1))


def test_dropout_follows_the_seed_and_leaves_the_global_generator_alone() -> None:
    def learned() -> postprior.Belief:
        model = postprior.Learner(nn.Sequential(network(), nn.Dropout(0.5)), epochs=2)
        model.absorb(blobs())
        return model.belief

    torch.manual_seed(3)
    first = learned()
    after = torch.get_rng_state()
    second = learned()
    assert same(first, second)
    torch.manual_seed(3)
    assert torch.equal(after, torch.get_rng_state())


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    def __iter__(self) -> Any:
        return iter(zip(*blobs(), strict=True))


class Rows(Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 60

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {"x": blobs()[0][i], "label": blobs()[1][i]}


DATA: dict[str, Callable[[], Any]] = {
    "tensors": blobs,
    "arrays": lambda: tuple(value.numpy() for value in blobs()),
    "float64 arrays": lambda: (blobs()[0].double().numpy(), blobs()[1].numpy()),
    "lists": lambda: tuple(value.tolist() for value in blobs()),
    "dictionary": lambda: {"x": blobs()[0], "y": blobs()[1]},
    "dataset": lambda: TensorDataset(*blobs()),
    "dataset of dictionaries": Rows,
    "loader": lambda: DataLoader(TensorDataset(*blobs()), batch_size=16),
    "stream": Stream,
}


@pytest.mark.parametrize("kind", DATA)
def test_all_kinds_of_data_are_learned_alike(kind: str) -> None:
    model = learner(epochs=40, temperature=0.05, learning_rate=1e-2)
    update = model.absorb(DATA[kind]())
    assert update.num_examples == 60
    score = model.score(blobs(seed=9))
    assert score.accuracy is not None
    assert score.accuracy > 0.7


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.layer(torch.cat([left, right], 1))


@pytest.mark.parametrize("named", [False, True])
def test_several_inputs_by_position_and_by_name(named: bool) -> None:
    x, y = blobs()
    model = postprior.Learner(TwoInputs(), epochs=60, temperature=0.05, learning_rate=1e-2)
    left, right = x[:, :2], x[:, 2:]
    if named:
        model.absorb({"right": right, "left": left, "species": y}, target="species")
        asked = model.predict({"right": right, "left": left})
    else:
        model.absorb(((left, right), y))
        asked = model.predict((left, right))
    assert float((asked.mean.argmax(1) == y).float().mean()) > 0.7


def test_early_stopping_uses_the_held_out_share_and_takes_the_best() -> None:
    model = learner(holdout=0.25, patience=2, epochs=200, learning_rate=0.1, family="point")
    update = model.absorb(blobs())
    assert update.num_examples == 45
    assert update.stopped_early
    nlls = [epoch.holdout_nll for epoch in update.epochs]
    assert None not in nlls
    assert len(nlls) == min(range(len(nlls)), key=lambda i: nlls[i]) + 1 + 2  # type: ignore[arg-type, return-value]


def test_holdout_of_a_loader_says_the_cure() -> None:
    with pytest.raises(PartError, match="give the dataset rather than its DataLoader"):
        learner(holdout=0.2).absorb(DataLoader(TensorDataset(*blobs()), batch_size=8))


def test_a_fresh_start_forgets_the_values_but_not_the_prior() -> None:
    data = blobs()
    model = learner(start="fresh", epochs=1, learning_rate=1e-9)
    model.absorb(data)
    first = model.belief.mean()["0.weight"]
    model.absorb(data, learning_rate=0.01, epochs=20)
    model.absorb(data)
    torch.testing.assert_close(model.belief.mean()["0.weight"], first, atol=1e-6, rtol=0)
    warm = learner(epochs=1, learning_rate=1e-9)
    warm.absorb(data, learning_rate=0.01, epochs=20)
    moved = warm.belief.mean()["0.weight"]
    warm.absorb(data)
    torch.testing.assert_close(warm.belief.mean()["0.weight"], moved, atol=1e-6, rtol=0)


def test_the_rate_of_widths_is_their_own() -> None:
    model = learner(epochs=1, batch_size=60, learning_rate=1e-3, spread_rate=7.0, start_sd=0.02)
    model.absorb(blobs())
    moved = (model.belief.sd()["0.weight"].log() - torch.tensor(0.02).log()).abs()
    # Adam's first step is the rate itself wherever there is a gradient.
    torch.testing.assert_close(moved, torch.full_like(moved, 7e-3), rtol=1e-2, atol=0)


def test_clipping_bounds_the_first_gradient() -> None:
    seen: list[float] = []

    class Watch(nn.Linear):
        pass

    model = postprior.Learner(Watch(4, 3), family="point", epochs=1, batch_size=60, clip_norm=1e-3)
    original = torch.optim.Adam.step

    def step(self: torch.optim.Adam, closure: Any = None) -> Any:
        grads = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        seen.append(float(torch.cat([g.flatten() for g in grads]).norm()))
        return original(self, closure)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.Adam, "step", step)
        model.absorb(blobs())
    assert seen[0] == pytest.approx(1e-3, rel=1e-3)


def test_the_function_space_term_holds_predictions_to_the_old_ones() -> None:
    x, y = blobs(seed=1)
    gaps = {}
    for weight in (0.0, 20.0):
        model = learner(epochs=40, family="point", learning_rate=1e-2, function_space=weight)
        model.absorb((x, y))
        old = model.predict(x).mean
        model.absorb((x, (y + 1) % 3))  # the opposite of what was learned
        gaps[weight] = float((model.predict(x).mean - old).abs().mean())
    assert gaps[20.0] < 0.3 * gaps[0.0]


def test_a_term_of_the_users_joins_the_sum() -> None:
    def shrink(step: Step) -> Tensor:
        return 1e4 * torch.stack([draw.weight.square().sum() for draw in step.draws.values()]).sum()

    plain, shrunk = learner(family="point", epochs=30), learner(family="point", epochs=30, terms={"shrink": shrink})
    for model in (plain, shrunk):
        model.absorb(blobs())
    size = {id(m): sum(float(v.square().sum()) for v in m.belief.mean().values()) for m in (plain, shrunk)}
    assert size[id(shrunk)] < 0.7 * size[id(plain)]


def test_a_term_may_not_take_the_place_of_ours() -> None:
    with pytest.raises(SettingError, match="terms: kl is a term of the objective already"):
        learner(terms={"kl": lambda step: step.outputs.sum()}).absorb(blobs())


def test_augmentation_sees_training_inputs_only() -> None:
    seen: list[int] = []

    def augment(x: Tensor) -> Tensor:
        seen.append(len(x))
        return x

    model = learner(augment=augment, epochs=2)
    model.absorb(blobs())
    assert sum(seen) == 2 * 60
    model.predict(blobs()[0])
    assert sum(seen) == 2 * 60


def test_half_precision_learns_and_leaves_the_belief_in_full() -> None:
    model = learner(precision="bfloat16", epochs=40, temperature=0.05, learning_rate=1e-2)
    model.absorb(blobs())
    assert all(value.dtype == torch.float32 for value in model.belief.mean().values())
    score = model.score(blobs(seed=9))
    assert score.accuracy is not None
    assert score.accuracy > 0.7


def test_progress_is_told_of_every_step() -> None:
    told: list[Progress] = []
    model = learner()
    postprior.absorb(
        model.network,
        prior=model.belief,
        part=postprior.as_part(blobs()),
        likelihood=model.likelihood,
        settings=model.settings,
        progress=told.append,
    )
    assert [p.step for p in told] == list(range(1, 13))
    assert {p.num_steps for p in told} == {12}


def test_padding_rows_stay_known() -> None:
    embedding = nn.Embedding(5, 2, padding_idx=0)
    model = postprior.Learner(nn.Sequential(embedding, nn.Flatten(), nn.Linear(4, 3)), epochs=100, learning_rate=1e-2)
    g = torch.Generator().manual_seed(0)
    model.absorb((torch.randint(5, (60, 2), generator=g), torch.randint(3, (60,), generator=g)))
    assert model.belief.sd()["0.weight"][0].max() < 1e-5
    assert model.belief.mean()["0.weight"][0].abs().max() < 1e-5
    assert model.belief.sd()["0.weight"][1:].min() > 1e-2


def test_learned_noise_is_found_and_carried() -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(600, 1, generator=g)
    y = 2 * x[:, 0] + 0.3 * torch.randn(600, generator=g)
    model = postprior.Learner(
        nn.Linear(1, 1), likelihood="gaussian", steps=1500, learning_rate=0.02, schedule="linear", batch_size=300
    )
    for part in zip(x.chunk(2), y.chunk(2), strict=True):
        model.absorb(part)
    assert float(model.belief.mean()["likelihood.log_sd"].exp()) == pytest.approx(0.3, rel=0.1)
    # 600 observations know log sd to 1/sqrt(1200).
    assert float(model.belief.sd()["likelihood.log_sd"]) == pytest.approx(1200**-0.5, rel=0.3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 0.0}, r"temperature=0.0: expected a finite number above 0"),
        ({"epochs": 0}, r"epochs=0: expected a whole number from 1"),
        ({"holdout": 1.0}, r"holdout=1.0"),
        ({"schedule": "cosine"}, r"schedule='cosine': expected 'constant' or 'linear'"),
        ({"learning_rat": 1.0}, r"learning_rat is not a setting: expected one of temperature"),
    ],
)
def test_settings_are_checked_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        learner(**settings)


def test_everything_frozen_leaves_nothing_to_learn() -> None:
    with pytest.raises(SettingError, match="every parameter is frozen"):
        learner(frozen=("*",)).absorb(blobs())
