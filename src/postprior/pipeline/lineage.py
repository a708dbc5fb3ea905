"""Where a belief comes from: its ancestors, and the parts that it has learned."""

from collections.abc import Iterator, Mapping
from typing import Any

from postprior.errors import StoreError
from postprior.store.archive import Archive

Manifest = Mapping[str, Any]
Record = Mapping[str, Any]
"""What is kept of a part."""


def ancestry(archive: Archive, id: str) -> Iterator[tuple[str, Manifest]]:
    """The belief and its first parents, newest first."""
    at: str | None = id
    while at is not None:
        manifest = archive.manifest(at)
        yield at, manifest
        at = manifest["parent"]


def family_tree(archive: Archive, id: str) -> dict[str, Manifest]:
    """The belief and all its ancestors, every one after its parents."""
    found: dict[str, Manifest] = {}
    waiting = [id]
    while waiting:
        at = waiting[-1]
        manifest = found.get(at) or archive.manifest(at)
        missing = [parent for parent in manifest["parents"] if parent not in found] if at not in found else []
        if missing:
            waiting += missing
        else:
            found.setdefault(at, manifest)
            waiting.pop()
    return found


def counted_parts(tree: Mapping[str, Manifest], id: str) -> dict[str, Record]:
    """The parts that a belief has learned and not forgotten, each by where it was absorbed, oldest first.

    That is the belief, with a number after it where several were absorbed together.
    """
    known: dict[str, dict[str, Record]] = {}
    for at, manifest in tree.items():
        own = {place: record for parent in manifest["parents"] for place, record in known[parent].items()}
        if manifest["kind"] == "absorb":
            own[at] = manifest["part"]
        if manifest["kind"] == "absorb-together":
            own |= {f"{at}/{number}": record for number, record in enumerate(manifest["parts"])}
        if manifest["kind"] == "forget":
            del own[manifest["forgotten"]["absorbed_in"]]
        known[at] = own
    return known[id]


def place_of(parts: Mapping[str, Record], name: str) -> str:
    """Where a part was absorbed, the last where there are several; a StoreError where there is none."""
    places = [place for place, record in parts.items() if record["id"] == name]
    if not places:
        names = [record["id"] for record in parts.values()]
        raise StoreError(
            f"no part {name!r} is counted; there are {len(names)}, the last {', '.join(names[-8:]) or '-'}"
        )
    return places[-1]
