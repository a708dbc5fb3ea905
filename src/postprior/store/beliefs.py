"""A belief's folder in a store: its tensors, a model card, and the manifest, which is written last."""

import platform
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from postprior.errors import StoreError
from postprior.networks.belief import Belief
from postprior.store.backends import Backend
from postprior.store.files import digest_of, naming, syncing
from postprior.store.manifest import from_plain, to_plain
from postprior.store.sealed import (
    FORMAT,
    ID,
    IN_SEVERAL_FILES,
    canonical,
    check_id,
    damaged,
    digest,
    plain,
    seal,
    unseal,
)
from postprior.store.tensors import dump_tensors, read_tensors

FOLDER, TENSORS, CARD, MANIFEST = "beliefs", "belief.safetensors", "README.md", "manifest.json"
INDEX = "belief.safetensors.index.json"
"""What stands in the place of TENSORS where these are in several files; see ``shares``."""
SHARE = re.compile(r"belief-([0-9]{5})-of-([0-9]{5})\.safetensors")

PASSING = frozenset({"id", "checksum", "time", "seconds", "versions", "files"})
"""What may differ between two manifests of one belief."""

LONGEST_PART_ID = 200


def now() -> str:
    """The time, as it stands in files."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def write_belief(backend: Backend, belief: Belief, manifest: Mapping[str, Any], card: str) -> str:
    """Make the folder, and the belief with its last file; its id. Writing the same again changes nothing."""
    where = f"{backend.address}: the new belief's {{}}"
    tensors, about = to_plain(belief)
    content = plain({**manifest, "format": FORMAT, "belief": about}, where.format(MANIFEST))
    check_origin(content, where.format(MANIFEST))
    with backend.staged() as path:
        with naming(where.format(TENSORS)):
            dump_tensors(path, tensors, {"belief": about})
            with syncing(path):
                checksum = digest_of(path)
        id = identity(content, {TENSORS: checksum})
        if backend.read(f"{FOLDER}/{id}/{MANIFEST}") is not None:
            read_manifest(backend, id)
            return id
        words = card.encode("utf-8", "backslashreplace")
        ours = backend.put_all(f"{FOLDER}/{id}", {TENSORS: path, CARD: words})
        if not ours[TENSORS]:
            mend_file(backend, f"{FOLDER}/{id}/{TENSORS}", path, checksum)
    if not ours[CARD]:
        # Whoever came first wrote it of the same belief; perhaps with another date, and died before the manifest.
        words = backend.read(f"{FOLDER}/{id}/{CARD}") or words
    content |= {"id": id, "time": now(), "versions": versions(), "files": {TENSORS: checksum, CARD: digest(words)}}
    backend.put(f"{FOLDER}/{id}/{MANIFEST}", seal(content))
    return id


def read_manifest(backend: Backend, id: str) -> dict[str, Any]:
    """The manifest, which is that of this id and of no other."""
    name = f"{FOLDER}/{check_id(id, backend.address)}/{MANIFEST}"
    where = backend.where(name)
    manifest = unseal(backend.read(name), where, IN_SEVERAL_FILES)
    files = manifest.get("files")
    if not isinstance(files, dict) or set(files) not in ({TENSORS, CARD}, {INDEX, CARD, *_shares(files)}):
        raise damaged(where, f"expected the checksums of {TENSORS}, or of an index and its files, and {CARD}")
    for file, checksum in files.items():
        check_id(checksum, f"{where}: the checksum of {file}")
    check_origin(manifest, where)
    tensors = {file: checksum for file, checksum in files.items() if file != CARD}
    if not manifest.get("id") == identity(manifest, tensors) == id:
        raise damaged(where, "its content is not that of the belief the folder is named after")
    return manifest


def read_tensors_of(backend: Backend, manifest: Mapping[str, Any]) -> Belief:
    """The belief, once its file has the checksum of the manifest."""
    name = f"{FOLDER}/{manifest['id']}/{TENSORS}"
    where = backend.where(name)
    with backend.fetched(name) as path:
        with naming(where, "read"):
            found = digest_of(path)
        if found != manifest["files"][TENSORS]:
            raise damaged(where, "it does not have the checksum that the manifest gives")
        tensors, about = read_tensors(path, where)
    if not isinstance(about.get("belief"), dict):
        raise StoreError(f"{where} holds no belief: expected a file that a store wrote")
    return from_plain(tensors, about["belief"])


def check_file(backend: Backend, manifest: Mapping[str, Any], file: str) -> None:
    """Raise a StoreError unless one of the belief's files has the checksum of the manifest; it is not kept."""
    name = f"{FOLDER}/{manifest['id']}/{file}"
    with backend.fetched(name) as path:
        if not path.is_file():
            raise StoreError(f"{backend.where(name)} is missing: restore it from a copy")
        with naming(backend.where(name), "read"):
            found = digest_of(path)
    if found != manifest["files"][file]:
        raise damaged(backend.where(name), "it does not have the checksum that the manifest gives")


