from collections import Counter

import numpy as np
import pytest
import torch

from paper.tiny_experiments import experiment, images, pretrained
from postprior.data.datasets import ImageData
from postprior.errors import PartError
from postprior.paper.tasks import Images, Task, prepare

TINY = images()


def rows(*groups: Images) -> list[bytes]:
    return sorted(image.numpy().tobytes() for group in groups for image in group.pixels)


def same(a: Task, b: Task) -> bool:
    pairs = zip((*a.parts, a.asked), (*b.parts, b.asked), strict=True)
    return all(torch.equal(x.pixels, y.pixels) and torch.equal(x.labels, y.labels) for x, y in pairs)


def test_parts_hold_every_image_once() -> None:
    whole, cut = prepare(experiment(num_parts=1), 0, TINY, "cpu"), prepare(experiment(num_parts=3), 0, TINY, "cpu")
    assert [len(part.labels) for part in cut.parts] == [27, 27, 26]
    assert rows(*cut.parts) == rows(*whole.parts)


def test_pixels_are_standardised_by_channel() -> None:
    task = prepare(experiment(num_parts=1), 0, images(channels=3), "cpu")
    pixels = task.parts[0].pixels
    assert pixels.shape == (80, 3, 8, 8)
    assert pixels.is_contiguous()
    assert torch.allclose(pixels.double().mean((0, 2, 3)), torch.zeros(3, dtype=torch.float64), atol=1e-6)
    assert torch.allclose(pixels.double().square().mean((0, 2, 3)), torch.ones(3, dtype=torch.float64), atol=1e-5)


def test_a_pixel_keeps_its_place() -> None:
    blank = np.zeros((10, 4, 5, 2), np.uint8)
    blank[3, 1, 2, 1] = 255
    labels = np.arange(10, dtype=np.uint8)
    task = prepare(experiment(num_parts=1), 0, ImageData("dot", 10, blank, labels, blank, labels), "cpu")
    assert (task.asked.pixels > 1).nonzero().tolist() == [[3, 1, 1, 2]]


def test_the_seed_decides_the_parts_and_nothing_else_does() -> None:
    task = prepare(experiment(), 0, TINY, "cpu")
    assert same(task, prepare(experiment(family="channelwise", steps=9), 0, TINY, "cpu"))
    assert not same(task, prepare(experiment(), 1, TINY, "cpu"))


def test_images_set_aside_are_scored_and_not_learned() -> None:
    plain = prepare(experiment(), 0, TINY, "cpu")
    task = prepare(experiment(num_validation=20), 0, TINY, "cpu")
    assert rows(*task.parts, task.asked) == rows(*plain.parts)
    assert len(task.asked.labels) == 20


def test_fewer_images() -> None:
    task = prepare(experiment(num_train=10, num_test=7), 0, TINY, "cpu")
    assert [len(part.labels) for part in task.parts] == [5, 5]
    assert len(task.asked.labels) == 7
    with pytest.raises(PartError, match="10 images do not make 11 parts"):
        prepare(experiment(num_parts=11, num_train=10), 0, TINY, "cpu")


def test_cifar_5_plus_5_cuts_by_classes_drawn_by_seed() -> None:
    laplace = pretrained("ffg-laplace", "factorized", "laplace")
    task = prepare(laplace, 0, TINY, "cpu")
    assert task.before is not None
    assert task.num_classes == 5
    whole = prepare(experiment(num_parts=1), 0, TINY, "cpu")
    assert rows(*task.parts, task.before) == rows(*whole.parts)
    for group, each in ((task.asked, 4), (task.before, 8)):
        assert Counter(group.labels.tolist()) == dict.fromkeys(range(5), each)
    plain = prepare(experiment(dataset="cifar5+5"), 0, TINY, "cpu")
    assert same(task, plain)
    assert plain.before is None
    assert not same(plain, prepare(experiment(dataset="cifar5+5"), 1, TINY, "cpu"))


def test_a_class_has_the_same_number_in_parts_and_in_the_test_set() -> None:
    blank = np.repeat(np.arange(10, dtype=np.uint8) * 25, 2).reshape(20, 1, 1, 1)
    labels = np.repeat(np.arange(10, dtype=np.uint8), 2)
    data = ImageData("grey", 10, blank, labels, blank, labels)
    task = prepare(experiment(dataset="cifar5+5", num_parts=2), 0, data, "cpu")

    def meanings(*groups: Images) -> dict[float, int]:
        return {
            float(image): int(label)
            for group in groups
            for image, label in zip(group.pixels, group.labels, strict=True)
        }

    assert meanings(*task.parts) == meanings(task.asked)
    assert sorted(meanings(task.asked).values()) == list(range(5))
