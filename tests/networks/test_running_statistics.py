"""Running statistics are the exact moments of all data seen, however they were cut into parts and batches."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from contracts.family_contract import generator
from postprior import Learner

NUM_EXAMPLES = 103
CUTS = {1: [103], 3: [50, 36, 17], 7: [5, 40, 2, 16, 17, 20, 3]}
BATCH_SIZES = [4, 16, 34, 1000]  # 103 = 6 x 17 + 1 and 17 = 16 + 1: some last batches are of one example


def examples(*shape: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Inputs that drift, so that no part looks like another, and labels."""
    source = generator(1)
    inputs = torch.randn(NUM_EXAMPLES, *shape, generator=source, dtype=dtype)
    drift = torch.linspace(-2, 5, NUM_EXAMPLES, dtype=dtype).view(-1, *[1] * len(shape))
    scales = torch.linspace(0.5, 3, shape[0], dtype=dtype).view(-1, *[1] * (len(shape) - 1))
    return (inputs + drift) * scales + 3, torch.randint(2, (NUM_EXAMPLES,), generator=source)


def absorbed(
    network: nn.Module, data: tuple[Tensor, Tensor], num_parts: int, batch_size: int, **options: object
) -> Learner:
    learner = Learner(network, epochs=1, batch_size=batch_size, score_samples=0, **options)
    start = 0
    for size in CUTS[num_parts]:
        learner.absorb(tuple(tensor[start : start + size] for tensor in data))
        start += size
    assert start == NUM_EXAMPLES
    return learner


def batch_moments(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and unbiased variance of each channel over everything, as torch defines running statistics."""
    channels = inputs.double().movedim(1, 0).flatten(1)
    return channels.mean(1), channels.var(1)


def instance_moments(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Averages over examples of each one's own mean and unbiased variance."""
    pixels = inputs.double().flatten(2)
    return pixels.mean(2).mean(0), pixels.var(2).mean(0)


Moments = Callable[[Tensor], tuple[Tensor, Tensor]]
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], Moments]] = {
    "BatchNorm1d": (lambda: nn.BatchNorm1d(3), (3,), batch_moments),
    "BatchNorm1d of sequences": (lambda: nn.BatchNorm1d(3), (3, 2), batch_moments),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(2, momentum=None), (2, 2, 3), batch_moments),
    "BatchNorm2d without weights": (lambda: nn.BatchNorm2d(2, affine=False), (2, 2, 3), batch_moments),
    "BatchNorm3d": (lambda: nn.BatchNorm3d(2, momentum=0.9), (2, 1, 2, 2), batch_moments),
    "InstanceNorm1d": (lambda: nn.InstanceNorm1d(3, track_running_stats=True), (3, 4), instance_moments),
    "InstanceNorm2d": (
        lambda: nn.InstanceNorm2d(2, affine=True, track_running_stats=True),
        (2, 3, 2),
        instance_moments,
    ),
}


