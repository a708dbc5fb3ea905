"""Beliefs that learned apart are merged, and one part's contribution is divided out again."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from postprior.errors import BeliefError, StoreError
from postprior.learning.combine import product, set_back
from postprior.networks.belief import Belief
from postprior.pipeline import drafts
from postprior.pipeline.absorbing import CANDIDATE, HEAD, check_alias
from postprior.pipeline.lineage import Manifest, counted_parts, family_tree, place_of
from postprior.pipeline.recipe import Recipe, described, plain_settings
from postprior.serving.card import model_card
from postprior.store.archive import Archive
from postprior.store.journal import Entry

Tree = Mapping[str, Manifest]


def merge(
    archive: Archive, network: nn.Module, refs: Sequence[str], base: str, into: str, *, drop_negative: bool
) -> Entry:
    """The belief of all evidence that several learned apart since one base: their product over base^(K - 1).

    Each part counts once, whoever learned it. ``into`` is the alias that moves there; head only if nothing that it has
    learned is left out. ``drop_negative``: where one of them came out less sure of a weight than the base, which is
    chance more often than not, it counts as having learned nothing of that weight.
    """
    drafts.refuse_unfinished(archive)
    if into != HEAD:
        check_alias(into)
    root, ids = archive.resolve(base), [archive.resolve(ref) for ref in refs]
    if len(ids) < 2 or len(set(ids)) < len(ids):
        raise StoreError(f"merge takes two beliefs or more, each once; found {', '.join(refs) or 'none'}")
    trees = {id: family_tree(archive, id) for id in ids}
    for ref, id in zip(refs, ids, strict=True):
        _check_grew(ref, id, trees, root, base)
    _check_counted_once(dict(zip(refs, ids, strict=True)), trees, root, base)
    aliases = archive.state().aliases
    whole = {at for tree in trees.values() for at in tree}
    if into == HEAD and aliases[HEAD] not in whole:
        raise StoreError("head has learned what these beliefs have not: merge it too, or name another alias (--into)")
    parent = archive.belief(root)
    beliefs, dropped = [archive.belief(id) for id in ids], 0
    if drop_negative:
        pairs = [set_back(belief, parent) for belief in beliefs]
        beliefs, dropped = [belief for belief, _ in pairs], sum(count for _, count in pairs)
    try:
        belief = product(network, [*((belief, 1.0) for belief in beliefs), (parent, 1.0 - len(ids))])
    except BeliefError as error:
        cure = (
            "" if drop_negative else ". Where a belief came out less sure than the base, --drop-negative sets it back"
        )
        raise BeliefError(f"{error}{cure}") from error
    encoding = _common_encoding(refs, [trees[id][id]["encoding"] for id in ids])
    about = {"kind": "merge", "parent": root, "parents": ids, "encoding": encoding, "set_back": dropped}
    moves = {CANDIDATE, into}
    return _acknowledge(archive, belief, about, "merge", dict.fromkeys(moves), aliases)


def forget(archive: Archive, network: nn.Module, part: str) -> Entry:
    """Head without what one part added when it was learned: head x before / after.

    That is exact where the beliefs are the true posteriors and the parts are independent given the weights; else it is
    approximate, for later parts were learned from where this one had led.
    """
    drafts.refuse_unfinished(archive)
    aliases = archive.state().aliases
    head = aliases[HEAD]
    tree = family_tree(archive, head)
    place = place_of(counted_parts(tree, head), part)
    if place not in tree:
        raise StoreError(
            f"part {part} was absorbed together with others, and what it added is not kept apart: go back to before "
            "them (rollback) and absorb the others again"
        )
    before = tree[place]["parent"]
    try:
        powers = {head: 1.0, before: 1.0, place: -1.0} if head != place else {before: 1.0}
        belief = product(network, [(archive.belief(id), power) for id, power in powers.items()])
    except BeliefError as error:
        cure = "Go back to before it (rollback) and absorb the later parts again"
        raise BeliefError(f"part {part} cannot be divided out: {error}. {cure}") from error
    forgotten = {"part": part, "absorbed_in": place, "approximate": True}
    about = {"kind": "forget", "parent": head, "parents": [head], "encoding": tree[head]["encoding"]}
    return _acknowledge(
        archive, belief, {**about, "forgotten": forgotten}, "forget", {CANDIDATE: None, HEAD: None}, aliases
    )


def _acknowledge(
    archive: Archive,
    belief: Belief,
    about: Mapping[str, Any],
    event: str,
    moves: Mapping[str, None],
    aliases: Mapping[str, str],
) -> Entry:
    recipe = Recipe.from_json(archive.recipe)
    manifest: dict[str, Any] = {
        **described(recipe),
        **about,
        "part": None,
        "configuration": plain_settings(recipe.settings_with({})),
        "metrics": {"before": None, "after": None},
    }
    id = archive.put(belief, manifest, model_card(manifest))
    expect = {name: aliases.get(name) for name in moves if name != CANDIDATE}
    told = {"part": about["forgotten"]["part"]} if event == "forget" else {"from": about["parents"]}
    return archive.append(event, belief=id, moves=dict.fromkeys(moves, id), expect=expect, about=told)


def _check_grew(ref: str, id: str, trees: Mapping[str, Tree], root: str, base: str) -> None:
    tree = trees[id]
    if root not in tree or id == root:
        common = [at for at in next(iter(trees.values())) if all(at in other for other in trees.values())]
        shared = f"; the last that all of them grew from is {common[-1][:12]}" if common else ""
        raise StoreError(f"{ref} did not grow from {base} ({root[:12]}){shared}: give the right one with --base")
    before, after = counted_parts(tree, root), counted_parts(tree, id)
    if lost := [record["id"] for place, record in before.items() if place not in after]:
        raise StoreError(f"{ref} forgot part {lost[0]}, which {base} knows: merge first, and forget it then")
    if after.keys() == before.keys():
        raise StoreError(f"{ref} has learned no part since {base}: there is nothing to merge of it")


def _check_counted_once(refs: Mapping[str, str], trees: Mapping[str, Tree], root: str, base: str) -> None:
    """Refuse beliefs that share evidence beyond the base: it would count twice."""
    owners: dict[str, str] = {}
    for ref, id in refs.items():
        known = counted_parts(trees[id], root)
        own = {place: record for place, record in counted_parts(trees[id], id).items() if place not in known}
        for place, record in own.items():
            for key in {place, str(record["fingerprint"])}:
                if owners.get(key, ref) != ref:
                    raise StoreError(
                        f"part {record['id']} is in both {owners[key]} and {ref}, and would count twice: merge beliefs "
                        f"that learned different parts since {base}"
                    )
                owners[key] = ref


def _common_encoding(refs: Sequence[str], encodings: Sequence[Any]) -> Any:
    for ref, encoding in zip(refs, encodings, strict=True):
        if encoding != encodings[0]:
            raise StoreError(
                f"{refs[0]} and {ref} normalised their data differently, as their first parts did: let them grow from "
                "a belief that knows the normalisation (init --like DATA, or one part absorbed before they part)"
            )
    return encodings[0]
