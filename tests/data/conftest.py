import gzip
import http.server
import threading
from collections.abc import Iterator

import pytest
from tiny_data import Server, Tiny, enter, random_splits

from postprior.data import datasets
from postprior.data.formats import CIFAR, IDX


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
