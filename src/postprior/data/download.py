"""One file from an official address, resumable: what has arrived stays in a `.partial` file until it is complete."""

import contextlib
import hashlib
import http.client
import urllib.error
import urllib.request
from collections.abc import Generator, Iterator
from http import HTTPStatus
from pathlib import Path

from postprior.data.published import Download, Progress, disk_errors
from postprior.errors import DataError

CHUNK = 1 << 18  # bytes
TIMEOUT = 60  # seconds without a byte


def complete(download: Download, partial: Path, progress: Progress, otherwise: str) -> None:
    """Bring `partial` to the whole file, its md5 checked. `otherwise` is the cure when the address is out of reach."""
    with disk_errors(partial):
        if partial.is_file() and _md5(partial) == download.md5:
            return
        _transfer(download, partial, progress, otherwise)
        found = _md5(partial)
        if found != download.md5:
            size = partial.stat().st_size
            partial.unlink()  # a wrong beginning would spoil every later attempt
            raise DataError(
                f"{download.url}: expected md5 {download.md5}, found {found} in {size} bytes; "
                f"the download was removed: run again to start afresh, or {otherwise}"
            )


def _transfer(download: Download, partial: Path, progress: Progress, otherwise: str) -> None:
    present = partial.stat().st_size if partial.is_file() else 0
    with _opened(download, partial, present, otherwise) as response:
        # A server that knows nothing of ranges answers 200 and sends the file from its beginning.
        resumed = response.status == HTTPStatus.PARTIAL_CONTENT
        done = present if resumed else 0
        length = response.headers.get("Content-Length")
        total = done + int(length) if length else None
        with partial.open("ab" if resumed else "wb") as out:
            progress(download.name, done, total)
            for chunk in _chunks(response, download, otherwise):
                out.write(chunk)
                done += len(chunk)
                progress(download.name, done, total)
    if total is not None and done < total:
        raise _unreachable(download, f"the connection closed after {done} of {total} bytes", otherwise)


@contextlib.contextmanager
def _opened(download: Download, partial: Path, present: int, otherwise: str) -> Generator[http.client.HTTPResponse]:
    headers = {"User-Agent": "postprior"} | ({"Range": f"bytes={present}-"} if present else {})
    try:
        response = urllib.request.urlopen(urllib.request.Request(download.url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            partial.unlink()  # it is longer than the file it should be the beginning of
        raise _unreachable(download, error, otherwise) from error
    except urllib.error.URLError as error:
        raise _unreachable(download, error.reason, otherwise) from error
    except (OSError, http.client.HTTPException) as error:
        raise _unreachable(download, error, otherwise) from error
    with response:
        yield response


def _chunks(response: http.client.HTTPResponse, download: Download, otherwise: str) -> Iterator[bytes]:
    # Reading has a function of its own so that a failing network is told from a failing disk: both raise OSError.
    while True:
        try:
            chunk = response.read(CHUNK)
        except (OSError, http.client.HTTPException) as error:
            raise _unreachable(download, error, otherwise) from error
        if not chunk:
            return
        yield chunk


def _unreachable(download: Download, reason: object, otherwise: str) -> DataError:
    return DataError(
        f"{download.url} could not be downloaded: {reason}; run again, it goes on from what has arrived, or {otherwise}"
    )


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
