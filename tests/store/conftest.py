"""The places an archive can lie in: a local disk, the memory of this process, an S3-compatible server."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import fsspec
import pytest
from tiny_archives import Place


@pytest.fixture(scope="session")
def s3() -> Iterator[fsspec.AbstractFileSystem]:
    """A filesystem of fsspec on a server of our own, which ends with the tests."""
    for package in ("moto.server", "s3fs"):
        pytest.importorskip(package, reason=f"{package} is not installed: nothing to serve S3 with")
    command = [sys.executable, str(Path(__file__).parent / "s3_server.py")]
    with pytest.MonkeyPatch.context() as patch, subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port = server.stdout.readline().strip()
            if not port:
                pytest.skip("the S3 server of moto does not start here")
            patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
            patch.setenv("AWS_ACCESS_KEY_ID", "test")
            patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
            patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
            patch.setenv("AWS_CONFIG_FILE", "/dev/null")
            patch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
            files = fsspec.filesystem("s3")
            files.mkdir("tests")
            files.mkdir("careless")
            yield files
        finally:
            server.kill()


@pytest.fixture
def s3_address(s3: fsspec.AbstractFileSystem) -> str:
    """A place on the server that holds nothing yet."""
    address = f"s3://tests/{uuid4().hex}"
    s3.pipe_file(f"{address}/probe", b"", mode="create")
    try:
        s3.pipe_file(f"{address}/probe", b"", mode="create")
    except FileExistsError:
        s3.rm_file(f"{address}/probe")
        return f"{address}/archive"
    pytest.skip("this version of moto does not know conditional writes")


@pytest.fixture(params=["local disk", "memory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Where nothing lies yet: every law is tried on each of these."""
    if request.param == "s3":
        return Place(request.getfixturevalue("s3_address"))
    if request.param == "memory":
        return Place(f"memory://{uuid4().hex}/archive")
    return Place(str(tmp_path / "a folder" / "archive"), locks=True)
