"""A disk that is full or that may not be written to: errors that name the file, and what was acknowledged is there."""

import ctypes
import errno
import os
import resource
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_archives import RECIPE, Place, commit, elsewhere, grown, put_tiny, tiny_belief

from postprior.errors import StoreError
from postprior.networks.belief import digest
from postprior.store import Archive

NOT_HERE = (errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EINVAL)
NEWNS, PRIVATE, REMOUNT_READ_ONLY, BIND = 0x20000, 0x44000, 0x21, 0x1000
PAGE = 4096


class MountRefusedError(Exception):
    """Mounting is not allowed here."""


def mount(source: str, target: Path, kind: str, flags: int, options: str) -> None:
    """Mount for this process alone: nobody else sees it, and it is gone when the process is."""
    libc = ctypes.CDLL(None, use_errno=True)
    steps: list[Callable[[], int]] = [
        lambda: libc.unshare(NEWNS),
        lambda: libc.mount(b"none", b"/", None, PRIVATE, None),
        lambda: libc.mount(source.encode(), bytes(target), kind.encode(), flags & ~REMOUNT_READ_ONLY, options.encode()),
    ]
    if flags & REMOUNT_READ_ONLY:
        steps.append(lambda: libc.mount(b"none", bytes(target), None, flags | REMOUNT_READ_ONLY, None))
    for step in steps:
        if step() != 0:
            number = ctypes.get_errno()
            raise (MountRefusedError if number in NOT_HERE else OSError)(number, os.strerror(number))


def refused_by(archive: Archive, use: Callable[[], Any]) -> str | None:
    """What a StoreError says, with the archive's address in front left out; None if there was none."""
    try:
        use()
    except StoreError as error:
        message = str(error)
    else:
        return None
    assert message.startswith(archive.address), f"{message!r} does not name the file"
    return message.removeprefix(archive.address)


def assert_whole(root: Path, ids: list[str], draft: bytes) -> None:
    archive = Archive.open(root)
    assert archive.verify() == []
    assert [entry.belief for entry in archive.entries()] == ids
    assert archive.state().aliases == {"head": ids[-1]}
    assert digest(archive.belief(ids[0])) == digest(tiny_belief(0))
    assert archive.draft("step") == draft
    assert [path.name for path in root.iterdir() if path.name.startswith(".tmp")] == []


# A full disk


def fill_up(folder: Path) -> list[str] | None:
    """Use an archive on a disk with a few pages left, more each time; what was refused. None where nothing mounts."""
    try:
        mount("none", folder, "tmpfs", 0, "size=1m")
    except MountRefusedError:
        return None
    root, ballast = folder / "archive", folder / "ballast"
    archive, ids = grown(root, 2)
    archive.write_draft("step", b"first")
    drafts, found = [b"first"], list[str]()

    def commit_one() -> None:
        ids.append(commit(archive, len(ids)))

    def draft_one() -> None:
        archive.write_draft("step", b"x" * PAGE * pages)
        drafts.append(b"x" * PAGE * pages)

    for pages in range(12):
        with ballast.open("wb") as file:
            free = os.statvfs(folder).f_bavail
            file.write(bytes((free - pages) * PAGE))
        for use in (commit_one, draft_one):
            if (message := refused_by(archive, use)) is not None:
                found.append(message)
            assert_whole(root, ids, drafts[-1])
        ballast.unlink()
        archive.sweep()
    commit_one()
    assert_whole(root, ids, drafts[-1])
    return found


def test_a_full_disk_is_an_error_and_loses_nothing(tmp_path: Path) -> None:
    found = elsewhere(fill_up, tmp_path)
    if found is None:
        pytest.skip("no disk can be mounted here")
    assert all("No space left on device" in message or "os error 28" in message for message in found)
    for part in ("belief.safetensors", "README.md", "manifest.json", "journal/0", "draft/step"):
        assert any(part in message for message in found), f"never refused at {part}: {found}"