def network_of(layer: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        width = int(torch.tensor(shape).prod())
        return nn.Sequential(layer, nn.Flatten(), nn.Dropout(0.3), nn.Linear(width, 2))


@pytest.mark.parametrize("batch_size", BATCH_SIZES)
@pytest.mark.parametrize("num_parts", CUTS)
@pytest.mark.parametrize("name", LAYERS)
def test_running_statistics_are_the_moments_of_all_data(name: str, num_parts: int, batch_size: int) -> None:
    make, shape, moments = LAYERS[name]
    data = examples(*shape)
    learner = absorbed(network_of(make(), shape).double(), data, num_parts, batch_size)
    mean, variance = moments(data[0])
    buffers = learner.belief.buffers
    torch.testing.assert_close(buffers["0.running_mean"], mean, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(buffers["0.running_var"], variance, rtol=1e-10, atol=1e-10)
    in_one = data[0].shape[0] if moments is instance_moments else data[0].numel() // shape[0]
    assert learner.belief.counts == {"0": in_one}


@pytest.mark.parametrize("family", ["point", "factorized", "multiplicative"])
@pytest.mark.parametrize("num_parts", CUTS)
def test_in_float32_too_and_for_every_family(num_parts: int, family: str) -> None:
    data = examples(3, dtype=torch.float32)
    learner = absorbed(network_of(nn.BatchNorm1d(3), (3,)), data, num_parts, 16, family=family)
    mean, variance = batch_moments(data[0])
    torch.testing.assert_close(learner.belief.buffers["0.running_mean"].double(), mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(learner.belief.buffers["0.running_var"].double(), variance, rtol=1e-5, atol=1e-5)


def test_predictions_use_the_statistics() -> None:
    data = examples(3)
    network = network_of(nn.BatchNorm1d(3), (3,)).double()
    before = copy.deepcopy(network.state_dict())
    learner = absorbed(network, data, 3, 16, family="point")
    deployed = learner.mean_network()
    mean, variance = batch_moments(data[0])
    weights = learner.belief.mean()
    standard = (data[0] - mean) / (variance + 1e-5).sqrt() * weights["0.weight"] + weights["0.bias"]
    expected = (standard @ weights["3.weight"].T + weights["3.bias"]).softmax(1)
    torch.testing.assert_close(learner.predict(data[0], num_samples=1).mean, expected, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(deployed(data[0]).softmax(1).detach(), expected, rtol=1e-8, atol=1e-8)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_statistics_survive_being_put_away_between_parts(tmp_path: Path) -> None:
    data = examples(3)
    network = network_of(nn.BatchNorm1d(3), (3,)).double()
    learner = Learner(network, epochs=1, batch_size=16)
    learner.absorb((data[0][:40], data[1][:40]))
    learner.save(tmp_path / "learner.safetensors")
    again = Learner.load(tmp_path / "learner.safetensors", network)
    again.absorb((data[0][40:], data[1][40:]))
    mean, variance = batch_moments(data[0])
    torch.testing.assert_close(again.belief.buffers["0.running_mean"], mean, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(again.belief.buffers["0.running_var"], variance, rtol=1e-10, atol=1e-10)
    assert again.belief.counts == {"0": NUM_EXAMPLES}


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(3), nn.InstanceNorm1d(3, affine=True, track_running_stats=True)])
@pytest.mark.parametrize("by_pattern", [True, False])
def test_statistics_of_a_fully_frozen_layer_do_not_move(layer: nn.Module, by_pattern: bool) -> None:
    layer = copy.deepcopy(layer).double()
    running_mean, running_var = layer.get_buffer("running_mean"), layer.get_buffer("running_var")
    running_mean.copy_(torch.tensor([1.0, 2.0, 3.0]))
    running_var.copy_(torch.tensor([0.5, 1.5, 2.5]))
    network = nn.Sequential(layer, nn.BatchNorm1d(3), nn.Flatten(), nn.Linear(6, 2)).double()
    layer.requires_grad_(by_pattern)
    data = examples(3, 2)
    learner = absorbed(network, data, 3, 16, frozen=("0.*",) if by_pattern else ())
    buffers = learner.belief.buffers
    assert torch.equal(buffers["0.running_mean"], running_mean)
    assert torch.equal(buffers["0.running_var"], running_var)
    assert learner.belief.counts.keys() == {"1"}
    # It normalised by its own statistics all along, so the layer behind it saw this:
    seen = (data[0] - running_mean.view(1, -1, 1)) / (running_var.view(1, -1, 1) + 1e-5).sqrt()
    torch.testing.assert_close(buffers["1.running_mean"], batch_moments(seen)[0], rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(buffers["1.running_var"], batch_moments(seen)[1], rtol=1e-8, atol=1e-8)


def test_a_fresh_start_keeps_the_statistics_of_earlier_parts() -> None:
    data = examples(3)
    learner = absorbed(network_of(nn.BatchNorm1d(3), (3,)).double(), data, 3, 16, start="fresh")
    mean, variance = batch_moments(data[0])
    torch.testing.assert_close(learner.belief.buffers["0.running_mean"], mean)
    torch.testing.assert_close(learner.belief.buffers["0.running_var"], variance)


def test_statistics_of_a_partly_frozen_layer_move() -> None:
    data = examples(3)
    learner = absorbed(network_of(nn.BatchNorm1d(3), (3,)).double(), data, 3, 16, frozen=("0.weight",))
    mean, _ = batch_moments(data[0])
    torch.testing.assert_close(learner.belief.buffers["0.running_mean"], mean, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("num_examples", "batch_size"), [(17, 16), (9, 4), (3, 2), (2, 128)])
def test_a_last_batch_of_one_example_does_not_fail(num_examples: int, batch_size: int) -> None:
    data = tuple(tensor[:num_examples] for tensor in examples(3))
    learner = Learner(network_of(nn.BatchNorm1d(3), (3,)).double(), epochs=2, batch_size=batch_size)
    learner.absorb(data)
    torch.testing.assert_close(learner.belief.buffers["0.running_mean"], data[0].mean(0), rtol=1e-10, atol=1e-10)


def test_examples_held_out_are_not_counted() -> None:
    learner = Learner(network_of(nn.BatchNorm1d(3), (3,)).double(), epochs=1, holdout=0.2, batch_size=16)
    update = learner.absorb(examples(3))
    assert learner.belief.counts == {"0": update.num_examples} == {"0": NUM_EXAMPLES - 21}


class ByKeyword(nn.Module):
    """A network that names the input of its norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(input=x))


def test_a_layer_called_by_keyword_is_watched_too() -> None:
    data = examples(3)
    learner = absorbed(ByKeyword().double(), data, 3, 16)
    torch.testing.assert_close(learner.belief.buffers["norm.running_mean"], data[0].mean(0), rtol=1e-10, atol=1e-10)


def test_a_layer_used_twice_in_one_call_counts_both_inputs() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.head = nn.BatchNorm1d(3), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.norm(x) + self.norm(2 * x))

    data = examples(3)
    learner = absorbed(Twice().double(), data, 3, 16)
    mean, variance = batch_moments(torch.cat([data[0], 2 * data[0]]))
    torch.testing.assert_close(learner.belief.buffers["norm.running_mean"], mean, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(learner.belief.buffers["norm.running_var"], variance, rtol=1e-10, atol=1e-10)
