"""Whatever holds examples, as a part: arrays, tensors, datasets and loaders; tuples and dictionaries of inputs."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from postprior.batch import Batch, Part
from postprior.errors import PartError

TARGET_NAMES = ("label", "labels", "target", "targets", "y")
"""Keys of a dictionary that are taken for the targets."""

Targets = Literal["needed", "passed over", "absent"]
"""Whether an item must hold targets, may hold some that nobody asks for, or is inputs only."""


class IndexedPart:
    """A part whose examples are fetched by number."""

    def __init__(self, fetch: Callable[[Tensor], Batch], indices: Tensor) -> None:
        self.fetch, self._indices = fetch, indices

    def __len__(self) -> int:
        return len(self._indices)

    def num_batches(self, batch_size: int) -> int:
        return len(_sizes(len(self), batch_size))

    def batches(self, batch_size: int, generator: torch.Generator | None = None) -> Iterator[Batch]:
        return map(self.fetch, self.chunks(batch_size, generator))

    def chunks(self, batch_size: int, generator: torch.Generator | None = None) -> Iterator[Tensor]:
        order = self._indices
        if generator is not None:
            order = order[torch.randperm(len(order), generator=generator).to(order.device)]
        return iter(order.split(_sizes(len(self), batch_size)))

    def split(self, num_held: int, generator: torch.Generator) -> tuple["IndexedPart", "IndexedPart"]:
        order = self._indices[torch.randperm(len(self), generator=generator).to(self._indices.device)]
        held, learned = order[:num_held].sort().values, order[num_held:].sort().values
        return IndexedPart(self.fetch, learned), IndexedPart(self.fetch, held)


class LoaderPart:
    """A part that a loader cuts into batches, shuffled as its maker pleases; ``loader`` makes one for a batch size."""

    def __init__(self, loader: Callable[[int], DataLoader[Any]], target: str | None, targets: Targets) -> None:
        self._loader, self._target = loader, target
        self._targets: Targets = targets

    def num_batches(self, batch_size: int) -> int | None:
        loader = self._loader(batch_size)
        return None if isinstance(loader.dataset, IterableDataset) else len(loader)

    def batches(self, batch_size: int, generator: torch.Generator | None = None) -> Iterator[Batch]:
        del generator
        return (to_batch(item, self._target, self._targets) for item in self._loader(batch_size))

    def generators(self) -> list[torch.Generator]:
        """Those that the maker of the loader gave it; without any it draws from torch's global one."""
        loader = self._loader(1)
        givers = (loader, loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None))
        found = [getattr(giver, "generator", None) for giver in givers]
        return list({id(own): own for own in found if isinstance(own, torch.Generator)}.values())

    def split(self, num_held: int, generator: torch.Generator) -> tuple["LoaderPart", "LoaderPart"]:
        raise PartError(
            "holdout needs a part whose examples can be chosen: give the dataset rather than its DataLoader"
        )


def as_part(data: Any, *, target: str | None = None) -> Part:
    """The data as a part to learn from.

    Takes ``(inputs, targets)`` of arrays or tensors, where inputs may be a tuple or a dictionary; a dictionary that
    holds the targets too; a Dataset or a DataLoader whose items are such tuples or dictionaries. ``target`` names the
    targets in a dictionary.
    """
    return _part(data, target, "needed")


def as_inputs(data: Any) -> Part:
    """The data as inputs to predict for; a tuple is several inputs. Targets in a Dataset or loader are passed over."""
    return _part(data, None, "passed over" if isinstance(data, (Dataset, DataLoader)) else "absent")


def to_batch(item: Any, target: str | None, targets: Targets) -> Batch:
    """A batch from tensors in a tuple, whose last element is the targets, or in a dictionary."""
    if isinstance(item, Mapping):
        return _from_mapping(dict(cast(Mapping[str, Any], item)), target, targets)
    items = tuple(cast(Sequence[Any], item)) if isinstance(item, (tuple, list)) else (item,)
    if targets == "absent" or (targets == "passed over" and len(items) == 1):
        return Batch(items, {}, None)
    if len(items) < 2:
        raise PartError(f"expected (inputs, targets) or a dictionary, found {_described(item)}")
    *inputs, truth = items
    if len(inputs) == 1 and isinstance(inputs[0], Mapping):
        return Batch((), dict(cast(Mapping[str, Any], inputs[0])), truth)
    if len(inputs) == 1 and isinstance(inputs[0], (tuple, list)):
        inputs = list(cast(Sequence[Any], inputs[0]))
    return Batch(tuple(inputs), {}, truth)