def outgrow(root: Path) -> list[str]:
    """Use an archive while no file may be longer than so many bytes; what was refused."""
    archive, ids = grown(root, 2)
    archive.write_draft("step", b"x")
    found = list[str]()
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for length in range(20, 2000, 80):
        resource.setrlimit(resource.RLIMIT_FSIZE, (length, hard))
        try:
            message = refused_by(archive, lambda: ids.append(commit(archive, len(ids))))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        if message is not None:
            found.append(message)
        assert_whole(root, ids, b"x")
        archive.sweep()
    ids.append(commit(archive, len(ids)))
    assert_whole(root, ids, b"x")
    return found


def test_a_file_that_may_not_grow_is_an_error_and_loses_nothing(tmp_path: Path) -> None:
    found = elsewhere(outgrow, tmp_path / "archive")
    assert all("File too large" in message or "os error 27" in message for message in found)
    for part in ("belief.safetensors", "manifest.json"):
        assert any(part in message for message in found), f"never refused at {part}: {found}"


# A place that may not be written to


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may look into, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def drop_rights(root: Path) -> None:
    for path in (root, *root.rglob("*")):
        path.chmod(path.stat().st_mode & ~0o222)
    if os.geteuid() == 0:
        os.setgid(65534)
        os.setuid(65534)


def mount_read_only(root: Path) -> None:
    mount(str(root), root, "none", BIND | REMOUNT_READ_ONLY, "")


def only_read(root: Path, forbid: Callable[[Path], None]) -> dict[str, str | None] | None:
    """Forbid writing and try everything; what was refused. None where it cannot be forbidden."""
    archive, ids = grown(root, 2)
    archive.write_draft("step", b"x")
    try:
        forbid(root)
    except (MountRefusedError, PermissionError):
        return None
    assert_whole(root, ids, b"x")
    archive = Archive.open(root)
    assert archive.resolve("head~1") == ids[0]
    return {
        "put": refused_by(archive, lambda: put_tiny(archive, 7)),
        "append": refused_by(archive, lambda: archive.append("promote", moves={"champion": ids[0]})),
        "draft": refused_by(archive, lambda: archive.write_draft("step", b"y")),
        "drop": refused_by(archive, archive.drop_drafts),
        "lock": refused_by(archive, lambda: archive.locked().__enter__()),
        "sweep": refused_by(archive, archive.sweep),
        "create": refused_by(archive, lambda: Archive.create(root / "another", RECIPE)),
    }


@pytest.mark.parametrize("forbid", [drop_rights, mount_read_only])
def test_an_archive_that_may_only_be_read_is_read(open_folder: Path, forbid: Callable[[Path], None]) -> None:
    root = open_folder / "archive"
    found = elsewhere(only_read, root, forbid)
    if found is None:
        pytest.skip("writing cannot be forbidden here")
    reason = "Permission denied" if forbid is drop_rights else "Read-only file system"
    assert {use: reason in (message or "") for use, message in found.items()} == dict.fromkeys(found, True)
    assert Archive.open(root).verify() == []
    for path in (root, *root.rglob("*")):
        path.chmod(0o755)
    assert Place(str(root)).files()


def locked_away(root: Path) -> list[str | None]:
    """Read what only somebody else may read."""
    archive, ids = grown(root, 2)
    names = ["journal/last.json", "journal/00000002.json", f"beliefs/{ids[0]}/belief.safetensors", "store.json"]
    for name in names:
        (root / name).chmod(0)
    if os.geteuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    uses: list[Callable[[], Any]] = [
        archive.state,
        lambda: archive.belief(ids[0]),
        lambda: Archive.open(root),
    ]
    assert sorted(problem.path.removeprefix(f"{root}/") for problem in archive.verify()) == sorted(names)
    return [refused_by(archive, use) for use in uses]


def test_what_may_not_be_read_is_named(open_folder: Path) -> None:
    state, belief, opened = elsewhere(locked_away, open_folder / "archive")
    assert state == "/journal/last.json cannot be read: Permission denied"
    assert belief.endswith("/belief.safetensors cannot be read: Permission denied")
    assert opened == "/store.json cannot be read: Permission denied"
