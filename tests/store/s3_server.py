"""An S3-compatible server in memory, for tests: it prints its port and serves until it is killed.

Buckets whose name begins with `careless` do not know If-None-Match, as some servers do not.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

Respond = Callable[..., Any]


class Forgetful:
    """Drops the condition of writes to some buckets."""

    def __init__(self, app: Any) -> None:
        self._app = app

    def __call__(self, environ: dict[str, Any], respond: Respond) -> Iterable[bytes]:
        if environ["PATH_INFO"].startswith("/careless"):
            environ.pop("HTTP_IF_NONE_MATCH", None)
        return self._app(environ, respond)


if __name__ == "__main__":
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    # One request at a time: a condition is decided in one step by real servers, and in two by this one.
    server = make_server("127.0.0.1", 0, Forgetful(DomainDispatcherApplication(create_backend_app)), threaded=False)
    print(server.port, flush=True)  # noqa: T201
    server.serve_forever()
