"""A training step on a GPU, recorded once and replayed: for small kernels, launching costs more than they do."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from postprior.batch import Batch
from postprior.errors import SettingError


@contextmanager
def own_stream(device: torch.device, wanted: bool) -> Generator[None]:
    """Inside, work is queued on a stream of its own: what the default stream has begun cannot be recorded."""
    if not wanted:
        yield
        return
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream(device).wait_stream(stream)


class RecordedStep:
    """A step on batches of one shape. Whatever Python does in the step is done once, when it is recorded."""

    def __init__(self, step: Callable[[Batch], Any], batch: Batch, generator: torch.Generator) -> None:
        self._batch = _like(batch)
        self._graph = torch.cuda.CUDAGraph()
        self._graph.register_generator_state(generator)
        try:
            with torch.cuda.graph(self._graph, stream=torch.cuda.current_stream()):
                step(self._batch)
        except (RuntimeError, ValueError) as error:
            raise SettingError(
                f"cuda_graph=True: a step of this network cannot be recorded ({error}): expected the same work on the "
                "GPU at every step, with no value read back; set cuda_graph=False"
            ) from error

    def fits(self, batch: Batch) -> bool:
        """Whether the batch has the shapes that were recorded."""
        return [(t.shape, t.dtype) for t in _tensors(batch)] == [(t.shape, t.dtype) for t in _tensors(self._batch)]

    def replay(self, batch: Batch) -> None:
        """Take the step on this batch."""
        for mine, given in zip(_tensors(self._batch), _tensors(batch), strict=True):
            mine.copy_(given, non_blocking=True)
        self._graph.replay()


def recordable(batch: Batch) -> bool:
    """Whether all that the batch holds are tensors, which can be put in the place of others."""
    return all(isinstance(value, Tensor) for _, value in [("", batch.targets), *batch.inputs()])


def _tensors(batch: Batch) -> list[Tensor]:
    return [value for _, value in [("", batch.targets), *batch.inputs()] if isinstance(value, Tensor)]


def _like(batch: Batch) -> Batch:
    def copied(value: Any) -> Any:
        return value.clone() if isinstance(value, Tensor) else value

    kwargs = {key: copied(value) for key, value in batch.kwargs.items()}
    return Batch(tuple(map(copied, batch.args)), kwargs, copied(batch.targets))
