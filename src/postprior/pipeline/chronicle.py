"""The journal as people read it: what happened at each entry, and what in it deserves a look."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from postprior.pipeline.absorbing import CANDIDATE
from postprior.pipeline.incoming import Overlap
from postprior.pipeline.lineage import Manifest
from postprior.pipeline.surprise import Surprise
from postprior.serving.report import Detail, Event, Tone
from postprior.store.journal import Entry

SHORT = 8
"""Digits of an id that are shown."""


def chronicle(entries: Sequence[Entry], manifests: Mapping[str, Manifest]) -> list[Event]:
    """Every entry, the newest first; ``manifests`` are those of all beliefs that the entries name."""
    if not entries:
        return []
    aliases = entries[-1].aliases
    made: dict[str, int] = {entry.belief: entry.sequence for entry in entries if entry.belief is not None}
    before: list[Mapping[str, str]] = [{}, *(entry.aliases for entry in entries)]
    events: list[Event] = []
    for entry, old in zip(entries, before, strict=False):
        # What was made twice, such as after a rollback, carries its marks where it was made last.
        marked = entry.belief is not None and made[entry.belief] == entry.sequence
        marks = tuple(name for name, id in aliases.items() if id == entry.belief) if marked else ()
        events.append(_event(entry, manifests, _moves(entry, old, manifests), marks))
    return events[::-1]


def named(id: str, manifests: Mapping[str, Manifest]) -> str:
    """A belief by what it learned last."""
    return f"{_made_by(manifests[id])} ({id[:SHORT]})"


def _event(entry: Entry, manifests: Mapping[str, Manifest], moves: list[Detail], marks: tuple[str, ...]) -> Event:
    manifest = manifests[entry.belief] if entry.belief is not None else {}
    title, tone, details = TELLERS.get(entry.event, _told_plainly)(entry, manifest, manifests)
    return Event(
        sequence=entry.sequence,
        time=entry.time,
        title=title,
        tone=tone,
        belief=entry.belief,
        marks=marks,
        details=(*details, *moves),
    )


Told = tuple[str, Tone, list[Detail]]


def _told_plainly(entry: Entry, manifest: Manifest, manifests: Mapping[str, Manifest]) -> Told:
    del manifests
    titles = {
        "init": "The first belief, before any part",
        "promote": "Promoted",
        "rollback": "Rolled back",
        "alias": "An alias was moved",
    }
    tone: Tone = "warning" if entry.event == "rollback" else "plain"
    return titles.get(entry.event, entry.event.capitalize()), tone, _gate(manifest)


def _told_absorb(entry: Entry, manifest: Manifest, manifests: Mapping[str, Manifest]) -> Told:
    del manifests
    part, passed = manifest["part"], bool(entry.about.get("passed", True))
    title = f"Part {part['id']} {'learned' if passed else 'stopped by its gate'}"
    counted = f"{part['num_examples']:,} examples"
    if update := manifest.get("update"):
        counted += f", {update['steps']:,} steps, KL {update['kl']:,.1f} nats"
    details = [Detail("learned", counted)]
    if manifest.get("forced"):
        details.append(Detail("repeat", "was absorbed before, and was allowed to count again", "warning"))
    details += [Detail("overlap", Overlap(**each).sentence, "warning") for each in manifest.get("overlaps") or ()]
    surprises = [Surprise(**each) for each in manifest.get("surprises") or ()]
    details += [Detail("surprise", each.sentence, "warning") for each in surprises if each.is_warning]
    return title, "good" if passed else "bad", [*details, *_gate(manifest)]


def _told_merge(entry: Entry, manifest: Manifest, manifests: Mapping[str, Manifest]) -> Told:
    del entry
    merged = " and ".join(named(parent, manifests) for parent in manifest["parents"])
    return "Beliefs multiplied", "good", [Detail("merged", merged), *_gate(manifest)]


def _told_forget(entry: Entry, manifest: Manifest, manifests: Mapping[str, Manifest]) -> Told:
    del entry, manifests
    return (
        f"Part {manifest['forgotten']['part']} divided out",
        "warning",
        [Detail("approximate", "the parts after it were learned from where it had led"), *_gate(manifest)],
    )


def _told_together(entry: Entry, manifest: Manifest, manifests: Mapping[str, Manifest]) -> Told:
    del manifests
    parts, passed = manifest["parts"], bool(entry.about.get("passed", True))
    title = f"{len(parts)} parts {'learned together' if passed else 'stopped by their gate'}"
    names = ", ".join(part["id"] for part in parts)
    counted = f"{sum(part['num_examples'] for part in parts):,} examples, {manifest['rounds']} rounds of refinement"
    details = [Detail("learned", counted), Detail("parts", names)]
    details += [Detail("overlap", Overlap(**each).sentence, "warning") for each in manifest["overlaps"]]
    return title, "good" if passed else "bad", [*details, *_gate(manifest)]


TELLERS: dict[str, Callable[[Entry, Manifest, Mapping[str, Manifest]], Told]] = {
    "absorb": _told_absorb,
    "absorb-together": _told_together,
    "merge": _told_merge,
    "forget": _told_forget,
}
"""Events with something of their own to tell."""


def _gate(manifest: Manifest) -> list[Detail]:
    verdict: Mapping[str, Any] | None = manifest.get("gate")
    if not verdict:
        return []
    text = f"{verdict['gate']}: {verdict['reason']}"
    return [Detail("gate passed", text, "good") if verdict["passed"] else Detail("gate failed", text, "bad")]


def _moves(entry: Entry, old: Mapping[str, str], manifests: Mapping[str, Manifest]) -> list[Detail]:
    """What the entry did to the aliases; those that moved together are told together."""
    new = entry.aliases
    moved = [name for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]
    if entry.belief is not None and len(moved) > 1:
        moved = [name for name in moved if name != CANDIDATE]  # which always moves to what is new
    together: dict[tuple[str | None, str | None], list[str]] = {}
    for name in moved:
        together.setdefault((old.get(name), new.get(name)), []).append(name)
    moves: list[Detail] = []
    for (source, target), names in together.items():
        came = "" if source is None else f" from {named(source, manifests)}"
        if target is None:
            went = ", to nothing: it was taken away"
        else:
            went = " to this belief" if target == entry.belief else f" to {named(target, manifests)}"
        moves.append(Detail("moved", f"{' and '.join(names)}{came}{went}"))
    return moves


def _made_by(manifest: Manifest) -> str:
    kind = str(manifest["kind"])
    if kind == "absorb":
        return f"part {manifest['part']['id']}"
    if kind == "forget":
        return f"without part {manifest['forgotten']['part']}"
    return {"init": "the first belief", "merge": "the product"}.get(kind, kind)
