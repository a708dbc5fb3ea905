"""A belief asked about held-out data, example by example: how far its confidence can be trusted, and where it doubts.

Shapes: N examples, C channels, H and W of a picture.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from postprior.batch import Batch, Part
from postprior.data.parts import IndexedPart
from postprior.data.tables import ALONE, Table
from postprior.errors import MissingExtraError
from postprior.learning.likelihoods import Bernoulli, Categorical, Likelihood
from postprior.learning.predict import Prediction
from postprior.networks.belief import Belief
from postprior.pipeline.measures import examine, reliability
from postprior.serving.report import Bin, Example, HeldOut

MOST = 24
"""Examples that are shown."""
MOST_COLUMNS = 12
CLASSES_SHOWN = 3
LEAST_PROBABILITY = 0.01
"""Classes below it are not mentioned, but for the most probable."""


def question(
    network: nn.Module,
    belief: Belief,
    raw: Table | Part,
    part: Part,
    likelihood: Likelihood,
    *,
    classes: Sequence[str] | None,
    num_samples: int,
    seed: int,
) -> HeldOut:
    """What the belief answers about ``part``, which is ``raw`` as the network is fed; shown are the raw values."""
    part = _repeatable(part)
    measures, prediction, targets = examine(network, belief, part, likelihood, num_samples=num_samples, seed=seed)
    doubts, shares, unit = _doubts(prediction, likelihood)
    order = doubts.argsort(descending=True, stable=True)[:MOST]
    pictures, columns, values = _shown(raw, part, order)
    examples = [
        Example(
            number=number,
            truth=_name(targets[number], classes) if _is_classes(likelihood) else _numbers(targets[number]),
            guesses=_guesses(prediction, number, likelihood, classes),
            right=_right(prediction, targets, number, likelihood),
            doubt=float(doubts[number]),
            share=float(shares[number]),
            picture=pictures[place] if pictures else None,
            values=values[place] if values else (),
        )
        for place, number in enumerate(order.tolist())
    ]
    bins = [Bin(*each) for each in _reliability(prediction, targets, likelihood)]
    return HeldOut(measures=measures, bins=tuple(bins), examples=tuple(examples), doubt=unit, columns=columns)


@dataclass(frozen=True)
class _Kept:
    """The batches of a part whose maker may shuffle it anew on every pass, as they came the first time."""

    kept: Sequence[Batch]

    def batches(self, batch_size: int, generator: torch.Generator | None = None) -> Iterator[Batch]:
        del batch_size, generator
        return iter(self.kept)

    def num_batches(self, batch_size: int) -> int | None:
        del batch_size
        return len(self.kept)

    def split(self, num_held: int, generator: torch.Generator) -> tuple[Self, Self]:
        raise AssertionError("what is kept to be asked about is not split")


def _repeatable(part: Part) -> Part:
    return part if isinstance(part, IndexedPart) else _Kept(list(part.batches(500)))


def _is_classes(likelihood: Likelihood) -> bool:
    return isinstance(likelihood, (Categorical, Bernoulli))


def _doubts(prediction: Prediction, likelihood: Likelihood) -> tuple[Tensor, Tensor, str]:
    """Of every example: how doubtful it is, how much of that is about the weights, [N] both, and what the doubt is."""
    entropy, information = prediction.entropy, prediction.mutual_information
    # That of a density may be below zero, and has no share in anything.
    if _is_classes(likelihood) and entropy is not None and information is not None:
        return entropy.double(), _share(information, entropy), "the entropy of the prediction, in nats"
    variance, epistemic = (
        each.double().reshape(len(each), -1).mean(1) for each in (prediction.variance, prediction.epistemic_variance)
    )
    return variance.sqrt(), _share(epistemic, variance), "the standard deviation of the prediction"


def _share(part: Tensor, whole: Tensor) -> Tensor:
    return torch.where(whole > 0, part.double() / whole.double(), 0.0)


def _reliability(prediction: Prediction, targets: Tensor, likelihood: Likelihood) -> list[tuple[float, float, int]]:
    if not _is_classes(likelihood):
        return []
    mean, labels = prediction.mean, targets.reshape(len(targets), -1)
    if isinstance(likelihood, Bernoulli):
        mean = mean.flatten(1).squeeze(1) if mean.dim() > 1 else mean
        mean = torch.stack([1 - mean, mean], dim=-1)
    if mean.dim() != 2 or labels.shape[1] != 1:
        return []
    return reliability(mean, labels[:, 0].long())


def _guesses(
    prediction: Prediction, number: int, likelihood: Likelihood, classes: Sequence[str] | None
) -> tuple[tuple[str, float | None], ...]:
    mean = prediction.mean[number]
    if isinstance(likelihood, Categorical) and mean.dim() == 1:
        best = mean.argsort(descending=True, stable=True)[:CLASSES_SHOWN].tolist()
        kept = [c for place, c in enumerate(best) if place == 0 or float(mean[c]) >= LEAST_PROBABILITY]
        return tuple((_class(c, classes), float(mean[c])) for c in kept)
    if isinstance(likelihood, Bernoulli) and mean.numel() == 1:
        yes = float(mean)
        both = ((_class(1, classes), yes), (_class(0, classes), 1 - yes))
        return both if yes >= 0.5 else both[::-1]
    if isinstance(likelihood, Categorical):
        return ((f"{mean.shape[0]} classes at {mean[0].numel()} places", None),)
    return ((f"{_numbers(mean)} ± {_numbers(prediction.variance[number].sqrt())}", None),)


def _right(prediction: Prediction, targets: Tensor, number: int, likelihood: Likelihood) -> bool | None:
    """Whether one class was predicted and is true."""
    if not _is_classes(likelihood) or targets[number].numel() != 1:
        return None
    share = likelihood.correct(prediction.mean[number : number + 1], targets[number].reshape(1))
    return None if share is None else bool(share == 1)


def _class(number: int, classes: Sequence[str] | None) -> str:
    return classes[number] if classes is not None and 0 <= number < len(classes) else str(number)


def _name(target: Tensor, classes: Sequence[str] | None) -> str:
    return _class(int(target), classes) if target.numel() == 1 else _numbers(target)


def _numbers(values: Tensor) -> str:
    flat = values.flatten()[: MOST_COLUMNS // 3].tolist()
    rest = ", …" if values.numel() > len(flat) else ""
    return ", ".join(f"{value:.4g}" for value in flat) + rest


def _shown(
    raw: Table | Part, part: Part, order: Tensor
) -> tuple[list[bytes] | None, tuple[str, ...], list[tuple[str, ...]] | None]:
    """Pictures of the examples with these numbers, or the names and values of their columns, or nothing."""
    inputs, names = _inputs(raw, part, order)
    if len(inputs) == 1:
        array = next(iter(inputs.values()))
        if array.ndim == 4 and array.shape[1] in (1, 3):
            return [_png(each) for each in array], (), None
        if array.ndim == 2:
            columns = (names or tuple(f"input {i}" for i in range(array.shape[1])))[:MOST_COLUMNS]
            return None, columns, [tuple(f"{value:.5g}" for value in row[:MOST_COLUMNS].tolist()) for row in array]
    flat = {name: array for name, array in inputs.items() if array.ndim == 1}
    columns = tuple(flat)[:MOST_COLUMNS]
    rows = [tuple(f"{flat[name][place]:.5g}" for name in columns) for place in range(len(order))]
    return None, columns, rows if columns else None


def _inputs(raw: Table | Part, part: Part, order: Tensor) -> tuple[Mapping[str, NDArray[Any]], tuple[str, ...]]:
    """The raw inputs of these examples, and the names of their columns where there are any."""
    if isinstance(raw, Table):
        return {name: array[order.numpy()] for name, array in raw.named_inputs().items()}, raw.columns
    places = {number: place for place, number in enumerate(order.tolist())}
    found: list[tuple[int, Batch, int]] = []
    first = 0
    for batch in part.batches(500):
        found += [(places[i], batch, i - first) for i in range(first, first + len(batch)) if i in places]
        first += len(batch)
    found.sort(key=lambda each: each[0])
    alone = len(found[0][1].inputs()) == 1
    arrays: dict[str, NDArray[Any]] = {}
    for place, (name, value) in enumerate(found[0][1].inputs()):
        if isinstance(value, Tensor):
            rows = [cast(Tensor, batch.inputs()[place][1])[i].cpu() for _, batch, i in found]
            if len({row.shape for row in rows}) == 1:
                arrays[ALONE if alone else name] = torch.stack(rows).numpy()
    return arrays, ()


def _png(pixels: NDArray[Any]) -> bytes:
    """A picture [C, H, W]; whatever is not in bytes is stretched from its least to its largest value."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError(f"pictures need Pillow ({error}): pip install 'postprior[report]'") from error
    if pixels.dtype != np.uint8:
        low, high = float(pixels.min()), float(pixels.max())
        pixels = np.rint((pixels.astype(np.float64) - low) * (255 / (high - low) if high > low else 0)).astype(np.uint8)
    image = Image.fromarray(pixels[0] if len(pixels) == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0)))
    image.thumbnail((LARGEST, LARGEST))
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return file.getvalue()


LARGEST = 160
"""Pixels along the longer side of a picture in the page."""
