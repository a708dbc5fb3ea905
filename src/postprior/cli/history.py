"""`postprior log`, `show`, `diff` and `verify`: what was done, what came of it, and whether it is still all there."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from postprior.cli import options, screen
from postprior.cli.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from postprior.pipeline.store import Store
    from postprior.store.journal import Entry


def log(
    store: options.StoreAt,
    at: Annotated[
        str | None, typer.Option(metavar="REF", help="Only how this belief came about: head, an id, head~3.")
    ] = None,
    last: Annotated[int | None, typer.Option("--last", "-n", min=1, metavar="N", help="Only the N newest.")] = None,
    json_: options.Json = False,
) -> None:
    """Tell what was done, the newest first: parts and their gates, promotions, rollbacks, merges.

    \b
    [bold]Examples[/bold]
    postprior log digits
    [dim]# the lineage of the belief that serves[/dim]
    postprior log digits --at champion -n 5
    """
    from postprior.pipeline.chronicle import chronicle
    from postprior.pipeline.store import Store

    opened = Store.open(store)
    whole, chosen = opened.log(), opened.log(at)[:last]
    if json_:
        screen.document([plain_entry(entry) for entry in chosen])
        return
    wanted = {entry.sequence for entry in chosen}
    # What an entry moved shows beside the one before it.
    needed = [entry for entry in whole if entry.sequence >= min(wanted) - 1][::-1]
    manifests = _manifests(opened, needed)
    for event in chronicle(needed, manifests):
        if event.sequence in wanted:
            marks = f" [{', '.join(event.marks)}]" if event.marks else ""
            id = f" {event.belief[: screen.SHORT]}" if event.belief else ""
            print(f"{event.sequence:>4}  {event.time[:16].replace('T', ' ')}  {event.title}{id}{marks}")
            for detail in event.details:
                print(f"{'':>24}{detail.badge}: {detail.text}")


def show(
    store: options.StoreAt,
    at: Annotated[str, typer.Argument(metavar="REF", help="An alias, an id or its beginning, head~3.")] = "head",
    json_: options.Json = False,
) -> None:
    """Show one belief: where it comes from, how it was learned, what was measured, which parts it knows.

    \b
    [bold]Examples[/bold]
    postprior show digits
    postprior show digits champion~1 --json
    """
    from postprior.pipeline.store import Store

    opened = Store.open(store)
    manifest, knows = opened.show(at), opened.parts(at)
    marks = [name for name, id in opened.aliases.items() if id == manifest["id"]]
    if json_:
        screen.document({**manifest, "aliases": marks, "knows": knows})
    else:
        screen.lines(_about(manifest, marks, knows))


def diff(
    store: options.StoreAt,
    one: Annotated[str, typer.Argument(metavar="ONE", help="A belief, such as head.")],
    other: Annotated[str, typer.Argument(metavar="OTHER", help="Another, such as head~1.")],
    json_: options.Json = False,
) -> None:
    """Compare two beliefs layer by layer: KL(ONE ‖ OTHER) in nats, how much ONE says that OTHER did not know.

    \b
    [bold]Examples[/bold]
    postprior diff digits head head~1
    [dim]# what all parts together have taught[/dim]
    postprior diff digits champion head~10
    """
    from postprior.pipeline.store import Store

    layers = Store.open(store).diff(one, other)
    total = sum(layers.values())
    if json_:
        screen.document({"one": one, "other": other, "layers": layers, "total": total})
        return
    if not layers:
        print("Every weight is known by a single value, and between values there is no divergence.")
        return
    rows = [(name, f"{nats:,.2f}", f"{nats / total:.1%}" if total else "-") for name, nats in layers.items()]
    screen.table(("layer", "nats", "share"), [*rows, ("all", f"{total:,.2f}", "")], right=("nats", "share"))


def verify(store: options.StoreAt, json_: options.Json = False) -> None:
    """Read every file of the store against its checksum. Nothing is mended; the exit status is 7 if one is damaged.

    \b
    [bold]Example[/bold]
    postprior verify digits
    """
    from postprior.pipeline.store import Store

    opened = Store.open(store)
    checked = 0
    with screen.counting("reading beliefs") as progress:

        def count(done: int, total: int) -> None:
            nonlocal checked
            checked = done
            progress(done, total)

        problems = opened.verify(count)
    if json_:
        screen.document({"beliefs": checked, "problems": [{"path": each.path, "what": each.what} for each in problems]})
    else:
        for each in problems:
            print(f"{each.path}: {each.what}")
        print(f"{checked:,} beliefs read: {len(problems) or 'no'} problem{'s' * (len(problems) != 1)}.")
    if problems:
        raise typer.Exit(Exit.PROBLEMS)


def plain_entry(entry: "Entry") -> dict[str, Any]:
    """An entry of the journal as JSON."""
    return {
        "sequence": entry.sequence,
        "time": entry.time,
        "event": entry.event,
        "belief": entry.belief,
        "aliases": dict(entry.aliases),
        "about": dict(entry.about),
    }


def _manifests(store: "Store", entries: "Sequence[Entry]") -> "dict[str, Mapping[str, Any]]":
    ids = {id for entry in entries for id in (entry.belief, *entry.aliases.values()) if id is not None}
    return {id: store.archive.manifest(id) for id in ids}


def _about(
    manifest: "Mapping[str, Any]", marks: list[str], knows: "Sequence[Mapping[str, Any]]"
) -> list[tuple[str, str]]:
    rows = [
        ("belief", manifest["id"]),
        ("aliases", ", ".join(marks) or "none"),
        ("made", f"{manifest['time'][:19].replace('T', ' ')} by {manifest['kind']}"),
        ("from", ", ".join(parent[: screen.SHORT] for parent in manifest["parents"]) or "nothing: it is the first"),
        ("network", f"{manifest['network']['address']}, {manifest['family']}, {manifest['likelihood']['name']}"),
    ]
    own = manifest.get("parts") or ([manifest["part"]] if manifest["part"] else [])
    rows += [("part", f"{part['id']}, {part['num_examples']:,} examples") for part in own]
    for name, word in (("before", "before"), ("after", "held out")):
        if found := manifest["metrics"][name]:
            rows.append((word, screen.measures(found)))
    if verdict := manifest.get("gate"):
        rows.append(("gate", f"{'passed' if verdict['passed'] else 'FAILED'}: {verdict['reason']}"))
    known = [record["id"] for record in knows]
    rows.append(("knows", f"{len(known)} part{'s' * (len(known) != 1)}{': ' if known else ''}{', '.join(known[-12:])}"))
    settings = {name: value for name, value in manifest["configuration"].items() if value is not None}
    rows.append(("settings", ", ".join(f"{name}={value}" for name, value in settings.items())))
    return rows
