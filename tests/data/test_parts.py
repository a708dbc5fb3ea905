"""Arrays, datasets and loaders as parts: what is refused before anything is learned."""

from typing import Any

import numpy as np
import pytest
import torch

from postprior.data.parts import as_inputs, as_part
from postprior.errors import PartError

X, Y = torch.randn(5, 2), torch.arange(5)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((X, Y[:4]), "expected as many targets as inputs, found 5 input, 4 targets"),
        ((X, torch.tensor(1)), "targets: expected a tensor or array of examples, found Tensor of shape"),
        ((X.to_sparse(), Y), "input is a sparse tensor, whose examples cannot be taken by number; make it dense"),
        ((X, np.array([None] * 5)), r"part\[1\]: expected numbers in a tensor or array, found ndarray of shape \(5,\)"),
        ({"a": X, "b": X}, r"expected one of the keys label, .* to hold the targets, found \['a', 'b'\]: say which"),
        (X, r"expected \(inputs, targets\) or a dictionary, found Tensor of shape \(5, 2\)"),
    ],
)
def test_a_bad_part(data: Any, message: str) -> None:
    with pytest.raises(PartError, match=message):
        as_part(data)


@pytest.mark.parametrize(("batch_size", "sizes"), [(2, [2, 3]), (3, [3, 2]), (1, [1] * 5), (9, [5])])
def test_no_batch_of_one_is_left_over(batch_size: int, sizes: list[int]) -> None:
    part = as_part((X, Y))
    batches = list(part.batches(batch_size, torch.Generator().manual_seed(0)))
    assert [len(batch) for batch in batches] == sizes
    assert part.num_batches(batch_size) == len(sizes)
    assert sorted(torch.cat([batch.targets for batch in batches if batch.targets is not None]).tolist()) == [
        0,
        1,
        2,
        3,
        4,
    ]


def test_inputs_have_no_targets() -> None:
    (batch,) = as_inputs((X, Y)).batches(9)
    assert (len(batch.args), batch.targets) == (2, None)
