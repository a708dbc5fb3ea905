"""Moves of the aliases: which belief learns next, and which one serves."""

from collections.abc import Mapping
from typing import Any

from postprior.data.encoding import Encoding
from postprior.errors import StoreError
from postprior.networks.belief import Belief
from postprior.pipeline import drafts
from postprior.pipeline.absorbing import CHAMPION, HEAD, check_alias
from postprior.pipeline.lineage import family_tree
from postprior.pipeline.recipe import Recipe, described, plain_settings
from postprior.serving.card import model_card
from postprior.store.archive import Archive
from postprior.store.journal import Entry


def acknowledge_first(archive: Archive, recipe: Recipe, belief: Belief, encoding: Encoding | None) -> str:
    """Record the belief before any part; its id."""
    manifest: dict[str, Any] = {
        **described(recipe),
        "kind": "init",
        "parent": None,
        "parents": [],
        "part": None,
        "configuration": plain_settings(recipe.settings_with({})),
        "encoding": None if encoding is None else encoding.to_json(),
        "metrics": {"before": None, "after": None},
    }
    id = archive.put(belief, manifest, model_card(manifest))
    archive.append("init", belief=id, moves=dict.fromkeys((HEAD, CHAMPION), id), expect={HEAD: None})
    return id


def promote(archive: Archive, ref: str) -> Entry:
    """Make a belief the champion. Head moves there too if the belief grew from it, and stays if it is ahead."""
    id, aliases = archive.resolve(ref), archive.state().aliases
    moves: dict[str, str | None] = {CHAMPION: id}
    if aliases[HEAD] in family_tree(archive, id):
        moves[HEAD] = id
    return _append(archive, "promote", moves, aliases, {"ref": ref})


def rollback(archive: Archive, to: str | None) -> Entry:
    """Take head back to an ancestor, its parent unless another is named; the champion too, if that is not behind it.

    Nothing is removed, and the parts left behind may be absorbed anew.
    """
    aliases = archive.state().aliases
    target = archive.resolve(f"{HEAD}~1" if to is None else to)
    behind = family_tree(archive, target)
    if target not in family_tree(archive, aliases[HEAD]):
        raise StoreError(
            f"{to} is no ancestor of head: go back to one that `postprior log` shows, or promote it instead"
        )
    moves: dict[str, str | None] = {HEAD: target}
    if aliases[CHAMPION] not in behind:
        moves[CHAMPION] = target
    return _append(archive, "rollback", moves, aliases, {"from": aliases[HEAD]})


def alias(archive: Archive, name: str, ref: str | None) -> Entry:
    """Point an alias of one's own at a belief; None takes the alias away."""
    check_alias(name)
    aliases = archive.state().aliases
    if ref is None and name not in aliases:
        raise StoreError(f"{name} is no alias: there are {', '.join(sorted(aliases))}")
    return _append(archive, "alias", {name: None if ref is None else archive.resolve(ref)}, aliases, {})


def _append(
    archive: Archive, event: str, moves: Mapping[str, str | None], aliases: Mapping[str, str], about: Mapping[str, Any]
) -> Entry:
    if HEAD in moves and moves[HEAD] != aliases[HEAD]:
        drafts.refuse_unfinished(archive)
    # Whoever moves one of them meanwhile decided on what is no longer so.
    return archive.append(event, moves=moves, expect={name: aliases.get(name) for name in moves}, about=about)
