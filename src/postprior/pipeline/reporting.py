"""All that the report of a store shows, gathered from its archive and, where there is some, from held-out data."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from postprior.data.encoding import Encoding
from postprior.learning.combine import divergence_by_layer, weights_per_layer
from postprior.networks.belief import Belief
from postprior.pipeline.absorbing import HELDOUT_SAMPLES, Tools
from postprior.pipeline.chronicle import chronicle, named
from postprior.pipeline.incoming import Overlap, encoding_for, raw_data
from postprior.pipeline.lineage import Manifest, counted_parts, family_tree
from postprior.pipeline.questioning import question
from postprior.pipeline.surprise import THRESHOLD
from postprior.pipeline.together import EVENT as TOGETHER
from postprior.serving.report import HeldOut, Layer, Learned, Report, check_place, write
from postprior.store.journal import Entry


def write_report(
    tools: Tools,
    path: str | os.PathLike[str],
    data: Any = None,
    at: str = "head",
    num_samples: int = HELDOUT_SAMPLES,
) -> Path:
    """Gather and write the page; nothing is read before it is known that the file can be put there."""
    check_place(path)
    return write(gather(tools, data, at, num_samples), path)


def gather(tools: Tools, data: Any = None, at: str = "head", num_samples: int = HELDOUT_SAMPLES) -> Report:
    """The store seen from the belief ``at``; ``data`` with targets, which were not learned, tell how it does now.

    ``num_samples`` weight samples are behind every prediction about ``data``.
    """
    archive = tools.archive
    id = archive.resolve(at)
    # Read once, before anything else: a report is of one moment, whatever is appended meanwhile.
    entries = archive.entries()
    tree = family_tree(archive, id)
    manifests = dict(tree)
    for entry in entries:
        for named_id in (entry.belief, *entry.aliases.values()):
            if named_id is not None and named_id not in manifests:
                manifests[named_id] = archive.manifest(named_id)
    belief = archive.belief(id)
    parts = _met(entries, manifests, tree, counted_parts(tree, id))
    held_out = None if data is None else _held_out(tools, id, belief, data, num_samples)
    layers, layers_about = _layers(tools, tree, id, belief)
    return Report(
        title=archive.address.rstrip("/").rpartition("/")[2] or archive.address,
        as_of=entries[-1].time,
        belief=id,
        marks=tuple(name for name, target in entries[-1].aliases.items() if target == id),
        facts=_facts(tools, belief, tree[id], held_out),
        parts=parts,
        threshold=THRESHOLD,
        layers=layers,
        layers_about=layers_about,
        events=chronicle(entries, manifests),
        held_out=held_out,
    )


def _met(
    entries: list[Entry], manifests: Mapping[str, Manifest], tree: Mapping[str, Manifest], counted: Mapping[str, Any]
) -> list[Learned]:
    """The parts that the belief and its ancestors met, in the order of the journal; the tree alone orders no branches.

    Among them are those that a gate stopped. What another branch learned, or was rolled back, is not.
    """
    absorbed = {entry.belief: entry for entry in entries if entry.event in ("absorb", TOGETHER)}
    parts: list[Learned] = []
    for id, entry in absorbed.items():
        assert id is not None
        manifest = manifests[id]
        stopped = id not in tree and manifest["parent"] in tree and not entry.about.get("passed", True)
        if id in tree or stopped:
            records = manifest["parts"] if entry.event == TOGETHER else [manifest["part"]]
            forgotten = id in tree and entry.event != TOGETHER and id not in counted
            parts.append(
                Learned(
                    name=", ".join(record["id"] for record in records),
                    num_examples=sum(record["num_examples"] for record in records),
                    before=manifest["metrics"]["before"] or {},
                    after=manifest["metrics"]["after"] or {},
                    surprise={each["measure"]: each["score"] for each in manifest.get("surprises") or ()},
                    kl=(manifest.get("update") or {}).get("kl"),
                    remarks=_remarks(manifest, stopped=stopped, forgotten=forgotten),
                    stopped=stopped,
                )
            )
    return parts


def _remarks(manifest: Manifest, *, stopped: bool, forgotten: bool) -> tuple[str, ...]:
    remarks = [Overlap(**each).sentence for each in manifest.get("overlaps") or ()]
    if manifest.get("forced"):
        remarks.append("absorbed before, and allowed to count again")
    if manifest.get("gate") and not manifest["gate"]["passed"]:
        remarks.append("stopped by its gate" if stopped else "its gate failed, and it was built upon all the same")
    if forgotten:
        remarks.append("divided out again since")
    return tuple(remarks)


def _layers(tools: Tools, tree: Mapping[str, Manifest], id: str, belief: Belief) -> tuple[list[Layer], str]:
    parent = tree[id]["parent"]
    if parent is None:
        return [], "The first belief has none before it."
    sizes = weights_per_layer(belief)
    nats = divergence_by_layer(belief, tools.archive.belief(parent))
    if not nats:
        return [], "Every weight is known by a single value, and from one value to another there is no divergence."
    return [Layer(name, value, sizes[name]) for name, value in nats.items()], named(parent, tree)


def _held_out(tools: Tools, id: str, belief: Belief, data: Any, num_samples: int) -> HeldOut:
    recipe, archive = tools.recipe, tools.archive
    raw = raw_data(data, recipe, labelled=True)
    encoding: Encoding = encoding_for(raw, recipe, archive.manifest(id)["encoding"])
    return question(
        tools.network,
        belief.to(next(tools.network.parameters()).device),
        raw,
        encoding.part(raw),
        recipe.make_likelihood(),
        classes=encoding.classes,
        num_samples=num_samples,
        seed=recipe.seed,
    )


def _facts(tools: Tools, belief: Belief, manifest: Manifest, held_out: HeldOut | None) -> list[tuple[str, str]]:
    recipe = tools.recipe
    facts = [
        ("Parts", f"{belief.num_parts:,}"),
        ("Examples", f"{belief.num_examples:,}"),
        ("Weights", f"{sum(family.mean().numel() for family in belief.weights.values()):,}"),
        ("Family", recipe.family),
        ("Network", recipe.network.rpartition(":")[2]),
        ("Likelihood", str(recipe.likelihood.get("name", "of its own"))),
    ]
    known = held_out.measures if held_out else manifest["metrics"]["after"] or {}
    titles = {"accuracy": "Accuracy", "rmse": "RMSE", "nll": "NLL, nats", "ece": "ECE"}
    return [*facts, *((f"{title}, held out", f"{known[name]:.4g}") for name, title in titles.items() if name in known)]