def read_card_of(backend: Backend, manifest: Mapping[str, Any]) -> str:
    """The model card, once it has the checksum of the manifest."""
    name = f"{FOLDER}/{manifest['id']}/{CARD}"
    data = backend.read(name)
    if data is None:
        raise StoreError(f"{backend.where(name)} is missing: restore it from a copy")
    if digest(data) != manifest["files"][CARD]:
        raise damaged(backend.where(name), "it does not have the checksum that the manifest gives")
    return data.decode()


def check_origin(manifest: Mapping[str, Any], where: str) -> None:
    """Refuse a manifest whose parents are no ids, or whose part has no plain name."""
    parents = manifest.get("parents") or []
    if not isinstance(parents, list):
        raise StoreError(f"{where}: 'parents' is {parents!r:.80}, expected a list of ids")
    for parent in parents_of(manifest):
        check_id(parent, f"{where}: a parent")
    part = manifest.get("part")
    if part is None:
        return
    name = part.get("id") if isinstance(part, dict) else part
    if not (isinstance(name, str) and name.isprintable() and 0 < len(name) <= LONGEST_PART_ID):
        raise StoreError(
            f"{where}: the part's id is {name!r:.80}, expected 1 to {LONGEST_PART_ID} characters that can be printed"
        )


def parents_of(manifest: Mapping[str, Any]) -> list[str]:
    """The beliefs that this one was made from."""
    parent = manifest.get("parent")
    return [*([] if parent is None else [parent]), *(manifest.get("parents") or [])]


def ids(backend: Backend) -> list[str]:
    """The folders of beliefs, acknowledged or not."""
    return [name for name in backend.children(FOLDER) if ID.fullmatch(name)]


def remove_belief(backend: Backend, id: str) -> None:
    """Remove the folder, the manifest first: what is left after a crash is not half a belief."""
    folder = f"{FOLDER}/{check_id(id, backend.address)}"
    for file in sorted(backend.children(folder), key=lambda name: name != MANIFEST):
        backend.remove(f"{folder}/{file}")
    backend.remove(folder)


def share_name(number: int, count: int) -> str:
    """What the file of one of several processes is called, numbered from 0."""
    return f"belief-{number + 1:05d}-of-{count:05d}.safetensors"


def identity(manifest: Mapping[str, Any], checksums: Mapping[str, str]) -> str:
    """The id: the hash of all that lasts, and of the files that hold tensors."""
    lasting = {key: value for key, value in manifest.items() if key not in PASSING}
    return digest(canonical({**lasting, **checksums}))


def mend_file(backend: Backend, name: str, path: Path, checksum: str) -> None:
    """See to it that the file which stands there is this one, where no manifest speaks of it yet."""
    with backend.fetched(name) as standing:
        if digest_of(standing) == checksum:
            return
    # Left behind by a dead process, and damaged since: no manifest speaks of it yet.
    backend.remove(name)
    backend.put(name, path)


def _shares(files: Mapping[str, Any]) -> set[str]:
    """The names of all files, where some of them are among these."""
    counts = {int(match[2]) for match in map(SHARE.fullmatch, files) if match}
    return {share_name(number, min(counts)) for number in range(min(counts))} if counts else {SHARE.pattern}


def versions() -> dict[str, str]:
    """What wrote it."""
    packages = {name: version(name) for name in ("postprior", "torch", "safetensors")}
    return {"python": platform.python_version(), **packages}
