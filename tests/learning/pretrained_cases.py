"""Networks that tests of pretrained weights share, in float64."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

Tensors = Mapping[str, Tensor]


@contextmanager
def float64_alone() -> Generator[None]:
    """Inside, float64 is what torch makes, on one thread, from a fixed seed."""
    threads = torch.get_num_threads()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(threads)


def assert_same(found: Tensors, expected: Tensors, rtol: float = 1e-8, atol: float = 1e-12) -> None:
    assert found.keys() == expected.keys()
    for name in found:
        torch.testing.assert_close(found[name], expected[name], rtol=rtol, atol=atol, msg=lambda m, n=name: f"{n}: {m}")


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase] = nn.LSTM) -> None:
        super().__init__()
        self.rnn: Any = kind(3, 4, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])


class Tied(nn.Module):
    """One matrix used twice, a parameter of its own, one that is used nowhere, and a second input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight
        self.scale, self.unused = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor, shift: Any = 0, *, flag: bool = True) -> Tensor:
        assert flag
        return self.second(torch.tanh(self.first(x))) * self.scale + shift


def small_net(outputs: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs))
