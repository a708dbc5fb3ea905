"""`postprior absorb --parallel`: several parts at once, each by a worker of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from postprior.cli import screen
from postprior.cli.exits import Exit
from postprior.cli.outcomes import ending
from postprior.cli.stopping import stoppable

if TYPE_CHECKING:
    from postprior.pipeline.together import Gathered


def absorb_together(store: str, data: Sequence[str], device: str, as_json: bool, options: Mapping[str, Any]) -> None:
    """Absorb them, and tell what came of it; a gate that failed is an exit status of its own."""
    with stoppable(store):
        from postprior.pipeline.store import Store

        opened = Store.open(store, device=device)
        with screen.counting("looking, then learning") as progress:
            found = opened.absorb_together(data, progress=progress, **options)
    aliases = opened.aliases
    screen.document({**_plain(found), "aliases": aliases}) if as_json else screen.lines(_words(found, aliases))
    if not found.passed:
        raise typer.Exit(Exit.GATE)


def _plain(found: "Gathered") -> dict[str, Any]:
    return {
        "belief": found.belief,
        "parts": list(found.parts),
        "passed": found.passed,
        "promoted": found.promoted,
        "after": None if found.after is None else dict(found.after),
        "gate": found.verdict.to_json() if found.verdict else None,
        "overlaps": [asdict(each) for each in found.overlaps],
        "set_back": found.set_back,
        "seconds": found.seconds,
    }


def _words(found: "Gathered", aliases: Mapping[str, str]) -> list[tuple[str, str]]:
    rows = [("parts", ", ".join(found.parts)), ("learned", f"at once, in {found.seconds:.1f} s")]
    rows += [("overlap", each.sentence) for each in found.overlaps]
    if found.set_back:
        rows.append(("set back", f"{found.set_back:,} weights that some worker came out less sure of"))
    return rows + ending(found, aliases)
