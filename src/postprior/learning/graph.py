"""A training step on a GPU, recorded once and replayed: for small kernels, launching costs more than they do."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from postprior.batch import Batch
from postprior.errors import SettingError

Item = Tensor | Batch
"""What a step is given: the numbers of the examples to fetch, or the examples."""


@contextmanager
def own_stream(device: torch.device, wanted: bool) -> Generator[None]:
    """Inside, work is queued on a stream of its own: what the default stream has begun cannot be recorded.

    And what is recorded on a stream shares the memory that cuBLAS works in with all else recorded there: torch frees it
    with the first recording that goes (pytorch issue 193402), so no two that live together may come from one stream.
    """
    if not wanted:
        yield
        return
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream(device).wait_stream(stream)


class RecordedStep:
    """A step on items of one shape. Whatever Python does in the step is done once, when it is recorded."""

    def __init__(self, step: Callable[[Item], Any], item: Item, generator: torch.Generator) -> None:
        self._item = _copy(item)
        self._graph = torch.cuda.CUDAGraph()
        self._graph.register_generator_state(generator)
        try:
            with torch.cuda.graph(self._graph, stream=torch.cuda.current_stream()):
                step(self._item)
        except (RuntimeError, ValueError) as error:
            raise SettingError(
                f"cuda_graph=True: a step of this network cannot be recorded ({error}): expected the same work on the "
                "GPU at every step, with no value read back; set cuda_graph=False"
            ) from error

    def fits(self, item: Item) -> bool:
        """Whether the item has the shapes that were recorded."""
        return [(t.shape, t.dtype) for t in _tensors(item)] == [(t.shape, t.dtype) for t in _tensors(self._item)]

    def replay(self, item: Item) -> None:
        """Take the step on this item."""
        for mine, given in zip(_tensors(self._item), _tensors(item), strict=True):
            mine.copy_(given, non_blocking=True)
        self._graph.replay()


def recordable(item: Item) -> bool:
    """Whether all of the item are tensors on a GPU, which can be put in the place of others."""
    values = [item] if isinstance(item, Tensor) else [item.targets, *(value for _, value in item.inputs())]
    return all(isinstance(value, Tensor) and value.is_cuda for value in values)


def _tensors(item: Item) -> list[Tensor]:
    if isinstance(item, Tensor):
        return [item]
    return [value for _, value in [("", item.targets), *item.inputs()] if isinstance(value, Tensor)]


def _copy(item: Item) -> Item:
    if isinstance(item, Tensor):
        return item.clone()

    def copied(value: Any) -> Any:
        return value.clone() if isinstance(value, Tensor) else value

    kwargs = {key: copied(value) for key, value in item.kwargs.items()}
    return Batch(tuple(map(copied, item.args)), kwargs, copied(item.targets))
