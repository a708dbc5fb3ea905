"""A belief's folder in a store: its tensors, a model card, and the manifest, which is written last."""

import platform
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
from postprior.store.sealed import FORMAT, ID, canonical, check_id, damaged, digest, plain, seal, unseal
from postprior.store.tensors import dump_tensors, read_tensors

FOLDER, TENSORS, CARD, MANIFEST = "beliefs", "belief.safetensors", "README.md", "manifest.json"

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
        id = _identity(content, checksum)
        if backend.read(f"{FOLDER}/{id}/{MANIFEST}") is not None:
            read_manifest(backend, id)
            return id
        words = card.encode("utf-8", "backslashreplace")
        ours = backend.put_all(f"{FOLDER}/{id}", {TENSORS: path, CARD: words})
        if not ours[TENSORS]:
            _mend_tensors(backend, f"{FOLDER}/{id}/{TENSORS}", path, checksum)
    if not ours[CARD]:
        # Whoever came first wrote it of the same belief; perhaps with another date, and died before the manifest.
        words = backend.read(f"{FOLDER}/{id}/{CARD}") or words
    content |= {"id": id, "time": now(), "versions": _versions(), "files": {TENSORS: checksum, CARD: digest(words)}}
    backend.put(f"{FOLDER}/{id}/{MANIFEST}", seal(content))
    return id


def read_manifest(backend: Backend, id: str) -> dict[str, Any]:
    """The manifest, which is that of this id and of no other."""
    name = f"{FOLDER}/{check_id(id, backend.address)}/{MANIFEST}"
    where = backend.where(name)
    manifest = unseal(backend.read(name), where)
    files = manifest.get("files")
    if not isinstance(files, dict) or set(files) != {TENSORS, CARD}:
        raise damaged(where, f"expected the checksums of {TENSORS} and {CARD} under 'files'")
    for file, checksum in files.items():
        check_id(checksum, f"{where}: the checksum of {file}")
    check_origin(manifest, where)
    if not manifest.get("id") == _identity(manifest, files[TENSORS]) == id:
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


def _identity(manifest: Mapping[str, Any], checksum: str) -> str:
    """The id: the hash of all that lasts."""
    lasting = {key: value for key, value in manifest.items() if key not in PASSING}
    return digest(canonical({**lasting, TENSORS: checksum}))


def _mend_tensors(backend: Backend, name: str, path: Path, checksum: str) -> None:
    with backend.fetched(name) as standing:
        if digest_of(standing) == checksum:
            return
    # Left behind by a dead process, and damaged since: no manifest speaks of it yet.
    backend.remove(name)
    backend.put(name, path)


def _versions() -> dict[str, str]:
    packages = {name: version(name) for name in ("postprior", "torch", "safetensors")}
    return {"python": platform.python_version(), **packages}
