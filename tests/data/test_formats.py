import pickle
import struct
from pathlib import Path

import numpy as np
from tiny_data import Trap, python2_array, python2_batch, random_splits

from postprior.data import formats
from postprior.data.formats import Splits


def assert_same(found: Splits, expected: Splits) -> None:
    for name, a, b in zip(Splits._fields, found, expected, strict=True):
        assert a.dtype == np.uint8, name
        np.testing.assert_array_equal(a, b, err_msg=name)


def test_idx_header_is_as_published() -> None:
    files = formats.encode_idx(random_splits(3, 2, 28, 28, 1))
    assert files["train-images-idx3-ubyte"][:16] == struct.pack(">4i", 2051, 3, 28, 28)
    assert files["t10k-labels-idx1-ubyte"][:8] == struct.pack(">2i", 2049, 2)


def test_idx_round_trip() -> None:
    splits = random_splits(7, 3, 5, 4, 1)
    assert_same(formats.decode_idx(formats.encode_idx(splits)), splits)


def test_cifar_record_is_label_then_planes_row_by_row() -> None:
    splits = random_splits(10, 2, 32, 32, 3)
    second = formats.encode_cifar(splits)["data_batch_2.bin"]
    assert len(second) == 2 * 3073
    assert second[3073] == splits.train_labels[3]
    row, column, channel = 5, 9, 2
    assert second[3073 + 1 + 1024 * channel + 32 * row + column] == splits.train_images[3, row, column, channel]


def test_cifar_round_trip() -> None:
    splits = random_splits(10, 3, 32, 32, 3)
    assert_same(formats.decode_cifar(formats.encode_cifar(splits)), splits)


def test_cifar_batch_from_pickle_is_the_binary_batch() -> None:
    batch = formats.encode_cifar(random_splits(10, 2, 32, 32, 3))["data_batch_1.bin"]
    assert formats.cifar_batch_from_pickle(python2_batch(batch)) == batch


def test_mnist_from_pickle() -> None:
    splits = random_splits(6, 3, 28, 28, 1)
    cuts = [(splits.train_images[:4], splits.train_labels[:4]), (splits.train_images[4:], splits.train_labels[4:])]
    pairs = b""
    for images, labels in [*cuts, (splits.test_images, splits.test_labels)]:
        x = (images.astype("<f4") / 256).reshape(-1, 784)
        pairs += python2_array(x.shape, b"f4", x.tobytes()) + python2_array(
            labels.shape, b"i8", labels.astype("<i8").tobytes()
        )
        pairs += b"\x86"
    assert_same(formats.mnist_from_pickle(b"\x80\2" + pairs + b"\x87."), splits)


def test_reading_a_pickle_executes_nothing(tmp_path: Path) -> None:
    marker = tmp_path / "sprung"
    raw = pickle.dumps({"labels": [3, 1], "data": Trap(marker)}, protocol=2)
    assert str(marker).encode() in list(formats.pickled_constants(raw))
    assert not marker.exists()
    pickle.loads(raw)
    assert marker.exists(), "the trap works"
