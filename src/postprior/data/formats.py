"""The official file formats, decoded and encoded in memory: idx (the MNIST family) and CIFAR-10's binary records.

The checksums of the official files are public, so whatever form a dataset arrives in is first brought back to the bytes
of those files, compared, and only then decoded. That is why each format here goes both ways.
"""

import pickletools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


class Splits(NamedTuple):
    """The arrays of a dataset of images, uint8."""

    train_images: Bytes  # [N, H, W, C]
    train_labels: Bytes  # [N]
    test_images: Bytes  # [M, H, W, C]
    test_labels: Bytes  # [M]


@dataclass(frozen=True)
class Format:
    """How arrays and official files become one another; files are keyed by their official name."""

    decode: Callable[[Mapping[str, bytes]], Splits]
    encode: Callable[[Splits], dict[str, bytes]]


# idx: two zero bytes, the code of the number type (8 is uint8), the number of axes, their lengths (big-endian), data.

IDX_NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def decode_idx(files: Mapping[str, bytes]) -> Splits:
    """Arrays from the four idx files; images get their axis of channels."""
    train_images, train_labels, test_images, test_labels = (_idx_array(files[name]) for name in IDX_NAMES)
    return Splits(train_images[..., None], train_labels, test_images[..., None], test_labels)


def encode_idx(splits: Splits) -> dict[str, bytes]:
    """The four idx files of one-channel images, [N, H, W, 1] or [N, H, W], and their labels."""
    arrays = (splits.train_images, splits.train_labels, splits.test_images, splits.test_labels)
    return {name: _idx_bytes(array.reshape(array.shape[:3])) for name, array in zip(IDX_NAMES, arrays, strict=True)}


def _idx_array(raw: bytes) -> Bytes:
    axes = raw[3]
    shape = np.frombuffer(raw, ">i4", count=axes, offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * axes).reshape(tuple(int(length) for length in shape))


def _idx_bytes(array: Bytes) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
    return header + array.astype(np.uint8).tobytes()


# CIFAR-10, binary version: 3,073 bytes an image, first the label, then the red, green and blue planes, each row by row.

CIFAR_NAMES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")


def decode_cifar(files: Mapping[str, bytes]) -> Splits:
    """Arrays from the five training batches and the test batch."""
    batches = [np.frombuffer(files[name], np.uint8).reshape(-1, 3073) for name in CIFAR_NAMES]
    train = np.concatenate(batches[:-1])
    return Splits(_cifar_images(train), train[:, 0].copy(), _cifar_images(batches[-1]), batches[-1][:, 0].copy())


def encode_cifar(splits: Splits) -> dict[str, bytes]:
    """The six binary files; the training images are cut, in order, into five equal batches."""
    train = zip(np.split(splits.train_images, 5), np.split(splits.train_labels, 5), strict=True)
    batches = [*train, (splits.test_images, splits.test_labels)]
    return {name: _cifar_bytes(*batch) for name, batch in zip(CIFAR_NAMES, batches, strict=True)}


def _cifar_images(records: Bytes) -> Bytes:
    planes = records[:, 1:].reshape(-1, 3, 32, 32)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1))


def _cifar_bytes(images: Bytes, labels: Bytes) -> bytes:
    planes = images.transpose(0, 3, 1, 2).reshape(len(images), 3072)
    return np.concatenate([labels[:, None], planes], axis=1).astype(np.uint8).tobytes()


IDX = Format(decode_idx, encode_idx)
CIFAR = Format(decode_cifar, encode_cifar)


# Two sources hold pickles. They are never unpickled: pickletools lists the instructions without running any, and the
# constants among them are all we need. Taking constants in the order they appear would be a guess for pickles at large;
# here the checksum of the official file decides whether it was right.

_NUMBERS = {"BININT", "BININT1", "BININT2"}
_STRINGS = {"BINSTRING", "SHORT_BINSTRING", "BINUNICODE", "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES"}


def pickled_constants(raw: bytes) -> Iterator[bytes | int]:
    """The numbers and strings written in a pickle, in order; nothing in the pickle is executed."""
    for opcode, argument, _ in pickletools.genops(raw):
        if opcode.name in _NUMBERS | _STRINGS and argument is not None:
            yield argument.encode("latin-1") if isinstance(argument, str) else argument


def cifar_batch_from_pickle(raw: bytes) -> bytes:
    """One batch of CIFAR-10's python version, as the bytes of the same batch in the binary version."""
    pixels, key, labels = b"", b"", list[int]()
    for constant in pickled_constants(raw):
        if isinstance(constant, bytes):
            key = constant
            pixels = max(pixels, constant, key=len)  # by far the longest string in the file
        elif key == b"labels":
            labels.append(constant)
    planes = np.frombuffer(pixels, np.uint8).reshape(len(labels), 3072)
    return np.concatenate([np.array(labels, np.uint8)[:, None], planes], axis=1).tobytes()


def mnist_from_pickle(raw: bytes) -> Splits:
    """MNIST from ((x, y), (x, y), (x, y)) for training, validation and test: x float32 pixels / 256, y int64 labels."""
    arrays = [constant for constant in pickled_constants(raw) if isinstance(constant, bytes) and len(constant) > 8]
    images = [
        np.rint(np.frombuffer(array, "<f4") * 256).astype(np.uint8).reshape(-1, 28, 28, 1) for array in arrays[::2]
    ]
    labels = [np.frombuffer(array, "<i8").astype(np.uint8) for array in arrays[1::2]]
    return Splits(np.concatenate(images[:2]), np.concatenate(labels[:2]), images[2], labels[2])
