"""The everyday surface: names, saving and loading, and what survives a crash."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import postprior
from postprior.errors import BeliefError, SettingError, StoreError
from postprior.families import FAMILIES


def data(seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(40, 1, 6, 6, generator=g), torch.randint(3, (40,), generator=g)


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3, bias=False)
        )


def bytes_of(belief: postprior.Belief) -> str:
    digest = hashlib.sha256()
    for name in sorted(belief.weights):
        for key, value in sorted(belief.weights[name].state_dict().items()):
            digest.update(f"{name}/{key}".encode() + value.numpy().tobytes())
    for name, value in sorted(belief.buffers.items()):
        digest.update(name.encode() + value.numpy().tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_loaded_learner_goes_on_as_if_it_had_never_stopped(family: str, tmp_path: Path) -> None:
    learner = postprior.Learner(network(), family=family, epochs=2, seed=3, temperature=0.3)
    learner.absorb(data(1))
    learner.save(tmp_path / "learner")
    other = network()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()  # the weights come from the file, not from the network
    loaded = postprior.Learner.load(tmp_path / "learner", other)
    assert bytes_of(loaded.belief) == bytes_of(learner.belief)
    assert loaded.settings == learner.settings
    for each in (learner, loaded):
        each.absorb(data(2))
    assert bytes_of(loaded.belief) == bytes_of(learner.belief)
    assert loaded.belief.counts == learner.belief.counts == {"1": 2 * 40 * 16}
    assert torch.equal(loaded.predict(data(3)[0]).mean, learner.predict(data(3)[0]).mean)


def test_what_no_file_can_hold_must_be_given_again(tmp_path: Path) -> None:
    def likelihood(outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.log_softmax(1)[torch.arange(len(targets)), targets]

    postprior.Learner(network(), likelihood=likelihood).save(tmp_path / "learner")
    with pytest.raises(SettingError, match=r"functions of your own.*pass likelihood=... again"):
        postprior.Learner.load(tmp_path / "learner", network())
    loaded = postprior.Learner.load(tmp_path / "learner", network(), likelihood=likelihood, epochs=1)
    loaded.absorb(data())


def test_a_likelihood_class_of_the_users_must_be_given_again(tmp_path: Path) -> None:
    class Mine(postprior.Likelihood):
        name = "mine"

        def check(self, outputs: Tensor, targets: Tensor, first: int) -> Tensor:
            return targets

        def log_prob(self, outputs: Tensor, targets: Tensor, values: Any) -> Tensor:
            return -(outputs[:, 0] - targets).abs()

        def predictive(self, outputs: Tensor, values: Any) -> Any:
            raise AssertionError("not asked")

    postprior.Learner(network(), likelihood=Mine()).save(tmp_path / "learner")
    with pytest.raises(SettingError, match=r"pass likelihood=... again"):
        postprior.Learner.load(tmp_path / "learner", network())


def test_settings_and_likelihood_are_kept(tmp_path: Path) -> None:
    learner = postprior.Learner(nn.Linear(2, 1), likelihood=postprior.Gaussian(sd=0.7), temperature=0.2, seed=9)
    learner.save(tmp_path / "learner")
    loaded = postprior.Learner.load(tmp_path / "learner", nn.Linear(2, 1), epochs=3)
    assert loaded.likelihood == postprior.Gaussian(sd=0.7)
    assert (loaded.settings.temperature, loaded.settings.epochs, loaded.seed) == (0.2, 3, 9)


def damaged(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def foreign(path: Path) -> None:
    save_file({"x": torch.zeros(2)}, path)


def from_the_future(path: Path) -> None:
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    header["__metadata__"]["postprior"] = header["__metadata__"]["postprior"].replace('"format": 1', '"format": 9')
    new = json.dumps(header).encode()
    path.write_bytes(len(new).to_bytes(8, "little") + new + raw[8 + size :])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (damaged, "is damaged or not one of ours"),
        (foreign, "holds tensors, but no belief"),
        (from_the_future, "has format 9, expected 1"),
        (Path.unlink, "no such file"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(spoil: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "learner"
    postprior.Learner(network()).save(path)
    spoil(path)
    with pytest.raises(StoreError, match=message):
        postprior.Learner.load(path, network())


def test_another_network_is_refused_with_the_differences(tmp_path: Path) -> None:
    postprior.Learner(network()).save(tmp_path / "learner")
    other = network()
    other[4] = nn.Linear(64, 5, bias=False)  # type: ignore[index]
    with pytest.raises(BeliefError, match=r"4.weight has shape \(5, 64\) in the network and \(3, 64\) in the belief"):
        postprior.Learner.load(tmp_path / "learner", other)


def test_a_folder_that_is_not_there_is_an_error_and_not_a_traceback(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be written"):
        postprior.Learner(network()).save(tmp_path / "nowhere" / "learner")


KILLED = """
    import sys, torch, postprior
    learner = postprior.Learner(torch.nn.Linear(300, 300), likelihood=postprior.Gaussian(sd=1.0))
    print("ready", flush=True)
    while True:
        learner.save(sys.argv[1])
        print("saved", flush=True)
