"""A part among several processes: each reads examples of its own, and all together they are the part."""

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import final

import torch
from torch import Tensor

from postprior import distributed
from postprior.batch import Batch, IndexedPart, Part
from postprior.errors import PartError
from postprior.learning.predict import Score

WHOLE = 2**62
"""A batch of so many examples is the part."""


@final
class Shard:
    """The examples of one process, which takes as many steps a pass as the others, on its share of each batch.

    ``lengths``: how many examples each process has.
    """

    def __init__(self, part: IndexedPart, numbers: Tensor, lengths: tuple[int, ...], rank: int) -> None:
        self._part, self._numbers, self.lengths, self._rank = part, numbers, lengths, rank
        self.fetch = part.fetch
        # The mean over processes of (N x own examples x mean over the own batch) estimates the sum over the part
        # without bias, however the examples and the batches are divided; in one batch a pass it is that sum.
        self.weight = len(lengths) * len(numbers) / max(1, sum(lengths))

    def __len__(self) -> int:
        return len(self._numbers)

    def num_batches(self, batch_size: int) -> int:
        """As many as one process would take with this size, fewer where that leaves a process single examples."""
        least = min(2, max(1, batch_size // len(self.lengths)))  # batch statistics need two
        return max(1, min(math.ceil(sum(self.lengths) / batch_size), min(self.lengths) // least))

    def chunks(self, batch_size: int, generator: torch.Generator | None = None) -> Iterator[Tensor]:
        order = self._numbers
        if generator is not None:
            order = order[torch.randperm(len(order), generator=generator).to(order.device)]
        return iter(order.tensor_split(self.num_batches(batch_size)))

    def batches(self, batch_size: int, generator: torch.Generator | None = None) -> Iterator[Batch]:
        return map(self.fetch, self.chunks(batch_size, generator))

    def split(self, num_held: int, generator: torch.Generator) -> tuple["Shard", "Shard"]:
        """Each process holds some of its own, so many that all together hold ``num_held``."""
        ends = [round(num_held * sum(self.lengths[:i]) / sum(self.lengths)) for i in range(len(self.lengths) + 1)]
        held = tuple(after - before for before, after in pairwise(ends))
        learned = tuple(length - count for length, count in zip(self.lengths, held, strict=True))
        if min(learned) < 1:
            raise PartError(
                f"holding out {num_held} of {sum(self.lengths)} examples leaves one of {len(self.lengths)} processes "
                "none to learn from; start fewer processes, or give a larger part"
            )
        order = self._numbers[torch.randperm(len(self), generator=generator).to(self._numbers.device)]
        count = held[self._rank]
        return (
            Shard(self._part, order[count:].sort().values, learned, self._rank),
            Shard(self._part, order[:count].sort().values, held, self._rank),
        )


def own_share(part: Part) -> Part:
    """This process's examples; the part itself where it is alone."""
    size, rank = distributed.size(), distributed.rank()
    if size == 1:
        return part
    if not isinstance(part, IndexedPart):
        raise PartError(
            "to learn in several processes a part must let its examples be chosen: give the dataset rather than its "
            "DataLoader"
        )
    found = list(part.chunks(WHOLE))
    count = sum(map(len, found))
    if count < size:
        raise PartError(f"the part has {count} examples for {size} processes; start fewer")
    numbers = torch.cat(found)
    # Every N-th rather than a block: parts often come sorted, and batch statistics want all kinds.
    own = [numbers[start::size] for start in range(size)]
    return Shard(part, own[rank], tuple(map(len, own)), rank)


def of_all(found: Score | None) -> Score:
    """The score of the part from those of its shares, None for one without examples."""
    if distributed.size() == 1 and found is not None:
        return found
    own = found or Score(0.0, None, 0)
    count = distributed.total(own.num_examples)
    nll = distributed.total(own.nll * own.num_examples) / count
    graded = distributed.largest(own.accuracy is not None)
    correct = distributed.total((own.accuracy or 0.0) * own.num_examples)
    return Score(nll, correct / count if graded else None, int(count))
