"""An absorption that is stopped at any step and resumed in another process ends at the same bytes."""

import json
import math
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import postprior
from postprior import Checkpointing, Settings
from postprior.batch import Part
from postprior.errors import BeliefError, PartError, SettingError, StoppedError
from postprior.learning.objective import Step
from postprior.learning.training import Progress
from postprior.networks.belief import digest
from postprior.store.tensors import read_tensors, write_tensors

Plain = tuple[Mapping[str, Tensor], Mapping[str, Any]]


def examples(num_examples: int = 40, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(num_examples, 1, 5, 5, generator=g), torch.randint(3, (num_examples,), generator=g)


def network(*, norm: bool = False, dropout: bool = False, channels_last: bool = False) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        between = [*([nn.BatchNorm2d(4)] if norm else []), nn.ReLU(), *([nn.Dropout(0.3)] if dropout else [])]
        made = nn.Sequential(nn.Conv2d(1, 2, 2), nn.Conv2d(2, 4, 2), *between, nn.Flatten(), nn.Linear(36, 3))
        return made.to(memory_format=torch.channels_last) if channels_last else made


def regressing() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(network(), nn.Linear(3, 1), nn.Flatten(0))


def jittered(x: Tensor) -> Tensor:
    return x + 0.1 * torch.randn_like(x)


def modest(step: Step) -> Tensor:
    return step.whole_part(step.outputs.square().mean(1))


class Jittered(Dataset[tuple[Tensor, Tensor]]):
    """A dataset that draws from torch's global generator at every look."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        x, y = examples()
        return jittered(x[i]), y[i]


def loader(**options: Any) -> Part:
    return postprior.as_part(DataLoader(TensorDataset(*examples()), batch_size=16, **options))


def tensors() -> Part:
    return postprior.as_part(examples())


@dataclass
class Case:
    """What is absorbed, after a first part, and how."""

    settings: Settings
    network: Callable[[], nn.Module] = network
    family: str = "factorized"
    part: Callable[[], Part] = tensors
    likelihood: postprior.Likelihood = field(default_factory=postprior.Categorical)
    patterns: dict[str, Any] = field(default_factory=dict)
    terms: Mapping[str, Callable[[Step], Tensor]] = field(default_factory=dict)

    def prior(self) -> postprior.Belief:
        """After one part, so that the posterior starts from what was learned."""
        model = self.network()
        unknowns = self.likelihood.unknowns()
        first = postprior.first_belief(model, self.family, unknowns=unknowns, **self.patterns)
        plain = replace(self.settings, epochs=1, steps=None, holdout=0.0)
        part = postprior.as_part(examples(seed=1))
        return postprior.absorb(model, prior=first, part=part, likelihood=self.likelihood, settings=plain)[0]

    def absorb(self, prior: postprior.Belief, **more: Any) -> tuple[postprior.Belief, postprior.Update]:
        keywords = {"likelihood": self.likelihood, "settings": self.settings, "seed": 5, "terms": self.terms}
        return postprior.absorb(self.network(), prior=prior, part=self.part(), **keywords, **more)


def settings(**given: Any) -> Settings:
    return Settings(**{"epochs": 3, "batch_size": 16, "learning_rate": 0.01, "score_samples": 2, **given})


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(8)


def stopping_early() -> Settings:
    return settings(epochs=6, holdout=0.2, patience=2, learning_rate=0.05)


CASES: dict[str, Case] = {
    "factorized": Case(settings()),
    "channelwise": Case(settings(), family="channelwise"),
    "multiplicative": Case(settings(), family="multiplicative"),
    "point": Case(settings(), family="point"),
    "some points, some frozen": Case(settings(), patterns={"point": ["1.*"], "frozen": ["*.bias"]}),
    "channels last": Case(settings(), lambda: network(channels_last=True), "channelwise"),
    "steps, a falling rate, pairs": Case(settings(steps=8, schedule="linear", num_samples=2, clip_norm=0.1)),
    "local, mirrored, dropout": Case(
        settings(local_reparameterization=True, num_samples=2), lambda: network(dropout=True)
    ),
    "norm, dropout, early stop": Case(stopping_early(), lambda: network(norm=True, dropout=True)),
    "early stop of a flow": Case(stopping_early(), family="multiplicative"),
    "augmented": Case(settings(augment=jittered)),
    "function space, own term": Case(settings(function_space=1.0), terms={"modest": modest}),
    "half precision": Case(settings(precision="float16")),
    "a fresh start": Case(settings(start="fresh")),
    "shuffled loader": Case(settings(), lambda: network(dropout=True), part=lambda: loader(shuffle=True)),
    "seeded loader": Case(settings(), part=lambda: loader(shuffle=True, generator=seeded())),
    "random dataset": Case(settings(), part=lambda: postprior.as_part(Jittered())),
    "random dataset, loader, early stop": Case(
        settings(steps=8), part=lambda: postprior.as_part(DataLoader(Jittered(), batch_size=16, shuffle=True))
    ),
    "learned noise": Case(settings(), regressing, likelihood=postprior.Gaussian()),
}


def through_json(checkpoint: Plain) -> Plain:
    kept, about = checkpoint
    return kept, json.loads(json.dumps(about, sort_keys=True))


def every_checkpoint(case: Case, prior: postprior.Belief) -> tuple[list[Plain], postprior.Belief, postprior.Update]:
    saved: list[Plain] = []
    how = Checkpointing(lambda kept, about: saved.append(through_json((kept, about))), every_seconds=0)
    return saved, *case.absorb(prior, checkpointing=how)


def nowhere(kept: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    del kept, about


def resumed(case: Case, prior: postprior.Belief, checkpoint: Plain) -> tuple[postprior.Belief, postprior.Update]:
    return case.absorb(prior, checkpointing=Checkpointing(nowhere, math.inf, checkpoint))


def timeless(update: postprior.Update) -> postprior.Update:
    return replace(update, seconds=0.0)


@pytest.mark.parametrize("name", CASES)
def test_resumed_from_any_step_it_ends_at_the_same_bytes(name: str) -> None:
    case = CASES[name]
    prior = case.prior()
    belief, update = case.absorb(prior)
    checkpoints, saving, of_saving = every_checkpoint(case, prior)
    assert digest(saving) == digest(belief)
    assert timeless(of_saving) == timeless(update)
    assert len(checkpoints) == update.num_steps >= 8
    assert update.stopped_early is ("early stop" in name and "loader" not in name)
    for checkpoint in checkpoints:
        torch.rand(3)  # another process has drawn other numbers
        again, report = resumed(case, prior, checkpoint)
        assert digest(again) == digest(belief)
        assert timeless(report) == timeless(update)


def test_a_checkpoint_of_a_resumed_absorption_is_that_of_an_uninterrupted_one() -> None:
    case = CASES["norm, dropout, early stop"]
    prior = case.prior()
    checkpoints, *_ = every_checkpoint(case, prior)
    later: list[Plain] = []
    how = Checkpointing(lambda kept, about: later.append((kept, about)), 0, checkpoints[1])
    case.absorb(prior, checkpointing=how)
    assert len(later) == len(checkpoints) - 2
    for (kept, about), (kept_then, about_then) in zip(later, checkpoints[2:], strict=True):
        assert kept.keys() == kept_then.keys()
        assert all(torch.equal(kept[name], kept_then[name]) for name in kept)
        assert {**about, "seconds": 0} == {**about_then, "seconds": 0}


@pytest.fixture(scope="module")
def in_a_new_process(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The digest of each case, stopped in the middle here and resumed there."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for number, case in enumerate(CASES.values()):
        steps = iter(range(1, 100))

        def write(kept: Mapping[str, Tensor], about: Mapping[str, Any], number: int = number) -> None:
            write_tensors(folder / f"{number}.safetensors", kept, about)

        how = Checkpointing(write, math.inf, stop=lambda steps=steps: next(steps) == 5)
        with pytest.raises(StoppedError):
            case.absorb(case.prior(), checkpointing=how)
    code = f"import test_checkpoint; test_checkpoint.resume_all({str(folder)!r})"
    paths = [str(Path(__file__).parent), *sys.path]
    options: dict[str, Any] = {"capture_output": True, "text": True}
    threads = str(torch.get_num_threads())  # sums are rounded in another order with another number
    environment = {"PYTHONPATH": ":".join(paths), "OMP_NUM_THREADS": threads}
    done = subprocess.run([sys.executable, "-c", code], env=environment, **options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def resume_all(folder: str) -> None:
    """Run in a new process."""
    found: dict[str, str] = {}
    for number, (name, case) in enumerate(CASES.items()):
        belief, _ = resumed(case, case.prior(), read_tensors(Path(folder) / f"{number}.safetensors"))
        found[name] = digest(belief)
    sys.stdout.write(json.dumps(found))


@pytest.mark.parametrize("name", CASES)
def test_a_new_process_ends_at_the_same_bytes(name: str, in_a_new_process: dict[str, str]) -> None:
    case = CASES[name]
    assert in_a_new_process[name] == digest(case.absorb(case.prior())[0])


# When it is saved, and when it stops.


def kept_at_a_stop(case: Case, prior: postprior.Belief, step: int) -> list[Plain]:
    saved: list[Plain] = []
    asked = iter(range(1, 100))
    how = Checkpointing(lambda *given: saved.append(given), math.inf, stop=lambda: next(asked) == step)
    message = f"absorption was stopped on request at step {step} of 9; its checkpoint is kept"
    with pytest.raises(StoppedError, match=message):
        case.absorb(prior, checkpointing=how)
    return saved


@pytest.mark.parametrize("step", [1, 3, 9])
def test_a_stop_is_heard_after_the_step_and_saves_it(step: int) -> None:
    case = CASES["factorized"]
    prior = case.prior()
    before = digest(prior)
    (checkpoint,) = kept_at_a_stop(case, prior, step)
    assert digest(prior) == before
    told: list[Progress] = []
    how = Checkpointing(nowhere, math.inf, checkpoint)
    belief, _ = case.absorb(prior, checkpointing=how, progress=told.append)
    assert [p.step for p in told] == list(range(step + 1, 10))
    assert digest(belief) == digest(case.absorb(prior)[0])


def test_it_can_be_stopped_again_and_again() -> None:
    case = CASES["norm, dropout, early stop"]
    prior, kept, stops = case.prior(), None, 0
    while True:
        saved: list[Plain] = []
        asked = iter(range(1, 100))
        stop_after_two = Checkpointing(
            lambda *given, saved=saved: saved.append(given),
            math.inf,
            kept,
            stop=lambda asked=asked: next(asked) == 2,
        )
        try:
            belief, update = case.absorb(prior, checkpointing=stop_after_two)
            break
        except StoppedError:
            (kept,), stops = saved, stops + 1
    assert stops == update.num_steps // 2
    assert digest(belief) == digest(case.absorb(prior)[0])


def test_nothing_is_saved_before_it_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    case, now = CASES["factorized"], [0.0]

    def clock() -> float:
        now[0] += 1.0
        return now[0]

    monkeypatch.setattr("postprior.learning.checkpoint.time.monotonic", clock)
    prior = case.prior()
    for seconds, expected in ((0.0, 9), (1e9, 0), (math.inf, 0)):
        saved: list[int] = []
        how = Checkpointing(lambda _, about, saved=saved: saved.append(about["training"]["steps"]["step"]), seconds)
        case.absorb(prior, checkpointing=how)
        assert len(saved) == expected
    few: list[int] = []
    case.absorb(prior, checkpointing=Checkpointing(lambda _, about: few.append(about["training"]["steps"]["step"]), 4))
    assert 1 < len(few) < 9


def test_what_is_saved_is_a_copy_and_resuming_leaves_it_alone() -> None:
    case = CASES["norm, dropout, early stop"]
    prior = case.prior()
    checkpoints, *_ = every_checkpoint(case, prior)
    kept, about = checkpoints[7]
    before = {name: value.clone() for name, value in kept.items()}
    assert len({value.untyped_storage().data_ptr() for value in kept.values()}) == len(kept)
    first = digest(resumed(case, prior, (kept, about))[0])
    assert all(torch.equal(kept[name], value) for name, value in before.items())
    assert digest(resumed(case, prior, (kept, about))[0]) == first


def test_the_part_is_scored_once_and_the_seconds_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["factorized"]
    prior = case.prior()
    (kept, about), *_ = kept_at_a_stop(case, prior, 4)

    def scored(*_: Any, **__: Any) -> None:
        raise AssertionError("the part was scored again")

    monkeypatch.setattr("postprior.learning.absorb.score", scored)
    _, update = resumed(case, prior, (kept, {**about, "seconds": 1000.0}))
    assert update.before is not None
    assert 1000 < update.seconds < 1100


def test_the_global_generator_is_left_alone_by_a_stop_and_by_resuming() -> None:
    case = CASES["local, mirrored, dropout"]
    prior = case.prior()
    torch.manual_seed(3)
    state = torch.get_rng_state()
    (checkpoint,) = kept_at_a_stop(case, prior, 4)
    assert torch.equal(torch.get_rng_state(), state)
    resumed(case, prior, checkpoint)
    assert torch.equal(torch.get_rng_state(), state)


# What is refused.


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"learning_rate": 0.5}, r"made with learning_rate=0.01, found learning_rate=0.5: resume with what"),
        ({"epochs": 4}, "made with epochs=3, found epochs=4"),
        ({"augment": jittered}, "made with augment=False, found augment=True"),
    ],
)
def test_other_settings_are_refused(changed: dict[str, Any], message: str) -> None:
    case = CASES["factorized"]
    prior = case.prior()
    (checkpoint,) = kept_at_a_stop(case, prior, 4)
    with pytest.raises(SettingError, match=message):
        resumed(replace(case, settings=replace(case.settings, **changed)), prior, checkpoint)


def test_another_prior_seed_likelihood_term_or_part_is_refused() -> None:
    case = CASES["factorized"]
    prior = case.prior()
    (checkpoint,) = kept_at_a_stop(case, prior, 4)
    how = Checkpointing(nowhere, resume_from=checkpoint)
    with pytest.raises(BeliefError, match=r"made from another prior \(digest [0-9a-f]{12}, expected [0-9a-f]{12}\)"):
        resumed(case, case.absorb(prior)[0], checkpoint)
    with pytest.raises(SettingError, match="made with seed=5, found seed=6"):
        postprior.absorb(
            case.network(),
            prior=prior,
            part=case.part(),
            likelihood=case.likelihood,
            settings=case.settings,
            seed=6,
            checkpointing=how,
        )
    with pytest.raises(SettingError, match=r"made with likelihood=.*categorical.*bernoulli"):
        resumed(replace(case, likelihood=postprior.Bernoulli()), prior, checkpoint)
    with pytest.raises(SettingError, match=r"made with terms=.*modest"):
        resumed(replace(case, terms={"modest": modest}), prior, checkpoint)
    for fewer in (examples(30), DataLoader(TensorDataset(*examples(30)))):
        with pytest.raises(PartError, match="made in a part of 40 examples, this one has 30: resume with the same"):
            resumed(replace(case, part=lambda fewer=fewer: postprior.as_part(fewer)), prior, checkpoint)


def test_a_checkpoint_of_another_format_or_without_a_tensor_is_refused() -> None:
    case = CASES["factorized"]
    prior = case.prior()
    ((kept, about),) = kept_at_a_stop(case, prior, 4)
    with pytest.raises(SettingError, match="has format 2, expected a checkpoint of format 1"):
        resumed(case, prior, (kept, {**about, "format": 2}))
    lacking = {name: value for name, value in kept.items() if not name.endswith("0.weight")}
    with pytest.raises(SettingError, match=r"the checkpoint is of another network: network.0.weight is in one of them"):
        resumed(case, prior, (lacking, about))


@pytest.mark.parametrize("seconds", [-1.0, math.nan])
def test_a_time_that_is_none_is_refused(seconds: float) -> None:
    with pytest.raises(SettingError, match=r"every_seconds=.*: expected a number of seconds from 0"):
        Checkpointing(nowhere, seconds)