"""


def test_kill_9_in_the_middle_of_saving_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "learner"
    for delay in (0.0, 0.003, 0.011):
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(KILLED), str(path)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert process.stdout.readline() == "saved\n"
        time.sleep(delay)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        postprior.Learner.load(path, nn.Linear(300, 300))


LEARN = """
    import sys, torch
    torch.set_num_threads(int(sys.argv[1]))
    sys.path.insert(0, sys.argv[2])
    from test_learner import bytes_of, data
    import postprior
    from postprior.families import FAMILIES
    torch.manual_seed(0)
    # Large enough that torch shares the work out: below 32,768 numbers it stays on one thread.
    network = torch.nn.Sequential(
        torch.nn.Conv2d(1, 32, 3, padding=1), torch.nn.BatchNorm2d(32), torch.nn.Flatten(), torch.nn.Dropout(0.1),
        torch.nn.Linear(1152, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3),
    )
    for family in FAMILIES:
        for local in (False, True):
            options = {"epochs": 2, "seed": 1, "score_samples": 2, "local_reparameterization": local}
            learner = postprior.Learner(network, family=family, **options)
            learner.absorb(data(1))
            update, asked = learner.absorb(data(2)), learner.predict(data(3)[0], num_samples=5)
            told = update.kl, update.data_term, update.before.nll, float(asked.mean[0, 0])
            print(family, local, torch.get_num_threads(), bytes_of(learner.belief), *(x.hex() for x in told))
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_same_seed_same_bytes_in_a_new_process(threads: int) -> None:
    command = [sys.executable, "-c", textwrap.dedent(LEARN), str(threads), str(Path(__file__).parent)]
    one, other = (subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2))
    assert one == other
    lines = [line.split() for line in one.splitlines()]
    assert [line[0] for line in lines] == [family for family in FAMILIES for _ in (False, True)]
    assert {line[2] for line in lines} == {str(threads)}
    # Noise in the outputs is other noise than in the weights; a point has none, nor has a kernel's block locally.
    assert len({line[3] for line in lines}) == 2 * len(FAMILIES) - 1


def test_the_belief_is_frozen_and_named_as_the_network_names_it() -> None:
    plain = network()
    learner = postprior.Learner(plain, epochs=1)
    before = {name: value.clone() for name, value in plain.state_dict().items()}
    learner.absorb(data())
    belief = learner.belief
    assert belief.mean().keys() == belief.sd().keys() == dict(plain.named_parameters()).keys()
    belief.mean()["0.weight"].zero_()
    assert belief.mean()["0.weight"].abs().sum() > 0
    assert not any(p.requires_grad for family in belief.weights.values() for p in family.parameters())
    with pytest.raises(TypeError):
        belief.weights["0.weight"] = None  # type: ignore[index]
    for name, value in plain.state_dict().items():
        assert torch.equal(value, before[name])


def test_the_mean_network_is_plain_and_carries_the_statistics() -> None:
    learner = postprior.Learner(network(), epochs=3, temperature=0.1)
    learner.absorb(data())
    plain = learner.mean_network()
    assert type(plain) is nn.Sequential
    torch.testing.assert_close(
        plain(data(5)[0]).softmax(1).detach(), learner.predict(data(5)[0], at_mean=True).mean, atol=1e-6, rtol=0
    )


def test_the_public_names_are_what_they_say() -> None:
    source = Path(postprior.__file__).read_text()
    for name in postprior.__all__:
        assert getattr(postprior, name) is not None
        assert f"import {name} as {name}" in source
    with pytest.raises(AttributeError, match="has no 'learner_'; there are"):
        postprior.learner_  # noqa: B018


def test_importing_brings_nothing_heavy() -> None:
    code = "import sys, postprior; print([n for n in ('torch', 'rich', 'sklearn', 'matplotlib') if n in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
    code = "import sys; from postprior import Learner; print([n for n in ('torchmetrics', 'sklearn', 'matplotlib', 'typer', 'rich') if n in sys.modules])"  # noqa: E501
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
