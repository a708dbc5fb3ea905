"""Folders of pictures: their classes, their pixels, and what is said of a bad one."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from postprior.data.readers import read
from postprior.data.tables import ALONE, Table
from postprior.errors import DataError, MissingExtraError, PartError

DRAW = np.random.default_rng(0)
GRAY = DRAW.integers(0, 256, (4, 5), np.uint8)
COLOURED = DRAW.integers(0, 256, (4, 5, 3), np.uint8)


def put(folder: Path, name: str, pixels: Any = COLOURED, **options: Any) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    (pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)).save(path, **options)
    return path


def table(address: Path, **options: Any) -> Table:
    found = read(address, **options)
    assert isinstance(found, Table)
    return found


@pytest.mark.parametrize("ending", ["png", "PNG", "bmp", "tiff", "webp"])
def test_folders_name_the_classes(ending: str, tmp_path: Path) -> None:
    lossless = {"lossless": True} if ending == "webp" else {}
    for number, name in enumerate(["dog/1", "cat/2", "cat/1"]):
        put(tmp_path, f"{name}.{ending}", COLOURED + np.uint8(number), **lossless)
    (tmp_path / "unicorn").mkdir()
    found = table(tmp_path)
    expected = np.stack([COLOURED + np.uint8(number) for number in (2, 1, 0)]).transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(found.named_inputs()[ALONE], expected)
    assert found.targets is not None
    assert found.targets.tolist() == ["cat", "cat", "dog"]
    assert (found.classes, found.kind) == (("cat", "dog", "unicorn"), "pictures")


@pytest.mark.parametrize(
    ("pixels", "channels"), [(GRAY, 1), (COLOURED, 3), (np.concatenate([COLOURED, GRAY[..., None]], 2), 4)]
)
def test_channels_are_those_of_the_mode(pixels: Any, channels: int, tmp_path: Path) -> None:
    put(tmp_path, "cat/1.png", pixels)
    found = table(tmp_path).named_inputs()[ALONE]
    assert (found.shape, found.dtype) == ((1, channels, 4, 5), np.uint8)
    np.testing.assert_array_equal(found[0], pixels.reshape(4, 5, channels).transpose(2, 0, 1))


def test_a_compressed_photograph_comes_close(tmp_path: Path) -> None:
    smooth = np.add.outer(np.arange(16), np.arange(16))[..., None].repeat(3, 2).astype(np.uint8) * 4
    put(tmp_path, "cat/1.jpg", smooth, quality=95)
    found = table(tmp_path).named_inputs()[ALONE][0].transpose(1, 2, 0)
    assert np.abs(found.astype(int) - smooth).max() < 8


def test_hidden_files_and_folders_are_passed_over(tmp_path: Path) -> None:
    put(tmp_path, "cat/1.png")
    put(tmp_path, ".thumbnails/1.png")
    (tmp_path / ".DS_Store").write_bytes(b"hidden")
    (tmp_path / "cat" / "._1.png").write_bytes(b"hidden")
    found = table(tmp_path)
    assert (len(found), found.classes) == (1, ("cat",))


def test_without_labels_pictures_may_lie_anywhere(tmp_path: Path) -> None:
    put(tmp_path, "b.png")
    put(tmp_path, "a/1.png", COLOURED[::-1])
    found = table(tmp_path, labelled=False)
    assert (len(found), found.targets, found.classes) == (2, None, None)
    np.testing.assert_array_equal(found.named_inputs()[ALONE][0], COLOURED.transpose(2, 0, 1))


def nothing(folder: Path) -> None:
    folder.mkdir(exist_ok=True)


def only_files(folder: Path) -> None:
    (folder / "notes.txt").write_text("hello")


def empty_classes(folder: Path) -> None:
    (folder / "cat").mkdir()


def loose(folder: Path) -> None:
    put(folder, "cat/1.png")
    put(folder, "2.png")


def no_picture(folder: Path) -> None:
    put(folder, "cat/1.png")
    (folder / "cat" / "Thumbs.db").write_bytes(b"hello")


def a_folder_too_deep(folder: Path) -> None:
    put(folder, "cat/1.png")
    put(folder, "cat/big/1.png")


def broken(folder: Path) -> None:
    put(folder, "cat/1.png")
    (folder / "cat" / "2.png").write_bytes(b"hello")


def cut_short(folder: Path) -> None:
    put(folder, "cat/1.png")
    path = put(folder, "cat/2.png")
    path.write_bytes(path.read_bytes()[:-30])


def another_size(folder: Path) -> None:
    put(folder, "cat/1.png")
    put(folder, "cat/2.png", COLOURED[:3])


def another_mode(folder: Path) -> None:
    put(folder, "cat/1.png")
    put(folder, "cat/2.png", GRAY)


def a_palette(folder: Path) -> None:
    put(folder, "cat/1.png", Image.fromarray(GRAY).convert("P"))


def sixteen_bits(folder: Path) -> None:
    put(folder, "cat/1.png", GRAY.astype(np.uint16) * 256)


def several_pages(folder: Path) -> None:
    pages = [Image.fromarray(COLOURED), Image.fromarray(COLOURED)]
    put(folder, "cat/1.tiff", pages[0], save_all=True, append_images=pages[1:])


def another_format(folder: Path) -> None:
    """Of a kind whose decoder is not tried, under the name of one that is."""
    put(folder, "cat/1.png", COLOURED, format="PPM")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (nothing, "expected a subfolder of pictures for each class, or a Hugging Face dataset .*, found nothing"),
        (only_files, "expected a subfolder of pictures for each class, .*, found notes.txt"),
        (empty_classes, "holds no example; a part needs at least one"),
        (loose, r"2.png lies beside the folders of the classes and has none; move it into one of them"),
        (no_picture, r"Thumbs.db is no picture \(expected .bmp, .jpeg, .*\); take it out of the folder"),
        (a_folder_too_deep, "big is no picture .*; take it out of the folder"),
        (broken, "2.png cannot be read as a picture .*; replace it or take it out"),
        (cut_short, "2.png cannot be read as a picture"),
        (another_size, "2.png has 5 x 3 pixels of mode RGB where .*1.png has 5 x 4 pixels of mode RGB: all pictures"),
        (another_mode, "2.png has 5 x 4 pixels of mode L where .*1.png has 5 x 4 pixels of mode RGB: .*; resize or"),
        (a_palette, "1.png holds a picture of mode P, expected one of mode L, RGB, RGBA; convert it"),
        (sixteen_bits, "1.png holds a picture of mode I;16, expected one of mode L"),
        (several_pages, "1.tiff holds 2 pictures, expected one of mode L, RGB, RGBA; convert it"),
        (another_format, "1.png cannot be read as a picture"),
    ],
)
def test_a_bad_folder(make: Any, message: str, tmp_path: Path) -> None:
    make(tmp_path)
    with pytest.raises(PartError, match=message):
        read(tmp_path)


def test_a_class_whose_name_cannot_be_printed(tmp_path: Path) -> None:
    put(tmp_path, "a\nb/1.png")
    with pytest.raises(PartError, match=r"has a folder called 'a\\nb', expected printable names of classes; rename it"):
        read(tmp_path)


def test_pictures_that_take_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        put(tmp_path, f"cat/{number}.png", np.zeros((1000, 1000), np.uint8))
    with pytest.raises(DataError, match=r"3 pictures would take 3,000,000 bytes, more than the 2,000,000 allowed"):
        read(tmp_path, max_bytes=2_000_000)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 900_000)
    with pytest.raises(PartError, match=r"0.png cannot be read as a picture \(Image size \(1000000 pixels\) exceeds"):
        read(tmp_path)


def test_without_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "cat/1.png")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtraError, match=r"reading pictures needs the package Pillow, .* 'postprior\[data\]'"):
        read(tmp_path)
