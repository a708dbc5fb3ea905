"""From a dataset to a task: standardised pixels, i.i.d. parts by seed, and CIFAR-10 cut in two by classes.

Shapes: N images, C channels, H x W pixels.
"""

import functools
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from postprior.data.datasets import ImageData
from postprior.data.formats import Bytes
from postprior.errors import PartError
from postprior.maths import seeds
from postprior.paper.experiment import Experiment

CLASSES_BEFORE = 5
"""Of CIFAR(5+5): classes for pretraining; as many are left for the incremental task."""


@dataclass(frozen=True, eq=False)
class Images:
    """Standardised images [N, C, H, W] and labels [N], on the device."""

    pixels: Tensor
    labels: Tensor


@dataclass(frozen=True, eq=False)
class Task:
    """What one run learns and is asked."""

    parts: tuple[Images, ...]
    asked: Images
    """The test set, or the training images set aside."""
    before: Images | None
    """What to pretrain on."""
    num_classes: int
    num_channels: int


def prepare(experiment: Experiment, seed: int, images: ImageData, device: torch.device | str) -> Task:
    """The task of this seed; it does not depend on family, method or settings, so that these meet the same parts."""
    groups = _class_groups(experiment, images, seed)
    # Of all training images, as is customary, though strictly the first part knows nothing of the others.
    mean, sd = _moments(images)
    now = groups[-1]
    train, test = _of_classes(images.train_labels, now), _of_classes(images.test_labels, now)
    train = _shuffled(train, seed, "parts")
    held, train = train[: experiment.num_validation], train[experiment.num_validation :][: experiment.num_train]
    if not len(train) >= experiment.num_parts:
        raise PartError(f"{experiment.name}: {len(train)} images do not make {experiment.num_parts} parts: give more")

    def take(pixels: Bytes, labels: Bytes, indices: Tensor, classes: Tensor) -> Images:
        # Bytes are moved and become numbers there: a quarter of the traffic, and the work where it is quick.
        chosen = torch.from_numpy(pixels[indices.numpy()]).to(device).permute(0, 3, 1, 2).float()
        number = torch.full((images.num_classes,), -1).scatter(0, classes, torch.arange(len(classes)))
        standard = ((chosen - mean.to(device)) / sd.to(device)).contiguous()
        return Images(standard, number[_long(labels)[indices]].to(device))

    parts = tuple(
        take(images.train_images, images.train_labels, i, now) for i in train.tensor_split(experiment.num_parts)
    )
    if experiment.num_validation:
        asked = take(images.train_images, images.train_labels, held, now)
    else:
        asked = take(images.test_images, images.test_labels, test[: experiment.num_test], now)
    before = None
    if experiment.pretraining != "none":
        old = _shuffled(_of_classes(images.train_labels, groups[0]), seed, "before")[: experiment.num_train]
        before = take(images.train_images, images.train_labels, old, groups[0])
    return Task(parts, asked, before, len(now), images.train_images.shape[-1])


def _class_groups(experiment: Experiment, images: ImageData, seed: int) -> tuple[Tensor, ...]:
    if experiment.dataset != "cifar5+5":
        return (torch.arange(images.num_classes),)
    order = _shuffled(torch.arange(images.num_classes), seed, "classes")
    return order[:CLASSES_BEFORE], order[CLASSES_BEFORE:]


def _of_classes(labels: Bytes, classes: Tensor) -> Tensor:
    return torch.isin(_long(labels), classes).nonzero().squeeze(1)


def _shuffled(indices: Tensor, seed: int, purpose: str) -> Tensor:
    return indices[torch.randperm(len(indices), generator=seeds.stream("cpu", seed, purpose))]


@functools.lru_cache(maxsize=2)  # a process makes many runs of the same images
def _moments(images: ImageData) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel, [C, 1, 1], exact from counts and without a copy of all pixels."""
    values, pixels = np.arange(256), images.train_images
    counts = np.stack([np.bincount(channel.ravel(), minlength=256) for channel in np.moveaxis(pixels, -1, 0)])
    mean = counts @ values / counts.sum(1)
    variance = counts @ values**2 / counts.sum(1) - mean**2
    # A channel that never varies says nothing: it becomes zero, not infinite.
    sd = np.sqrt(np.where(variance > 0, variance, 1.0))
    return torch.tensor(mean).float().view(-1, 1, 1), torch.tensor(sd).float().view(-1, 1, 1)


def _long(labels: Bytes) -> Tensor:
    return torch.from_numpy(labels.astype(np.int64))
