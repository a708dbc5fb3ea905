"""What holds in one kind of place alone."""

from pathlib import Path
from uuid import uuid4

import fsspec
import pytest
from tiny_archives import RECIPE, grown

from postprior.errors import MissingExtraError, StoreError
from postprior.store import Archive


def test_readers_of_a_local_disk_do_not_touch_it(tmp_path: Path) -> None:
    root = tmp_path / "archive"
    _, ids = grown(root, 2)

    def seen() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in (root, *root.rglob("*"))}

    before = seen()
    reader = Archive.open(f"file://{root}")
    assert reader.verify() == []
    assert reader.resolve("head~1") == ids[0]
    reader.belief(ids[1])
    assert seen() == before


def test_a_server_without_conditional_writes_is_refused(s3: fsspec.AbstractFileSystem) -> None:
    address = f"s3://careless/{uuid4().hex}"
    with pytest.raises(StoreError, match=r"takes a file where one stands .* server that honours conditional writes"):
        Archive.create(address, RECIPE)
    s3.invalidate_cache()
    assert s3.find(address) == []


def test_a_bucket_that_is_not_there_is_named(s3: fsspec.AbstractFileSystem) -> None:
    with pytest.raises(StoreError, match=r"s3://no-such-bucket/archive"):
        Archive.create("s3://no-such-bucket/archive", RECIPE)


def test_addresses_that_lead_nowhere() -> None:
    with pytest.raises(StoreError, match="nowhere://archive cannot be reached"):
        Archive.open("nowhere://archive")
    with pytest.raises(StoreError, match="a store cannot lie behind a chain of filesystems"):
        Archive.open("simplecache::memory://archive")
    fsspec.register_implementation("unheard", "no_such_package.Files", errtxt="install no_such_package", clobber=True)
    with pytest.raises(MissingExtraError, match="unheard://archive needs one more package: install no_such_package"):
        Archive.open("unheard://archive")


def test_a_file_is_no_place_for_an_archive(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    for use in (lambda: Archive.create(tmp_path / "thesis.tex", RECIPE), lambda: Archive.open(tmp_path / "thesis.tex")):
        with pytest.raises(StoreError, match=r"thesis\.tex"):
            use()
    assert (tmp_path / "thesis.tex").read_text() == "years of work"
