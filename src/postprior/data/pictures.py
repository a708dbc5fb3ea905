"""Pictures as arrays: folders with a subfolder for each class, and pictures stored in columns of a table.

Shapes: N pictures, C channels, H x W pixels.
"""

import contextlib
import warnings
from collections.abc import Callable, Generator, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from postprior.data.formats import Bytes
from postprior.data.published import missing_extra
from postprior.data.tables import Table, Wanted, no_examples
from postprior.errors import PartError, PostpriorError

ENDINGS = (".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")

DECODERS = ("BMP", "JPEG", "PNG", "TIFF", "WEBP")
"""Decoders that may be tried: some that Pillow has besides start other programs."""

CHANNELS = {"L": 1, "RGB": 3, "RGBA": 4}
"""Modes of pictures that are taken as they are."""

Opener = Callable[[], IO[bytes]]


class Form(NamedTuple):
    """What all pictures of a part must have in common."""

    width: int
    height: int
    mode: str

    def __str__(self) -> str:
        return f"{self.width} x {self.height} pixels of mode {self.mode}"


def read_folder(wanted: Wanted, folder: Path) -> Table:
    """Pictures from a folder, in the order of their names; its subfolders name the classes.

    Without targets, pictures may lie in the folder itself too.
    """
    with wanted.decoding("a folder that can be listed"):
        found = _visible(folder)
        groups = {path.name: _visible(path) for path in found if path.is_dir()}
    loose = [path for path in found if path.name not in groups]
    if not groups and (wanted.labelled or not loose):
        raise PartError(
            f"{folder}: expected a subfolder of pictures for each class, or a Hugging Face dataset saved to disk, "
            f"found {', '.join(path.name for path in loose[:5]) or 'nothing'}"
        )
    if loose and wanted.labelled:
        raise PartError(f"{loose[0]} lies beside the folders of the classes and has none; move it into one of them")
    if strange := [name for name in groups if not name.isprintable()]:
        raise PartError(f"{folder} has a folder called {strange[0]!a}, expected printable names of classes; rename it")
    paths = [*loose, *(path for group in groups.values() for path in group)]
    if odd := [path for path in paths if path.suffix.lower() not in ENDINGS or path.is_dir()]:
        raise PartError(f"{odd[0]} is no picture (expected {', '.join(ENDINGS)}); take it out of the folder")
    pixels = decoded(wanted, [(str(path), partial(path.open, "rb")) for path in paths])
    if not wanted.labelled:
        return Table(pixels, None, kind="pictures", where=wanted.where)
    labels = np.array([name for name, group in groups.items() for _ in group], str)
    return Table(pixels, labels, classes=tuple(groups), kind="pictures", where=wanted.where)


def decoded(wanted: Wanted, pictures: Sequence[tuple[str, Opener]]) -> Bytes:
    """All pictures, each with a name for messages, in one array [N, C, H, W]; they must be of one size and mode."""
    if not pictures:
        raise no_examples(wanted.where)
    first, opener = pictures[0]
    with _opened(first, opener) as image:
        form = _form(first, image)
    channels = CHANNELS[form.mode]
    wanted.check_size(len(pictures) * channels * form.height * form.width, f"{len(pictures)} pictures")
    pixels = np.empty((len(pictures), channels, form.height, form.width), np.uint8)
    for number, (name, opener) in enumerate(pictures):
        with _opened(name, opener) as image:
            if (found := _form(name, image)) != form:
                raise PartError(
                    f"{name} has {found} where {first} has {form}: all pictures must be of one size and mode; "
                    "resize or convert them"
                )
            pixels[number] = np.asarray(image).reshape(form.height, form.width, channels).transpose(2, 0, 1)
    return pixels


@contextlib.contextmanager
def _opened(name: str, opener: Opener) -> Generator[Any]:
    try:
        from PIL import Image
    except ImportError as error:
        raise missing_extra("Pillow", "reading pictures") from error
    try:
        # Pillow warns of a picture that unpacks to far more than it should, and would unpack it all the same.
        with warnings.catch_warnings(), opener() as file:
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(file, formats=DECODERS) as image:
                yield image
    except PostpriorError:
        raise
    except Exception as error:  # decoders raise nearly anything when fed with broken bytes
        raise PartError(f"{name} cannot be read as a picture ({error}); replace it or take it out") from error


def _form(name: str, image: Any) -> Form:
    if image.mode not in CHANNELS or getattr(image, "n_frames", 1) > 1:
        found = f"{image.n_frames} pictures" if image.mode in CHANNELS else f"a picture of mode {image.mode}"
        raise PartError(f"{name} holds {found}, expected one of mode {', '.join(CHANNELS)}; convert it")
    width, height = image.size
    return Form(width, height, image.mode)


def _visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
