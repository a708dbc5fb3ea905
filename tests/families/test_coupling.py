"""One vector goes another way than many, with a gradient that is written down: autograd's, of many, is the oracle."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from postprior.maths import coupling
from postprior.maths.coupling import Conditioner

HIDDEN = 5


def conditioner(size: int, *, decides_even: bool) -> Conditioner:
    generator = torch.Generator().manual_seed(size)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()

    deciding = (size + 1) // 2 if decides_even else size // 2
    rest = size - deciding
    return Conditioner(normal(HIDDEN, deciding), normal(HIDDEN), normal(2 * rest, HIDDEN), normal(2 * rest))


def gradients(mapped: Tensor, log_det: Tensor, of: list[Tensor]) -> tuple[Tensor, ...]:
    """Of a number in which all elements count differently."""
    return torch.autograd.grad((mapped * torch.arange(1.0, 1.0 + mapped.numel())).sum() + 3 * log_det.sum(), of)


@pytest.mark.parametrize("size", [2, 3, 8, 9])
@pytest.mark.parametrize("decides_even", [True, False])
@pytest.mark.parametrize("way", [coupling.forward, coupling.inverse])
def test_one_vector_is_mapped_like_many(
    size: int, decides_even: bool, way: Callable[..., tuple[Tensor, Tensor]]
) -> None:
    net = conditioner(size, decides_even=decides_even)
    vector = torch.linspace(0.2, 1.7, size, dtype=torch.float64).requires_grad_()
    one = way(vector, net, decides_even=decides_even)
    many = way(vector.unsqueeze(0), net, decides_even=decides_even)
    torch.testing.assert_close(one, tuple(each[0] for each in many))
    known = [vector, *net]
    torch.testing.assert_close(gradients(*one, known), gradients(*many, known))


@pytest.mark.parametrize("way", [coupling.forward, coupling.inverse])
def test_weights_that_do_not_learn_get_no_slope(way: Callable[..., tuple[Tensor, Tensor]]) -> None:
    net = Conditioner(*(weight.detach() for weight in conditioner(6, decides_even=True)))
    vector = torch.linspace(0.2, 1.7, 6, dtype=torch.float64).requires_grad_()
    one, many = (way(given, net, decides_even=True) for given in (vector, vector.unsqueeze(0)))
    torch.testing.assert_close(gradients(*one, [vector]), gradients(*many, [vector]))


def test_the_log_determinant_is_that_of_the_jacobian() -> None:
    net = Conditioner(*(weight.detach() for weight in conditioner(5, decides_even=False)))
    vector = torch.linspace(0.2, 1.7, 5, dtype=torch.float64)
    for way in (coupling.forward, coupling.inverse):
        jacobian = torch.autograd.functional.jacobian(lambda v, way=way: way(v, net, decides_even=False)[0], vector)
        torch.testing.assert_close(way(vector, net, decides_even=False)[1], torch.linalg.slogdet(jacobian)[1])