def _part(data: Any, target: str | None, targets: Targets) -> Part:
    if isinstance(data, DataLoader):
        loader = cast(DataLoader[Any], data)
        return LoaderPart(lambda _: loader, target, targets)
    if isinstance(data, IterableDataset):
        stream = cast(Any, data)
        return LoaderPart(lambda size: DataLoader(stream, batch_size=size), target, targets)
    if isinstance(data, Dataset):
        dataset = cast(Any, data)

        def collate(indices: Tensor) -> Batch:
            numbers = indices.tolist()
            return to_batch(_collated([dataset[i] for i in numbers], numbers), target, targets)

        return IndexedPart(collate, torch.arange(len(dataset)))
    batch = to_batch(_tensors(data, "part"), target, targets)
    length, values = _agreed_length(batch), [value for _, value in batch.inputs() if isinstance(value, Tensor)]
    # Numbers that lie where the data does need no trip for every batch.
    return IndexedPart(lambda indices: _take(batch, indices), torch.arange(length, device=values[0].device))


def _from_mapping(item: dict[str, Any], target: str | None, targets: Targets) -> Batch:
    names = (target,) if target is not None else TARGET_NAMES
    found = [] if targets == "absent" else [name for name in names if name in item]
    if targets == "needed" and len(found) != 1:
        raise PartError(
            f"expected one of the keys {', '.join(names)} to hold the targets, found {sorted(item)}: "
            "say which with target=..."
        )
    truth = [item.pop(name) for name in found]
    # A single input needs no name: most networks call theirs something else than the data does.
    args, kwargs = (tuple(item.values()), {}) if len(item) == 1 else ((), item)
    return Batch(args, kwargs, truth[0] if targets == "needed" else None)


def _tensors(data: Any, where: str) -> Any:
    """The same structure with tensors for arrays."""
    if isinstance(data, Tensor):
        return data
    if isinstance(data, Mapping):
        mapping = cast(Mapping[Any, Any], data)
        return {str(key): _tensors(value, f"{where}[{key!r}]") for key, value in mapping.items()}
    if isinstance(data, tuple):
        return tuple(_tensors(value, f"{where}[{i}]") for i, value in enumerate(cast(tuple[Any, ...], data)))
    try:
        array = np.asarray(data)
        return torch.from_numpy(array if array.flags.writeable else array.copy())
    except (TypeError, ValueError) as error:
        raise PartError(
            f"{where}: expected numbers in a tensor or array, found {_described(data)} ({error})"
        ) from error


def _collated(items: list[Any], numbers: list[int]) -> Any:
    try:
        return default_collate(items)
    except (RuntimeError, TypeError) as error:
        shapes = [_described(item) for item in items]
        odd = next((i for i, shape in enumerate(shapes) if shape != shapes[0]), 0)
        raise PartError(
            f"example {numbers[odd]} is {shapes[odd]} where example {numbers[0]} is {shapes[0]}: examples of one part "
            f"must have one shape, or come from a DataLoader with a collate_fn ({error})"
        ) from error


def _agreed_length(batch: Batch) -> int:
    named = [*batch.inputs(), *([("targets", batch.targets)] if batch.targets is not None else [])]
    lengths: dict[str, int] = {}
    for name, value in named:
        if not isinstance(value, Tensor) or value.dim() == 0:
            raise PartError(f"{name}: expected a tensor or array of examples, found {_described(value)}")
        if value.layout != torch.strided:
            raise PartError(f"{name} is a sparse tensor, whose examples cannot be taken by number; make it dense")
        lengths[name] = len(value)
    if len(set(lengths.values())) > 1:
        raise PartError(
            f"expected as many targets as inputs, found {', '.join(f'{v} {k}' for k, v in lengths.items())}"
        )
    return next(iter(lengths.values()))


def _take(batch: Batch, indices: Tensor) -> Batch:
    def taken(value: Tensor) -> Tensor:
        return value[indices.to(value.device)]

    targets = None if batch.targets is None else taken(batch.targets)
    return Batch(tuple(map(taken, batch.args)), {key: taken(value) for key, value in batch.kwargs.items()}, targets)


def _sizes(num_examples: int, batch_size: int) -> list[int]:
    """Sizes of the batches of one pass; a last batch of one joins its neighbour, since batch statistics need two."""
    if num_examples == 0:
        return []
    count = math.ceil(num_examples / batch_size)
    sizes = [batch_size] * (count - 1) + [num_examples - batch_size * (count - 1)]
    if len(sizes) > 1 and sizes[-1] == 1 and batch_size > 1:
        sizes[-2:] = [sizes[-2] + 1]
    return sizes


def _described(value: Any) -> str:
    if isinstance(value, (Tensor, np.ndarray)):
        return f"{type(value).__name__} of shape {tuple(value.shape)}"
    if isinstance(value, (tuple, list)):
        items = cast(Sequence[Any], value)
        return f"({', '.join(map(_described, items[:4]))}{', ...' if len(items) > 4 else ''})"
    return type(value).__name__
