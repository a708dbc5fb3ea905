"""A dataset small enough to serve, cut short and damage, entered in the catalog as the real ones are."""

import gzip
import hashlib
import http.server
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from postprior.data import datasets
from postprior.data.formats import CIFAR, IDX, Format, Splits
from postprior.data.published import Dataset, Download, OfficialFile


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def random_splits(num_train: int, num_test: int, *shape: int) -> Splits:
    draw = np.random.default_rng(0).integers
    images = [draw(0, 256, (num, *shape), np.uint8) for num in (num_train, num_test)]
    labels = [draw(0, 10, num, np.uint8) for num in (num_train, num_test)]
    return Splits(images[0], labels[0], images[1], labels[1])


@dataclass
class Server:
    """Serves `files` and notes the Range header of each request; the other fields make it misbehave."""

    files: dict[str, bytes] = field(default_factory=dict)
    ranges_asked: list[str | None] = field(default_factory=list)
    knows_ranges: bool = True
    cut_after: int | None = None
    address: str = ""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    state = Server()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers["Range"]
            state.ranges_asked.append(asked)
            content = state.files.get(self.path.lstrip("/"))
            start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and state.knows_ranges else 0
            if content is None or (asked and start >= len(content)):
                self.send_error(404 if content is None else 416)
                return
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            self.wfile.write(content[start:][: state.cut_after])

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        state.address = f"http://127.0.0.1:{running.server_port}"
        yield state
        running.shutdown()
        thread.join()


@dataclass(frozen=True)
class Tiny:
    """A dataset in the catalog, with its arrays and the bytes of its official files."""

    dataset: Dataset
    splits: Splits
    files: dict[str, bytes]

    def write_files(self, folder: Path, suffix: str = "") -> Path:
        folder.mkdir(exist_ok=True)
        for name, content in self.files.items():
            (folder / f"{name}{suffix}").write_bytes(gzip.compress(content) if suffix == ".gz" else content)
        return folder


def enter(
    monkeypatch: pytest.MonkeyPatch, name: str, kind: Format, splits: Splits, address: str, **more: object
) -> Tiny:
    files = kind.encode(splits)
    known = tuple(OfficialFile(file, len(content), md5(content)) for file, content in files.items())
    zipped = {file: gzip.compress(content, mtime=0) for file, content in files.items()}
    downloads = tuple(Download(f"{address}/{file}.gz", md5(content)) for file, content in zipped.items())
    dataset = Dataset(name, 10, kind, known, downloads, **more)  # pyright: ignore[reportArgumentType]
    monkeypatch.setitem(datasets.DATASETS, name, dataset)
    return Tiny(dataset, splits, files)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, server: Server) -> Tiny:
    made = enter(monkeypatch, "tiny", IDX, random_splits(20, 8, 5, 4, 1), server.address)
    server.files = {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in made.files.items()}
    return made


@pytest.fixture
def tiny_cifar(monkeypatch: pytest.MonkeyPatch) -> Tiny:
    real = datasets.DATASETS["cifar10"]
    forms = {"archives": real.archives, "subfolders": real.subfolders}
    return enter(monkeypatch, "tiny-cifar", CIFAR, random_splits(10, 2, 32, 32, 3), "http://127.0.0.1:9", **forms)
