"""How an absorption ended, in the words that one part and many have in common."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from postprior.cli import screen

if TYPE_CHECKING:
    from postprior.pipeline.absorbing import Outcome
    from postprior.pipeline.together import Gathered


def ending(outcome: "Outcome | Gathered", aliases: Mapping[str, str]) -> list[tuple[str, str]]:
    """What held-out data and the gate said, and what points to the belief now."""
    rows: list[tuple[str, str]] = []
    if outcome.after is not None:
        rows.append(("held out", screen.measures(outcome.after)))
    if verdict := outcome.verdict:
        rows.append(("gate", f"{'passed' if verdict.passed else 'FAILED'}: {verdict.reason}"))
    moved = ", ".join(name for name, id in aliases.items() if id == outcome.belief)
    rows.append(("belief", f"{outcome.belief[: screen.SHORT]}, now {moved}"))
    if not outcome.passed:
        rows.append(
            ("kept", "as candidate alone: head and champion stay; `postprior promote` would take it all the same")
        )
    return rows
